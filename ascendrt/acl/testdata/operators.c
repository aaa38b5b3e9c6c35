// The emulated operators: what each first phase refuses, with its code, one run
// of each over small arrays, and the fault of an index past the end.
// Usage: operators libascendcl.so libnnopbase.so libopapi.so
#include "../aclnn.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "line %d: %s: %s %d %s\n", __LINE__, #c, e.call, e.code, e.text); exit(1); } } while (0)

enum { BUFFER = 1 << 16, MASK = 2048 };
enum { BAD = ACLNN_ERR_PARAM_INVALID, TILING = ACLNN_ERR_INNER_TILING_ERROR, NIL = ACLNN_ERR_PARAM_NULLPTR };
static aclrtContext ctx;
static aclrtStream stream;
static void *buf[6], *mask;
static uint64_t need;
static aclOpExecutor *ex;

// made are the tensors of a case.
static aclTensor *made[64];
static int count;

static aclTensor *strided(void *p, int type, int nd, const int64_t *dims, const int64_t *steps) {
	int64_t extent = 1;
	for (int i = 0; i < nd; i++) extent += (dims[i] - 1) * (steps ? steps[i] : 0);
	return made[count++] = NNOP.aclCreateTensor(dims, (uint64_t)nd, type, steps, 0, ACL_FORMAT_ND, steps ? &extent : dims, steps ? 1 : (uint64_t)nd, p);
}
#define T(i, type, ...) strided(buf[i], type, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), (int64_t[]){ __VA_ARGS__ }, NULL)

static void done(void) {
	while (count > 0) NNOP.aclDestroyTensor(made[--count]);
}

// want checks a first phase; the text names the operator.
static void want(int line, int code, int got, const char *text) {
	const char *m = ACL.aclGetRecentErrMsg();
	if (got != code || (code && (!m || !strstr(m, text)))) {
		fprintf(stderr, "line %d: code %d, not %d: %s\n", line, got, code, m ? m : "no text");
		exit(1);
	}
	if (!got) { // it is not run
		NNOP.aclSetAclOpExecutorRepeatable(ex);
		NNOP.aclDestroyAclOpExecutor(ex);
	}
	done();
}
#define REFUSES(code, text, call) want(__LINE__, code, call, text)
#define TAKES(call) want(__LINE__, 0, call, "")
#define OUT &need, &ex

