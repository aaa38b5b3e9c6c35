// A program by itself: every other operation works without it. Each parameter is
// 8 bytes.

typedef long long word;
struct alignas(16) quad { word a, b; };

// copy_list moves many small pieces: a unit is a part of one of them, and blocks of
// threads take units in turn. Eight loads of a thread are under way at a time.
extern "C" __global__ void __launch_bounds__(256) copy_list(const word* list, word units, word parts, word part) {
	word u = blockIdx.x;
	const word* p = list + 3 * (u / parts);
	word dst = p[0], src = p[1], bytes = p[2]; // the list is in host memory: the next entry is on its way while this one is copied
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
		for (word i = begin + threadIdx.x; i < end; i += 8 * blockDim.x) {
			quad v[8];
#pragma unroll
			for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) v[k] = from[i + k * blockDim.x];
#pragma unroll
			for (int k = 0; k < 8; k++) if (i + k * blockDim.x < end) to[i + k * blockDim.x] = v[k];
		}
		u = next;
	}
}
