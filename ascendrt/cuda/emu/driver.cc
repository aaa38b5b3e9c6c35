// A libcuda.so.1 of ours: see README.md.
#include "../abi.h"
#include "run.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

enum {
	INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700, NOT_PERMITTED = 800, INVALID_HANDLE = 400,
	NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905, CAPTURE_WRONG_THREAD = 908,
};

struct CUctx_st { int device; };
struct node_body { // what a node does; kernels can be changed
	std::function<bool()> run; // false: a fault
	std::function<std::function<void()>()> at_launch; // external events: what run does is settled when the graph is launched
	emu_kernel kernel = nullptr;
	std::vector<uint64_t> args;
	unsigned grid[3], block[3];
};
struct CUgraphNode_st { int index; };
struct CUgraph_st { std::vector<node_body> bodies; std::vector<std::unique_ptr<CUgraphNode_st>> nodes; };
struct CUgraphExec_st { std::mutex running; std::mutex mu; std::shared_ptr<std::vector<node_body>> bodies; };
struct capture {
	CUgraph_st *graph;
	CUstream_st *origin;
	std::thread::id thread;
	bool bad = false;
	std::map<CUstream_st *, CUgraphNode_st *> last; // streams in the capture
	std::map<CUstream_st *, bool> joined;
};
struct CUevent_st {
	bool timing = false;
	std::mutex mu;
	uint64_t recorded = 0;
	std::atomic<uint64_t> reached{ 0 };
	std::chrono::steady_clock::time_point at;
	capture *cap = nullptr; // recorded in it
	CUstream_st *from = nullptr;
};
struct CUmod_st { std::string image; };
struct CUfunc_st { emu_kernel body; };

static std::atomic<unsigned> sticky{ 0 };
static const int most_devices = 8;
static CUctx_st contexts[most_devices];
static thread_local CUctx_st *current_context;

struct CUstream_st {
	std::mutex mu;
	std::condition_variable wake, idle;
	std::deque<std::function<void()>> queue;
	bool busy = false, stop = false;
	capture *cap = nullptr;
	std::thread worker{ [this] { loop(); } };
	void loop() {
		std::unique_lock<std::mutex> l(mu);
		for (;;) {
			wake.wait(l, [this] { return stop || !queue.empty(); });
			if (queue.empty()) return;
			auto f = std::move(queue.front());
			queue.pop_front();
			busy = true;
			l.unlock();
			if (!sticky) f();
			l.lock();
			busy = false;
			if (queue.empty()) idle.notify_all();
		}
	}
	void push(std::function<void()> f) {
		std::lock_guard<std::mutex> l(mu);
		queue.push_back(std::move(f));
		wake.notify_one();
	}
	void drain() {
		std::unique_lock<std::mutex> l(mu);
		idle.wait(l, [this] { return queue.empty() && !busy; });
	}
	~CUstream_st() {
		{ std::lock_guard<std::mutex> l(mu); stop = true; wake.notify_one(); }
		worker.join();
	}
};

struct region {
	size_t n;
	int fd = -1;           // of device memory: another process may map it
	bool exported = false; // a handle of it was made
	bool foreign = false;  // of another process
};
static std::mutex heap_mu;
static std::map<uint64_t, region> heap; // live device and pinned memory
static size_t heap_used;
static const size_t heap_total = size_t(4) << 30;

static bool inside(uint64_t p, size_t n) {
	std::lock_guard<std::mutex> l(heap_mu);
	auto it = heap.upper_bound(p);
	if (it == heap.begin()) return false;
	--it;
	return p + n <= it->first + it->second.n;
}

static std::mutex capture_mu;
static std::set<capture *> captures;

// A call that a capture of this thread forbids invalidates the capture.
static bool forbidden() {
	std::lock_guard<std::mutex> l(capture_mu);
	for (auto *c : captures)
		if (c->thread == std::this_thread::get_id()) { c->bad = true; return true; }
	return false;
}

