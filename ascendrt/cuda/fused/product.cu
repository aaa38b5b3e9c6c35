// Products of any number of rows whose bits are those of each row alone: y = x·Wᵀ.
// An output is one chain of sums over ascending k, 16 at a time, as the tensor cores
// take them, so neither the tile that a row lies in nor the size of tiles changes it.
// Rows are the rows of A, outputs the columns of B; what lies beyond an edge is zero.

// A block computes BM rows by BN outputs, a warp WM by WN of them. ST stages of 64
// of K are in flight; the first ones' weights are asked for ahead of the kernel before.
template<int BM, int BN, int WM, int WN, int ST, int EPI>
__device__ __forceinline__ void product(const u16* x, i64 xs, const u16* w, i64 ws, void* out, i64 ys, int n, int k, int m) {
	constexpr int BK = 64, CH = BK / 8, ACROSS = BN / WN, T = BM / WM * ACROSS * 32, MT = WM / 16, NT = WN / 8;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int wm = warp / ACROSS * WM, wn = warp % ACROSS * WN;
	const int r0 = blockIdx.x * BM, c0 = blockIdx.y * BN, chunks = (k + BK - 1) / BK;
	u16 *sa = (u16*)pool, *sb = sa + ST * BM * BK;
	constexpr int NA = BM * CH / T, NB = BN * CH / T; // pieces of 16 bytes that a thread copies for a stage
	auto at = [](int row, int piece) { return row * BK + ((piece ^ (row & 7)) << 3); }; // as in attend_tall
	// A thread's pieces are the same ones of each row and stage.
	const int piece = threadIdx.x % CH;
	const u16 *fromA[NA], *fromB[NB];
	u32 realA = 0, realB = 0;
#pragma unroll
	for (int i = 0; i < NA; i++) {
		int r = r0 + threadIdx.x / CH + i * (T / CH);
		fromA[i] = x + (i64)min(r, n - 1) * xs + piece * 8;
		realA |= (u32)(r < n) << i;
	}
#pragma unroll
	for (int i = 0; i < NB; i++) {
		int r = c0 + threadIdx.x / CH + i * (T / CH);
		fromB[i] = w + (i64)min(r, m - 1) * ws + piece * 8;
		realB |= (u32)(r < m) << i;
	}
	auto fetchA = [&](int stage, int c) {
		const bool in = c * BK + piece * 8 < k;
#pragma unroll
		for (int i = 0; i < NA; i++)
			copy16_or_zero(sa + stage * BM * BK + at(threadIdx.x / CH + i * (T / CH), piece), fromA[i] + (in ? c * BK : 0), in && (realA >> i & 1));
	};
	auto fetchB = [&](int stage, int c) {
		const bool in = c * BK + piece * 8 < k;
#pragma unroll
		for (int i = 0; i < NB; i++)
			copy16_or_zero(sb + stage * BN * BK + at(threadIdx.x / CH + i * (T / CH), piece), fromB[i] + (in ? c * BK : 0), in && (realB >> i & 1));
	};
	go();
	for (int s = 0; s < ST - 1 && s < chunks; s++) fetchB(s, s);
	await();
	for (int s = 0; s < ST - 1; s++) {
		if (s < chunks) fetchA(s, s);
		commit();
	}
	float acc[MT][NT][4];
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int t = 0; t < NT; t++) acc[i][t][0] = acc[i][t][1] = acc[i][t][2] = acc[i][t][3] = 0.0f;
	int stage = 0;
	for (int c = 0; c < chunks; c++) {
		arrived<ST - 2>();
		__syncthreads(); // all have read the stage that is filled next
		if (c + ST - 1 < chunks) {
			int next = stage == 0 ? ST - 1 : stage - 1;
			fetchA(next, c + ST - 1);
			fetchB(next, c + ST - 1);
		}
		commit();
		const u16 *a = sa + stage * BM * BK, *b = sb + stage * BN * BK;
#pragma unroll
		for (int s = 0; s < BK / 16; s++) {
			u32 fa[MT][4], fb[NT / 2][4];
#pragma unroll
			for (int i = 0; i < MT; i++) ldm(fa[i], a + at(wm + i * 16 + (lane & 15), s * 2 + (lane >> 4)));
#pragma unroll
			for (int t = 0; t < NT / 2; t++) ldm(fb[t], b + at(wn + t * 16 + (lane & 7) + ((lane >> 4) << 3), s * 2 + ((lane >> 3) & 1)));
#pragma unroll
			for (int i = 0; i < MT; i++)
#pragma unroll
				for (int t = 0; t < NT / 2; t++) {
					mma(acc[i][2 * t], fa[i][0], fa[i][1], fa[i][2], fa[i][3], fb[t][0], fb[t][1]);
					mma(acc[i][2 * t + 1], fa[i][0], fa[i][1], fa[i][2], fa[i][3], fb[t][2], fb[t][3]);
				}
		}
		if (++stage == ST) stage = 0;
	}
#pragma unroll
	for (int i = 0; i < MT; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int r = r0 + wm + i * 16 + h * 8 + g;
			if (r >= n) continue;
#pragma unroll
			for (int t = 0; t < NT; t++) {
				const int o = c0 + wn + t * 8 + 2 * j;
				if (o >= m) continue;
				float a = acc[i][t][2 * h], b = acc[i][t][2 * h + 1];
				if (EPI == STORE) {
					*(u32*)((u16*)out + r * ys + o) = pack(a, b);
					continue;
				}
				float2* to = (float2*)((float*)out + r * ys + o);
				if (EPI == ADD) a += to->x, b += to->y;
				*to = float2{ a, b };
			}
		}
}
