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