static void rows(void) {
	REFUSES(NIL, "aclnnEmbedding: weight is a null pointer", OPS.aclnnEmbeddingGetWorkspaceSize(NULL, T(1, ACL_INT32, 2), T(2, ACL_BF16, 2, 4), OUT));
	REFUSES(BAD, "indices: type 0", OPS.aclnnEmbeddingGetWorkspaceSize(T(0, ACL_BF16, 9, 4), T(1, ACL_FLOAT, 2), T(2, ACL_BF16, 2, 4), OUT));
	REFUSES(BAD, "differ in type", OPS.aclnnEmbeddingGetWorkspaceSize(T(0, ACL_BF16, 9, 4), T(1, ACL_INT64, 2), T(2, ACL_FLOAT, 2, 4), OUT));
	REFUSES(BAD, "out is not", OPS.aclnnEmbeddingGetWorkspaceSize(T(0, ACL_BF16, 9, 4), T(1, ACL_INT64, 2), T(2, ACL_BF16, 3, 4), OUT));
	REFUSES(BAD, "weight: type 1 ", OPS.aclnnEmbeddingGetWorkspaceSize(T(0, ACL_FLOAT16, 9, 4), T(1, ACL_INT64, 2), T(2, ACL_FLOAT16, 2, 4), OUT));
	REFUSES(BAD, "differ in shape", OPS.aclnnSWhereGetWorkspaceSize(T(0, ACL_BOOL, 2, 1), T(1, ACL_BF16, 2, 4), T(2, ACL_BF16, 2, 3), T(3, ACL_BF16, 2, 4), OUT));
	REFUSES(BAD, "does not broadcast", OPS.aclnnSWhereGetWorkspaceSize(T(0, ACL_BOOL, 3, 1), T(1, ACL_BF16, 2, 4), T(2, ACL_BF16, 2, 4), T(3, ACL_BF16, 2, 4), OUT));
	REFUSES(BAD, "not the one asked for", OPS.aclnnCastGetWorkspaceSize(T(0, ACL_BF16, 2), ACL_FLOAT, T(1, ACL_INT32, 2), OUT));
	REFUSES(BAD, "gamma does not have", OPS.aclnnRmsNormGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 3), 1e-6, T(2, ACL_BF16, 2, 4), T(3, ACL_FLOAT, 2, 1), OUT));
	REFUSES(BAD, "rstd: type 27", OPS.aclnnRmsNormGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 4), 1e-6, T(2, ACL_BF16, 2, 4), T(3, ACL_BF16, 2, 1), OUT));
	REFUSES(BAD, "x is not contiguous", OPS.aclnnRmsNormGetWorkspaceSize(strided(buf[0], ACL_BF16, 2, (int64_t[]){ 2, 4 }, (int64_t[]){ 16, 1 }), T(1, ACL_BF16, 4), 1e-6, T(2, ACL_BF16, 2, 4), T(3, ACL_FLOAT, 2, 1), OUT));
	REFUSES(BAD, "cubeMathType 2 is not for bfloat16", OPS.aclnnMmGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 4, 3), T(2, ACL_BF16, 2, 3), 2, OUT));
	REFUSES(BAD, "cubeMathType 3 is for float32", OPS.aclnnMmGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 4, 3), T(2, ACL_BF16, 2, 3), 3, OUT));
	REFUSES(BAD, "differ in type", OPS.aclnnMmGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 4, 3), T(2, ACL_FLOAT, 2, 3), 0, OUT));
	REFUSES(BAD, "[2,4] x [5,3]", OPS.aclnnMmGetWorkspaceSize(T(0, ACL_BF16, 2, 4), T(1, ACL_BF16, 5, 3), T(2, ACL_BF16, 2, 3), 0, OUT));
	REFUSES(BAD, "x is not contiguous", OPS.aclnnSwiGluGetWorkspaceSize(strided(buf[0], ACL_BF16, 2, (int64_t[]){ 2, 8 }, (int64_t[]){ 16, 1 }), -1, T(2, ACL_BF16, 2, 4), OUT));
	REFUSES(BAD, "not half of x", OPS.aclnnSwiGluGetWorkspaceSize(T(0, ACL_BF16, 2, 8), -1, T(2, ACL_BF16, 2, 3), OUT));
	REFUSES(BAD, "dim 0 is not emulated", OPS.aclnnSwiGluGetWorkspaceSize(T(0, ACL_BF16, 2, 8), 0, T(2, ACL_BF16, 1, 8), OUT));
	REFUSES(BAD, "one element per row", OPS.aclnnArgMaxGetWorkspaceSize(T(0, ACL_BF16, 2, 8), -1, false, T(2, ACL_INT32, 3), OUT));
	REFUSES(BAD, "out: type 27", OPS.aclnnArgMaxGetWorkspaceSize(T(0, ACL_BF16, 2, 8), -1, false, T(2, ACL_BF16, 2), OUT));
}

static int rope(int pos, int type, int64_t head, int64_t width, bool neox, aclTensor *out) {
	return OPS.aclnnRopeWithSinCosCacheGetWorkspaceSize(T(0, pos, 3), T(1, type, 3, 2 * width), T(2, type, 3, width), T(3, type, 50, head), NULL, head, neox,
		out ? out : T(4, type, 3, 2 * width), T(5, type, 3, width), OUT);
}

static int scatter(int type, int slots, int64_t tokens, char *mode) {
	return OPS.aclnnScatterPaKvCacheGetWorkspaceSize(T(0, type, tokens, 2, 16), T(1, type, 2, 128, 2, 16), T(2, slots, 3), T(3, type, tokens, 2, 16),
		T(4, type, 2, 128, 2, 16), NULL, NULL, NULL, mode, NULL, NULL, NULL, OUT);
}

