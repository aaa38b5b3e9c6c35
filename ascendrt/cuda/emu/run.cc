// Runs the blocks of a kernel: one at a time, each thread a fiber. A fiber is
// made once and runs its thread of one block after the other; switches are
// _setjmp and _longjmp, which make no system call.
#include "run.h"
#include "kernel.h"
#include <csetjmp>
#include <memory>
#include <mutex>
#include <ucontext.h>
#include <vector>

thread_local emu_dim threadIdx, blockIdx, blockDim, gridDim;
float emu_shared[64 << 10];

namespace {
enum state { fresh, ready, ended };
struct fiber {
	ucontext_t context;
	jmp_buf at;
	std::unique_ptr<char[]> stack{ new char[stack_size] };
	state is = fresh;
	emu_dim index;
	enum { stack_size = 16 << 10 };
};
std::mutex one_kernel; // shared memory is static
thread_local jmp_buf scheduler;
thread_local std::vector<std::unique_ptr<fiber>> fibers;
thread_local fiber *current;
thread_local emu_kernel body;
thread_local const uint64_t *arguments;
thread_local bool trapped;

// leave goes back to the scheduler until the fiber is resumed.
void leave() {
	if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

void entry() {
	for (;;) {
		const uint64_t *a = arguments;
		body(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23]);
		current->is = ended;
		leave();
	}
}

void resume(fiber *f) {
	current = f;
	threadIdx = f->index;
	if (_setjmp(scheduler)) return;
	if (f->is != fresh) _longjmp(f->at, 1);
	f->is = ready;
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = f->stack.get();
	f->context.uc_stack.ss_size = fiber::stack_size;
	f->context.uc_link = nullptr;
	makecontext(&f->context, entry, 0);
	setcontext(&f->context);
}

void block(size_t n) {
	for (size_t i = 0; i < n; i++) if (fibers[i]->is == ended) fibers[i]->is = ready;
	for (size_t left = n; left && !trapped;) {
		for (size_t i = 0; i < n && !trapped; i++) {
			if (fibers[i]->is == ended) continue;
			resume(fibers[i].get());
			if (fibers[i]->is == ended) left--;
		}
	}
}
}

void emu_sync() { leave(); }

void emu_trap() {
	trapped = true; // no fiber is resumed any more: the device is lost
	_longjmp(scheduler, 1);
}

bool emu_run(emu_kernel k, const uint64_t *args, const unsigned grid[3], const unsigned blk[3]) {
	std::lock_guard<std::mutex> hold(one_kernel);
	body = k;
	arguments = args;
	trapped = false;
	gridDim = { grid[0], grid[1], grid[2] };
	blockDim = { blk[0], blk[1], blk[2] };
	const size_t n = size_t(blk[0]) * blk[1] * blk[2];
	while (fibers.size() < n) fibers.emplace_back(new fiber);
	for (size_t i = 0; i < n; i++) fibers[i]->index = { unsigned(i) % blk[0], unsigned(i) / blk[0] % blk[1], unsigned(i) / blk[0] / blk[1] };
	for (unsigned z = 0; z < grid[2]; z++)
		for (unsigned y = 0; y < grid[1]; y++)
			for (unsigned x = 0; x < grid[0]; x++) {
				blockIdx = { x, y, z };
				block(n);
				if (trapped) return false;
			}
	return true;
}
