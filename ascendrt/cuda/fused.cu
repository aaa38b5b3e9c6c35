// The fused operations for tensor cores: bfloat16 storage, float sums in an
// order of their own. Every parameter is 8 bytes, strides are in elements.
//
// Each kernel starts with the part that does not depend on the kernel before it
// (weights into registers), lets the next kernel start, and then waits for the
// one before: launches with the programmatic attribute overlap, others do not
// notice. Every thread waits before it leaves, so a kernel that has ended has
// seen the end of all kernels before it.

typedef long long i64;
typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(16) v4 { u32 x, y, z, w; };
struct alignas(8) v2 { u32 x, y; };

extern __shared__ __align__(16) unsigned char pool[];

__device__ __forceinline__ void go() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void await() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
	asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// Writes to the same place in the shared memory of another block of the cluster.
__device__ __forceinline__ void push(float* p, int rank, float v) {
	u32 a = (u32)__cvta_generic_to_shared(p), b;
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank));
	asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(b), "f"(v) : "memory");
}
__device__ __forceinline__ v4 ld_weight(const void* p) {
	v4 r;
	asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
	return r;
}
__device__ __forceinline__ void ask(const void* p, int bytes) { // into the L2
#if __CUDACC_VER_MAJOR__ >= 12
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(p), "r"(bytes) : "memory");
#else
	for (int i = 0; i < bytes; i += 128) asm volatile("prefetch.global.L2 [%0];" :: "l"((const char*)p + i) : "memory");
