#define _GNU_SOURCE
#include "shim.h"
#include "../internal/signals/guard.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct asc_acl_table ACL;
struct asc_nnop_table NNOP;
struct asc_hccl_table HCCL;
struct asc_op_table OPS;

enum { MAX_HANDLES = 16, MAX_ABSENT = 96 };
static void *handles[ASC_LIBS][MAX_HANDLES];
static int nhandles[ASC_LIBS];
static char absent[ASC_LIBS][MAX_ABSENT][80];
static int nabsent[ASC_LIBS];

const char *asc_absent(int lib, int i) { return i < nabsent[lib] ? absent[lib][i] : NULL; }

static void *find(int lib, const char *name) {
	for (int i = 0; i < nhandles[lib]; i++) {
		void *p = dlsym(handles[lib][i], name);
		if (p) return p;
	}
	return NULL;
}

int asc_has(int lib, const char *name) { return find(lib, name) != NULL; }

// take looks one symbol up and notes it if it is absent; first keeps the first
// required one.
static void *take(int lib, const char *name, int required, int since, int *need, char first[80]) {
	void *p = find(lib, name);
	if (p) return p;
	char text[80];
	snprintf(text, sizeof text, "%s (CANN %d.%d)", name, since / 10, since % 10);
	if (nabsent[lib] < MAX_ABSENT) memcpy(absent[lib][nabsent[lib]++], text, sizeof text);
	if (required && (*need)++ == 0) memcpy(first, text, sizeof text);
	return NULL;
}

static int symbols(int lib, asc_lib *out) {
	int need = 0;
	char first[80] = "";
#define X(required, since, name, result, args) do { void *p = take(lib, #name, required, since, &need, first); memcpy(&TABLE.name, &p, sizeof p); } while (0);
	switch (lib) {
#define TABLE ACL
	case ASC_LIB_ACL: SL_ACL_SYMS(X) break;
#undef TABLE
#define TABLE NNOP
	case ASC_LIB_NNOP: SL_NNOP_SYMS(X) break;
#undef TABLE
#define TABLE HCCL
	case ASC_LIB_HCCL: SL_HCCL_SYMS(X) break;
#undef TABLE
#undef X
#define X(since, name, args) do { \
		void *p = take(lib, #name "GetWorkspaceSize", 0, since, &need, first), *q = find(lib, #name); \
		if (!p || !q) p = q = NULL; \
		memcpy(&OPS.name##GetWorkspaceSize, &p, sizeof p); \
		memcpy(&OPS.name, &q, sizeof q); \
	} while (0);
	case ASC_LIB_OPAPI: SL_ACLNN_OPS(X) break;
#undef X
	}
	if (need) {
		snprintf(out->problem, sizeof out->problem, "%s is too old: %s and %d more required calls are absent; install a newer CANN", out->path, first, need - 1);
		return -1;
	}
	return 0;
}

int asc_load(int lib, const char *const *candidates, int all, asc_lib *out) {
	guard g;
	memset(out, 0, sizeof *out);
	nabsent[lib] = nhandles[lib] = 0;
	guard_begin(&g);
	// The runtime's trace module would take these signals from Go.
	setenv("ASCEND_COREDUMP_SIGNAL", "none", 0);
	for (int i = 0; candidates[i] && nhandles[lib] < MAX_HANDLES && (all || nhandles[lib] == 0); i++) {
		// The vendor's libraries find each other's symbols by this.
		void *h = dlopen(candidates[i], RTLD_LAZY | RTLD_GLOBAL);
		const char *why = h ? NULL : dlerror();
		if (!h) {
			if (!out->problem[0]) snprintf(out->problem, sizeof out->problem, "%s", why ? why : "not found");
			continue;
		}
		struct link_map { uintptr_t addr; char *name; } *map = NULL;
		int named = !dlinfo(h, RTLD_DI_LINKMAP, &map) && map && map->name[0];
		if (nhandles[lib] == 0) snprintf(out->path, sizeof out->path, "%s", named ? map->name : candidates[i]);
		handles[lib][nhandles[lib]++] = h;
	}
	int rc = -1;
	if (nhandles[lib]) {
		out->problem[0] = 0;
		rc = symbols(lib, out);
		if (!rc && lib == ASC_LIB_ACL) {
			int err = ACL.aclInit(NULL);
			if (err && err != ACL_ERROR_REPEAT_INITIALIZE) {
				const char *text = ACL.aclGetRecentErrMsg ? ACL.aclGetRecentErrMsg() : NULL;
				snprintf(out->problem, sizeof out->problem, "aclInit: %d: %.400s", err, text ? text : "no text");
				rc = -1;
			} else {
				if (err && ACL.aclGetRecentErrMsg) ACL.aclGetRecentErrMsg();
				int a = 0, b = 0, c = 0;
				char pkg[] = "runtime", v[128] = "";
				if (ACL.aclsysGetVersionStr && !ACL.aclsysGetVersionStr(pkg, v)) snprintf(out->version, sizeof out->version, "%.60s", v);
				else if (ACL.aclrtGetVersion && !ACL.aclrtGetVersion(&a, &b, &c)) snprintf(out->version, sizeof out->version, "acl %d.%d.%d", a, b, c);
			}
		}
	}
	int restored = guard_end(&g);
	out->loaded = rc == 0;
	return rc == 0 ? restored : -1;
}

int asc_fail_text(int lib, int rc, const char *call, const char *text, asc_err *e) {
	e->code = rc;
	e->lib = lib;
	snprintf(e->call, sizeof e->call, "%s", call);
	snprintf(e->text, sizeof e->text, "%s", text ? text : "");
	return rc ? rc : -1;
}

// The text belongs to this thread and is gone with the next question, so it is
// asked for in the call that failed.
int asc_fail(int lib, int rc, const char *call, asc_err *e) {
	return asc_fail_text(lib, rc, call, ACL.aclGetRecentErrMsg ? ACL.aclGetRecentErrMsg() : NULL, e);
}

int asc_need_op(const char *name, asc_err *e) {
	return asc_fail_text(ASC_LIB_OPAPI, ASC_UNSUPPORTED, name, "the operator libraries lack it: install the operators of this chip, or a newer CANN", e);
}

int asc_faults(const char *text) {
	int (*inject)(const char *);
	void *p = find(ASC_LIB_ACL, "sluice_emu_faults");
	if (!p) return -1;
	memcpy(&inject, &p, sizeof p);
	return inject(text) ? 1 : 0;
}

long asc_live(int lib, const char *symbol, int kind) {
	long (*count)(int);
	void *p = find(lib, symbol);
	if (!p) return -1;
	memcpy(&count, &p, sizeof p);
	return count(kind);
}
