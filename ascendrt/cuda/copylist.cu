// A program by itself: every other operation works without it. Each parameter is
// 8 bytes.

typedef long long word;
struct alignas(16) quad { word a, b; };

// move_range moves a range with all threads of a block, eight loads of each under way at a time.
__device__ __forceinline__ void move_range(quad* to, const quad* from, word begin, word end) {
	for (word i = begin + threadIdx.x; i < end; i += 8 * blockDim.x) {
		quad v[8];
#pragma unroll
		for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) v[k] = from[i + k * blockDim.x];
#pragma unroll
		for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) to[i + k * blockDim.x] = v[k];
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
		move_range(to, from, begin, end);
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
	move_range((quad*)dst, (const quad*)src, begin, end < whole ? end : whole);
	if (blockIdx.x == 0) move_rest((char*)dst, (const char*)src, bytes);
}

// copy_blocks moves blocks of several regions. The table has five words for each
// region (destination, source, their strides, bytes of a block), then one for each
// pair of blocks (destination below, source above). A unit is a part of a block of a
// region; blocks of threads take units in turn. Addresses and strides are multiples
// of 16, the bytes of a block need not be.
extern "C" __global__ void __launch_bounds__(256) copy_blocks(const word* table, word regions, word pairs, word parts, word part) {
	const unsigned n = (unsigned)pairs, cut = (unsigned)parts, units = (unsigned)(regions * pairs * parts); // below 2^31
	const word* blocks = table + 5 * regions;
	for (unsigned u = blockIdx.x; u < units; u += gridDim.x) {
		unsigned piece = u / cut;
		const word* r = table + 5 * (piece / n);
		word pair = blocks[piece % n], bytes = r[4];
		char* dst = (char*)(r[0] + (pair & 0xffffffffll) * r[2]);
		const char* src = (const char*)(r[1] + (pair >> 32) * r[3]);
		quad* to = (quad*)dst;
		const quad* from = (const quad*)src;
		word begin = (word)(u % cut) * (part / 16), whole = bytes / 16, end = whole;
		if (end > begin + part / 16) end = begin + part / 16;
		move_range(to, from, begin, end);
		if (begin <= whole && whole < begin + part / 16) move_rest(dst, src, bytes); // the part in which the block ends
	}
}