#endif
}
__device__ __forceinline__ v4 ld16(const void* p) { return *(const v4*)p; }
__device__ __forceinline__ float lo(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float hi(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float one(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u32 pack(float a, float b) { // a in the low half
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
	return r;
}
__device__ __forceinline__ u16 narrow(float a) { return (u16)pack(a, 0.0f); }
__device__ __forceinline__ float ex2(float x) {
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}
__device__ __forceinline__ float minus_inf() { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float shfl(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
__device__ __forceinline__ float warp_sum(float v) {
	for (int m = 16; m > 0; m /= 2) v += shfl(v, m);
	return v;
}

enum { STORE, ADD, SWIGLU, FLOAT };

__device__ __forceinline__ u32 scale_pair(u32 x, u32 g, float& ss) {
	float a = lo(x), b = hi(x);
	ss += a * a + b * b;
	return pack(a * lo(g), b * hi(g));
}

// Barriers in shared memory that count arrivals and bytes of bulk copies.
__device__ __forceinline__ u32 at_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(u64* b, int count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at_shared(b)), "r"(count) : "memory"); }
__device__ __forceinline__ void bar_arrive(u64* b) {
	asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" :: "r"(at_shared(b)) : "memory");
}
#if __CUDACC_VER_MAJOR__ >= 12
__device__ __forceinline__ void bar_expect(u64* b, int bytes) {
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at_shared(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(u64* b, int parity) {
	asm volatile("{\n.reg .pred p;\nWAIT%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}"
		:: "r"(at_shared(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk(void* dst, const void* src, int bytes, u64* b) {
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
		:: "r"(at_shared(dst)), "l"(src), "r"(bytes), "r"(at_shared(b)) : "memory");
}
__device__ __forceinline__ void bars_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#else // too old to know them
__device__ __forceinline__ void bar_expect(u64* b, int) { bar_arrive(b); }
__device__ __forceinline__ void bar_wait(u64*, int) { asm volatile("trap;"); }
__device__ __forceinline__ void bulk(void*, const void*, int, u64*) {}
__device__ __forceinline__ void bars_ready() {}
#endif

// Linear for few tokens: y = x·Wᵀ, x optionally normalised. A tile is 8·NT outputs
// of up to 16·MT tokens. One warp copies its weights into a ring of stages in
// shared memory, 512 of K in each, as far ahead as the ring reaches, across tiles
// too: the ring is filled before the kernel ahead has ended. The other 8 warps
// share the K of a stage. Tokens are the rows of the tensor cores' A, weights the
// columns of B; a lane's 16 bytes of a row stand for the k that the instruction
// expects in 4 places, which is right as long as x and w agree. CL blocks of a
// cluster share K; the first one sums up. With SWIGLU the first half of a tile
// are gate rows, the rest up rows.
template<int MT, int NT, bool HALF, bool NORM, int EPI, int CL>
__device__ __forceinline__ void linear(const u16* x, i64 xs, const u16* gain, const u16* w, const int* rows, u16* y, i64 ys, int n, int k, int m, float eps, int stages) {
	constexpr int OUT = EPI == SWIGLU ? NT / 2 : NT, W = 8, KS = 2, KC = KS * 32 * W, R = NT * 8, PITCH = KC + 32, H = HALF ? 1 : 2;
	constexpr int ROWS = HALF ? 8 : MT * 16, COLS = NT * 8, CHAINS = NT == 1 ? 2 : 1;
	float (*part)[ROWS][COLS + 1] = (float(*)[ROWS][COLS + 1])(pool + stages * R * PITCH * 2); // [W]
	__shared__ float squares[W][ROWS];
	__shared__ float joined[CL > 1 ? CL : 1][CL > 1 ? ROWS : 1][CL > 1 ? COLS + 1 : 1]; // the last column: squares
	__shared__ u64 full[8], empty[8];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int rank = blockIdx.x % CL, stride = gridDim.x / CL, span = k / CL, chunks = span / KC, tiles = (m + OUT * 8 - 1) / (OUT * 8);
	u16* ring = (u16*)pool;
	if (threadIdx.x == 0) {
		for (int i = 0; i < stages; i++) bar_init(full + i, 1), bar_init(empty + i, W);
		bars_ready();
	}
	__syncthreads();
	go();
	if (warp == W) {
		int slot = 0, round = 0;
		for (int tile = blockIdx.x / CL; tile < tiles; tile += stride)
			for (int c = 0; c < chunks; c++) {
				if (round > 0) bar_wait(empty + slot, (round - 1) & 1);
				if (lane == 0) bar_expect(full + slot, R * KC * 2);
				__syncwarp();
				for (int r = lane; r < R; r += 32) {
					int row = min(tile * OUT * 8 + (EPI == SWIGLU ? r % (OUT * 8) : r), m - 1);
					if (EPI == SWIGLU && r >= OUT * 8) row += m;
					bulk(ring + (slot * R + r) * PITCH, w + (i64)row * k + rank * span + c * KC, KC * 2, full + slot);
				}
				if (++slot == stages) slot = 0, round++;
			}
		if (CL == 1) return;
	}
	await();
	if (CL > 1) cluster_arrive();
	if (warp < W) {
		const int k0 = rank * span + warp * KS * 32 + j * 8;
		const u16* from[MT][H];
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int h = 0; h < H; h++) {
				int r = i * 16 + h * 8 + g;
				int at = r < n ? (rows ? rows[r] : r) : -1;
				from[i][h] = at < 0 ? nullptr : x + (i64)at * xs + k0;
			}
		float ss[MT][H];
#pragma unroll
		for (int i = 0; i < MT; i++)
#pragma unroll
			for (int h = 0; h < H; h++) ss[i][h] = 0.0f;
		constexpr int AHEAD = NORM && MT > 1 ? 1 : NORM || MT > 1 ? 2 : HALF ? 6 : 3; // chunks of x that are asked for together
		v4 in[AHEAD][KS][MT][H];
		bool first = true;
		int slot = 0, round = 0;
		u16 early = 0; // what a thread's first output is added to
		if (EPI == ADD && CL == 1 && threadIdx.x < ROWS * OUT * 8) {
			int tok = threadIdx.x / (OUT * 8), out = blockIdx.x * OUT * 8 + threadIdx.x % (OUT * 8);
			if (tok < n && out < m) early = y[tok * ys + out];
		}
		for (int tile = blockIdx.x / CL; tile < tiles; tile += stride) {
			float acc[CHAINS][MT][NT][4];
#pragma unroll
			for (int c = 0; c < CHAINS; c++)
#pragma unroll
				for (int i = 0; i < MT; i++)
#pragma unroll
					for (int t = 0; t < NT; t++)
#pragma unroll
						for (int e = 0; e < 4; e++) acc[c][i][t][e] = 0.0f;
			for (int c0 = 0; c0 < chunks; c0 += AHEAD) {
				if (first || chunks > AHEAD) {
#pragma unroll
					for (int c = 0; c < AHEAD; c++)
#pragma unroll
						for (int u = 0; u < KS; u++)
#pragma unroll
							for (int i = 0; i < MT; i++)
#pragma unroll
								for (int h = 0; h < H; h++)
									in[c][u][i][h] = c0 + c < chunks && from[i][h] ? ld16(from[i][h] + (c0 + c) * KC + u * 32) : v4{ 0, 0, 0, 0 };
					if (NORM) {
#pragma unroll
						for (int c = 0; c < AHEAD; c++)
#pragma unroll
							for (int u = 0; u < KS; u++) {
								v4 gv = c0 + c < chunks ? ld16(gain + k0 + (c0 + c) * KC + u * 32) : v4{ 0, 0, 0, 0 };
#pragma unroll
								for (int i = 0; i < MT; i++)
#pragma unroll
									for (int h = 0; h < H; h++) {
										v4& a = in[c][u][i][h];
										float q = 0.0f;
										a.x = scale_pair(a.x, gv.x, q), a.y = scale_pair(a.y, gv.y, q);
										a.z = scale_pair(a.z, gv.z, q), a.w = scale_pair(a.w, gv.w, q);
										if (first) ss[i][h] += q;
									}
							}
					}
				}
#pragma unroll
				for (int c = 0; c < AHEAD; c++) {
					if (c0 + c >= chunks) continue;
					bar_wait(full + slot, round & 1);
					const u16* stage = ring + slot * R * PITCH + g * PITCH + warp * KS * 32 + j * 8;
#pragma unroll
					for (int u = 0; u < KS; u++)
#pragma unroll
						for (int t = 0; t < NT; t++) {
							v4 b = ld16(stage + t * 8 * PITCH + u * 32);
#pragma unroll
							for (int i = 0; i < MT; i++) {
								v4 a = in[c][u][i][0], a2 = HALF ? v4{ 0, 0, 0, 0 } : in[c][u][i][H - 1];
								mma(acc[0][i][t], a.x, a2.x, a.y, a2.y, b.x, b.y);
								mma(acc[CHAINS - 1][i][t], a.z, a2.z, a.w, a2.w, b.z, b.w);
							}
						}
					__syncwarp();
					if (lane == 0) bar_arrive(empty + slot);
					if (++slot == stages) slot = 0, round++;
				}
			}
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int t = 0; t < NT; t++)
#pragma unroll
					for (int e = 0; e < 2 * H; e++) {
						float v = acc[0][i][t][e];
						if (CHAINS > 1) v += acc[CHAINS - 1][i][t][e];
						part[warp][i * 16 + e / 2 * 8 + g][t * 8 + 2 * j + e % 2] = v;
					}
			if (NORM && first) {
#pragma unroll
				for (int i = 0; i < MT; i++)
#pragma unroll
					for (int h = 0; h < H; h++) {
						float s = ss[i][h];
						s += shfl(s, 1);
						s += shfl(s, 2);
						if (j == 0) squares[warp][i * 16 + h * 8 + g] = s;
					}
			}
			first = false;
			asm volatile("bar.sync 1, 256;" ::: "memory");
			if (CL > 1) { // everything to the first block of the cluster
				cluster_wait();
				for (int e = threadIdx.x; e < ROWS * (COLS + 1); e += 256) {
					int tok = e / (COLS + 1), c = e % (COLS + 1);
					float v = 0.0f;
#pragma unroll
					for (int s = 0; s < W; s++) v += c < COLS ? part[s][tok][c] : NORM ? squares[s][tok] : 0.0f;
					push(&joined[rank][tok][c], 0, v);
				}
				break; // a cluster has one tile
			}
			for (int e = threadIdx.x; e < ROWS * OUT * 8; e += 256) {
				int tok = e / (OUT * 8), c = e % (OUT * 8), out = tile * OUT * 8 + c;
				if (tok >= n || out >= m) continue;
				float v = 0.0f, up = 0.0f, inv = 1.0f, old = 0.0f;
				if (EPI == ADD) old = one(e < 256 && tile == (int)blockIdx.x ? early : y[tok * ys + out]);
#pragma unroll
				for (int s = 0; s < W; s++) v += part[s][tok][c];
				if (EPI == SWIGLU)
#pragma unroll
					for (int s = 0; s < W; s++) up += part[s][tok][c + OUT * 8];
				if (NORM) {
					float q = 0.0f;
#pragma unroll
					for (int s = 0; s < W; s++) q += squares[s][tok];
					inv = rsqrtf(q / (float)k + eps);
					v *= inv;
				}
				if (EPI == FLOAT) ((float*)y)[tok * ys + out] = v;
				if (EPI == STORE) y[tok * ys + out] = narrow(v);
				if (EPI == ADD) y[tok * ys + out] = narrow(v + old);
				if (EPI == SWIGLU) {
					up *= inv;
					y[tok * ys + out] = narrow(v / (1.0f + __expf(-v)) * up);
				}
			}
			if (tile + stride < tiles) asm volatile("bar.sync 1, 256;" ::: "memory");
		}
	} else {
		cluster_wait();
	}
	if (CL > 1) {
		cluster_sync();
		if (rank > 0) return;
		for (int e = threadIdx.x; e < ROWS * COLS; e += blockDim.x) {
			int tok = e / COLS, c = e % COLS, out = blockIdx.x / CL * COLS + c;
			if (tok >= n || out >= m) continue;
			float v = 0.0f;
#pragma unroll
			for (int s = 0; s < CL; s++) v += joined[s][tok][c];
			if (EPI == ADD) v += one(y[tok * ys + out]);
			y[tok * ys + out] = narrow(v);
		}
	}
}

// Normalises rows of x into y; rows picks them, or is null.
__device__ void norm_rows(const u16* x, i64 xs, const u16* gain, const int* rows, u16* y, i64 ys, int k, float eps) {
	__shared__ float sums[32];
	go();
	await();
	int r = rows ? rows[blockIdx.x] : (int)blockIdx.x, warp = threadIdx.x / 32;
	y += blockIdx.x * ys;
	if (r < 0) {
		for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) *(v4*)(y + i) = v4{ 0, 0, 0, 0 };
		return;
	}
	x += r * xs;
	float s = 0.0f;
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) {
		v4 v = ld16(x + i);
		s += lo(v.x) * lo(v.x) + hi(v.x) * hi(v.x) + lo(v.y) * lo(v.y) + hi(v.y) * hi(v.y);
		s += lo(v.z) * lo(v.z) + hi(v.z) * hi(v.z) + lo(v.w) * lo(v.w) + hi(v.w) * hi(v.w);
	}
	s = warp_sum(s);
	if (threadIdx.x % 32 == 0) sums[warp] = s;
	__syncthreads();
	s = 0.0f;
	for (int i = 0; i < (int)blockDim.x / 32; i++) s += sums[i];
	float f = rsqrtf(s / (float)k + eps);
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) {
		v4 v = ld16(x + i), g = ld16(gain + i), o;
		o.x = pack(lo(v.x) * f * lo(g.x), hi(v.x) * f * hi(g.x)), o.y = pack(lo(v.y) * f * lo(g.y), hi(v.y) * f * hi(g.y));
		o.z = pack(lo(v.z) * f * lo(g.z), hi(v.z) * f * hi(g.z)), o.w = pack(lo(v.w) * f * lo(g.w), hi(v.w) * f * hi(g.w));
		*(v4*)(y + i) = o;
	}
}

__device__ __forceinline__ u32 gated(u32 g, u32 u) {
	float a = lo(g), b = hi(g);
	return pack(a / (1.0f + __expf(-a)) * lo(u), b / (1.0f + __expf(-b)) * hi(u));
}

// y[N,F] = silu(x[:,:F]) · x[:,F:], 8 elements per thread.
__device__ void gate_rows(const u16* x, i64 xs, u16* y, i64 ys, int f) {
	go();
	await();
	int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
	if (i >= f) return;
	v4 g = ld16(x + blockIdx.y * xs + i), u = ld16(x + blockIdx.y * xs + f + i);
	*(v4*)(y + blockIdx.y * ys + i) = v4{ gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w) };
}

// The rows of an embedding; an id comes from a cell where feed names one.
__device__ void embed_rows(const int* ids, const int* feed, const int* cells, const u16* table, i64 vocab, u16* y, i64 ys, int h) {
	go();
	await();
	int cell = feed[blockIdx.x], id = cell > 0 ? cells[cell] : ids[blockIdx.x];
	if (id >= vocab) id = 0;
	for (int i = threadIdx.x * 8; i < h; i += blockDim.x * 8)
		*(v4*)(y + blockIdx.x * ys + i) = id < 0 ? v4{ 0, 0, 0, 0 } : ld16(table + id * (i64)h + i);
}

// One warp per head of one token: normalises (where a gain is given) and rotates
// query and key heads, and writes keys and values into the cache.
__device__ void rotate_write(u16* qkv, i64 s, const u16* qw, const u16* kw, const int* positions, const float* table, i64 positions_n,
	const int* slots, u16* kc, i64 kcs, u16* vc, i64 vcs, i64 blocks, int heads, int kvheads, int d, int bs, float eps) {
	go();
	// The inputs of the step and the model's tables are older than any kernel.
	const int h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, half = d / 2;
	const bool key = h >= heads, value = h >= heads + kvheads;
	int slot = slots[blockIdx.x], pos = positions[blockIdx.x];
	if (pos < 0 || pos >= positions_n) pos = 0;
	const float* cs = table + pos * (i64)d;
	const u16* gain = key ? kw : qw;
	u32 ga[4], gb[4];
	float2 c[4], sn[4];
#pragma unroll
	for (int t = 0; t < 4; t++) {
		int i = lane * 2 + t * 64;
		if (value || i >= half) continue;
		c[t] = *(const float2*)(cs + i), sn[t] = *(const float2*)(cs + half + i);
		if (gain) ga[t] = *(const u32*)(gain + i), gb[t] = *(const u32*)(gain + half + i);
	}
	await();
	if (h >= heads + 2 * kvheads || (key && slot < 0) || slot >= blocks * bs) return;
	u16* x = qkv + blockIdx.x * s + (i64)h * d;
	i64 at = key ? (i64)(slot / bs) : 0;
	int row = (slot % bs) * kvheads * d;
	if (value) {
		u16* v = vc + at * vcs + row + (h - heads - kvheads) * d;
		for (int i = lane * 2; i < d; i += 64) *(u32*)(v + i) = *(u32*)(x + i);
		return;
	}
	u16* y = key ? kc + at * kcs + row + (h - heads) * d : x;
	u32 a[4], b[4];
	float f = 1.0f, ss = 0.0f;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		int i = lane * 2 + t * 64;
		a[t] = b[t] = 0;
		if (i < half) a[t] = *(u32*)(x + i), b[t] = *(u32*)(x + half + i);
		ss += lo(a[t]) * lo(a[t]) + hi(a[t]) * hi(a[t]) + lo(b[t]) * lo(b[t]) + hi(b[t]) * hi(b[t]);
	}
	if (gain) f = rsqrtf(warp_sum(ss) / (float)d + eps);
#pragma unroll
	for (int t = 0; t < 4; t++) {
		int i = lane * 2 + t * 64;
		if (i >= half) continue;
		float a0 = lo(a[t]) * f, a1 = hi(a[t]) * f, b0 = lo(b[t]) * f, b1 = hi(b[t]) * f;
		if (gain) a0 *= lo(ga[t]), a1 *= hi(ga[t]), b0 *= lo(gb[t]), b1 *= hi(gb[t]);
		*(u32*)(y + i) = pack(a0 * c[t].x - b0 * sn[t].x, a1 * c[t].y - b1 * sn[t].y);
		*(u32*)(y + half + i) = pack(b0 * c[t].x + a0 * sn[t].x, b1 * c[t].y + a1 * sn[t].y);
	}
}

__device__ __forceinline__ u32 turn(u32 v) { // transposes an 8x8 matrix of halves
	u32 r;
	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
	return r;
}

#ifdef HEAD
// How far the keys and values that attend_short reads ahead lie apart, in halves:
// the reads of a quarter of a warp meet different banks.
template<int D> struct Pitch { static constexpr int K = D + 32, V = D + 8, STAGE = 16 * (K + V); };

// Attention of short rows: a request has up to 8·NQ pairs of a query token and a
// head of one kv group. The CL blocks of a cluster share the keys, their W warps
// take 16 at a time; everything is combined in shared memory. Scores are
// computed transposed, keys as rows, so that few queries waste little.
// With RING each warp copies two tiles ahead into shared memory, for steps with
// so few requests that a multiprocessor has one block.
template<int D, int NQ, int CL, bool RING, int W>
__device__ __forceinline__ void attend_short(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, const int* table, i64 tbs,
	const int* starts, const int* lens, u16* y, i64 ys, int kvheads, int shift, float scale) {
	constexpr int Q = 8 * NQ, group = GROUP;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int rank = blockIdx.x, kvh = blockIdx.y, req = blockIdx.z;
	go();
	// The inputs of the step are older than any kernel; keys and values are asked
	// for ahead into the L2, where this step's writes arrive as well.
	const int len = lens[req], first = starts[req], count = starts[req + 1] - first, rows = count * group;
	const int tiles = (len + 15) / 16, share = (tiles + CL - 1) / CL, end = min(tiles, (rank + 1) * share);
	const int width = kvheads * D;
	const int mask = (1 << shift) - 1;
	table += req * tbs;
	kc += kvh * D, vc += kvh * D;
	auto ahead = [&](int tile) { // a tile's rows lie in one block
		const i64 at = table[tile * 16 >> shift];
		const int t = min(tile * 16 + (lane & 15), len - 1) & mask;
		ask((lane < 16 ? kc + at * kcs : vc + at * vcs) + t * width, D * 2);
	};
	if (rows > 0 && rows <= Q && rank * share + warp < end) ahead(rank * share + warp);
	__shared__ u64 full[W][2];
	u16* ring = (u16*)pool + warp * 2 * Pitch<D>::STAGE;
	if (RING) {
		if (lane < 2) bar_init(&full[warp][lane], 1);
		bars_ready();
		__syncwarp();
		if (rows > 0 && rows <= Q && rank * share + warp + W < end) ahead(rank * share + warp + W);
	}
	await();
	if (len <= 0 || rows <= 0 || rows > Q) return;
	if (CL > 1) cluster_arrive(); // all blocks have started: waited for before the first push
	v4 qf[NQ][D / 32];
#pragma unroll
	for (int i = 0; i < NQ; i++) {
		int r = i * 8 + g;
		const u16* p = q + (first + r / group) * qs + (kvh * group + r % group) * D + j * 8;
#pragma unroll
		for (int c = 0; c < D / 32; c++) qf[i][c] = r < rows ? ld16(p + c * 32) : v4{ 0, 0, 0, 0 };
	}
	float acc[D / 64][4][NQ][4], top[NQ][2], sum[NQ][2];
#pragma unroll
	for (int i = 0; i < NQ; i++) {
		top[i][0] = top[i][1] = minus_inf(), sum[i][0] = sum[i][1] = 0.0f;
#pragma unroll
		for (int b = 0; b < D / 64; b++)
#pragma unroll
			for (int t = 0; t < 4; t++)
#pragma unroll
				for (int e = 0; e < 4; e++) acc[b][t][i][e] = 0.0f;
	}
	auto fetch = [&](int tile, int stage) { // a lane copies one row of keys or values
		const i64 at = table[tile * 16 >> shift];
		const int t = min(tile * 16 + (lane & 15), len - 1) & mask;
		u16* to = ring + stage * Pitch<D>::STAGE + (lane < 16 ? lane * Pitch<D>::K : 16 * Pitch<D>::K + (lane - 16) * Pitch<D>::V);
		if (lane == 0) bar_expect(&full[warp][stage], 32 * D * 2);
		__syncwarp();
		bulk(to, (lane < 16 ? kc + at * kcs : vc + at * vcs) + t * width, D * 2, &full[warp][stage]);
	};
	if (RING)
		for (int i = 0; i < 2; i++)
			if (rank * share + warp + W * i < end) fetch(rank * share + warp + W * i, i);
	int turns = 0;
	for (int tile = rank * share + warp; tile < end; tile += W, turns++) {
		const int t0 = tile * 16, last = len - 1;
		v4 kf[D / 32][2], vf[D / 64][4];
		if (RING) {
			bar_wait(&full[warp][turns & 1], turns >> 1 & 1);
			const u16* k = ring + (turns & 1) * Pitch<D>::STAGE;
			const u16* v = k + 16 * Pitch<D>::K + g * 8;
#pragma unroll
			for (int c = 0; c < D / 32; c++) kf[c][0] = ld16(k + g * Pitch<D>::K + j * 8 + c * 32), kf[c][1] = ld16(k + (g + 8) * Pitch<D>::K + j * 8 + c * 32);
#pragma unroll
			for (int e = 0; e < 4; e++)
#pragma unroll
				for (int b2 = 0; b2 < D / 64; b2++) vf[b2][e] = ld16(v + (2 * j + (e & 1) + (e & 2) * 4) * Pitch<D>::V + b2 * 64);
		} else {
			const i64 at = table[t0 >> shift];
			int ta = min(t0 + g, last), tb = min(t0 + g + 8, last);
			const u16* a = kc + at * kcs + (ta & mask) * width + j * 8;
			const u16* b = kc + at * kcs + (tb & mask) * width + j * 8;
#pragma unroll
			for (int c = 0; c < D / 32; c++) kf[c][0] = ld16(a + c * 32), kf[c][1] = ld16(b + c * 32);
#pragma unroll
			for (int e = 0; e < 4; e++) {
				int tv = min(t0 + 2 * j + (e & 1) + (e & 2) * 4, last);
				const u16* p = vc + at * vcs + (tv & mask) * width + g * 8;
#pragma unroll
				for (int b2 = 0; b2 < D / 64; b2++) vf[b2][e] = ld16(p + b2 * 64);
			}
		}
		if (!RING && tile + W < end) ahead(tile + W);
		float s[NQ][4];
		u32 p0[NQ], p1[NQ];
#pragma unroll
		for (int i = 0; i < NQ; i++) {
			float s2[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
			s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
#pragma unroll
			for (int c = 0; c < D / 32; c++) {
				mma(s[i], kf[c][0].x, kf[c][1].x, kf[c][0].y, kf[c][1].y, qf[i][c].x, qf[i][c].y);
				mma(s2, kf[c][0].z, kf[c][1].z, kf[c][0].w, kf[c][1].w, qf[i][c].z, qf[i][c].w);
			}
#pragma unroll
			for (int e = 0; e < 4; e++) s[i][e] += s2[e];
			float alpha[2];
			if (t0 + 15 > len - count) { // some query does not see all of them
#pragma unroll
				for (int e = 0; e < 2; e++) {
					int pos = len - count + (i * 8 + 2 * j + e) / group;
					if (t0 + g > pos) s[i][e] = minus_inf();
					if (t0 + g + 8 > pos) s[i][2 + e] = minus_inf();
				}
			}
#pragma unroll
			for (int e = 0; e < 2; e++) { // the column of a query
				float m = fmaxf(s[i][e], s[i][2 + e]);
				m = fmaxf(m, shfl(m, 4));
				m = fmaxf(m, shfl(m, 8));
				m = fmaxf(m, shfl(m, 16));
				m = fmaxf(m, top[i][e]);
				float base = m == minus_inf() ? 0.0f : m * scale;
				alpha[e] = ex2(top[i][e] * scale - base);
				top[i][e] = m;
				s[i][e] = ex2(s[i][e] * scale - base);
				s[i][2 + e] = ex2(s[i][2 + e] * scale - base);
				sum[i][e] = sum[i][e] * alpha[e] + s[i][e] + s[i][2 + e];
			}
			p0[i] = turn(pack(s[i][0], s[i][1]));
			p1[i] = turn(pack(s[i][2], s[i][3]));
#pragma unroll
			for (int b = 0; b < D / 64; b++)
#pragma unroll
				for (int t = 0; t < 4; t++)
#pragma unroll
					for (int e = 0; e < 4; e++) acc[b][t][i][e] *= alpha[e & 1];
		}
#pragma unroll
		for (int b = 0; b < D / 64; b++)
#pragma unroll
			for (int t = 0; t < 4; t++) {
				u32 w0 = (&vf[b][0].x)[t], w1 = (&vf[b][1].x)[t], w2 = (&vf[b][2].x)[t], w3 = (&vf[b][3].x)[t];
				u32 a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632);
				u32 a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
#pragma unroll
				for (int i = 0; i < NQ; i++) mma(acc[b][t][i], a0, a1, a2, a3, p0[i], p1[i]);
			}
		if (RING && tile + 2 * W < end) {
			__syncwarp(); // all lanes have read the stage
			fetch(tile + 2 * W, turns & 1);
		}
	}
	if (RING) __syncthreads(); // the ring's memory is used again below
	// Warps agree on each query's maximum, then their outputs are added up.
	float* tops = (float*)pool;         // [W][Q]
	float* sums = tops + W * Q;         // [W][Q]
	float* factors = sums + W * Q;      // [W][Q]
	float* block = factors + W * Q;     // [Q] maxima, [Q] sums
	float* outs = block + 2 * Q;        // [W][Q][D]
#pragma unroll
	for (int i = 0; i < NQ; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int c = i * 8 + 2 * j + e;
			float v = sum[i][e];
			v += shfl(v, 4), v += shfl(v, 8), v += shfl(v, 16);
			if (g == 0) tops[warp * Q + c] = top[i][e], sums[warp * Q + c] = v;
			if (c < rows)
#pragma unroll
				for (int b = 0; b < D / 64; b++)
#pragma unroll
					for (int t = 0; t < 4; t++)
						*(float2*)(outs + (warp * Q + c) * D + b * 64 + g * 8 + 2 * t) = float2{ acc[b][t][i][e], acc[b][t][i][2 + e] };
		}
	__syncthreads();
	if (threadIdx.x < W * Q) {
		const int c = threadIdx.x % Q;
		float m = tops[c];
#pragma unroll
		for (int w = 1; w < W; w++) m = fmaxf(m, tops[w * Q + c]);
		const float base = m == minus_inf() ? 0.0f : m * scale;
		factors[threadIdx.x] = ex2(tops[threadIdx.x] * scale - base);
		if (threadIdx.x < Q) {
			float l = 0.0f;
#pragma unroll
			for (int w = 0; w < W; w++) l += sums[w * Q + c] * ex2(tops[w * Q + c] * scale - base);
			block[c] = m, block[Q + c] = l;
		}
	}
	__syncthreads();
	// Block r of the cluster finishes the r-th part of each head; the others push
	// their sums there, and their maxima and sums of weights everywhere.
	constexpr int DS = D / CL;
	// Others push while this block still reads its ring: that is not used again.
	float* parts = RING ? (float*)((u16*)pool + 2 * W * Pitch<D>::STAGE) : outs + W * Q * D; // [CL][Q·DS]
	float* stats = parts + (CL > 1 ? Q * D : 0); // [CL][2·Q]
	if (CL > 1) {
		cluster_wait();
#pragma unroll 1
		for (int e = threadIdx.x; e < 2 * Q * CL; e += 32 * W) push(stats + rank * 2 * Q + e / CL, e % CL, block[e / CL]);
	}
#pragma unroll 1
	for (int e = threadIdx.x; e < rows * D; e += 32 * W) {
		const int r = e / D, d = e % D;
		float v = 0.0f;
#pragma unroll
		for (int w = 0; w < W; w++) v += outs[w * Q * D + e] * factors[w * Q + r];
		if (CL == 1) y[(first + r / group) * ys + (kvh * group + r % group) * D + d] = narrow(v / block[Q + r]);
		else push(parts + rank * Q * DS + r * DS + d % DS, d / DS, v);
	}
	if (CL == 1) return;
	cluster_sync();
#pragma unroll 1
	for (int e = threadIdx.x; e < rows * DS; e += 32 * W) {
		const int r = e / DS, d = rank * DS + e % DS;
		float m = minus_inf(), v = 0.0f, l = 0.0f;
#pragma unroll
		for (int c = 0; c < CL; c++) m = fmaxf(m, stats[c * 2 * Q + r]);
#pragma unroll
		for (int c = 0; c < CL; c++) {
			float f = ex2((stats[c * 2 * Q + r] - m) * scale);
			v += parts[c * Q * DS + e] * f, l += stats[c * 2 * Q + Q + r] * f;
		}
		y[(first + r / group) * ys + (kvh * group + r % group) * D + d] = narrow(v / l);
	}
}

__device__ __forceinline__ void copy16(void* dst, const void* src) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template<int N> __device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
__device__ __forceinline__ void ldm(u32* r, const void* p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(p)) : "memory");
}
__device__ __forceinline__ void ldm_turned(u32* r, const void* p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(p)) : "memory");
}

