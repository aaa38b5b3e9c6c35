// Memory, copies and fills.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "core.h"

namespace emu {

static std::mutex &heapMutex() { static auto *m = new std::mutex; return *m; }
static std::map<uintptr_t, std::shared_ptr<Block>> &heap() { static auto *h = new std::map<uintptr_t, std::shared_ptr<Block>>; return *h; }

Block::~Block() {
	if (mapped) munmap(base, mapped);
	else free(base);
	if (fd >= 0) close(fd);
}

std::shared_ptr<Block> blockOf(const void *p) {
	std::lock_guard<std::mutex> l(heapMutex());
	auto it = heap().upper_bound((uintptr_t)p);
	if (it == heap().begin()) return nullptr;
	--it;
	return (uintptr_t)p < it->first + it->second->size ? it->second : nullptr;
}

std::shared_ptr<Block> hold(const void *p, size_t n) {
	auto b = blockOf(p);
	return b && (uintptr_t)p + n <= (uintptr_t)b->base + b->size ? b : nullptr;
}

void releaseMemory(Device *d) {
	std::lock_guard<std::mutex> l(heapMutex());
	for (auto it = heap().begin(); it != heap().end();)
		if (it->second->device == d->id && !it->second->host) it = heap().erase(it);
		else ++it;
	d->used = 0;
}

static void put(std::shared_ptr<Block> b) {
	std::lock_guard<std::mutex> l(heapMutex());
	heap()[(uintptr_t)b->base] = std::move(b);
}

static size_t total() { return (size_t)setting("SLUICE_EMU_MEMORY", 8L << 30); }

} // namespace emu

using namespace emu;

EMU_API long sluice_emu_live(int kind) {
	switch (kind) {
	case 0: return (long)streams().size();
	case 1: return (long)events().size();
	case 2: return (long)graphs().size();
	case 3: {
		std::lock_guard<std::mutex> l(heapMutex());
		return (long)heap().size();
	}
	}
	return -1;
}

EMU_API aclError aclrtGetMemInfo(uint32_t attr, size_t *avail, size_t *all) {
	Device *d;
	if (int rc = enter("aclrtGetMemInfo", &d)) return rc;
	if (attr != SL_HBM_MEM) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtGetMemInfo: attribute %u: this device has HBM alone", attr);
	std::lock_guard<std::mutex> l(heapMutex());
	*all = total();
	*avail = *all - std::min(*all, d->used);
	return 0;
}

// Each block has 32 bytes more than was asked for, which operators may touch.
EMU_API aclError aclrtMalloc(void **p, size_t n, uint32_t policy) {
	Device *d;
	if (int rc = enter("aclrtMalloc", &d)) return rc;
	if (int rc = safe("aclrtMalloc")) return rc;
	if (!p || n == 0 || policy > 6) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMalloc: %zu bytes, policy %u", n, policy);
	size_t size = (n + 31) / 32 * 32 + 32;
	{
		std::lock_guard<std::mutex> l(heapMutex());
		if (d->used + size > total()) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMalloc: %zu bytes: %zu of %zu are free", n, total() - std::min(total(), d->used), total());
		d->used += size;
	}
	auto b = std::make_shared<Block>();
	b->size = size;
	b->device = d->id;
	void *m = nullptr;
	if (policy >= SL_MALLOC_HUGE_FIRST_P2P && policy <= 5) { // memory that another process may map
		b->fd = memfd_create("emulated-ascend", MFD_CLOEXEC);
		if (b->fd >= 0 && ftruncate(b->fd, (off_t)size) == 0) {
			m = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
			if (m == MAP_FAILED) m = nullptr;
			b->mapped = m ? size : 0;
		}
	} else if (posix_memalign(&m, 512, size)) {
		m = nullptr;
	}
	if (!m) {
		std::lock_guard<std::mutex> l(heapMutex());
		d->used -= size;
		return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMalloc: %zu bytes: the host has no memory", n);
	}
	memset(m, 0xeb, std::min(size, size_t(1) << 16)); // nobody may count on zeros
	b->base = (char *)m;
	*p = m;
	put(std::move(b));
	return 0;
}

