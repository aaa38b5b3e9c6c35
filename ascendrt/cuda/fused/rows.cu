// Normalises rows of x into y; rows picks them, or is null.
__device__ void norm_rows(const float* x, i64 xs, const u16* gain, const int* rows, u16* y, i64 ys, int k, float eps) {
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
		float4 a = *(const float4*)(x + i), b = *(const float4*)(x + i + 4);
		s += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
		s += b.x * b.x + b.y * b.y + b.z * b.z + b.w * b.w;
	}
	s = warp_sum(s);
	if (threadIdx.x % 32 == 0) sums[warp] = s;
	__syncthreads();
	s = 0.0f;
	for (int i = 0; i < (int)blockDim.x / 32; i++) s += sums[i];
	float f = rsqrtf(s / (float)k + eps);
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) {
		float4 a = *(const float4*)(x + i), b = *(const float4*)(x + i + 4);
		v4 g = ld16(gain + i), o;
		o.x = pack(a.x * f * lo(g.x), a.y * f * hi(g.x)), o.y = pack(a.z * f * lo(g.y), a.w * f * hi(g.y));
		o.z = pack(b.x * f * lo(g.z), b.y * f * hi(g.z)), o.w = pack(b.z * f * lo(g.w), b.w * f * hi(g.w));
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

// Rows of x, rounded; rows picks them, or is null.
__device__ void near_rows(const float* x, i64 xs, const int* rows, u16* y, i64 ys, int k) {
	go();
	await();
	int r = rows ? rows[blockIdx.x] : (int)blockIdx.x;
	for (int i = threadIdx.x * 8; i < k; i += blockDim.x * 8) {
		float4 a = { 0.0f, 0.0f, 0.0f, 0.0f }, b = a;
		if (r >= 0) a = *(const float4*)(x + r * xs + i), b = *(const float4*)(x + r * xs + i + 4);
		*(v4*)(y + blockIdx.x * ys + i) = v4{ pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w) };
	}
}

// The rows of an embedding, widened, and as they are where near is not null; an id
// comes from a cell where feed names one.
__device__ void embed_rows(const int* ids, const int* feed, const int* cells, const u16* table, i64 vocab, float* y, i64 ys, u16* near, i64 ns, int h) {
	go();
	await();
	int cell = feed[blockIdx.x], id = cell > 0 ? cells[cell] : ids[blockIdx.x];
	if (id >= vocab) id = 0;
	for (int i = threadIdx.x * 8; i < h; i += blockDim.x * 8) {
		v4 v = id < 0 ? v4{ 0, 0, 0, 0 } : ld16(table + id * (i64)h + i);
		float* to = y + blockIdx.x * ys + i;
		*(float4*)to = float4{ lo(v.x), hi(v.x), lo(v.y), hi(v.y) };
		*(float4*)(to + 4) = float4{ lo(v.z), hi(v.z), lo(v.w), hi(v.w) };
		if (near) *(v4*)(near + blockIdx.x * ns + i) = v;
	}
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
