// Other ways of copy_blocks, to be compared with it. They stand behind copylist.cu, in a
// program of their own.

#ifdef SLUICE_CUDA_EMU // compiled for the CPU, by emu/kernels.cc
struct once : plain {};
struct bar {};
#define pool ((char*)emu_shared)
static inline void bar_init(bar*) {}
static inline void bars_ready() {}
static inline void bar_wait(bar*, unsigned) {}
static inline void bulk_in(void* dst, const void* src, unsigned bytes, bar*) { std::memcpy(dst, src, bytes); }
static inline void bulk_out(void* dst, const void* src, unsigned bytes) { std::memcpy(dst, src, bytes); }
static inline void bulk_close() {}
template<int n> static inline void bulk_read() {}
static inline void bulk_end() {}
#else
// once is for what is not looked at again.
struct once {
	static __device__ __forceinline__ quad load(const quad* p) {
		quad v;
		asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.s64 {%0,%1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(p));
		return v;
	}
	static __device__ __forceinline__ void store(quad* p, quad v) { asm volatile("st.global.cs.v2.s64 [%0], {%1,%2};" :: "l"(p), "l"(v.a), "l"(v.b) : "memory"); }
};

typedef unsigned long long bar; // counts the bytes of bulk copies
extern __shared__ __align__(128) char pool[];
__device__ __forceinline__ unsigned at_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(bar* b) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at_shared(b)), "r"(1) : "memory"); }
__device__ __forceinline__ void bars_ready() { // for bulk copies too
	asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_wait(bar* b, unsigned parity) {
	asm volatile("{\n.reg .pred p;\nWAIT%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}"
		:: "r"(at_shared(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_in(void* dst, const void* src, unsigned bytes, bar* b) {
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at_shared(b)), "r"(bytes) : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
		:: "r"(at_shared(dst)), "l"(src), "r"(bytes), "r"(at_shared(b)) : "memory");
}
__device__ __forceinline__ void bulk_out(void* dst, const void* src, unsigned bytes) {
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(dst), "r"(at_shared(src)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_close() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template<int n> __device__ __forceinline__ void bulk_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(n) : "memory"); }
__device__ __forceinline__ void bulk_end() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

extern "C" __global__ void __launch_bounds__(256) copy_once(const word* table, word regions, word pairs, word parts, word part) {
	copy_units<once>(table, regions, pairs, parts, part);
}

enum { most_warps = 8, most_stages = 16 };

// stage is what a part of shared memory holds.
struct stage {
	char* to;
	unsigned bytes;
};

__device__ __forceinline__ void fetch(unit x, char* room, stage* s, bar* b) {
	s->to = x.to + 16 * x.begin;
	s->bytes = x.end > x.begin ? (unsigned)(16 * (x.end - x.begin)) : 0;
	if (s->bytes) bulk_in(room, x.from + 16 * x.begin, s->bytes, b);
	for (word i = x.rest / 16 * 16; i < x.rest; i++) x.to[i] = x.from[i];
}

// copy_bulk is copy_blocks by bulk copies through shared memory, which no thread waits
// for: the first one of each warp takes units in turn, with two or more stages of its own.
extern "C" __global__ void __launch_bounds__(256) copy_bulk(const word* table, word regions, word pairs, word parts, word part, word stages) {
	__shared__ bar bars[most_warps * most_stages];
	__shared__ stage states[most_warps * most_stages];
	if (threadIdx.x % 32) return;
	const unsigned warp = threadIdx.x / 32, n = (unsigned)stages, step = gridDim.x * (blockDim.x / 32);
	const unsigned units = (unsigned)(regions * pairs * parts); // below 2^31
	char* room = pool + warp * n * part;
	bar* full = bars + warp * most_stages;
	stage* state = states + warp * most_stages;
	for (unsigned s = 0; s < n; s++) bar_init(full + s);
	bars_ready();
	unsigned parity = 0; // by stage
	const unsigned first = blockIdx.x * (blockDim.x / 32) + warp;
	unsigned next = first;
	for (unsigned s = 0; s + 1 < n && next < units; s++, next += step)
		fetch(find(table, (unsigned)regions, (unsigned)pairs, (unsigned)parts, part, next), room + s * part, state + s, full + s);
	for (unsigned u = first, s = 0, before = n - 1; u < units; u += step, before = s, s = s + 1 == n ? 0 : s + 1) {
		if (state[s].bytes) {
			bar_wait(full + s, parity >> s & 1);
			parity ^= 1u << s;
			bulk_out(state[s].to, room + s * part, state[s].bytes);
		}
		bulk_close();
		if (next < units) { // into the stage before, once its bytes have left it
			bulk_read<1>();
			fetch(find(table, (unsigned)regions, (unsigned)pairs, (unsigned)parts, part, next), room + before * part, state + before, full + before);
			next += step;
		}
	}
	bulk_end();
}
