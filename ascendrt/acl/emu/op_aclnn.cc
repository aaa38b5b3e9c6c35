// The operators of a decoder layer besides attention: what each takes, what it
// refuses, and which kernel it runs. Tensors that the vendor's reference calls
// contiguous must be so here; where the reference is silent, too.
#include "op_calls.h"

using namespace op;

EMU_OP(aclnnEmbedding)(const aclTensor *weight, const aclTensor *indices, const aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnEmbedding", ws, ex);
	auto W = c.in(weight, "weight"), I = c.in(indices, "indices"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	floats(c, W, "weight");
	c.oneOf(I, { ACL_INT32, ACL_INT64 }, "indices");
	c.rank(W, 2, "weight") && c.rank(I, 1, "indices") && c.rank(Y, 2, "out") &&
		c.require(W.dtype == Y.dtype, "weight and out differ in type") &&
		c.require(Y.dim[0] == I.dim[0] && Y.dim[1] == W.dim[1], "out is not [indices, %lld]", (long long)W.dim[1]);
	View w = view(W), i = view(I), y = view(Y);
	return c.ready([=](emu::Run &r) { finish(r, embedding(w, i, y)); });
}
EMU_OP_END(aclnnEmbedding)

EMU_OP(aclnnClampMin)(const aclTensor *self, const aclScalar *min, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnClampMin", ws, ex);
	auto X = c.in(self, "self"), Y = c.out(out, "out");
	double limit = c.scalar(min, "min");
	if (!c.ok()) return c.status();
	c.oneOf(X, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64 }, "self");
	same(c, X, "self", Y, "out");
	View x = view(X), y = view(Y);
	return c.ready([=](emu::Run &) { at_least(x, limit, y); });
}
EMU_OP_END(aclnnClampMin)

EMU_OP(aclnnLtScalar)(const aclTensor *self, const aclScalar *other, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnLtScalar", ws, ex);
	auto X = c.in(self, "self"), Y = c.out(out, "out");
	double limit = c.scalar(other, "other");
	if (!c.ok()) return c.status();
	c.oneOf(X, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64 }, "self");
	c.oneOf(Y, { ACL_BOOL }, "out");
	c.require(X.sameShape(Y), "self and out differ in shape");
	View x = view(X), y = view(Y);
	return c.ready([=](emu::Run &) { less(x, limit, y); });
}
EMU_OP_END(aclnnLtScalar)

EMU_OP(aclnnInplaceMaskedFillScalar)(aclTensor *self, const aclTensor *mask, const aclScalar *value, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnInplaceMaskedFillScalar", ws, ex);
	auto Y = c.inout(self, "self"), M = c.in(mask, "mask");
	double v = c.scalar(value, "value");
	if (!c.ok()) return c.status();
	c.oneOf(Y, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64, ACL_BOOL }, "self");
	c.oneOf(M, { ACL_BOOL }, "mask");
	c.require(fits(M, Y), "mask does not broadcast to self");
	View y = view(Y), m = view(M);
	return c.ready([=](emu::Run &) { fill_where(m, v, y); });
}
EMU_OP_END(aclnnInplaceMaskedFillScalar)

EMU_OP(aclnnSWhere)(const aclTensor *condition, const aclTensor *self, const aclTensor *other, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnSWhere", ws, ex);
	auto M = c.in(condition, "condition"), A = c.in(self, "self"), B = c.in(other, "other"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	c.oneOf(M, { ACL_BOOL, ACL_UINT8 }, "condition");
	same(c, A, "self", Y, "out") && same(c, B, "other", Y, "out");
	c.require(fits(M, Y), "condition does not broadcast to out");
	View m = view(M), a = view(A), b = view(B), y = view(Y);
	return c.ready([=](emu::Run &) { select(m, a, b, y); });
}
EMU_OP_END(aclnnSWhere)

EMU_OP(aclnnInplaceCopy)(aclTensor *self, const aclTensor *src, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnInplaceCopy", ws, ex);
	auto Y = c.out(self, "self"), X = c.in(src, "src");
	if (!c.ok()) return c.status();
	c.oneOf(X, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64, ACL_BOOL }, "src");
	c.oneOf(Y, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64, ACL_BOOL }, "self");
	c.require(fits(X, Y), "src does not broadcast to self");
	View x = view(X), y = view(Y);
	broadcast(&x, y);
	return c.ready([=](emu::Run &) { copy(x, y); });
}
EMU_OP_END(aclnnInplaceCopy)

