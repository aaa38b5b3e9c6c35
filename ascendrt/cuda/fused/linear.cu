// Linear for few tokens: y = x·Wᵀ, x optionally normalised. A tile is 8·NT outputs
// of up to 16·MT tokens. One warp copies its weights into a ring of stages in
// shared memory, 512 of K in each, as far ahead as the ring reaches, across tiles
// too: the ring is filled before the kernel ahead has ended. The other 8 warps
// share the K of a stage. Tokens are the rows of the tensor cores' A, weights the
// columns of B; a lane's 16 bytes of a row stand for the k that the instruction
// expects in 4 places, which is right as long as x and w agree. CL blocks of a
// cluster share K; the first one sums up. With SWIGLU the first half of a tile
// are gate rows, the rest up rows. With ADD the sums are added to those of sum, and
// y takes them rounded.
template<int MT, int NT, bool HALF, bool NORM, int EPI, int CL>
__device__ __forceinline__ void linear(const u16* x, i64 xs, const u16* gain, const u16* w, const int* rows, u16* y, i64 ys, float* sum, i64 sums, int n, int k, int m, float eps, int stages) {
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
		for (int i = 0; i < stages; i++) bar_init(full + i, 1), bar_init(empty + i, W * ARRIVALS);
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
		float early = 0.0f; // what a thread's first output is added to
		if (EPI == ADD && CL == 1 && threadIdx.x < ROWS * OUT * 8) {
			int tok = threadIdx.x / (OUT * 8), out = blockIdx.x * OUT * 8 + threadIdx.x % (OUT * 8);
			if (tok < n && out < m) early = sum[tok * sums + out];
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
					if (lane < ARRIVALS) bar_arrive(empty + slot);
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
				if (EPI == ADD) old = e < 256 && tile == (int)blockIdx.x ? early : sum[tok * sums + out];
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
				if (EPI == ADD) v += old, sum[tok * sums + out] = v;
				if (EPI == STORE || EPI == ADD) y[tok * ys + out] = narrow(v);
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
			if (EPI == ADD) v += sum[tok * sums + out], sum[tok * sums + out] = v;
			y[tok * ys + out] = narrow(v);
		}
	}
}