static void positions(void) {
	REFUSES(BAD, "positions: type 3", rope(ACL_INT32, ACL_FLOAT, 32, 32, true, NULL));
	REFUSES(TILING, "headSize 16 is no multiple of 32", rope(ACL_INT64, ACL_BF16, 16, 16, true, NULL));
	REFUSES(TILING, "not [positions, heads x 32]", rope(ACL_INT64, ACL_FLOAT, 32, 16, true, NULL));
	REFUSES(BAD, "interleaved", rope(ACL_INT64, ACL_FLOAT, 32, 32, false, NULL));
	REFUSES(BAD, "queryOut is not contiguous", rope(ACL_INT64, ACL_FLOAT, 32, 32, true, strided(buf[4], ACL_FLOAT, 2, (int64_t[]){ 3, 64 }, (int64_t[]){ 96, 1 })));
	TAKES(rope(ACL_INT64, ACL_FLOAT, 32, 32, true, NULL));
	char nz[] = "PA_NZ", norm[] = "Norm";
	REFUSES(BAD, "key: type 0", scatter(ACL_FLOAT, ACL_INT32, 3, norm));
	REFUSES(BAD, "cache mode PA_NZ", scatter(ACL_BF16, ACL_INT32, 3, nz));
	REFUSES(BAD, "slotMapping: type 27", scatter(ACL_BF16, ACL_BF16, 3, norm));
	REFUSES(BAD, "3 slots for 4 tokens", scatter(ACL_BF16, ACL_INT64, 4, norm));
	TAKES(scatter(ACL_BF16, ACL_INT64, 3, NULL));
}

// fia describes one call of attention: two requests over blocks of 128.
struct fia {
	int type;
	int64_t heads, kv, width, block, sparse, pre, next, table[2], ends[2], lens[2];
	int requests, without_mask;
	const char *layout;
};
static const struct fia good = { ACL_BF16, 4, 2, 16, 128, 3, 0, 0, { 2, 2 }, { 1, 3 }, { 5, 200 }, 2, 0, "TND" };

static int attend(struct fia f) {
	aclTensor *q = T(0, f.type, 3, f.heads, f.width), *k = T(1, f.type, 4, f.block, f.kv * f.width), *v = T(2, f.type, 4, f.block, f.kv * f.width);
	aclTensor *m = strided(mask, ACL_BOOL, 2, (int64_t[]){ MASK, MASK }, NULL), *table = T(3, ACL_INT32, f.table[0], f.table[1]), *out = T(4, f.type, 3, f.heads, f.width);
	// A list destroys what is in it.
	for (int i = 0; i < count; i++) if (made[i] == k || made[i] == v) made[i--] = made[--count];
	aclTensorList *kl = NNOP.aclCreateTensorList((const aclTensor *const *)&k, 1), *vl = NNOP.aclCreateTensorList((const aclTensor *const *)&v, 1);
	aclIntArray *e = NNOP.aclCreateIntArray(f.ends, (uint64_t)f.requests), *l = NNOP.aclCreateIntArray(f.lens, 2);
	char layout[8];
	strcpy(layout, f.layout);
	int rc = OPS.aclnnFusedInferAttentionScoreV3GetWorkspaceSize(q, kl, vl, NULL, f.without_mask ? NULL : m, e, l, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
		table, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, f.heads, 0.25, f.pre, f.next, layout, f.kv, f.sparse, 0, f.block,
		0, false, 0, 0, out, NULL, OUT);
	NNOP.aclDestroyTensorList(kl);
	NNOP.aclDestroyTensorList(vl);
	NNOP.aclDestroyIntArray(e);
	NNOP.aclDestroyIntArray(l);
	return rc;
}
#define CHANGED(text, ...) do { struct fia f = good; __VA_ARGS__; REFUSES(BAD, text, attend(f)); } while (0)

