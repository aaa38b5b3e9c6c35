#include "aclnn.h"
#include <string.h>

enum { MAX_TENSORS = 7, MAX_ARRAYS = 2 };

typedef struct {
	unsigned op;
	int tensors, arrays, numbers;
	aclTensor *t[MAX_TENSORS];
	aclIntArray *a[MAX_ARRAYS];
	const uint64_t *x;
	aclScalar *scalar;
	aclTensorList *key, *value; // each owns its tensor
	uint64_t ws;
	aclOpExecutor *ex;
} call_state;

static double real(uint64_t w) { double v; memcpy(&v, &w, 8); return v; }

static aclTensor *tensor(const uint64_t *w) {
	int64_t dims[4], steps[4], extent = 1;
	uint64_t n = w[1] >> 8;
	for (uint64_t i = 0; i < n && i < 4; i++) {
		dims[i] = (int64_t)w[2 + i];
		steps[i] = (int64_t)w[6 + i];
		extent += (dims[i] - 1) * steps[i];
	}
	return NNOP.aclCreateTensor(dims, n, (int)(w[1] & 0xff), steps, 0, ACL_FORMAT_ND, &extent, 1, (void *)w[0]);
}

static void destroy(call_state *c) {
	if (c->key) {
		NNOP.aclDestroyTensorList(c->key);
		c->t[1] = NULL;
	}
	if (c->value) {
		NNOP.aclDestroyTensorList(c->value);
		c->t[2] = NULL;
	}
	for (int i = 0; i < c->tensors; i++) if (c->t[i]) NNOP.aclDestroyTensor(c->t[i]);
	for (int i = 0; i < c->arrays; i++) if (c->a[i]) NNOP.aclDestroyIntArray(c->a[i]);
	if (c->scalar) NNOP.aclDestroyScalar(c->scalar);
}

// decode makes the vendor's objects; they are destroyed by destroy, also after an error.
static int decode(const uint64_t *p, call_state *c, asc_err *e) {
	memset(c, 0, sizeof *c);
	c->op = (unsigned)(p[0] & 0xffff);
	int tensors = (int)(p[0] >> 16 & 0xff), arrays = (int)(p[0] >> 24 & 0xff);
	c->numbers = (int)(p[0] >> 32 & 0xff);
	if (tensors > MAX_TENSORS || arrays > MAX_ARRAYS) return asc_fail_text(ASC_LIB_ACL, -2, "aclnn", "malformed call", e);
	p++;
	for (; c->tensors < tensors; c->tensors++, p += ASC_TENSOR_WORDS)
		if (!(c->t[c->tensors] = tensor(p))) return asc_fail(ASC_LIB_OPAPI, ACLNN_ERR_INNER_NULLPTR, "aclCreateTensor", e);
	for (; c->arrays < arrays; c->arrays++, p += 1 + p[0])
		if (!(c->a[c->arrays] = NNOP.aclCreateIntArray((const int64_t *)(p + 1), p[0])))
			return asc_fail(ASC_LIB_OPAPI, ACLNN_ERR_INNER_NULLPTR, "aclCreateIntArray", e);
	c->x = p;
	return 0;
}

static int scalar(call_state *c, double v, int type, asc_err *e) {
	float f = (float)v;
	int32_t i = (int32_t)v;
	c->scalar = NNOP.aclCreateScalar(type == ACL_FLOAT ? (void *)&f : (void *)&i, type);
	return c->scalar ? 0 : asc_fail(ASC_LIB_OPAPI, ACLNN_ERR_INNER_NULLPTR, "aclCreateScalar", e);
}