// Attention of long rows: a block computes 128 pairs of a query token and a head
// of one kv group (4 warps, 32 each) over tiles of 64 keys, two tiles in flight.
// Rows with up to `few` pairs are left to attend_short.
template<int D>
__device__ void attend_tall(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, const int* table, i64 tbs,
	const int* starts, const int* lens, int requests, u16* y, i64 ys, int kvheads, int shift, float scale, int few) {
	constexpr int BN = 64, CH = D / 8, group = GROUP; // CH: 16-byte pieces of a row
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int per = 128 / group; // query tokens of a block
	__shared__ int found, where;
	go();
	await();
	if (warp == 0) { // which request and tile: tiles are counted over the requests
		int want = blockIdx.x, before = 0, hit = -1, tile = 0;
		for (int r0 = 0; r0 < requests && hit < 0; r0 += 32) {
			int r = r0 + lane, c = r < requests ? starts[r + 1] - starts[r] : 0;
			int n = c * group > few && lens[r] > 0 ? (c + per - 1) / per : 0, incl = n;
			for (int o = 1; o < 32; o *= 2) {
				int v = __shfl_up_sync(0xffffffffu, incl, o);
				if (lane >= o) incl += v;
			}
			u32 over = __ballot_sync(0xffffffffu, before + incl > want);
			if (over) {
				int l = __ffs(over) - 1;
				hit = r0 + l;
				tile = want - before - __shfl_sync(0xffffffffu, incl - n, l);
				tile = __shfl_sync(0xffffffffu, n, l) - 1 - tile; // the longest first
			}
			before += __shfl_sync(0xffffffffu, incl, 31);
		}
		if (lane == 0) found = hit, where = tile;
	}
	__syncthreads();
	const int req = found;
	if (req < 0) return;
	const int kvh = blockIdx.y, first = starts[req], count = starts[req + 1] - first, len = lens[req];
	const int tok0 = where * per, rows = min(per, count - tok0) * group, pos0 = len - count + tok0;
	const int end = pos0 + (rows - 1) / group + 1, tiles = (end + BN - 1) / BN; // keys that the last row sees
	const i64 width = (i64)kvheads * D;
	const int mask = (1 << shift) - 1;
	table += req * tbs;
	kc += kvh * D, vc += kvh * D;
	u16 *sq = (u16*)pool, *sk = sq + 128 * D, *sv = sk + 2 * BN * D;
	// A piece lies at its index exclusive-or the row, so that eight rows of one
	// piece are in different banks.
	auto at = [](int row, int piece) { return row * D + ((piece ^ (row & 7)) << 3); };
	for (int e = threadIdx.x; e < 128 * CH; e += 128) {
		int r = e / CH, c = e % CH, rr = min(r, rows - 1);
		copy16(sq + at(r, c), q + (first + tok0 + rr / group) * qs + (kvh * group + rr % group) * D + c * 8);
	}
	auto fetch = [&](int tile, int stage) {
#pragma unroll
		for (int e = threadIdx.x; e < BN * CH; e += 128) {
			int r = e / CH, c = e % CH, t = min(tile * BN + r, end - 1);
			i64 b = table[t >> shift];
			int o = at(r, c) + stage * BN * D;
			copy16(sk + o, kc + b * kcs + (t & mask) * width + c * 8);
			copy16(sv + o, vc + b * vcs + (t & mask) * width + c * 8);
		}
	};
	fetch(0, 0);
	commit();
	float acc[2][D / 8][4], top[2][2], sum[2][2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		top[i][0] = top[i][1] = minus_inf(), sum[i][0] = sum[i][1] = 0.0f;
#pragma unroll
		for (int t = 0; t < D / 8; t++) acc[i][t][0] = acc[i][t][1] = acc[i][t][2] = acc[i][t][3] = 0.0f;
	}
	for (int tile = 0; tile < tiles; tile++) {
		if (tile + 1 < tiles) fetch(tile + 1, (tile + 1) & 1);
		commit();
		arrived<1>();
		__syncthreads();
		const u16 *k = sk + (tile & 1) * BN * D, *v = sv + (tile & 1) * BN * D;
		float s[2][BN / 8][4];
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int t = 0; t < BN / 8; t++) s[i][t][0] = s[i][t][1] = s[i][t][2] = s[i][t][3] = 0.0f;
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			u32 a[2][4];
#pragma unroll
			for (int i = 0; i < 2; i++) ldm(a[i], sq + at(warp * 32 + i * 16 + (lane & 15), c * 2 + (lane >> 4)));
#pragma unroll
			for (int t = 0; t < BN / 16; t++) {
				u32 b[4]; // keys 0-7 with both halves of k, then keys 8-15
				ldm(b, k + at(t * 16 + (lane & 7) + ((lane >> 4) << 3), c * 2 + ((lane >> 3) & 1)));
#pragma unroll
				for (int i = 0; i < 2; i++) {
					mma(s[i][2 * t], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
					mma(s[i][2 * t + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
				}
			}
		}
		const bool edge = (tile + 1) * BN > pos0 + 1;
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				if (edge) {
					int pos = pos0 + (warp * 32 + i * 16 + h * 8 + g) / group;
#pragma unroll
					for (int t = 0; t < BN / 8; t++)
#pragma unroll
						for (int e = 0; e < 2; e++)
							if (tile * BN + t * 8 + 2 * j + e > pos) s[i][t][2 * h + e] = minus_inf();
				}
				float m = top[i][h];
#pragma unroll
				for (int t = 0; t < BN / 8; t++) m = fmaxf(m, fmaxf(s[i][t][2 * h], s[i][t][2 * h + 1]));
				m = fmaxf(m, shfl(m, 1));
				m = fmaxf(m, shfl(m, 2));
				float base = m == minus_inf() ? 0.0f : m * scale, alpha = ex2(top[i][h] * scale - base), l = 0.0f;
				top[i][h] = m;
#pragma unroll
				for (int t = 0; t < BN / 8; t++)
#pragma unroll
					for (int e = 0; e < 2; e++) {
						float p = ex2(s[i][t][2 * h + e] * scale - base);
						s[i][t][2 * h + e] = p;
						l += p;
					}
				sum[i][h] = sum[i][h] * alpha + l;
#pragma unroll
				for (int t = 0; t < D / 8; t++) acc[i][t][2 * h] *= alpha, acc[i][t][2 * h + 1] *= alpha;
			}
#pragma unroll
		for (int c = 0; c < BN / 16; c++) {
			u32 a[2][4];
#pragma unroll
			for (int i = 0; i < 2; i++) {
				a[i][0] = pack(s[i][2 * c][0], s[i][2 * c][1]), a[i][1] = pack(s[i][2 * c][2], s[i][2 * c][3]);
				a[i][2] = pack(s[i][2 * c + 1][0], s[i][2 * c + 1][1]), a[i][3] = pack(s[i][2 * c + 1][2], s[i][2 * c + 1][3]);
			}
#pragma unroll
			for (int t = 0; t < D / 16; t++) {
				u32 b[4]; // keys 0-7 and 8-15 of 8 columns, then of the next 8
				ldm_turned(b, v + at(c * 16 + (lane & 15), t * 2 + (lane >> 4)));
#pragma unroll
				for (int i = 0; i < 2; i++) {
					mma(acc[i][2 * t], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
					mma(acc[i][2 * t + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
				}
			}
		}
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 2; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float l = sum[i][h];
			l += shfl(l, 1), l += shfl(l, 2);
			int r = warp * 32 + i * 16 + h * 8 + g;
			if (r >= rows) continue;
			float f = 1.0f / l;
			u16* o = y + (first + tok0 + r / group) * ys + (kvh * group + r % group) * D + 2 * j;
#pragma unroll
			for (int t = 0; t < D / 8; t++) *(u32*)(o + t * 8) = pack(acc[i][t][2 * h] * f, acc[i][t][2 * h + 1] * f);
		}
}

#endif
__device__ __forceinline__ float peer(const float* p, int rank) {
	u32 a = (u32)__cvta_generic_to_shared(p), b;
	float v;
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank));
	asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(b) : "memory");
	return v;
}