static void attention(void) {
	TAKES(attend(good));
	CHANGED("query: type 0", f.type = ACL_FLOAT);
	CHANGED("block size 64", f.block = 64);
	CHANGED("block size 192", f.block = 192);
	CHANGED("head width 24", f.width = 24);
	CHANGED("heads over 3", f.kv = 3);
	CHANGED("layout BSH", f.layout = "BSH");
	CHANGED("needs the attenMask", f.without_mask = 1);
	CHANGED("sparse mode 0 is not emulated", f.sparse = 0);
	CHANGED("sparse mode 9 does not exist", f.sparse = 9);
	CHANGED("a band of 4 and 1", f.sparse = 4, f.pre = 4, f.next = 1);
	CHANGED("falls from 3 to 1", f.ends[0] = 3, f.ends[1] = 1);
	CHANGED("ends at 2; the query has 3 rows", f.ends[1] = 2);
	CHANGED("blockTable has 3 rows for 2 requests", f.table[0] = 3);
	CHANGED("actualSeqLengthsKv has 2 entries, actualSeqLengths 1", f.requests = 1);
	CHANGED("request 1 has 300 tokens; its row of the block table holds 256", f.lens[1] = 300);
	CHANGED("request 1 has 2 rows and 1 tokens", f.lens[1] = 1);
}

static void ran(int line, int rc) {
	asc_err e;
	memset(&e, 0, sizeof e);
	if (!rc) rc = ACL.aclrtSynchronizeStreamWithTimeout(stream, -1);
	if (rc) {
		const char *m = ACL.aclGetRecentErrMsg();
		fprintf(stderr, "line %d: %d %s\n", line, rc, m ? m : "");
		exit(1);
	}
	done();
}
#define RUN(name, ...) do { int rc_ = OPS.name##GetWorkspaceSize(__VA_ARGS__, OUT); if (!rc_) rc_ = OPS.name(need ? mask : NULL, need, ex, stream); ran(__LINE__, rc_); } while (0)

// each runs every operator within the bounds of its arrays.
static void each(void) {
	int32_t ints[8] = { 1, 2, 0, 1, 2, 3, 1, 0 };
	asc_err e;
	memset(&e, 0, sizeof e);
	float zero = 0;
	int32_t izero = 0;
	aclScalar *f = NNOP.aclCreateScalar(&zero, ACL_FLOAT), *i = NNOP.aclCreateScalar(&izero, ACL_INT32);
	for (int b = 0; b < 6; b++) CHECK(!ACL.aclrtMemset(buf[b], BUFFER, 0, BUFFER));
	CHECK(!ACL.aclrtMemcpy(buf[5], BUFFER, ints, sizeof ints, SL_COPY_H2D));
	RUN(aclnnEmbedding, T(0, ACL_BF16, 3, 7), T(5, ACL_INT32, 5), T(1, ACL_BF16, 5, 7));
	RUN(aclnnClampMin, T(5, ACL_INT32, 7), i, T(1, ACL_INT32, 7));
	RUN(aclnnLtScalar, T(5, ACL_INT32, 7), i, T(1, ACL_BOOL, 7));
	RUN(aclnnInplaceMaskedFillScalar, T(0, ACL_BF16, 7, 3), T(1, ACL_BOOL, 7, 1), f);
	RUN(aclnnSWhere, T(1, ACL_BOOL, 7, 1), T(0, ACL_BF16, 7, 3), T(2, ACL_BF16, 7, 3), T(3, ACL_BF16, 7, 3));
	RUN(aclnnInplaceCopy, T(0, ACL_BF16, 7, 3), strided(buf[1], ACL_BF16, 2, (int64_t[]){ 7, 3 }, (int64_t[]){ 5, 1 }));
	RUN(aclnnInplaceZero, T(0, ACL_BF16, 7, 3));
	RUN(aclnnCast, T(0, ACL_BF16, 7, 3), ACL_FLOAT, T(1, ACL_FLOAT, 7, 3));
	RUN(aclnnAdd, T(0, ACL_BF16, 7, 3), T(1, ACL_BF16, 7, 3), f, T(0, ACL_BF16, 7, 3));
	RUN(aclnnRmsNorm, T(0, ACL_BF16, 7, 2, 5), T(1, ACL_BF16, 5), 1e-6, T(2, ACL_BF16, 7, 2, 5), T(3, ACL_FLOAT, 7, 2, 1));
	RUN(aclnnMm, T(0, ACL_BF16, 7, 11), strided(buf[1], ACL_BF16, 2, (int64_t[]){ 11, 67 }, (int64_t[]){ 1, 11 }), T(2, ACL_BF16, 7, 67), 0);
	RUN(aclnnSwiGlu, T(0, ACL_BF16, 7, 6), -1, T(1, ACL_BF16, 7, 3));
	RUN(aclnnArgMax, T(0, ACL_BF16, 7, 6), -1, false, T(1, ACL_INT32, 7));
	RUN(aclnnCast, T(5, ACL_INT32, 3), ACL_INT64, T(0, ACL_INT64, 3));
	ran(__LINE__, rope(ACL_INT64, ACL_FLOAT, 32, 32, true, NULL) || OPS.aclnnRopeWithSinCosCache(need ? mask : NULL, need, ex, stream));
	CHECK(!ACL.aclrtMemcpy(buf[2], BUFFER, ints, sizeof ints, SL_COPY_H2D));
	ran(__LINE__, scatter(ACL_BF16, ACL_INT32, 3, NULL) || OPS.aclnnScatterPaKvCache(need ? mask : NULL, need, ex, stream));
	int32_t table[] = { 3, 0, 1, 2 };
	CHECK(!ACL.aclrtMemcpy(buf[3], BUFFER, table, sizeof table, SL_COPY_H2D));
	struct fia band = good, empty = good;
	band.sparse = 4, band.pre = 100;
	empty.lens[1] = 0;
	for (int n = 0; n < 3; n++)
		ran(__LINE__, attend(n == 0 ? good : n == 1 ? band : empty) || OPS.aclnnFusedInferAttentionScoreV3(buf[5], need, ex, stream));
	NNOP.aclDestroyScalar(f);
	NNOP.aclDestroyScalar(i);
}

