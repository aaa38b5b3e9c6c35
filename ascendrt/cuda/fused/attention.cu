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

// weigh turns the scores of BN keys into weights, for the two rows r and r + 8 that a
// lane has a part of, and takes them up into the rows' maxima and sums of weights; sums of
// values are to be multiplied by alpha. Behind pos0, the position of the tile's first
// token, rows see different keys: negative where all of them see all. The lane's first key
// is at `key`.
template<int BN>
__device__ __forceinline__ void weigh(float (&s)[BN / 8][4], float* top, float* sum, float* alpha, float scale, int pos0, int r, int key) {
#pragma unroll
	for (int h = 0; h < 2; h++) {
		if (pos0 >= 0) {
			int pos = pos0 + (r + h * 8) / GROUP;
#pragma unroll
			for (int t = 0; t < BN / 8; t++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					if (key + t * 8 + e > pos) s[t][2 * h + e] = minus_inf();
		}
		float m = top[h];
#pragma unroll
		for (int t = 0; t < BN / 8; t++) m = fmaxf(m, fmaxf(s[t][2 * h], s[t][2 * h + 1]));
		m = fmaxf(m, shfl(m, 1));
		m = fmaxf(m, shfl(m, 2));
		// A tile that leaves the maximum as it is leaves the sums as they are, to the bit: a
		// row among later ones passes tiles that it sees nothing of.
		float base = m == minus_inf() ? 0.0f : m * scale, l = 0.0f;
		alpha[h] = top[h] == m ? 1.0f : ex2(top[h] * scale - base);
		top[h] = m;
#pragma unroll
		for (int t = 0; t < BN / 8; t++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float p = ex2(s[t][2 * h + e] * scale - base);
				s[t][2 * h + e] = p;
				l += p;
			}
		sum[h] = sum[h] * alpha[h] + l;
	}
}

// Attention of long rows: a block computes 128 pairs of a query token and a head
// of one kv group (4 warps, 32 each) over tiles of 64 keys, two tiles in flight.
// Rows with up to `few` pairs are left to attend_short. The CL blocks of a cluster
// share the keys, as a few new tokens behind a long cached prefix would otherwise
// keep one multiprocessor per kv group busy; each finishes a part of the pairs.
template<int D, int CL>
__device__ void attend_tall(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, const int* table, i64 tbs,
	const int* starts, const int* lens, int requests, u16* y, i64 ys, int kvheads, int shift, float scale, int few) {
	constexpr int BN = 64, CH = D / 8, group = GROUP; // CH: 16-byte pieces of a row
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int per = 128 / group; // query tokens of a block
	__shared__ int found, where;
	go();
	await();
	if (warp == 0) { // which request and tile: tiles are counted over the requests
		int want = blockIdx.x / CL, before = 0, hit = -1, tile = 0;
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
	if (req < 0) return; // as the others of the cluster do
	const int rank = blockIdx.x % CL, kvh = blockIdx.y, first = starts[req], count = starts[req + 1] - first, len = lens[req];
	const int tok0 = where * per, rows = min(per, count - tok0) * group, pos0 = len - count + tok0;
	const int end = pos0 + (rows - 1) / group + 1, tiles = (end + BN - 1) / BN; // keys that the last row sees
	const int share = (tiles + CL - 1) / CL, from = min(tiles, rank * share), to = min(tiles, from + share);
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
	if (from < to) fetch(from, 0);
	commit();
	float acc[2][D / 8][4], top[2][2], sum[2][2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		top[i][0] = top[i][1] = minus_inf(), sum[i][0] = sum[i][1] = 0.0f;
#pragma unroll
		for (int t = 0; t < D / 8; t++) acc[i][t][0] = acc[i][t][1] = acc[i][t][2] = acc[i][t][3] = 0.0f;
	}
	for (int tile = from; tile < to; tile++) {
		const int stage = (tile - from) & 1;
		if (tile + 1 < to) fetch(tile + 1, stage ^ 1);
		commit();
		arrived<1>();
		__syncthreads();
		const u16 *k = sk + stage * BN * D, *v = sv + stage * BN * D;
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
		for (int i = 0; i < 2; i++) {
			float alpha[2];
			weigh<BN>(s[i], top[i], sum[i], alpha, scale, edge ? pos0 : -1, warp * 32 + i * 16 + g, tile * BN + 2 * j);
#pragma unroll
			for (int t = 0; t < D / 8; t++)
#pragma unroll
				for (int e = 0; e < 4; e++) acc[i][t][e] *= alpha[e / 2];
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
	// Keys and values are not used again: a block's sums take their place, its maxima
	// and sums of weights that of the queries.
	float *outs = (float*)sk, *tops = (float*)sq, *sums = tops + 128; // [128][D], [128], [128]
	if (CL > 1) {
		arrived<0>();
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
			if (CL > 1) {
				if (j == 0) tops[r] = top[i][h], sums[r] = l;
#pragma unroll
				for (int t = 0; t < D / 8; t++) *(float2*)(outs + r * D + t * 8 + 2 * j) = float2{ acc[i][t][2 * h], acc[i][t][2 * h + 1] };
				continue;
			}
			float f = 1.0f / l;
			u16* o = y + (first + tok0 + r / group) * ys + (kvh * group + r % group) * D + 2 * j;
#pragma unroll
			for (int t = 0; t < D / 8; t++) *(u32*)(o + t * 8) = pack(acc[i][t][2 * h] * f, acc[i][t][2 * h + 1] * f);
		}
	if (CL == 1) return;
	cluster_sync();
	// Block `rank` adds up every CL-th pair. The first block has keys that each pair sees.
#pragma unroll 1
	for (int r = rank + CL * warp; r < rows; r += 4 * CL) {
		float m = minus_inf(), l = 0.0f, f[CL];
#pragma unroll
		for (int c = 0; c < CL; c++) m = fmaxf(m, f[c] = pull(tops + r, c));
#pragma unroll
		for (int c = 0; c < CL; c++) f[c] = ex2((f[c] - m) * scale), l += pull(sums + r, c) * f[c];
		u16* o = y + (first + tok0 + r / group) * ys + (kvh * group + r % group) * D;
#pragma unroll
		for (int d = 2 * lane; d < D; d += 64) {
			float a = 0.0f, b = 0.0f;
#pragma unroll
			for (int c = 0; c < CL; c++) a += pull(outs + r * D + d, c) * f[c], b += pull(outs + r * D + d + 1, c) * f[c];
			*(u32*)(o + d) = pack(a / l, b / l);
		}
	}
	cluster_sync(); // nobody leaves while others read
}

// Attention of up to 16 pairs of a query token and a head of one kv group, with the bits
// of attend_tall: a block of 4 warps goes through all keys, 64 at a time, ST tiles in
// flight. Each warp scores a quarter of the keys, weighs all, and adds up a quarter of
// the values' elements.
template<int D, int ST>
__device__ void attend_alike(const u16* q, i64 qs, const u16* kc, i64 kcs, const u16* vc, i64 vcs, const int* table, i64 tbs,
	const int* starts, const int* lens, u16* y, i64 ys, int kvheads, int shift, float scale) {
	constexpr int BN = 64, CH = D / 8, R = 16, PITCH = BN + 8, group = GROUP;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
	const int kvh = blockIdx.x, req = blockIdx.y;
	go();
	await();
	const int len = lens[req], first = starts[req], rows = (starts[req + 1] - first) * group, pos0 = len - rows / group;
	if (len <= 0 || rows <= 0 || rows > R) return;
	const int tiles = (len + BN - 1) / BN, mask = (1 << shift) - 1;
	const i64 width = (i64)kvheads * D;
	table += req * tbs;
	kc += kvh * D, vc += kvh * D;
	u16 *sq = (u16*)pool, *sk = sq + R * D, *sv = sk + ST * BN * D;
	float* scores = (float*)(sv + ST * BN * D); // [2][R][PITCH], in turns
	auto at = [](int row, int piece) { return row * D + ((piece ^ (row & 7)) << 3); };
	for (int e = threadIdx.x; e < R * CH; e += 128) {
		int r = e / CH, c = e % CH, rr = min(r, rows - 1);
		copy16(sq + at(r, c), q + (first + rr / group) * qs + (kvh * group + rr % group) * D + c * 8);
	}
	auto fetch = [&](int tile, int stage) {
		if (tile < tiles) {
#pragma unroll
			for (int e = threadIdx.x; e < BN * CH; e += 128) {
				int r = e / CH, c = e % CH, t = min(tile * BN + r, len - 1);
				i64 b = table[t >> shift];
				int o = at(r, c) + stage * BN * D;
				copy16(sk + o, kc + b * kcs + (t & mask) * width + c * 8);
				copy16(sv + o, vc + b * vcs + (t & mask) * width + c * 8);
			}
		}
		commit();
	};
	for (int s = 0; s < ST - 1; s++) fetch(s, s);
	float acc[D / 32][4], top[2] = { minus_inf(), minus_inf() }, sum[2] = { 0.0f, 0.0f };
#pragma unroll
	for (int t = 0; t < D / 32; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
	for (int tile = 0, stage = 0; tile < tiles; tile++) {
		arrived<ST - 2>();
		__syncthreads(); // all have read the stage that is filled next
		fetch(tile + ST - 1, stage == 0 ? ST - 1 : stage - 1);
		const u16 *k = sk + stage * BN * D, *v = sv + stage * BN * D;
		float part[2][4] = {}, s[BN / 8][4], alpha[2];
#pragma unroll
		for (int c = 0; c < D / 16; c++) {
			u32 a[4], b[4];
			ldm(a, sq + at(lane & 15, c * 2 + (lane >> 4)));
			ldm(b, k + at(warp * 16 + (lane & 7) + ((lane >> 4) << 3), c * 2 + ((lane >> 3) & 1)));
			mma(part[0], a[0], a[1], a[2], a[3], b[0], b[1]);
			mma(part[1], a[0], a[1], a[2], a[3], b[2], b[3]);
		}
		float* all = scores + (tile & 1) * R * PITCH;
#pragma unroll
		for (int t = 0; t < 2; t++)
#pragma unroll
			for (int h = 0; h < 2; h++) *(float2*)(all + (h * 8 + g) * PITCH + warp * 16 + t * 8 + 2 * j) = float2{ part[t][2 * h], part[t][2 * h + 1] };
		__syncthreads();
#pragma unroll
		for (int t = 0; t < BN / 8; t++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float2 x = *(float2*)(all + (h * 8 + g) * PITCH + t * 8 + 2 * j);
				s[t][2 * h] = x.x, s[t][2 * h + 1] = x.y;
			}
		weigh<BN>(s, top, sum, alpha, scale, (tile + 1) * BN > pos0 + 1 ? pos0 : -1, g, tile * BN + 2 * j);
#pragma unroll
		for (int t = 0; t < D / 32; t++)
#pragma unroll
			for (int e = 0; e < 4; e++) acc[t][e] *= alpha[e / 2];
#pragma unroll
		for (int c = 0; c < BN / 16; c++) {
			u32 a0 = pack(s[2 * c][0], s[2 * c][1]), a1 = pack(s[2 * c][2], s[2 * c][3]);
			u32 a2 = pack(s[2 * c + 1][0], s[2 * c + 1][1]), a3 = pack(s[2 * c + 1][2], s[2 * c + 1][3]);
#pragma unroll
			for (int t = 0; t < D / 64; t++) {
				u32 b[4];
				ldm_turned(b, v + at(c * 16 + (lane & 15), (warp * (D / 64) + t) * 2 + (lane >> 4)));
				mma(acc[2 * t], a0, a1, a2, a3, b[0], b[1]);
				mma(acc[2 * t + 1], a0, a1, a2, a3, b[2], b[3]);
			}
		}
		if (++stage == ST) stage = 0;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float l = sum[h];
		l += shfl(l, 1), l += shfl(l, 2);
		const int r = h * 8 + g;
		if (r >= rows) continue;
		float f = 1.0f / l;
		u16* o = y + (first + r / group) * ys + (kvh * group + r % group) * D + warp * (D / 4) + 2 * j;
#pragma unroll
		for (int t = 0; t < D / 32; t++) *(u32*)(o + t * 8) = pack(acc[t][2 * h] * f, acc[t][2 * h + 1] * f);
	}
}

#endif