// The larger of two values with their indices: the lower index among equals, and
// -2, the mark of a NaN, before everything; -1 is no value at all.
__device__ __forceinline__ void larger(float& best, int& at, float v, int i) {
	if (at == -2 || i == -1) return;
	if (i == -2 || at == -1 || v > best || (v == best && i < at)) best = v, at = i;
}

// The most likely token of a row: 8 blocks share the vocabulary. A row with a NaN
// gives -1. keep names a cell that takes the token too.
__device__ void pick(const float* x, i64 xs, int n, int* y, const int* keep, int* cells) {
	__shared__ float value[32];
	__shared__ float index[32]; // bits of an int, so that peer reads both
	const int rank = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	go();
	await();
	x += row * xs;
	int share = ((n + 7) / 8 + 3) & ~3, from = rank * share, to = min(n, from + share), at = -1;
	float best = minus_inf();
	if (xs % 4 == 0) {
		constexpr int AHEAD = 5;
		for (int i = from + threadIdx.x * 4; i < to; i += blockDim.x * 4 * AHEAD) {
			float4 v[AHEAD];
#pragma unroll
			for (int u = 0; u < AHEAD; u++) {
				int p = i + u * blockDim.x * 4;
				v[u] = p + 4 <= to ? *(const float4*)(x + p) : float4{ minus_inf(), minus_inf(), minus_inf(), minus_inf() };
			}
#pragma unroll
			for (int u = 0; u < AHEAD; u++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					float f = (&v[u].x)[e];
					int p = i + u * blockDim.x * 4 + e;
					if (!(f <= best) && p < to) best = f, at = f == f ? p : -2;
				}
			if (at == -2) break;
		}
		for (int i = to & ~3; i < to; i++)
			if (threadIdx.x == 0) larger(best, at, x[i], x[i] == x[i] ? i : -2);
	} else {
		for (int i = from + threadIdx.x; i < to; i += blockDim.x) larger(best, at, x[i], x[i] == x[i] ? i : -2);
	}
	for (int o = 16; o > 0; o /= 2) {
		float v = shfl(best, o);
		larger(best, at, v, __shfl_xor_sync(0xffffffffu, at, o));
	}
	if (lane == 0) value[warp] = best, index[warp] = __int_as_float(at);
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int w = 1; w < (int)blockDim.x / 32; w++) larger(best, at, value[w], __float_as_int(index[w]));
		value[0] = best, index[0] = __int_as_float(at);
	}
	cluster_sync();
	if (rank == 0 && threadIdx.x == 0) {
		float v[8], i[8];
#pragma unroll
		for (int c = 1; c < 8; c++) v[c] = peer(value, c), i[c] = peer(index, c);
#pragma unroll
		for (int c = 1; c < 8; c++) larger(best, at, v[c], __float_as_int(i[c]));
		y[row] = at < 0 ? -1 : at;
		if (keep[row] > 0) cells[keep[row]] = max(at, 0);
	}
	cluster_sync();
}