// fault: an index past the end loses the device, as an exception of a core does.
static void fault(void) {
	asc_err e;
	memset(&e, 0, sizeof e);
	int32_t past[] = { 0, 3 };
	CHECK(!ACL.aclrtMemcpy(buf[5], BUFFER, past, sizeof past, SL_COPY_H2D));
	CHECK(!OPS.aclnnEmbeddingGetWorkspaceSize(T(0, ACL_BF16, 3, 7), T(5, ACL_INT32, 2), T(1, ACL_BF16, 2, 7), OUT));
	CHECK(!OPS.aclnnEmbedding(NULL, 0, ex, stream));
	CHECK(ACL.aclrtSynchronizeStreamWithTimeout(stream, -1) == ACL_ERROR_RT_AICORE_EXCEPTION);
	const char *m = ACL.aclGetRecentErrMsg();
	CHECK(m && strstr(m, "index 3 is not within 0 to 2"));
	done();
}

int main(int argc, char **argv) {
	asc_err e;
	asc_lib lib;
	memset(&e, 0, sizeof e);
	if (argc < 4) return 2;
	for (int l = ASC_LIB_ACL; l <= ASC_LIB_OPAPI; l++) {
		const char *candidates[] = { argv[1 + l], NULL };
		if (asc_load(l, candidates, 0, &lib) < 0) { fprintf(stderr, "%s\n", lib.problem); return 1; }
	}
	CHECK(!asc_open(0, &ctx, &e) && !asc_stream_new(ctx, &stream, &e));
	for (int b = 0; b < 6; b++) CHECK(!asc_mem_alloc(ctx, BUFFER, 0, &buf[b], &e));
	CHECK(!asc_mem_alloc(ctx, MASK * MASK, 0, &mask, &e) && !asc_mask(ctx, mask, MASK, &e));
	rows();
	positions();
	attention();
	each();
	CHECK(asc_live(ASC_LIB_NNOP, "sluice_emu_objects", 0) == 0);
	fault();
	puts("ok");
	return 0;
}