EMU_OP(aclnnInplaceZero)(aclTensor *self, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnInplaceZero", ws, ex);
	auto Y = c.out(self, "self");
	View y = view(Y);
	return c.ready([=](emu::Run &) { zero(y); });
}
EMU_OP_END(aclnnInplaceZero)

EMU_OP(aclnnCast)(const aclTensor *self, const int dtype, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnCast", ws, ex);
	auto X = c.in(self, "self"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	c.oneOf(X, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64, ACL_BOOL }, "self");
	c.oneOf(Y, { ACL_FLOAT, ACL_BF16, ACL_INT32, ACL_INT64 }, "out");
	c.require(Y.dtype == dtype, "out has type %d, not the one asked for, %d", Y.dtype, dtype);
	c.require(X.sameShape(Y), "self and out differ in shape");
	View x = view(X), y = view(Y);
	return c.ready([=](emu::Run &) { cast(x, y); });
}
EMU_OP_END(aclnnCast)

EMU_OP(aclnnAdd)(const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnAdd", ws, ex);
	auto A = c.in(self, "self"), B = c.in(other, "other"), Y = c.out(out, "out");
	double f = c.scalar(alpha, "alpha");
	if (!c.ok()) return c.status();
	floats(c, A, "self");
	same(c, A, "self", B, "other") && same(c, A, "self", Y, "out");
	View a = view(A), b = view(B), y = view(Y);
	return c.ready([=](emu::Run &) { add(a, b, (float)f, y); });
}
EMU_OP_END(aclnnAdd)

EMU_OP(aclnnRmsNorm)(const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *y, const aclTensor *rstd, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnRmsNorm", ws, ex);
	auto X = c.in(x, "x"), G = c.in(gamma, "gamma"), Y = c.out(y, "y"), R = c.out(rstd, "rstd");
	if (!c.ok()) return c.status();
	floats(c, X, "x");
	floats(c, G, "gamma");
	same(c, X, "x", Y, "y");
	c.oneOf(R, { ACL_FLOAT }, "rstd");
	c.rank(G, 1, "gamma");
	c.require(X.rank > 0 && G.dim[0] == X.dim[X.rank - 1], "gamma does not have the last dimension of x");
	bool shape = R.rank == X.rank && X.rank > 0 && R.dim[R.rank - 1] == 1;
	for (int i = 0; shape && i + 1 < X.rank; i++) shape = R.dim[i] == X.dim[i];
	c.require(shape, "rstd does not have one element per row of x");
	c.contiguous(X, "x");
	c.contiguous(G, "gamma");
	c.contiguous(Y, "y");
	c.contiguous(R, "rstd");
	View vx = view(X), g = view(G), vy = view(Y), vr = view(R);
	return c.ready([=](emu::Run &) { rms_norm(vx, g, (float)epsilon, vy, vr); });
}
EMU_OP_END(aclnnRmsNorm)

