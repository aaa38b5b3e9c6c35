// aclnnFusedInferAttentionScoreV3 for what serving asks of it: layout TND over
// a paged cache, causal or banded, bfloat16. Its lengths are host arrays: a
// captured one is frozen until a task update issues the operator again.
#include "op_calls.h"

using namespace op;

static const int64_t maskSide = 2048; // the fixed size of a compressed mask

EMU_OP(aclnnFusedInferAttentionScoreV3)(const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pseShift,
	const aclTensor *mask, const aclIntArray *seqLengths, const aclIntArray *seqLengthsKv, const aclTensor *deqScale1, const aclTensor *quantScale1,
	const aclTensor *deqScale2, const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale,
	const aclTensor *antiquantOffset, const aclTensor *blockTable, const aclTensor *queryPadding, const aclTensor *kvPadding,
	const aclTensor *keyAntiquantScale, const aclTensor *keyAntiquantOffset, const aclTensor *valueAntiquantScale,
	const aclTensor *valueAntiquantOffset, const aclTensor *keyPrefix, const aclTensor *valuePrefix, const aclIntArray *prefixLen,
	const aclTensor *queryRope, const aclTensor *keyRope, const aclTensor *keyRopeAntiquantScale, int64_t heads, double scale,
	int64_t preTokens, int64_t nextTokens, char *layout, int64_t kvHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize,
	int64_t antiquantMode, bool lseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode, const aclTensor *out, const aclTensor *lse,
	uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnFusedInferAttentionScoreV3", ws, ex);
	const struct { const void *p; const char *what; } absent[] = {
		{ pseShift, "pseShift" }, { deqScale1, "deqScale1" }, { quantScale1, "quantScale1" }, { deqScale2, "deqScale2" }, { quantScale2, "quantScale2" },
		{ quantOffset2, "quantOffset2" }, { antiquantScale, "antiquantScale" }, { antiquantOffset, "antiquantOffset" }, { queryPadding, "queryPaddingSize" },
		{ kvPadding, "kvPaddingSize" }, { keyAntiquantScale, "keyAntiquantScale" }, { keyAntiquantOffset, "keyAntiquantOffset" },
		{ valueAntiquantScale, "valueAntiquantScale" }, { valueAntiquantOffset, "valueAntiquantOffset" }, { keyPrefix, "keySharedPrefix" },
		{ valuePrefix, "valueSharedPrefix" }, { prefixLen, "actualSharedPrefixLen" }, { queryRope, "queryRope" }, { keyRope, "keyRope" },
		{ keyRopeAntiquantScale, "keyRopeAntiquantScale" },
	};
	for (auto &a : absent) c.none(a.p, a.what);
	auto Q = c.in(query, "query");
	auto K = c.list(key, "key"), V = c.list(value, "value");
	auto M = c.optIn(mask, "attenMask"), T = c.in(blockTable, "blockTable"), Y = c.out(out, "attentionOut");
	c.optOut(lse, "softmaxLse");
	auto ends = c.ints(seqLengths, "actualSeqLengths", true), lens = c.ints(seqLengthsKv, "actualSeqLengthsKv", true);
	if (!c.ok()) return c.status();

	c.oneOf(Q, { ACL_BF16 }, "query"); // float16 exists, float32 does not
	c.require(K.size() == 1 && V.size() == 1, "with a block table key and value are lists of one tensor");
	if (!c.ok()) return c.status();
	auto k = K[0], v = V[0];
	c.require(k.dtype == Q.dtype && v.dtype == Q.dtype && Y.dtype == Q.dtype, "query, key, value and attentionOut differ in type");
	c.oneOf(T, { ACL_INT32 }, "blockTable");
	c.require(layout && std::string(layout) == "TND", "layout %s is not emulated: pass TND", layout ? layout : "null");
	c.rank(Q, 3, "query") && c.rank(k, 3, "key") && c.rank(v, 3, "value") && c.rank(T, 2, "blockTable");
	c.require(Y.sameShape(Q), "attentionOut does not have the shape of the query");
	c.contiguous(Q, "query");
	c.contiguous(k, "key");
	c.contiguous(v, "value");
	c.contiguous(T, "blockTable");
	c.contiguous(Y, "attentionOut");
	c.require(!lseFlag && antiquantMode == 0 && keyAntiquantMode == 0 && valueAntiquantMode == 0, "softmaxLse and quantised caches are not emulated");
	c.require(innerPrecise >= 0 && innerPrecise <= 3, "innerPrecise %lld does not exist", (long long)innerPrecise);
	if (!c.ok()) return c.status();

	c.require(heads > 0 && kvHeads > 0 && heads % kvHeads == 0 && heads / kvHeads <= 64, "%lld heads over %lld key heads", (long long)heads, (long long)kvHeads);
	c.require(heads <= 256, "%lld heads: at most 256", (long long)heads);
	c.require(Q.dim[1] == heads, "query has %lld heads, not %lld", (long long)Q.dim[1], (long long)heads);
	int64_t d = Q.dim[2];
	c.require(d > 0 && d <= 512 && d % 16 == 0, "head width %lld: at most 512, a multiple of 16", (long long)d);
	c.require(Q.dim[0] <= 1 << 20, "%lld tokens: at most 1M", (long long)Q.dim[0]);
	c.require(blockSize >= 128 && blockSize <= 512 && blockSize % 128 == 0, "block size %lld: 128, 256, 384 or 512", (long long)blockSize);
	c.require(k.sameShape(v), "key and value differ in shape");
	c.require(k.dim[1] == blockSize && k.dim[2] == kvHeads * d, "key is not [blocks, %lld, %lld]", (long long)blockSize, (long long)(kvHeads * d));
	c.require(k.dim[2] <= 65535, "a row of the cache has %lld elements: at most 65535", (long long)k.dim[2]);

	int64_t requests = (int64_t)ends.size();
	c.require(requests > 0 && requests <= 4096, "actualSeqLengths has %lld entries: 1 to 4096", (long long)requests);
	c.require((int64_t)lens.size() == requests, "actualSeqLengthsKv has %lld entries, actualSeqLengths %lld", (long long)lens.size(), (long long)requests);
	c.require(T.dim[0] == requests, "blockTable has %lld rows for %lld requests", (long long)T.dim[0], (long long)requests);
	if (!c.ok()) return c.status();
	int64_t last = 0;
	for (int64_t r = 0; r < requests; r++) {
		c.require(ends[r] >= last, "actualSeqLengths falls from %lld to %lld at %lld", (long long)last, (long long)ends[r], (long long)r);
		c.require(lens[r] >= 0 && lens[r] <= T.dim[1] * blockSize, "request %lld has %lld tokens; its row of the block table holds %lld",
			(long long)r, (long long)lens[r], (long long)(T.dim[1] * blockSize));
		c.require(lens[r] == 0 || ends[r] - last <= lens[r], "request %lld has %lld rows and %lld tokens", (long long)r, (long long)(ends[r] - last), (long long)lens[r]);
		last = ends[r];
	}
	c.require(last == Q.dim[0], "actualSeqLengths ends at %lld; the query has %lld rows", (long long)last, (long long)Q.dim[0]);

	int64_t window = 0;
	switch (sparseMode) {
	case 3: break;
	case 4:
		c.require(nextTokens == 0 && preTokens >= 0, "a band of %lld and %lld tokens is not emulated: the second is 0", (long long)preTokens, (long long)nextTokens);
		window = preTokens + 1;
		break;
	case 0: case 1: case 2: c.require(false, "sparse mode %lld is not emulated: pass 3 or 4", (long long)sparseMode); break;
	default: c.require(false, "sparse mode %lld does not exist", (long long)sparseMode);
	}
	c.require(M.given, "sparse mode %lld needs the attenMask", (long long)sparseMode);
	if (!c.ok()) return c.status();
	c.oneOf(M, { ACL_BOOL, ACL_INT8, ACL_UINT8 }, "attenMask");
	c.require(M.rank >= 2 && M.dim[M.rank - 1] == maskSide && M.dim[M.rank - 2] == maskSide && M.count() == maskSide * maskSide,
		"attenMask is not 2048 x 2048");
	c.contiguous(M, "attenMask");
	c.workspace(32 * (uint64_t)requests + 1024); // grows with the batch: a captured operator's is frozen

	Attention a;
	a.q = view(Q), a.k = view(k), a.v = view(v), a.table = view(T), a.out = view(Y);
	a.heads = heads, a.kv_heads = kvHeads, a.block = blockSize, a.scale = (float)scale, a.window = window;
	a.queries = ends, a.lens = lens;
	const char *triangle = M.data;
	return c.ready([=](emu::Run &r) {
		// The real operator takes what is masked from here, the emulation from the lengths: both must say the same.
		for (int64_t i = 0; i < maskSide; i += 31)
			if (triangle[i * maskSide + i] || (i + 1 < maskSide && !triangle[i * maskSide + i + 1]))
				return r.fault(ACL_ERROR_RT_AICORE_EXCEPTION, "attention: attenMask is not the upper triangle");
		finish(r, attention(a));
	});
}
EMU_OP_END(aclnnFusedInferAttentionScoreV3)