static int freeBlock(const char *name, void *p, bool host) {
	std::lock_guard<std::mutex> l(heapMutex());
	auto it = heap().find((uintptr_t)p);
	if (it == heap().end() || it->second->host != host || it->second->foreign)
		return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %p is no live allocation (freed before?)", name, p);
	if (!host) {
		Device *d = devices()[(size_t)it->second->device].get();
		d->used -= std::min(d->used, it->second->size);
	}
	heap().erase(it);
	return 0;
}

EMU_API aclError aclrtFree(void *p) {
	if (int rc = enter("aclrtFree", nullptr)) return rc;
	if (int rc = safe("aclrtFree")) return rc;
	return freeBlock("aclrtFree", p, false);
}

EMU_API aclError aclrtMallocHost(void **p, size_t n) {
	Device *d;
	if (int rc = enter("aclrtMallocHost", &d)) return rc;
	if (!p || n == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMallocHost: %zu bytes", n);
	void *m = nullptr;
	if (posix_memalign(&m, 64, n)) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMallocHost: %zu bytes", n);
	auto b = std::make_shared<Block>();
	b->base = (char *)m;
	b->size = n;
	b->host = true;
	b->device = d->id;
	*p = m;
	put(std::move(b));
	return 0;
}

EMU_API aclError aclrtFreeHost(void *p) {
	if (int code = injected("aclrtFreeHost")) return fail(code, "injected fault");
	return freeBlock("aclrtFreeHost", p, true);
}

// side tells what one end of a copy is; pageable memory is unknown to the heap.
struct Side { std::shared_ptr<Block> block; bool known, inside; };
static Side side(const void *p, size_t n) {
	Side s;
	s.block = blockOf(p);
	s.known = s.block != nullptr;
	s.inside = s.known && (uintptr_t)p + n <= (uintptr_t)s.block->base + s.block->size;
	return s;
}

// An address that no block has is pageable host memory, unless it says "device".
static int checkCopy(const char *name, void *dst, size_t room, const void *src, size_t n, uint32_t kind, Side *to, Side *from) {
	if (!dst || !src || kind > 7) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: a null pointer or an unknown kind", name);
	if (n > room) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes into room for %zu", name, n, room);
	*to = side(dst, n);
	*from = side(src, n);
	if (to->known && !to->inside) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes at %p run past the end of the destination", name, n, dst);
	if (from->known && !from->inside) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes at %p run past the end of the source", name, n, src);
	bool toDevice = kind == SL_COPY_H2D || kind == SL_COPY_D2D, fromDevice = kind == SL_COPY_D2H || kind == SL_COPY_D2D;
	if (toDevice && (!to->known || to->block->host)) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: the destination %p is no live device memory", name, dst);
	if (fromDevice && (!from->known || from->block->host)) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: the source %p is no live device memory", name, src);
	const char *d = (const char *)dst, *s = (const char *)src;
	if (d < s + n && s < d + n && n) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: source and destination overlap", name);
	return 0;
}

EMU_API aclError aclrtMemcpy(void *dst, size_t room, const void *src, size_t n, uint32_t kind) {
	if (int rc = enter("aclrtMemcpy", nullptr)) return rc;
	if (int rc = safe("aclrtMemcpy")) return rc;
	Side to, from;
	if (int rc = checkCopy("aclrtMemcpy", dst, room, src, n, kind, &to, &from)) return rc;
	memcpy(dst, src, n);
	return 0;
}

EMU_API aclError aclrtMemset(void *p, size_t room, int32_t v, size_t n) {
	if (int rc = enter("aclrtMemset", nullptr)) return rc;
	if (int rc = safe("aclrtMemset")) return rc;
	if (n > room || !hold(p, n)) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemset: %zu bytes at %p, room for %zu", n, p, room);
	memset(p, v, n);
	return 0;
}

// late checks a range again when a task runs.
static int late(std::string &why, const char *name, const void *p, size_t n, std::shared_ptr<Block> *keep) {
	*keep = hold(p, n);
	if (*keep) return 0;
	char buf[160];
	snprintf(buf, sizeof buf, "%s: %zu bytes at %p were freed before the task ran", name, n, p);
	why = buf;
	return ACL_ERROR_RT_AICORE_EXCEPTION;
}

static Node copyNode(const char *name, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height) {
	Node node;
	size_t to = height ? dpitch * (height - 1) + width : 0, from = height ? spitch * (height - 1) + width : 0;
	node.run = [=](std::string &why) -> int {
		std::shared_ptr<Block> a, b;
		if (int rc = late(why, name, dst, to, &a)) return rc;
		if (int rc = late(why, name, src, from, &b)) return rc;
		for (size_t i = 0; i < height; i++) memcpy((char *)dst + i * dpitch, (const char *)src + i * spitch, width);
		return 0;
	};
	return node;
}

EMU_API aclError aclrtMemcpyAsync(void *dst, size_t room, const void *src, size_t n, uint32_t kind, aclrtStream h) {
	int rc = enter("aclrtMemcpyAsync", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	Side to, from;
	if ((rc = checkCopy("aclrtMemcpyAsync", dst, room, src, n, kind, &to, &from))) return rc;
	bool toHost = !to.known || to.block->host, fromHost = !from.known || from.block->host;
	if (toHost && fromHost) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtMemcpyAsync: host to host is not supported");
	if (to.known && from.known) return submit(s, copyNode("aclrtMemcpyAsync", dst, n, src, n, n, 1), "aclrtMemcpyAsync");
	// Pageable memory: the call returns when the copy is done.
	if ((rc = safe("aclrtMemcpyAsync with pageable memory"))) return ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC;
	s->drain(-1);
	memcpy(dst, src, n);
	return 0;
}

EMU_API aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, uint32_t kind, aclrtStream h) {
	int rc = enter("aclrtMemcpy2dAsync", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	if (width > dpitch || width > spitch || width == 0 || height == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpy2dAsync: width %zu, height %zu, pitches %zu and %zu", width, height, dpitch, spitch);
	Side to, from;
	size_t a = dpitch * (height - 1) + width, b = spitch * (height - 1) + width;
	if (kind < 1 || kind > 3) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpy2dAsync: kind %u", kind);
	to = side(dst, a), from = side(src, b);
	if (!to.inside || !from.inside) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpy2dAsync: a range leaves its allocation");
	return submit(s, copyNode("aclrtMemcpy2dAsync", dst, dpitch, src, spitch, width, height), "aclrtMemcpy2dAsync");
}

EMU_API aclError aclrtMemcpyBatchAsync(void **dsts, size_t *rooms, void **srcs, size_t *sizes, size_t n, aclrtMemcpyBatchAttr *attrs, size_t *at, size_t nattrs, size_t *failed, aclrtStream h) {
	int rc = enter("aclrtMemcpyBatchAsync", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	if (n == 0 || nattrs == 0 || !attrs || !at || at[0] != 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpyBatchAsync: %zu copies, %zu attributes", n, nattrs);
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->cap) {
			s->cap->invalid = true;
			return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "aclrtMemcpyBatchAsync: not in a capture");
		}
	}
	uint32_t to = attrs[0].dstLoc.type, from = attrs[0].srcLoc.type;
	if (!((to == SL_LOC_DEVICE && from == SL_LOC_HOST) || (to == SL_LOC_HOST && from == SL_LOC_DEVICE)))
		return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpyBatchAsync: one direction, between host and device");
	Node node;
	std::vector<Node> parts;
	for (size_t i = 0; i < n; i++) {
		Side a, b;
		if ((rc = checkCopy("aclrtMemcpyBatchAsync", dsts[i], rooms[i], srcs[i], sizes[i], to == SL_LOC_DEVICE ? SL_COPY_H2D : SL_COPY_D2H, &a, &b))) {
			if (failed) *failed = i;
			return rc;
		}
		parts.push_back(copyNode("aclrtMemcpyBatchAsync", dsts[i], sizes[i], srcs[i], sizes[i], sizes[i], 1));
	}
	node.run = [parts](std::string &why) -> int {
		for (auto &p : parts) if (int rc = p.run(why)) return rc;
		return 0;
	};
	return submit(s, node, "aclrtMemcpyBatchAsync");
}

EMU_API aclError aclrtMemsetAsync(void *p, size_t room, int32_t v, size_t n, aclrtStream h) {
	int rc = enter("aclrtMemsetAsync", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	auto b = hold(p, n);
	if (n > room || !b || b->host) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemsetAsync: %zu bytes at %p, room for %zu, is no live device memory", n, p, room);
	Node node;
	node.run = [=](std::string &why) -> int {
		std::shared_ptr<Block> keep;
		if (int rc = late(why, "aclrtMemsetAsync", p, n, &keep)) return rc;
		memset(p, v, n);
		return 0;
	};
	return submit(s, node, "aclrtMemsetAsync");
}

EMU_API aclError aclrtPointerGetAttributes(const void *p, aclrtPtrAttributes *a) {
	auto b = blockOf(p);
	memset(a, 0, sizeof *a);
	a->location.type = b ? (b->host ? SL_LOC_HOST : SL_LOC_DEVICE) : 2;
	a->location.id = b && !b->host ? (uint32_t)b->device : 0;
	a->pageSize = 4096;
	return 0;
}

// A key names the process and the descriptor of the memory.
EMU_API aclError aclrtIpcMemGetExportKey(void *p, size_t n, char *key, size_t len, uint64_t) {
	if (int rc = enter("aclrtIpcMemGetExportKey", nullptr)) return rc;
	auto b = blockOf(p);
	if (!b || b->base != p || n > b->size || len != SL_IPC_KEY_BYTES) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtIpcMemGetExportKey: %p is no start of an allocation of %zu bytes", p, n);
	if (b->fd < 0) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtIpcMemGetExportKey: the memory was not allocated for sharing");
	snprintf(key, len, "emu/%ld/%d/%zu", (long)getpid(), b->fd, b->size);
	return 0;
}

static std::mutex &importMutex() { static auto *m = new std::mutex; return *m; }
static std::map<std::string, char *> &imports() { static auto *m = new std::map<std::string, char *>; return *m; }

EMU_API aclError aclrtIpcMemImportByKey(void **p, const char *key, uint64_t) {
	Device *d;
	if (int rc = enter("aclrtIpcMemImportByKey", &d)) return rc;
	long pid = 0;
	int fd = -1;
	size_t size = 0;
	if (sscanf(key, "emu/%ld/%d/%zu", &pid, &fd, &size) != 3) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtIpcMemImportByKey: no key of this runtime");
	if (pid == (long)getpid()) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtIpcMemImportByKey: the memory is of this process");
	char path[64];
	snprintf(path, sizeof path, "/proc/%ld/fd/%d", pid, fd);
	FILE *f = fopen(path, "r+e");
	if (!f) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtIpcMemImportByKey: the exporter is gone");
	void *m = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
	fclose(f);
	if (m == MAP_FAILED) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtIpcMemImportByKey: cannot map %zu bytes", size);
	auto b = std::make_shared<Block>();
	b->base = (char *)m, b->size = b->mapped = size, b->foreign = true, b->device = d->id;
	*p = m;
	put(std::move(b));
	std::lock_guard<std::mutex> l(importMutex());
	imports()[key] = (char *)m;
	return 0;
}

EMU_API aclError aclrtIpcMemClose(const char *key) {
	if (int rc = enter("aclrtIpcMemClose", nullptr)) return rc;
	std::lock_guard<std::mutex> l(importMutex());
	auto it = imports().find(key);
	if (it == imports().end()) return 0; // the exporter's side
	std::lock_guard<std::mutex> h(heapMutex());
	heap().erase((uintptr_t)it->second);
	imports().erase(it);
	return 0;
}