EMU_OP(aclnnMm)(const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnMm", ws, ex);
	auto A = c.in(self, "self"), B = c.in(mat2, "mat2"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	floats(c, A, "self");
	c.require(A.dtype == B.dtype && A.dtype == Y.dtype, "self, mat2 and out differ in type");
	c.require(cubeMathType >= 0 && cubeMathType <= 4, "cubeMathType %d does not exist", cubeMathType);
	c.require(!(cubeMathType == 2 && A.dtype == ACL_BF16), "cubeMathType 2 is not for bfloat16");
	c.require(!(cubeMathType == 3 && A.dtype != ACL_FLOAT), "cubeMathType 3 is for float32 alone");
	c.require(cubeMathType == SL_KEEP_DTYPE, "cubeMathType %d is not emulated: pass 0", cubeMathType);
	c.rank(A, 2, "self") && c.rank(B, 2, "mat2") && c.rank(Y, 2, "out") &&
		c.require(A.dim[1] == B.dim[0] && Y.dim[0] == A.dim[0] && Y.dim[1] == B.dim[1], "[%lld,%lld] x [%lld,%lld] is no [%lld,%lld]",
			(long long)A.dim[0], (long long)A.dim[1], (long long)B.dim[0], (long long)B.dim[1], (long long)Y.dim[0], (long long)Y.dim[1]);
	// Something that the caller has to provide: the real one asks for it too.
	c.workspace(A.count() ? 512 : 0);
	View a = view(A), b = view(B), y = view(Y);
	return c.ready([=](emu::Run &) { matmul(a, b, y); });
}
EMU_OP_END(aclnnMm)

EMU_OP(aclnnSwiGlu)(const aclTensor *x, int64_t dim, const aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnSwiGlu", ws, ex);
	auto X = c.in(x, "x"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	floats(c, X, "x");
	c.require(X.dtype == Y.dtype, "x and out differ in type");
	c.require(X.rank > 0 && (dim == -1 || dim == X.rank - 1), "dim %lld is not emulated: the last one is", (long long)dim);
	bool shape = X.rank == Y.rank && X.rank > 0 && X.dim[X.rank - 1] == 2 * Y.dim[X.rank - 1];
	for (int i = 0; shape && i + 1 < X.rank; i++) shape = X.dim[i] == Y.dim[i];
	c.require(shape, "out is not half of x in its last dimension");
	c.contiguous(X, "x");
	c.contiguous(Y, "out");
	View vx = view(X), y = view(Y);
	return c.ready([=](emu::Run &) { swiglu(vx, y); });
}
EMU_OP_END(aclnnSwiGlu)

EMU_OP(aclnnArgMax)(const aclTensor *self, int64_t dim, bool keepdim, aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnArgMax", ws, ex);
	auto X = c.in(self, "self"), Y = c.out(out, "out");
	if (!c.ok()) return c.status();
	floats(c, X, "self");
	c.oneOf(Y, { ACL_INT32, ACL_INT64 }, "out");
	c.require(X.rank > 0 && (dim == -1 || dim == X.rank - 1), "dim %lld is not emulated: the last one is", (long long)dim);
	bool shape = X.rank > 0 && Y.rank == X.rank - (keepdim ? 0 : 1) && (!keepdim || Y.dim[Y.rank - 1] == 1);
	for (int i = 0; shape && i + 1 < X.rank; i++) shape = X.dim[i] == Y.dim[i];
	c.require(shape, "out does not have one element per row of self");
	View x = view(X), y = view(Y);
	return c.ready([=](emu::Run &) { argmax(x, y); });
}
EMU_OP_END(aclnnArgMax)

EMU_OP(aclnnRopeWithSinCosCache)(const aclTensor *positions, const aclTensor *query, const aclTensor *key, const aclTensor *cosSin,
	const aclIntArray *mrope, int64_t headSize, bool isNeox, aclTensor *queryOut, aclTensor *keyOut, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnRopeWithSinCosCache", ws, ex);
	auto P = c.in(positions, "positions"), Q = c.in(query, "query"), K = c.in(key, "key"), T = c.in(cosSin, "cosSinCache"),
		QO = c.out(queryOut, "queryOut"), KO = c.out(keyOut, "keyOut");
	c.none(mrope, "mropeSection");
	if (!c.ok()) return c.status();
	c.oneOf(P, { ACL_INT64 }, "positions");
	floats(c, Q, "query");
	c.require(Q.dtype == K.dtype && Q.dtype == T.dtype, "query, key and cosSinCache differ in type");
	c.rank(P, 1, "positions") && c.rank(Q, 2, "query") && c.rank(K, 2, "key") && c.rank(T, 2, "cosSinCache");
	same(c, Q, "query", QO, "queryOut");
	same(c, K, "key", KO, "keyOut");
	if (!c.ok()) return c.status();
	c.require(P.count() > 0 && Q.count() > 0 && K.count() > 0, "empty tensors are not supported");
	int64_t multiple = Q.dtype == ACL_FLOAT ? 16 : 32;
	if (headSize <= 0 || headSize % multiple) c.refuse(ACLNN_ERR_INNER_TILING_ERROR, "headSize %lld is no multiple of %lld", (long long)headSize, (long long)multiple);
	else if (T.dim[1] != headSize) c.refuse(ACLNN_ERR_PARAM_INVALID, "a rotary width of %lld besides headSize %lld is not emulated", (long long)T.dim[1], (long long)headSize);
	else if (Q.dim[0] != P.dim[0] || K.dim[0] != P.dim[0] || Q.dim[1] % headSize || K.dim[1] % headSize)
		c.refuse(ACLNN_ERR_INNER_TILING_ERROR, "query and key are not [positions, heads x %lld]", (long long)headSize);
	c.require(isNeox, "interleaved rotation is not emulated");
	c.contiguous(QO, "queryOut");
	c.contiguous(KO, "keyOut");
	View p = view(P), q = view(Q), k = view(K), t = view(T), qo = view(QO), ko = view(KO);
	return c.ready([=](emu::Run &r) { finish(r, rope(p, q, k, t, headSize, qo, ko)); });
}
EMU_OP_END(aclnnRopeWithSinCosCache)

EMU_OP(aclnnScatterPaKvCache)(const aclTensor *key, aclTensor *keyCache, const aclTensor *slots, const aclTensor *value, aclTensor *valueCache,
	const aclTensor *compressLens, const aclTensor *compressOffset, const aclTensor *seqLens, char *cacheMode, char *scatterMode,
	const aclIntArray *strides, const aclIntArray *offsets, uint64_t *ws, aclOpExecutor **ex) {
	emu::Call c("aclnnScatterPaKvCache", ws, ex);
	auto K = c.in(key, "key"), KC = c.inout(keyCache, "keyCacheRef"), S = c.in(slots, "slotMapping"), V = c.in(value, "value"),
		VC = c.inout(valueCache, "valueCacheRef");
	c.none(compressLens, "compressLens");
	c.none(compressOffset, "compressSeqOffset");
	c.none(seqLens, "seqLens");
	c.none(strides, "strides");
	c.none(offsets, "offsets");
	if (!c.ok()) return c.status();
	c.require(!cacheMode || std::string(cacheMode) == "Norm", "cache mode %s is not emulated: pass Norm", cacheMode ? cacheMode : "");
	c.require(!scatterMode || std::string(scatterMode) == "None", "scatter mode %s is not emulated: pass None", scatterMode ? scatterMode : "");
	c.oneOf(K, { ACL_BF16 }, "key"); // float32 is not supported by the A2 and A3 chips
	c.require(K.dtype == V.dtype && K.dtype == KC.dtype && K.dtype == VC.dtype, "key, value and the caches differ in type");
	c.oneOf(S, { ACL_INT32, ACL_INT64 }, "slotMapping");
	if (K.rank != 3 || V.rank != 3) c.refuse(ACLNN_ERR_INNER_TILING_ERROR, "key or value is not [tokens, heads, width]");
	c.rank(S, 1, "slotMapping") && c.rank(KC, 4, "keyCacheRef") && c.rank(VC, 4, "valueCacheRef");
	if (!c.ok()) return c.status();
	c.require(K.sameShape(V) && KC.sameShape(VC), "key and value, or their caches, differ in shape");
	c.require(S.dim[0] == K.dim[0], "there are %lld slots for %lld tokens", (long long)S.dim[0], (long long)K.dim[0]);
	c.require(KC.dim[2] == K.dim[1] && KC.dim[3] == K.dim[2], "the caches are not [blocks, size, heads, width] of the key");
	c.contiguous(K, "key");
	c.contiguous(V, "value");
	c.contiguous(S, "slotMapping");
	c.contiguous(KC, "keyCacheRef");
	c.contiguous(VC, "valueCacheRef");
	View k = view(K), v = view(V), s = view(S), kc = view(KC), vc = view(VC);
	return c.ready([=](emu::Run &r) { finish(r, scatter(k, v, s, kc, vc)); });
}
EMU_OP_END(aclnnScatterPaKvCache)
