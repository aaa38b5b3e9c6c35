// The emulated libhccl.so: ranks of one or several processes of this machine,
// which meet in shared memory. A collective is a task of its stream; it reduces
// in the order of ranks, in binary32 where the type is narrower.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "op.h"

// In libascendcl.so: a task that reads and writes the given ranges.
EMU_API int sluice_emu_task(const char *name, const std::function<int(std::string &)> *run, const void *const *at, const size_t *bytes, int n, aclrtStream s);

namespace {

enum { OK = 0, PARA = 1, PTR = 2, MEMORY = 3, NOT_SUPPORT = 5, TIMEOUT = 9, RUNTIME = 15 };
const size_t slotBytes = size_t(1) << 20, maxRanks = 64;

struct Shared {
	std::atomic<uint32_t> arrived, generation;
};

struct Comm {
	uint32_t rank, size;
	Shared *shared;
	size_t mapped;
	std::string name;
	char *slot(uint32_t r) const { return (char *)shared + 4096 + r * slotBytes; }
	// meet waits until all ranks have called it; false after the time.
	bool meet(int seconds) const {
		uint32_t g = shared->generation.load();
		if (shared->arrived.fetch_add(1) + 1 == size) {
			shared->arrived = 0;
			shared->generation++;
			return true;
		}
		auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
		for (int i = 0; shared->generation.load() == g; i++) {
			if (i > 200) std::this_thread::sleep_for(std::chrono::microseconds(50));
			else std::this_thread::yield();
			if (std::chrono::steady_clock::now() > end) return false;
		}
		return true;
	}
	~Comm() { munmap(shared, mapped); }
};

std::mutex &mutex() { static auto *m = new std::mutex; return *m; }
std::set<std::shared_ptr<Comm>> &comms() { static auto *s = new std::set<std::shared_ptr<Comm>>; return *s; }

std::shared_ptr<Comm> commOf(HcclComm h) {
	std::lock_guard<std::mutex> l(mutex());
	for (auto &c : comms()) if (c.get() == h) return c;
	return nullptr;
}

uint32_t fail(uint32_t code, const char *text) { return (uint32_t)sluice_emu_fail((int)code, text); }

size_t typeBytes(uint32_t type) {
	switch (type) {
	case SL_HCCL_INT8: case SL_HCCL_UINT8: return 1;
	case SL_HCCL_BFP16: return 2;
	case SL_HCCL_INT32: case SL_HCCL_FP32: return 4;
	case SL_HCCL_INT64: return 8;
	}
	return 0;
}

float wide(uint16_t h) {
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
uint16_t narrow(float f) {
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

template <class T> T combine(T a, T b, uint32_t op) {
	switch (op) {
	case SL_HCCL_PROD: return (T)(a * b);
	case SL_HCCL_MAX: return std::max(a, b);
	case SL_HCCL_MIN: return std::min(a, b);
	}
	return (T)(a + b);
}

template <class T> void reduce(const Comm &c, char *dst, size_t n, uint32_t op) {
	for (size_t i = 0; i < n; i++) {
		T v = ((const T *)c.slot(0))[i];
		for (uint32_t r = 1; r < c.size; r++) v = combine(v, ((const T *)c.slot(r))[i], op);
		((T *)dst)[i] = v;
	}
}

void reduceAny(const Comm &c, char *dst, size_t n, uint32_t type, uint32_t op) {
	switch (type) {
	case SL_HCCL_INT8: return reduce<int8_t>(c, dst, n, op);
	case SL_HCCL_UINT8: return reduce<uint8_t>(c, dst, n, op);
	case SL_HCCL_INT32: return reduce<int32_t>(c, dst, n, op);
	case SL_HCCL_INT64: return reduce<int64_t>(c, dst, n, op);
	case SL_HCCL_FP32: return reduce<float>(c, dst, n, op);
	case SL_HCCL_BFP16:
		for (size_t i = 0; i < n; i++) {
			float v = wide(((const uint16_t *)c.slot(0))[i]);
			for (uint32_t r = 1; r < c.size; r++) v = combine(v, wide(((const uint16_t *)c.slot(r))[i]), op);
			((uint16_t *)dst)[i] = narrow(v);
		}
	}
}

int late(std::string &why) {
	why = "a collective waited 30 s for the other ranks";
	return ACL_ERROR_RT_MODEL_EXECUTE;
}

uint32_t enqueue(const char *name, const void *src, size_t in, const void *dst, size_t out, std::function<int(std::string &)> run, aclrtStream s) {
	const void *at[] = { src, dst };
	size_t bytes[] = { in, out };
	return sluice_emu_task(name, &run, at, bytes, 2, s) ? RUNTIME : OK;
}

} // namespace

EMU_API uint32_t HcclGetRootInfo(HcclRootInfo *info) {
	static std::atomic<int> n{ 0 };
	if (!info) return fail(PTR, "HcclGetRootInfo: a null pointer");
	memset(info, 0, sizeof *info);
	auto now = std::chrono::steady_clock::now().time_since_epoch().count();
	snprintf(info->internal, sizeof info->internal, "/sluice-hccl-%ld-%d-%llx", (long)getpid(), n++, (unsigned long long)now);
	return OK;
}

EMU_API uint32_t HcclCommInitRootInfo(uint32_t size, const HcclRootInfo *info, uint32_t rank, HcclComm *out) {
	if (!info || !out) return fail(PTR, "HcclCommInitRootInfo: a null pointer");
	if (size == 0 || size > maxRanks || rank >= size || strncmp(info->internal, "/sluice-hccl-", 13)) return fail(PARA, "HcclCommInitRootInfo: rank, size or root info");
	auto c = std::make_shared<Comm>();
	c->rank = rank, c->size = size, c->name = info->internal, c->mapped = 4096 + size * slotBytes;
	int fd = shm_open(info->internal, O_CREAT | O_RDWR, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)c->mapped)) {
		if (fd >= 0) close(fd);
		return fail(MEMORY, "HcclCommInitRootInfo: no shared memory");
	}
	void *m = mmap(nullptr, c->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (m == MAP_FAILED) return fail(MEMORY, "HcclCommInitRootInfo: no shared memory");
	c->shared = (Shared *)m;
	bool met = c->meet(60);
	if (rank == 0) shm_unlink(info->internal);
	if (!met) return fail(TIMEOUT, "HcclCommInitRootInfo: not all ranks came within 60 s");
	*out = c.get();
	std::lock_guard<std::mutex> l(mutex());
	comms().insert(c);
	return OK;
}

EMU_API uint32_t HcclCommDestroy(HcclComm h) {
	auto c = commOf(h);
	if (!c) return fail(PARA, "HcclCommDestroy: no such communicator (destroyed before?)");
	std::lock_guard<std::mutex> l(mutex());
	comms().erase(c);
	return OK;
}

EMU_API uint32_t HcclGetCommAsyncError(HcclComm h, uint32_t *code) {
	if (!commOf(h)) return fail(PARA, "HcclGetCommAsyncError: no such communicator");
	*code = OK;
	return OK;
}

EMU_API uint32_t HcclAllReduce(void *src, void *dst, uint64_t n, uint32_t type, uint32_t op, HcclComm h, aclrtStream s) {
	auto c = commOf(h);
	size_t e = typeBytes(type);
	if (!c || op > SL_HCCL_MIN) return fail(PARA, "HcclAllReduce: communicator or reduction");
	if (!e) return fail(NOT_SUPPORT, "HcclAllReduce: the type is not emulated");
	return enqueue("HcclAllReduce", src, n * e, dst, n * e, [=](std::string &why) {
		for (size_t at = 0; at < n * e; at += slotBytes) {
			size_t k = std::min(slotBytes, n * e - at);
			memcpy(c->slot(c->rank), (char *)src + at, k);
			if (!c->meet(30)) return late(why);
			reduceAny(*c, (char *)dst + at, k / e, type, op);
			if (!c->meet(30)) return late(why);
		}
		return 0;
	}, s);
}

EMU_API uint32_t HcclAllGather(void *src, void *dst, uint64_t n, uint32_t type, HcclComm h, aclrtStream s) {
	auto c = commOf(h);
	size_t e = typeBytes(type);
	if (!c) return fail(PARA, "HcclAllGather: communicator");
	if (!e) return fail(NOT_SUPPORT, "HcclAllGather: the type is not emulated");
	return enqueue("HcclAllGather", src, n * e, dst, n * e * c->size, [=](std::string &why) {
		for (size_t at = 0; at < n * e; at += slotBytes) {
			size_t k = std::min(slotBytes, n * e - at);
			memcpy(c->slot(c->rank), (char *)src + at, k);
			if (!c->meet(30)) return late(why);
			for (uint32_t r = 0; r < c->size; r++) memcpy((char *)dst + r * n * e + at, c->slot(r), k);
			if (!c->meet(30)) return late(why);
		}
		return 0;
	}, s);
}

EMU_API uint32_t HcclAlltoAll(const void *src, uint64_t n, uint32_t type, const void *dst, uint64_t m, uint32_t to, HcclComm h, aclrtStream s) {
	auto c = commOf(h);
	size_t e = typeBytes(type);
	if (!c || n != m || type != to) return fail(PARA, "HcclAlltoAll: communicator, counts or types");
	if (!e) return fail(NOT_SUPPORT, "HcclAlltoAll: the type is not emulated");
	return enqueue("HcclAlltoAll", src, n * e * c->size, dst, n * e * c->size, [=](std::string &why) {
		size_t part = slotBytes / c->size / 8 * 8;
		for (size_t at = 0; at < n * e; at += part) {
			size_t k = std::min(part, n * e - at);
			for (uint32_t r = 0; r < c->size; r++) memcpy(c->slot(c->rank) + r * part, (const char *)src + r * n * e + at, k);
			if (!c->meet(30)) return late(why);
			for (uint32_t r = 0; r < c->size; r++) memcpy((char *)dst + r * n * e + at, c->slot(r) + c->rank * part, k);
			if (!c->meet(30)) return late(why);
		}
		return 0;
	}, s);
}
