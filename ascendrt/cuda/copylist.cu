// A program by itself: every other operation works without it. Each parameter is
// 8 bytes.

typedef long long word;
struct alignas(16) quad { word a, b; };

// plain is how memory is read and written; see copyways.cu.
struct plain {
	static __device__ __forceinline__ quad load(const quad* p) { return *p; }
	static __device__ __forceinline__ void store(quad* p, quad v) { *p = v; }
};

// move_range moves a range with all threads of a block, eight loads of each under way at a time.
template<class access> __device__ __forceinline__ void move_range(quad* to, const quad* from, word begin, word end) {
	for (word i = begin + threadIdx.x; i < end; i += 8 * blockDim.x) {
		quad v[8];
#pragma unroll
		for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) v[k] = access::load(from + i + k * blockDim.x);
#pragma unroll
		for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) access::store(to + i + k * blockDim.x, v[k]);
	}
}

// copy_list moves many small pieces: a unit is a part of one of them, and blocks of
// threads take units in turn.
extern "C" __global__ void __launch_bounds__(256) copy_list(const word* list, word units, word parts, word part) {
	word u = blockIdx.x;
	const word* p = list + 3 * (u / parts);
	word dst = p[0], src = p[1], bytes = p[2]; // the next entry is on its way while this one is copied
	while (u < units) {
		word next = u + gridDim.x;
		word begin = u % parts * part / 16, end = bytes / 16;
		quad* to = (quad*)dst;
		const quad* from = (const quad*)src;
		if (next < units) {
			p = list + 3 * (next / parts);
			dst = p[0], src = p[1], bytes = p[2];
		}
		if (end > begin + part / 16) end = begin + part / 16;
		move_range<plain>(to, from, begin, end);
		u = next;
	}
}

// move_rest moves what is left of a range behind its last 16 bytes.
__device__ __forceinline__ void move_rest(char* to, const char* from, word bytes) {
	word at = bytes / 16 * 16 + threadIdx.x;
	if (at < bytes) to[at] = from[at];
}

// copy_small moves one piece, a part of it by each block of threads. Addresses are
// multiples of 16, the bytes need not be.
extern "C" __global__ void __launch_bounds__(256) copy_small(word dst, word src, word bytes, word part) {
	word begin = blockIdx.x * (part / 16), whole = bytes / 16, end = begin + part / 16;
	move_range<plain>((quad*)dst, (const quad*)src, begin, end < whole ? end : whole);
	if (blockIdx.x == 0) move_rest((char*)dst, (const char*)src, bytes);
}

// unit is a part of a block of a region: from begin to end in words of 16 bytes.
struct unit {
	char* to;
	const char* from;
	word begin, end;
	word rest; // bytes of the block, where it ends in this part; else 0
};

// find gives unit u of the table that copy_blocks takes.
__device__ __forceinline__ unit find(const word* table, unsigned regions, unsigned pairs, unsigned parts, word part, unsigned u) {
	unsigned piece = u / parts;
	const word* r = table + 5 * (piece / pairs);
	word pair = table[5 * regions + piece % pairs], bytes = r[4], whole = bytes / 16;
	word begin = (word)(u % parts) * (part / 16), end = begin + part / 16;
	return { (char*)(r[0] + (pair & 0xffffffffll) * r[2]), (const char*)(r[1] + (pair >> 32) * r[3]),
		begin, end < whole ? end : whole, begin <= whole && whole < end ? bytes : 0 };
}

// copy_units copies with all threads of a block. Blocks of threads take units in turn.
template<class access> __device__ __forceinline__ void copy_units(const word* table, word regions, word pairs, word parts, word part) {
	const unsigned units = (unsigned)(regions * pairs * parts); // below 2^31
	for (unsigned u = blockIdx.x; u < units; u += gridDim.x) {
		unit x = find(table, (unsigned)regions, (unsigned)pairs, (unsigned)parts, part, u);
		move_range<access>((quad*)x.to, (const quad*)x.from, x.begin, x.end);
		if (x.rest) move_rest(x.to, x.from, x.rest);
	}
}

// copy_blocks moves blocks of several regions. The table has five words for each
// region (destination, source, their strides, bytes of a block), then one for each
// pair of blocks (destination below, source above). Addresses and strides are multiples
// of 16, the bytes of a block need not be.
extern "C" __global__ void __launch_bounds__(256) copy_blocks(const word* table, word regions, word pairs, word parts, word part) {
	copy_units<plain>(table, regions, pairs, parts, part);
}
