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
// Reads from the same place there.
__device__ __forceinline__ float pull(const float* p, int rank) {
	u32 a = (u32)__cvta_generic_to_shared(p), b;
	float v;
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank));
	asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(b) : "memory");
	return v;
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
// Lanes of a warp that say that it has read a stage. One says it for all behind
// __syncwarp, which racecheck does not follow: EVERY_LANE is for its sake.
#ifdef EVERY_LANE
constexpr int ARRIVALS = 32;
#else
constexpr int ARRIVALS = 1;
#endif
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

// Copies of 16 bytes into shared memory, in groups, and matrices of 8 by 8 halves out of it.
__device__ __forceinline__ void copy16(void* dst, const void* src) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at_shared(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void copy16_or_zero(void* dst, const void* src, bool real) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at_shared(dst)), "l"(src), "r"(real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template<int N> __device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
__device__ __forceinline__ void ldm(u32* r, const void* p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at_shared(p)) : "memory");
}
__device__ __forceinline__ void ldm_turned(u32* r, const void* p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at_shared(p)) : "memory");
}