// Elements of the SplitMix64 sequence of a seed: the sum of the four 16-bit lanes
// of each word, around zero, times factor.
__device__ void noise(u16* y, i64 n, u64 seed, float factor) {
	for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
		u64 z = seed + (u64)(i + 1) * 0x9e3779b97f4a7c15ull;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		z ^= z >> 31;
		int sum = (int)(z & 0xffff) + (int)(z >> 16 & 0xffff) + (int)(z >> 32 & 0xffff) + (int)(z >> 48);
		y[i] = narrow((float)(sum - 131070) * factor);
	}
}

#define KERNEL extern "C" __global__ void
#ifdef LINEAR
#undef LINEAR // names the group
#define LINEAR1(NAME, MT, NT, HALF, NORM, EPI, CL, BLOCKS) \
KERNEL __cluster_dims__(CL, 1, 1) __launch_bounds__(288, BLOCKS) NAME(const u16* x, i64 xs, const u16* gain, const u16* w, const int* rows, u16* y, i64 ys, i64 n, i64 k, i64 m, i64 eps, i64 stages) { \
	linear<MT, NT, HALF, NORM, EPI, CL>(x, xs, gain, w, rows, y, ys, (int)n, (int)k, (int)m, __uint_as_float((u32)eps), (int)stages); }
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
KERNEL __launch_bounds__(256) norm_rows_fast(const u16* x, i64 xs, const u16* gain, const int* rows, u16* y, i64 ys, i64 k, i64 eps) {
	norm_rows(x, xs, gain, rows, y, ys, (int)k, __uint_as_float((u32)eps)); }