// PHASE1 calls a first phase and notes the second.
#define PHASE1(name, ...) do { \
	if (!OPS.name##GetWorkspaceSize || !OPS.name) return asc_need_op(#name, e); \
	*second = OPS.name; \
	*what = #name; \
	aclnnStatus rc = OPS.name##GetWorkspaceSize(__VA_ARGS__, &c->ws, &c->ex); \
	return rc ? asc_fail(ASC_LIB_OPAPI, rc, #name "GetWorkspaceSize", e) : 0; \
} while (0)
#define SCALAR(v, type) do { int rc = scalar(c, v, type, e); if (rc) return rc; } while (0)

static int first(call_state *c, asc_second *second, const char **what, asc_err *e) {
	aclTensor **t = c->t;
	const uint64_t *x = c->x;
	switch (c->op) {
	case ASC_OP_EMBEDDING: PHASE1(aclnnEmbedding, t[0], t[1], t[2]);
	case ASC_OP_CLAMP_MIN: SCALAR(0, ACL_INT32); PHASE1(aclnnClampMin, t[0], c->scalar, t[1]);
	case ASC_OP_LT_SCALAR: SCALAR(c->numbers ? real(x[0]) : 0, c->numbers ? ACL_FLOAT : ACL_INT32); PHASE1(aclnnLtScalar, t[0], c->scalar, t[1]);
	case ASC_OP_MASKED_FILL: SCALAR(c->numbers ? real(x[0]) : 0, ACL_FLOAT); PHASE1(aclnnInplaceMaskedFillScalar, t[0], t[1], c->scalar);
	case ASC_OP_SELECT: PHASE1(aclnnSWhere, t[0], t[1], t[2], t[3]);
	case ASC_OP_COPY: PHASE1(aclnnInplaceCopy, t[0], t[1]);
	case ASC_OP_ZERO: PHASE1(aclnnInplaceZero, t[0]);
	case ASC_OP_CAST: PHASE1(aclnnCast, t[0], (int)x[0], t[1]);
	case ASC_OP_ADD: SCALAR(1, ACL_FLOAT); PHASE1(aclnnAdd, t[0], t[1], c->scalar, t[2]);
	case ASC_OP_RMS_NORM: PHASE1(aclnnRmsNorm, t[0], t[1], real(x[0]), t[2], t[3]);
	case ASC_OP_MM: PHASE1(aclnnMm, t[0], t[1], t[2], SL_KEEP_DTYPE);
	case ASC_OP_SWIGLU: PHASE1(aclnnSwiGlu, t[0], -1, t[1]);
	case ASC_OP_ARGMAX: PHASE1(aclnnArgMax, t[0], -1, false, t[1]);
	case ASC_OP_ROPE: PHASE1(aclnnRopeWithSinCosCache, t[0], t[1], t[2], t[3], NULL, (int64_t)x[0], true, t[4], t[5]);
	case ASC_OP_SCATTER: {
		char norm[] = "Norm", none[] = "None";
		PHASE1(aclnnScatterPaKvCache, t[0], t[1], t[2], t[3], t[4], NULL, NULL, NULL, norm, none, NULL, NULL);
	}
	case ASC_OP_ATTENTION: { // query, key, value, mask, table, out
		char layout[] = "TND";
		const aclTensor *k = t[1], *v = t[2];
		if (!(c->key = NNOP.aclCreateTensorList(&k, 1)) || !(c->value = NNOP.aclCreateTensorList(&v, 1)))
			return asc_fail(ASC_LIB_OPAPI, ACLNN_ERR_INNER_NULLPTR, "aclCreateTensorList", e);
		int64_t heads = (int64_t)x[0], kv = (int64_t)x[1], block = (int64_t)x[2], pre = (int64_t)x[4], sparse = (int64_t)x[5];
		PHASE1(aclnnFusedInferAttentionScoreV3, t[0], c->key, c->value, NULL, t[3], c->a[0], c->a[1], NULL, NULL, NULL, NULL, NULL, NULL,
			NULL, t[4], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, heads, real(x[3]), pre, 0, layout, kv,
			sparse, 0, block, 0, false, 0, 0, t[5], NULL);
	}
	}
	return asc_fail_text(ASC_LIB_ACL, -2, "aclnn", "unknown operator", e);
}

int asc_aclnn_run(const uint64_t *call, void *ws, uint64_t n, aclrtStream s, asc_err *e) {
	call_state c;
	asc_second second = NULL;
	const char *what = "";
	int rc = decode(call, &c, e);
	if (!rc) rc = first(&c, &second, &what, e);
	if (!rc && c.ws > n) {
		NNOP.aclSetAclOpExecutorRepeatable(c.ex);
		NNOP.aclDestroyAclOpExecutor(c.ex);
		rc = asc_fail_text(ASC_LIB_OPAPI, ACLNN_ERR_PARAM_INVALID, what, "the operator asks for more workspace than was planned: state MaxRows", e);
	} else if (!rc) {
		aclnnStatus st = second(c.ws ? ws : NULL, c.ws, c.ex, s);
		if (st) rc = asc_fail(ASC_LIB_OPAPI, st, what, e);
	}
	destroy(&c);
	return rc;
}

int asc_aclnn_need(aclrtContext ctx, const uint64_t *call, uint64_t *n, asc_err *e) {
	ASC_CTX(ctx);
	call_state c;
	asc_second second;
	const char *what;
	int rc = decode(call, &c, e);
	if (!rc) rc = first(&c, &second, &what, e);
	if (!rc) {
		*n = c.ws;
		// An executor that will not run is destroyed, which only a repeatable one may be.
		aclnnStatus st = NNOP.aclSetAclOpExecutorRepeatable(c.ex);
		if (!st) st = NNOP.aclDestroyAclOpExecutor(c.ex);
		if (st) rc = asc_fail(ASC_LIB_OPAPI, st, "aclDestroyAclOpExecutor", e);
	}
	destroy(&c);
	return rc;
}
