#define _GNU_SOURCE
#include "shim.h"
#include "../internal/signals/guard.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "libs.h"

struct sl_cuda_table CU;
struct sl_nvrtc_table NVRTC;
struct sl_lt_table LT;
struct sl_nccl_table NCCL;

static const char *absent[SL_LIBS][64];
static int nabsent[SL_LIBS];

static void missing(int lib, const char *name) {
	if (nabsent[lib] < 63) absent[lib][nabsent[lib]++] = name;
}

const char *sl_absent(int lib, int i) { return i < nabsent[lib] ? absent[lib][i] : NULL; }

typedef sl_result (*get_proc)(const char *, void **, int, uint64_t, unsigned *);

// Each symbol is asked for at the version whose signature abi.h declares; a
// driver without cuGetProcAddress_v2 is older than 12.0.
static int load_cuda(void *h, sl_lib *out) {
	get_proc get = (get_proc)dlsym(h, "cuGetProcAddress_v2");
	if (!get) {
		snprintf(out->problem, sizeof out->problem, "%s is older than CUDA 12.0 (no cuGetProcAddress_v2); install a newer driver", out->path);
		return -1;
	}
	int need = 0;
	const char *first = NULL;
#define X(required, name, version, args) do { \
		void *p = NULL; \
		unsigned status = 0; \
		if (get(#name, &p, version, 0, &status) || status) p = NULL; \
		memcpy(&CU.name, &p, sizeof p); \
		if (!p) { \
			missing(SL_LIB_CUDA, #name); \
			if (required) { need++; if (!first) first = #name; } \
		} \
	} while (0);
	SL_CUDA_SYMS(X)
#undef X
	if (need) {
		snprintf(out->problem, sizeof out->problem, "%s is too old: %s and %d more required calls are absent; install a newer driver", out->path, first, need - 1);
		return -1;
	}
	return 0;
}

static int load_plain(int lib, void *h, sl_lib *out) {
	int need = 0;
	const char *first = NULL;
#define X(required, name, result, args) do { \
		void *p = dlsym(h, #name); \
		memcpy(&TABLE.name, &p, sizeof p); \
		if (!p) { \
			missing(lib, #name); \
			if (required) { need++; if (!first) first = #name; } \
		} \
	} while (0);
	switch (lib) {
#define TABLE NVRTC
	case SL_LIB_NVRTC: SL_NVRTC_SYMS(X) break;
#undef TABLE
#define TABLE LT
	case SL_LIB_CUBLASLT: SL_CUBLASLT_SYMS(X) break;
#undef TABLE
#define TABLE NCCL
	case SL_LIB_NCCL: SL_NCCL_SYMS(X) break;
#undef TABLE
	}
#undef X
	if (need) {
		snprintf(out->problem, sizeof out->problem, "%s lacks %s and %d more required calls", out->path, first, need - 1);
		return -1;
	}
	return 0;
}

static void version_of(int lib, sl_lib *out) {
	int a = 0, b = 0;
	switch (lib) {
	case SL_LIB_NVRTC:
		if (!NVRTC.nvrtcVersion(&a, &b)) out->version = a * 1000 + b * 10;
		break;
	case SL_LIB_CUBLASLT:
		if (LT.cublasLtGetVersion) out->version = (int)LT.cublasLtGetVersion();
		break;
	case SL_LIB_NCCL:
		if (!NCCL.ncclGetVersion(&a)) out->version = a;
		break;
	}
}

int sl_load(int lib, const char *const *candidates, sl_lib *out) {
	guard g;
	memset(out, 0, sizeof *out);
	nabsent[lib] = 0;
	guard_begin(&g);
	void *h = NULL;
	// The driver must be visible to the libraries that plug into it.
	int flags = RTLD_NOW | (lib == SL_LIB_CUDA ? RTLD_GLOBAL : RTLD_LOCAL);
	for (int i = 0; candidates[i] && !h; i++) {
		h = dlopen(candidates[i], flags);
		const char *why = h ? NULL : dlerror();
		if (h) snprintf(out->path, sizeof out->path, "%s", candidates[i]);
		else if (!out->problem[0]) snprintf(out->problem, sizeof out->problem, "%s", why ? why : "not found");
	}
	int rc = -1;
	if (h) {
		out->problem[0] = 0;
		rc = lib == SL_LIB_CUDA ? load_cuda(h, out) : load_plain(lib, h, out);
		struct link_map { uintptr_t addr; char *name; } *map = NULL;
		if (!dlinfo(h, RTLD_DI_LINKMAP, &map) && map && map->name[0]) snprintf(out->path, sizeof out->path, "%s", map->name);
		if (!rc && lib == SL_LIB_CUDA) {
			sl_result err = CU.cuInit(0);
			if (err) {
				const char *name = NULL;
				CU.cuGetErrorName(err, &name);
				snprintf(out->problem, sizeof out->problem, "cuInit: %s (%u)", name ? name : "?", err);
				rc = -1;
			} else {
				CU.cuDriverGetVersion(&out->version);
			}
		}
		if (!rc) version_of(lib, out);
	}
	int restored = guard_end(&g);
	out->loaded = rc == 0;
	return rc == 0 ? restored : -1;
}

int sl_fail(sl_result rc, const char *call, sl_err *e) {
	const char *name = NULL, *text = NULL;
	e->code = (int32_t)rc;
	e->lib = SL_LIB_CUDA;
	snprintf(e->call, sizeof e->call, "%s", call);
	CU.cuGetErrorName(rc, &name);
	CU.cuGetErrorString(rc, &text);
	snprintf(e->name, sizeof e->name, "%s", name ? name : "unknown");
	snprintf(e->text, sizeof e->text, "%s", text ? text : "");
	return (int)rc;
}

int sl_fail_text(int lib, int rc, const char *call, const char *text, sl_err *e) {
	e->code = rc;
	e->lib = lib;
	snprintf(e->call, sizeof e->call, "%s", call);
	e->name[0] = 0;
	snprintf(e->text, sizeof e->text, "%s", text ? text : "");
	return rc ? rc : -1;
}

int sl_need(const void *symbol, const char *call, sl_err *e) {
	return symbol ? 0 : sl_fail_text(SL_LIB_CUDA, SL_UNSUPPORTED, call, "the driver has no such call: a newer driver is needed", e);
}