KERNEL __launch_bounds__(256) gate_rows_fast(const u16* x, i64 xs, u16* y, i64 ys, i64 f) { gate_rows(x, xs, y, ys, (int)f); }
KERNEL __launch_bounds__(256) embed_fast(const int* ids, const int* feed, const int* cells, const u16* table, i64 vocab, u16* y, i64 ys, i64 h) {
	embed_rows(ids, feed, cells, table, vocab, y, ys, (int)h); }
KERNEL __launch_bounds__(256) rotate_write_fast(u16* qkv, i64 s, const u16* qw, const u16* kw, const int* positions, const float* table, i64 pn,
	const int* slots, u16* kc, i64 kcs, u16* vc, i64 vcs, i64 blocks, i64 heads, i64 kvheads, i64 d, i64 bs, i64 eps) {
	rotate_write(qkv, s, qw, kw, positions, table, pn, slots, kc, kcs, vc, vcs, blocks, (int)heads, (int)kvheads, (int)d, (int)bs, __uint_as_float((u32)eps)); }
KERNEL __cluster_dims__(8, 1, 1) __launch_bounds__(1024) pick_fast(const float* x, i64 xs, i64 n, int* y, const int* keep, int* cells) {
	pick(x, xs, (int)n, y, keep, cells); }
KERNEL noise_fast(u16* y, i64 n, i64 seed, i64 factor) { noise(y, n, (u64)seed, __uint_as_float((u32)factor)); }
KERNEL __launch_bounds__(256) take_rows_fast(const u16* x, i64 xs, const int* rows, u16* y, i64 ys, i64 k) {
	go();
	await();
	int r = rows[blockIdx.x];
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) *(v4*)(y + blockIdx.x * ys + i) = r < 0 ? v4{ 0, 0, 0, 0 } : ld16(x + r * xs + i);
}
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
RINGED(attend_rings, 1, 4, 3)
KERNEL __launch_bounds__(128, 2) attend_long(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs,
	const int* table, i64 tbs, const int* starts, const int* lens, i64 requests, u16* y, i64 ys, i64 kvheads, i64 shift, i64 scale, i64 few) {
	attend_tall<HEAD>(q, qs, kc, kcs, vc, vcs, table, tbs, starts, lens, (int)requests, y, ys, (int)kvheads, (int)shift, __uint_as_float((u32)scale), (int)few);
}
#endif
