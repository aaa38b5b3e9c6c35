// Matrix products and attention. Vector lanes hold neighbouring outputs; the
// terms of one sum are added one at a time, in ascending order.
#pragma GCC optimize("O3")
#include "op_kernels.h"

#include <algorithm>

namespace op {

void matmul(const View &a, const View &b, const View &out) {
	const int64_t n = a.dim[0], depth = a.dim[1], m = b.dim[1];
	const int64_t panel = 64;
	std::vector<float> x(depth), w(depth * panel);
	float acc[panel];
	for (int64_t j = 0; j < m; j += panel) {
		int64_t cols = std::min(panel, m - j);
		for (int64_t k = 0; k < depth; k++) {
			const char *p = b.data + (k * b.step[0] + j * b.step[1]) * (int64_t)b.width();
			int64_t step = b.step[1] * (int64_t)b.width();
			for (int64_t c = 0; c < cols; c++) w[k * panel + c] = load(b.type, p + c * step);
			for (int64_t c = cols; c < panel; c++) w[k * panel + c] = 0;
		}
		for (int64_t r = 0; r < n; r++) {
			const char *p = a.row(r);
			int64_t step = a.step[1] * (int64_t)a.width();
			for (int64_t k = 0; k < depth; k++) x[k] = load(a.type, p + k * step);
			for (int64_t c = 0; c < panel; c++) acc[c] = 0;
			for (int64_t k = 0; k < depth; k++) {
				float v = x[k];
				const float *row = &w[k * panel];
				for (int64_t c = 0; c < panel; c++) {
					float t = v * row[c];
					acc[c] = acc[c] + t;
				}
			}
			char *to = out.row(r) + j * out.step[1] * (int64_t)out.width();
			for (int64_t c = 0; c < cols; c++) store(out.type, to + c * out.step[1] * (int64_t)out.width(), acc[c]);
		}
	}
}

namespace {

struct Scratch {
	std::vector<float> keys, values, scores, query, sum;
};

// one computes the rows of a request for one key head and the query heads that share it.
void one(const Attention &a, Scratch *s, int64_t request, int64_t head, int64_t first, int64_t rows) {
	const int64_t d = a.q.dim[2], group = a.heads / a.kv_heads, len = a.lens[request], width = a.kv_heads * d;
	const int64_t w = (int64_t)a.k.width();
	int64_t low = a.window > 0 ? std::max<int64_t>(0, len - rows + 1 - a.window) : 0;
	int64_t n = len - low;
	s->keys.resize(d * n), s->values.resize(n * d), s->scores.resize(n), s->query.resize(d), s->sum.resize(d);
	for (int64_t j = 0; j < n; j++) {
		int64_t at = low + j;
		int64_t block = load_int(a.table.type, a.table.row(request) + at / a.block * (int64_t)a.table.width());
		int64_t off = ((block * a.block + at % a.block) * width + head * d) * w;
		for (int64_t i = 0; i < d; i++) {
			s->keys[i * n + j] = load(a.k.type, a.k.data + off + i * w);
			s->values[j * d + i] = load(a.v.type, a.v.data + off + i * w);
		}
	}
	for (int64_t r = 0; r < rows; r++) {
		int64_t end = n - rows + r + 1; // keys that the row sees end here
		int64_t begin = a.window > 0 ? std::max<int64_t>(0, end - a.window) : 0;
		for (int64_t g = 0; g < group; g++) {
			int64_t place = ((first + r) * a.heads + head * group + g) * d * w;
			for (int64_t i = 0; i < d; i++) s->query[i] = load(a.q.type, a.q.data + place + i * w);
			float *score = s->scores.data();
			for (int64_t j = begin; j < end; j++) score[j] = 0;
			for (int64_t i = 0; i < d; i++) {
				float v = s->query[i];
				const float *key = &s->keys[i * n];
				for (int64_t j = begin; j < end; j++) {
					float t = v * key[j];
					score[j] = score[j] + t;
				}
			}
			float top = -INFINITY;
			for (int64_t j = begin; j < end; j++) if (score[j] > top) top = score[j];
			float m = top * a.scale;
			float total = 0;
			for (int64_t j = begin; j < end; j++) {
				float t = score[j] * a.scale;
				score[j] = exp1(t - m);
				total = total + score[j];
			}
			float *out = s->sum.data();
			for (int64_t i = 0; i < d; i++) out[i] = 0;
			for (int64_t j = begin; j < end; j++) {
				float v = score[j];
				const float *value = &s->values[j * d];
				for (int64_t i = 0; i < d; i++) {
					float t = v * value[i];
					out[i] = out[i] + t;
				}
			}
			for (int64_t i = 0; i < d; i++) store(a.out.type, a.out.data + place + i * w, out[i] / total);
		}
	}
}

} // namespace

std::string attention(const Attention &a) {
	Scratch s;
	int64_t first = 0;
	for (size_t r = 0; r < a.queries.size(); r++) {
		int64_t rows = a.queries[r] - first, len = a.lens[r];
		if (rows > 0 && len == 0) { // no key: zeros
			int64_t bytes = a.q.dim[1] * a.q.dim[2] * (int64_t)a.out.width();
			memset(a.out.data + first * bytes, 0, rows * bytes);
		} else if (rows > 0) {
			int64_t low = a.window > 0 ? std::max<int64_t>(0, len - rows + 1 - a.window) : 0;
			for (int64_t b = low / a.block; b * a.block < len; b++) {
				int64_t id = load_int(a.table.type, a.table.row((int64_t)r) + b * (int64_t)a.table.width());
				if (id < 0 || id >= a.k.dim[0]) // the real device reads whatever lies there
					return "attention: block " + std::to_string(b) + " of request " + std::to_string(r) + " is " + std::to_string(id) + " of " + std::to_string(a.k.dim[0]);
			}
			for (int64_t h = 0; h < a.kv_heads; h++) one(a, &s, (int64_t)r, h, first, rows);
		}
		first = a.queries[r];
	}
	return "";
}

} // namespace op