#define CHECK do { if (sticky) return sticky; if (!current_context) return INVALID_CONTEXT; } while (0)
#define LAX do { if (sticky) return sticky; } while (0)
#define UNSAFE do { CHECK; if (forbidden()) return CAPTURE_UNSUPPORTED; } while (0)

static void fault(unsigned code) { unsigned none = 0; sticky.compare_exchange_strong(none, code); }

// enqueue runs a body on the stream, or records it in the stream's capture.
static sl_result enqueue(CUstream_st *s, node_body b) {
	if (capture *c = s->cap) {
		std::lock_guard<std::mutex> l(capture_mu);
		if (c->bad) return CAPTURE_INVALIDATED;
		c->graph->nodes.emplace_back(new CUgraphNode_st{ int(c->graph->bodies.size()) });
		c->graph->bodies.push_back(std::move(b));
		c->last[s] = c->graph->nodes.back().get();
		c->joined[s] = s == c->origin;
		return 0;
	}
	s->push([b = std::move(b)] {
		bool ok = b.kernel ? emu_run(b.kernel, b.args.data(), b.grid, b.block) : b.run();
		if (!ok) fault(LAUNCH_FAILED);
	});
	return 0;
}
static node_body plain(std::function<void()> f) {
	node_body b;
	b.run = [f = std::move(f)] { f(); return true; };
	return b;
}

#define API static sl_result
API init(unsigned) { return 0; }
API driver_version(int *v) { *v = 13000; return 0; }
API error_name(unsigned rc, const char **out) { *out = rc == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : rc == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED"; return 0; }
API error_string(unsigned, const char **out) { *out = "emulated error"; return 0; }
static int devices() {
	const char *v = getenv("SLUICE_CUDA_EMU_DEVICES");
	int n = v ? atoi(v) : 1;
	return n < 1 ? 1 : n > most_devices ? most_devices : n;
}
API device_count(int *n) { *n = devices(); return 0; }
API device_get(int *d, int i) { if (i < 0 || i >= devices()) return INVALID_DEVICE; *d = i; return 0; }
API device_name(char *p, int n, int) { strncpy(p, "emulated GPU", n); return 0; }
API device_uuid(CUuuid_st *u, int d) { memset(u, 7 + d, sizeof *u); return 0; }
API device_total(size_t *n, int) { *n = heap_total; return 0; }
API device_attribute(int *v, unsigned a, int) {
	switch (a) {
	case SL_ATTR_SM_COUNT: *v = 1; break;
	case SL_ATTR_CC_MAJOR: *v = 9; break;
	case SL_ATTR_SHARED_OPTIN: *v = 64 << 10; break;
	case SL_ATTR_POOLS: *v = 1; break;
	default: *v = 0;
	}
	return 0;
}
API context_retain(sl_ctx *c, int d) { LAX; if (d < 0 || d >= devices()) return INVALID_DEVICE; contexts[d].device = d; *c = &contexts[d]; return 0; }
API context_release(int) { LAX; return 0; }
API context_set(sl_ctx c) { current_context = c; return 0; }
API can_peer(int *can, int a, int b) { *can = a != b; return 0; }
API enable_peer(sl_ctx peer, unsigned flags) {
	CHECK;
	static std::mutex mu;
	static std::set<std::pair<sl_ctx, sl_ctx>> enabled;
	if (flags || !peer || peer == current_context) return INVALID_VALUE;
	std::lock_guard<std::mutex> l(mu);
	return enabled.insert({ current_context, peer }).second ? 0 : SL_PEER_ALREADY;
}
API priorities(int *low, int *high) { CHECK; *low = 0, *high = -5; return 0; }
API mem_info(size_t *avail, size_t *total) {
	CHECK;
	std::lock_guard<std::mutex> l(heap_mu);
	*avail = heap_total - heap_used, *total = heap_total;
	return 0;
}
static sl_result take(uint64_t *p, size_t n) {
	std::lock_guard<std::mutex> l(heap_mu);
	if (n > heap_total - heap_used) return OUT_OF_MEMORY;
	void *m = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
	if (!m) return OUT_OF_MEMORY;
	memset(m, 0xff, n < (4 << 20) ? n : 4 << 20); // what was never written is NaN, near the start
	*p = uint64_t(m);
	heap[*p] = region{ n };
	heap_used += n;
	return 0;
}
// take_device takes memory that another process may map.
static sl_result take_device(uint64_t *p, size_t n) {
	std::lock_guard<std::mutex> l(heap_mu);
	if (n > heap_total - heap_used) return OUT_OF_MEMORY;
	int fd = memfd_create("emulated-cuda", MFD_CLOEXEC);
	if (fd < 0) return OUT_OF_MEMORY;
	void *m = ftruncate(fd, n) ? MAP_FAILED : mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) { close(fd); return OUT_OF_MEMORY; }
	memset(m, 0xff, n < (4 << 20) ? n : 4 << 20);
	*p = uint64_t(m);
	heap[*p] = region{ n, fd };
	heap_used += n;
	return 0;
}
static sl_result give(uint64_t p) {
	std::lock_guard<std::mutex> l(heap_mu);
	auto it = heap.find(p);
	if (it == heap.end() || it->second.foreign) return INVALID_VALUE;
	region r = it->second;
	heap_used -= r.n;
	heap.erase(it);
	void *m = reinterpret_cast<void *>(p);
	if (r.fd < 0) { free(m); return 0; }
	if (r.exported) memset(m, 0xff, r.n); // whoever still reads it sees NaN
	munmap(m, r.n);
	close(r.fd);
	return 0;
}
API mem_alloc(sl_ptr *p, size_t n) { UNSAFE; uint64_t a; sl_result rc = n ? take_device(&a, n) : INVALID_VALUE; if (!rc) *p = a; return rc; }

