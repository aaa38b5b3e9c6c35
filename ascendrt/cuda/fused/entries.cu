#define KERNEL extern "C" __global__ void
#ifdef LINEAR
#undef LINEAR // names the group
#define LINEAR1(NAME, MT, NT, HALF, NORM, EPI, CL, BLOCKS) \
KERNEL __cluster_dims__(CL, 1, 1) __launch_bounds__(288, BLOCKS) NAME(const u16* x, i64 xs, const u16* gain, const u16* w, const int* rows, u16* y, i64 ys, float* sum, i64 sums, i64 n, i64 k, i64 m, i64 eps, i64 stages) { \
	linear<MT, NT, HALF, NORM, EPI, CL>(x, xs, gain, w, rows, y, ys, sum, sums, (int)n, (int)k, (int)m, __uint_as_float((u32)eps), (int)stages); }
#define LINEAR(NAME, NT, NORM, EPI) \
LINEAR1(linear_8_##NAME##NT, 1, NT, true, NORM, EPI, 1, 2) \
LINEAR1(linear_16_##NAME##NT, 1, NT, false, NORM, EPI, 1, 2) \
LINEAR1(linear_32_##NAME##NT, 2, NT, false, NORM, EPI, 1, 1)
LINEAR(store, 1, false, STORE)
LINEAR(store, 4, false, STORE)
LINEAR(add, 1, false, ADD)
LINEAR(add, 4, false, ADD)
LINEAR(norm_store, 1, true, STORE)
LINEAR(norm_store, 4, true, STORE)
LINEAR(norm_swiglu, 4, true, SWIGLU)
LINEAR(norm_swiglu, 6, true, SWIGLU)
LINEAR(norm_float, 4, true, FLOAT)
LINEAR1(linear_32_store2, 2, 2, false, false, STORE, 2, 1)
LINEAR1(linear_32_add2, 2, 2, false, false, ADD, 2, 1)
KERNEL __launch_bounds__(256) norm_rows_fast(const float* x, i64 xs, const u16* gain, const int* rows, u16* y, i64 ys, i64 k, i64 eps) {
	norm_rows(x, xs, gain, rows, y, ys, (int)k, __uint_as_float((u32)eps)); }
KERNEL __launch_bounds__(256) gate_rows_fast(const u16* x, i64 xs, u16* y, i64 ys, i64 f) { gate_rows(x, xs, y, ys, (int)f); }
KERNEL __launch_bounds__(256) embed_fast(const int* ids, const int* feed, const int* cells, const u16* table, i64 vocab, float* y, i64 ys, u16* near, i64 ns, i64 h) {
	embed_rows(ids, feed, cells, table, vocab, y, ys, near, ns, (int)h); }
KERNEL __launch_bounds__(256) rotate_write_fast(u16* qkv, i64 s, const u16* qw, const u16* kw, const int* positions, const float* table, i64 pn,
	const int* slots, u16* kc, i64 kcs, u16* vc, i64 vcs, i64 blocks, i64 heads, i64 kvheads, i64 d, i64 bs, i64 eps) {
	rotate_write(qkv, s, qw, kw, positions, table, pn, slots, kc, kcs, vc, vcs, blocks, (int)heads, (int)kvheads, (int)d, (int)bs, __uint_as_float((u32)eps)); }
KERNEL __cluster_dims__(8, 1, 1) __launch_bounds__(1024) pick_fast(const float* x, i64 xs, i64 n, int* y, const int* keep, int* cells) {
	pick(x, xs, (int)n, y, keep, cells); }
KERNEL noise_fast(u16* y, i64 n, i64 seed, i64 factor) { noise(y, n, (u64)seed, __uint_as_float((u32)factor)); }
KERNEL __launch_bounds__(256) near_rows_fast(const float* x, i64 xs, const int* rows, u16* y, i64 ys, i64 k) { near_rows(x, xs, rows, y, ys, (int)k); }
KERNEL __launch_bounds__(256) take_rows_fast(const u16* x, i64 xs, const int* rows, u16* y, i64 ys, i64 k) {
	go();
	await();
	int r = rows[blockIdx.x];
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) *(v4*)(y + blockIdx.x * ys + i) = r < 0 ? v4{ 0, 0, 0, 0 } : ld16(x + r * xs + i);
}
#endif
#ifdef PRODUCT
#undef PRODUCT
#define PRODUCT1(NAME, BM, BN, WM, WN, ST, EPI, BLOCKS) \
KERNEL __launch_bounds__(BM / WM * (BN / WN) * 32, BLOCKS) NAME(const u16* x, i64 xs, const u16* w, i64 ws, void* y, i64 ys, i64 n, i64 k, i64 m) { \
	product<BM, BN, WM, WN, ST, EPI>(x, xs, w, ws, y, ys, (int)n, (int)k, (int)m); }
#define PRODUCT(NAME, EPI) \
PRODUCT1(product_16_##NAME, 16, 32, 16, 16, 8, EPI, 4) \
PRODUCT1(product_64_##NAME, 64, 64, 32, 32, 4, EPI, 3) \
PRODUCT1(product_128_##NAME, 128, 128, 64, 32, 3, EPI, 2)
PRODUCT(store, STORE) PRODUCT(add, ADD) PRODUCT(float, FLOAT)
#endif
#ifdef HEAD
#define SHORT(NQ, CL) \
KERNEL __cluster_dims__(CL, 1, 1) __launch_bounds__(256, NQ > 1 ? 1 : 2) attend_short_##NQ##_##CL(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, \
	const int* table, i64 tbs, const int* starts, const int* lens, u16* y, i64 ys, i64 kvheads, i64 shift, i64 scale) { \
	attend_short<HEAD, NQ, CL, false, 8>(q, qs, kc, kcs, vc, vcs, table, tbs, starts, lens, y, ys, (int)kvheads, (int)shift, __uint_as_float((u32)scale)); }
#define SHORTS(NQ) SHORT(NQ, 1) SHORT(NQ, 2) SHORT(NQ, 4) SHORT(NQ, 8)
SHORTS(1) SHORTS(2) SHORTS(4)
#define RINGED(NAME, CL, W, BLOCKS) \
KERNEL __cluster_dims__(CL, 1, 1) __launch_bounds__(32 * W, BLOCKS) NAME(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, \
	const int* table, i64 tbs, const int* starts, const int* lens, u16* y, i64 ys, i64 kvheads, i64 shift, i64 scale) { \
	attend_short<HEAD, 1, CL, true, W>(q, qs, kc, kcs, vc, vcs, table, tbs, starts, lens, y, ys, (int)kvheads, (int)shift, __uint_as_float((u32)scale)); }
RINGED(attend_ring_1, 1, 8, 1) RINGED(attend_ring_2, 2, 8, 1) RINGED(attend_ring_4, 4, 8, 1) RINGED(attend_ring_8, 8, 8, 1)
RINGED(attend_rings_1, 1, 4, 3) RINGED(attend_rings_2, 2, 4, 2) RINGED(attend_rings_4, 4, 4, 2) RINGED(attend_rings_8, 8, 4, 2)
#define TALL(CL) \
KERNEL __cluster_dims__(CL, 1, 1) __launch_bounds__(128, 2) attend_long_##CL(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, \
	const int* table, i64 tbs, const int* starts, const int* lens, i64 requests, u16* y, i64 ys, i64 kvheads, i64 shift, i64 scale, i64 few) { \
	attend_tall<HEAD, CL>(q, qs, kc, kcs, vc, vcs, table, tbs, starts, lens, (int)requests, y, ys, (int)kvheads, (int)shift, __uint_as_float((u32)scale), (int)few); }
TALL(1) TALL(2) TALL(4) TALL(8) TALL(16)
KERNEL __launch_bounds__(128, 2) attend_alike_16(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, \
	const int* table, i64 tbs, const int* starts, const int* lens, u16* y, i64 ys, i64 kvheads, i64 shift, i64 scale) {
	attend_alike<HEAD, 3>(q, qs, kc, kcs, vc, vcs, table, tbs, starts, lens, y, ys, (int)kvheads, (int)shift, __uint_as_float((u32)scale)); }
#endif