// A handle: what another process needs to find the memory, and to be sure of it.
struct handle { char magic[8]; int64_t pid; int32_t fd, device; uint64_t size, inode; };
static const char handle_magic[8] = { 'e', 'm', 'u', ' ', 'i', 'p', 'c', 0 };
static_assert(sizeof(handle) <= sizeof(CUipcMemHandle_st), "a handle fits");
struct opened { uint64_t p; int users; };
static std::map<std::string, opened> imports;

API ipc_export(CUipcMemHandle_st *out, sl_ptr p) {
	CHECK;
	std::lock_guard<std::mutex> l(heap_mu);
	auto it = heap.find(p); // stricter: only the start of an allocation
	struct stat st;
	if (it == heap.end() || it->second.fd < 0 || it->second.foreign || fstat(it->second.fd, &st)) return INVALID_VALUE;
	it->second.exported = true;
	handle h = { {}, getpid(), it->second.fd, current_context->device, it->second.n, st.st_ino };
	memcpy(h.magic, handle_magic, sizeof h.magic);
	memset(out, 0, sizeof *out);
	memcpy(out, &h, sizeof h);
	return 0;
}
API ipc_import(sl_ptr *p, CUipcMemHandle_st in, unsigned flags) {
	CHECK;
	handle h;
	memcpy(&h, &in, sizeof h);
	if (flags != SL_IPC_LAZY_PEER || memcmp(h.magic, handle_magic, sizeof h.magic)) return INVALID_VALUE;
	if (getenv("SLUICE_CUDA_EMU_NO_IPC")) return NOT_PERMITTED; // as in another container
	if (h.pid == getpid()) return INVALID_CONTEXT;
	if (h.device >= devices()) return INVALID_DEVICE;
	std::lock_guard<std::mutex> l(heap_mu);
	std::string key(in.reserved, sizeof in.reserved);
	auto known = imports.find(key);
	if (known != imports.end()) { known->second.users++; *p = known->second.p; return 0; }
	int fd = open(("/proc/" + std::to_string(h.pid) + "/fd/" + std::to_string(h.fd)).c_str(), O_RDWR | O_CLOEXEC);
	if (fd < 0) return INVALID_HANDLE; // the exporter is gone
	struct stat st;
	void *m = MAP_FAILED;
	if (!fstat(fd, &st) && st.st_ino == h.inode && uint64_t(st.st_size) == h.size) m = mmap(nullptr, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (m == MAP_FAILED) return INVALID_HANDLE; // freed
	*p = uint64_t(m);
	region r = { h.size };
	r.foreign = true;
	heap[*p] = r;
	imports[key] = opened{ *p, 1 };
	return 0;
}
API ipc_close(sl_ptr p) {
	CHECK;
	std::lock_guard<std::mutex> l(heap_mu);
	for (auto it = imports.begin(); it != imports.end(); ++it) {
		if (it->second.p != p) continue;
		if (--it->second.users) return 0;
		munmap(reinterpret_cast<void *>(p), heap[p].n);
		heap.erase(p);
		imports.erase(it);
		return 0;
	}
	return INVALID_VALUE;
}
API mem_free(sl_ptr p) { UNSAFE; return p ? give(p) : 0; }
API host_alloc(void **p, size_t n, unsigned) { UNSAFE; uint64_t a; sl_result rc = take(&a, n); if (!rc) *p = reinterpret_cast<void *>(a); return rc; }
API host_free(void *p) { UNSAFE; return give(uint64_t(p)); }
API host_register(void *p, size_t n, unsigned) { UNSAFE; std::lock_guard<std::mutex> l(heap_mu); heap[uint64_t(p)] = region{ n }; return 0; }
API host_unregister(void *p) { UNSAFE; std::lock_guard<std::mutex> l(heap_mu); return heap.erase(uint64_t(p)) ? 0 : INVALID_VALUE; }
API host_pointer(sl_ptr *d, void *p, unsigned) { CHECK; *d = uint64_t(p); return 0; }
API copy(sl_ptr dst, sl_ptr src, size_t n, sl_stream s) {
	LAX;
	if (!inside(dst, n) || !inside(src, n)) return INVALID_VALUE;
	return enqueue(s, plain([=] {
		if (!inside(dst, n) || !inside(src, n)) { fault(ILLEGAL_ADDRESS); return; } // freed, or closed, before the copy ran
		memmove(reinterpret_cast<void *>(dst), reinterpret_cast<void *>(src), n);
	}));
}
API copy_to_device(sl_ptr dst, const void *src, size_t n, sl_stream s) { return copy(dst, uint64_t(src), n, s); }
API copy_to_host(void *dst, sl_ptr src, size_t n, sl_stream s) { return copy(uint64_t(dst), src, n, s); }
API copy_batch(sl_ptr *dst, sl_ptr *src, size_t *size, size_t n, CUmemcpyAttributes_st *, size_t *, size_t, size_t *, sl_stream s) {
	LAX;
	if (s->cap) return CAPTURE_UNSUPPORTED;
	for (size_t i = 0; i < n; i++) if (sl_result rc = copy(dst[i], src[i], size[i], s)) return rc;
	return 0;
}
// The rows lie in one allocation on either side, as far apart as the driver allows.
API copy_rows(const CUDA_MEMCPY2D_st *c, sl_stream s) {
	LAX;
	const size_t most = (size_t(1) << 31) - 1;
	if (c->srcMemoryType != SL_MEMORY_UNIFIED || c->dstMemoryType != SL_MEMORY_UNIFIED || c->srcXInBytes || c->srcY || c->dstXInBytes || c->dstY) return INVALID_VALUE;
	if (c->srcPitch > most || c->dstPitch > most || c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes || !c->Height) return INVALID_VALUE;
	if (!inside(c->dstDevice, c->dstPitch * (c->Height - 1) + c->WidthInBytes) || !inside(c->srcDevice, c->srcPitch * (c->Height - 1) + c->WidthInBytes)) return INVALID_VALUE;
	for (size_t i = 0; i < c->Height; i++) {
		if (sl_result rc = copy(c->dstDevice + i * c->dstPitch, c->srcDevice + i * c->srcPitch, c->WidthInBytes, s)) return rc;
	}
	return 0;
}
API fill(sl_ptr p, unsigned char v, size_t n, sl_stream s) {
	LAX;
	if (!inside(p, n)) return INVALID_VALUE;
	return enqueue(s, plain([=] { memset(reinterpret_cast<void *>(p), v, n); }));
}
API pool_get(sl_pool *p, int) { CHECK; *p = nullptr; return 0; }
API pool_set(sl_pool, unsigned, void *) { CHECK; return 0; }
API pool_alloc(sl_ptr *p, size_t n, sl_stream) { UNSAFE; uint64_t a; sl_result rc = n ? take(&a, n) : INVALID_VALUE; if (!rc) *p = a; return rc; }
API pool_free(sl_ptr p, sl_stream s) { LAX; s->push([=] { give(p); }); return 0; }

API stream_new(sl_stream *s, unsigned, int) { UNSAFE; *s = new CUstream_st; return 0; }
API stream_free(sl_stream s) { CHECK; delete s; return 0; }
API stream_sync(sl_stream s) { LAX; if (s->cap || forbidden()) { if (s->cap) s->cap->bad = true; return CAPTURE_UNSUPPORTED; } s->drain(); return sticky; }
API stream_query(sl_stream s) {
	LAX;
	if (s->cap || forbidden()) return CAPTURE_UNSUPPORTED;
	std::lock_guard<std::mutex> l(s->mu);
	return s->queue.empty() && !s->busy ? 0 : NOT_READY;
}
API write_word(sl_stream s, sl_ptr p, uint64_t v, unsigned) {
	LAX;
	if (!inside(p, 8)) return INVALID_VALUE;
	return enqueue(s, plain([=] { __atomic_store_n(reinterpret_cast<uint64_t *>(p), v, __ATOMIC_RELEASE); }));
}
API wait_word(sl_stream s, sl_ptr p, uint64_t v, unsigned) {
	LAX;
	if (!inside(p, 8)) return INVALID_VALUE;
	return enqueue(s, plain([=] {
		while (__atomic_load_n(reinterpret_cast<uint64_t *>(p), __ATOMIC_ACQUIRE) < v && !sticky) std::this_thread::sleep_for(std::chrono::microseconds(20));
	}));
}
API event_new(sl_event *e, unsigned flags) { UNSAFE; *e = new CUevent_st; (*e)->timing = !(flags & SL_EVENT_DISABLE_TIMING); return 0; }
// The memory of events stays: a queue may still name one.
API event_free(sl_event) { CHECK; return 0; }
static std::function<void()> reach(CUevent_st *e) {
	std::lock_guard<std::mutex> l(e->mu);
	uint64_t n = ++e->recorded;
	return [=] {
		std::lock_guard<std::mutex> l(e->mu);
		e->at = std::chrono::steady_clock::now();
		if (e->reached < n) e->reached = n;
	};
}
static std::function<void()> await(CUevent_st *e) {
	std::lock_guard<std::mutex> l(e->mu);
	uint64_t n = e->recorded;
	return [=] { while (e->reached < n && !sticky) std::this_thread::sleep_for(std::chrono::microseconds(20)); };
}
static node_body external(std::function<std::function<void()>()> f) {
	node_body b;
	b.at_launch = std::move(f);
	return b;
}
API event_record_flags(sl_event e, sl_stream s, unsigned flags) {
	LAX;
	if (s->cap && flags & SL_EVENT_EXTERNAL) return enqueue(s, external([=] { return reach(e); }));
	if (s->cap) {
		std::lock_guard<std::mutex> l(capture_mu);
		e->cap = s->cap, e->from = s;
		return s->cap->bad ? unsigned(CAPTURE_INVALIDATED) : 0;
	}
	e->cap = nullptr;
	return enqueue(s, plain(reach(e)));
}
API event_record(sl_event e, sl_stream s) { return event_record_flags(e, s, 0); }
API event_query(sl_event e) { LAX; if (forbidden()) return CAPTURE_UNSUPPORTED; std::lock_guard<std::mutex> l(e->mu); return e->reached >= e->recorded ? 0 : NOT_READY; }
API wait_event(sl_stream s, sl_event e, unsigned flags) {
	LAX;
	if (s->cap && flags & SL_EVENT_EXTERNAL) return enqueue(s, external([=] { return await(e); }));
	{
		std::lock_guard<std::mutex> l(capture_mu);
		if (e->cap && captures.count(e->cap)) {
			capture *c = e->cap;
			if (s->cap && s->cap != c) return CAPTURE_ISOLATION;
			s->cap = c; // the stream forks, or joins
			c->last.emplace(s, nullptr);
			c->joined[s] = s == c->origin;
			if (e->from != s) c->joined[e->from] = true;
			return 0;
		}
		if (s->cap) { s->cap->bad = true; return CAPTURE_ISOLATION; }
	}
	return enqueue(s, plain(await(e)));
}
API event_elapsed(float *ms, sl_event a, sl_event b) {
	LAX;
	if (!a->timing || !b->timing || !a->recorded || !b->recorded) return INVALID_HANDLE;
	if (a->reached < a->recorded || b->reached < b->recorded) return NOT_READY;
	*ms = std::chrono::duration<float, std::milli>(b->at - a->at).count();
	return 0;
}
API module_load(sl_module *m, const void *image, unsigned, unsigned *, void **) {
	CHECK;
	if (memcmp(image, "\x7f" "ELF emulated", 13)) return INVALID_IMAGE;
	*m = new CUmod_st{ "" };
	return 0;
}
API module_free(sl_module m) { CHECK; delete m; return 0; }
API module_function(sl_func *f, sl_module, const char *name) {
	CHECK;
	void *p = dlsym(RTLD_DEFAULT, (std::string("emu_kernel_") + name).c_str());
	if (!p) p = dlsym(RTLD_DEFAULT, name);
	if (!p) return NOT_FOUND;
	*f = new CUfunc_st{ reinterpret_cast<emu_kernel>(p) };
	return 0;
}
API function_set(sl_func, unsigned, int n) { CHECK; return n > (64 << 10) ? INVALID_VALUE : 0; }
static bool kernel_body(node_body &b, sl_func f, const unsigned grid[3], const unsigned block[3], void **extra) {
	if (!f) return false;
	for (int i = 0; i < 3; i++) if (!grid[i] || !block[i]) return false;
	b.kernel = f->body;
	b.args.assign(24, 0);
	if (extra) memcpy(b.args.data(), extra[1], *static_cast<size_t *>(extra[3]));
	memcpy(b.grid, grid, sizeof b.grid);
	memcpy(b.block, block, sizeof b.block);
	return true;
}
API launch(sl_func f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, sl_stream s, void **, void **extra) {
	LAX;
	node_body b;
	const unsigned g[] = { gx, gy, gz }, k[] = { bx, by, bz };
	if (!kernel_body(b, f, g, k, extra)) return INVALID_VALUE;
	return enqueue(s, std::move(b));
}
API begin_capture(sl_stream s, unsigned mode) {
	CHECK;
	if (mode != SL_CAPTURE_THREAD_LOCAL || s->cap) return INVALID_VALUE;
	std::lock_guard<std::mutex> l(capture_mu);
	s->cap = new capture{ new CUgraph_st, s, std::this_thread::get_id() };
	s->cap->last[s] = nullptr;
	s->cap->joined[s] = true;
	captures.insert(s->cap);
	return 0;
}
API end_capture(sl_stream s, sl_graph *g) {
	LAX;
	capture *c = s->cap;
	*g = nullptr;
	if (!c || c->origin != s) return INVALID_VALUE;
	std::lock_guard<std::mutex> l(capture_mu);
	sl_result rc = c->thread != std::this_thread::get_id() ? CAPTURE_WRONG_THREAD : c->bad ? CAPTURE_INVALIDATED : 0;
	for (auto &j : c->joined) if (!rc && !j.second) rc = CAPTURE_UNJOINED;
	for (auto &x : c->last) x.first->cap = nullptr;
	captures.erase(c);
	if (rc) delete c->graph; else *g = c->graph;
	return rc; // the capture itself stays: events may name it
}
API capture_info(sl_stream s, unsigned *status, uint64_t *id, sl_graph *g, const sl_node **deps, size_t *n) {
	LAX;
	*status = s->cap ? 1 : 0, *id = 1, *n = 0;
	if (!s->cap) return 0;
	std::lock_guard<std::mutex> l(capture_mu);
	*g = s->cap->graph;
	*deps = &s->cap->last[s];
	*n = **deps ? 1 : 0;
	return 0;
}
API graph_free(sl_graph g) { LAX; delete g; return 0; }
API graph_nodes(sl_graph g, sl_node *, size_t *n) { LAX; *n = g->bodies.size(); return 0; }
API instantiate(sl_exec *x, sl_graph g, unsigned long long) {
	UNSAFE;
	*x = new CUgraphExec_st;
	(*x)->bodies = std::make_shared<std::vector<node_body>>(g->bodies);
	return 0;
}
API upload(sl_exec, sl_stream) { LAX; return 0; }
API graph_launch(sl_exec x, sl_stream s) {
	LAX;
	if (s->cap) return CAPTURE_UNSUPPORTED;
	std::shared_ptr<std::vector<node_body>> bodies;
	{ std::lock_guard<std::mutex> l(x->mu); bodies = x->bodies; }
	std::map<const node_body *, std::function<void()>> settled;
	for (auto &b : *bodies) if (b.at_launch) settled[&b] = b.at_launch();
	s->push([=] {
		std::lock_guard<std::mutex> l(x->running);
		for (auto &b : *bodies) {
			bool ok = true;
			if (b.at_launch) settled.at(&b)();
			else ok = b.kernel ? emu_run(b.kernel, b.args.data(), b.grid, b.block) : b.run();
			if (!ok) { fault(LAUNCH_FAILED); return; }
		}
	});
	return 0;
}
API exec_free(sl_exec) { LAX; return 0; } // a queue may still name it
API set_params(sl_exec x, sl_node n, const CUDA_KERNEL_NODE_PARAMS_v2_st *p) {
	LAX;
	std::lock_guard<std::mutex> l(x->mu);
	auto next = std::make_shared<std::vector<node_body>>(*x->bodies);
	const unsigned g[] = { p->gridDimX, p->gridDimY, p->gridDimZ }, k[] = { p->blockDimX, p->blockDimY, p->blockDimZ };
	if (!kernel_body((*next)[n->index], p->func, g, k, p->extra)) return INVALID_VALUE;
	x->bodies = next;
	return 0;
}

struct symbol { void *p; int version; };
#define SYM(name, f) { #name, { reinterpret_cast<void *>(f), 0 } }
static std::map<std::string, symbol> symbols = {
	SYM(cuInit, init), SYM(cuDriverGetVersion, driver_version), SYM(cuGetErrorName, error_name), SYM(cuGetErrorString, error_string),
	SYM(cuDeviceGetCount, device_count), SYM(cuDeviceGet, device_get), SYM(cuDeviceGetName, device_name), SYM(cuDeviceGetUuid, device_uuid),
	SYM(cuDeviceTotalMem, device_total), SYM(cuDeviceGetAttribute, device_attribute), SYM(cuDevicePrimaryCtxRetain, context_retain),
	SYM(cuDevicePrimaryCtxRelease, context_release), SYM(cuCtxSetCurrent, context_set), SYM(cuCtxGetStreamPriorityRange, priorities),
	SYM(cuMemGetInfo, mem_info), SYM(cuMemAlloc, mem_alloc), SYM(cuMemFree, mem_free), SYM(cuMemHostAlloc, host_alloc), SYM(cuMemFreeHost, host_free),
	SYM(cuMemHostRegister, host_register), SYM(cuMemHostUnregister, host_unregister), SYM(cuMemHostGetDevicePointer, host_pointer),
	SYM(cuMemcpyAsync, copy), SYM(cuMemcpyHtoDAsync, copy_to_device), SYM(cuMemcpyDtoHAsync, copy_to_host), SYM(cuMemcpyDtoDAsync, copy),
	SYM(cuMemcpyBatchAsync, copy_batch), SYM(cuMemcpy2DAsync, copy_rows), SYM(cuMemsetD8Async, fill), SYM(cuDeviceGetDefaultMemPool, pool_get), SYM(cuMemPoolSetAttribute, pool_set),
	SYM(cuMemAllocAsync, pool_alloc), SYM(cuMemFreeAsync, pool_free), SYM(cuStreamCreateWithPriority, stream_new), SYM(cuStreamDestroy, stream_free),
	SYM(cuStreamSynchronize, stream_sync), SYM(cuStreamQuery, stream_query), SYM(cuStreamWaitEvent, wait_event), SYM(cuStreamWriteValue64, write_word),
	SYM(cuStreamWaitValue64, wait_word), SYM(cuEventCreate, event_new), SYM(cuEventDestroy, event_free), SYM(cuEventRecord, event_record),
	SYM(cuEventRecordWithFlags, event_record_flags), SYM(cuEventQuery, event_query), SYM(cuEventElapsedTime, event_elapsed),
	SYM(cuModuleLoadDataEx, module_load), SYM(cuModuleUnload, module_free), SYM(cuModuleGetFunction, module_function), SYM(cuFuncSetAttribute, function_set),
	SYM(cuLaunchKernel, launch), SYM(cuStreamBeginCapture, begin_capture), SYM(cuStreamEndCapture, end_capture), SYM(cuStreamGetCaptureInfo, capture_info),
	SYM(cuGraphDestroy, graph_free), SYM(cuGraphGetNodes, graph_nodes), SYM(cuGraphInstantiateWithFlags, instantiate), SYM(cuGraphUpload, upload),
	SYM(cuDeviceCanAccessPeer, can_peer), SYM(cuCtxEnablePeerAccess, enable_peer),
	SYM(cuIpcGetMemHandle, ipc_export), SYM(cuIpcOpenMemHandle, ipc_import), SYM(cuIpcCloseMemHandle, ipc_close),
	SYM(cuGraphLaunch, graph_launch), SYM(cuGraphExecDestroy, exec_free), SYM(cuGraphExecKernelNodeSetParams, set_params),
};

// The version that each signature of abi.h belongs to: any other would be
// another ABI.
static const std::map<std::string, int> versions = {
#define X(required, name, version, args) { #name, version },
	SL_CUDA_SYMS(X)
#undef X
};

extern "C" __attribute__((visibility("default"))) sl_result cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t, unsigned *status) {
	*p = nullptr;
	*status = 1;
	if (version > 13000) return INVALID_VALUE;
	const char *hide = getenv("SLUICE_CUDA_EMU_HIDE"); // a symbol that this driver is too old for
	auto it = symbols.find(name);
	if (it == symbols.end() || versions.at(name) != version || (hide && !strcmp(hide, name))) return 0;
	*p = it->second.p;
	*status = 0;
	return 0;
}
