// Arithmetic of the emulated operators: docs/numerics.md, bit for bit. Every
// product is rounded on its own; this needs -ffp-contract=off and IEEE binary32
// without excess precision.
#ifndef SLUICE_EMU_OP_MATH_H
#define SLUICE_EMU_OP_MATH_H

#include <cmath>
#include <cstdint>
#include <cstring>

namespace op {

enum Type { kFloat = 0, kFloat16 = 1, kInt8 = 2, kInt32 = 3, kUint8 = 4, kInt64 = 9, kBool = 12, kBF16 = 27 };

inline size_t size_of(int type) {
	switch (type) {
	case kFloat: case kInt32: return 4;
	case kFloat16: case kBF16: return 2;
	case kInt64: return 8;
	case kInt8: case kUint8: case kBool: return 1;
	}
	return 0;
}

inline uint32_t bits(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
inline float from_bits(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }

inline float widen(uint16_t h) { return from_bits((uint32_t)h << 16); }

// narrow rounds to nearest even; NaN stays a quiet NaN of its sign.
inline uint16_t narrow(float v) {
	uint32_t b = bits(v);
	if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40);
	return (uint16_t)((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}

inline float load(int type, const char *p) {
	if (type == kBF16) { uint16_t h; memcpy(&h, p, 2); return widen(h); }
	float v; memcpy(&v, p, 4); return v;
}

inline void store(int type, char *p, float v) {
	if (type == kBF16) { uint16_t h = narrow(v); memcpy(p, &h, 2); return; }
	memcpy(p, &v, 4);
}

inline int64_t load_int(int type, const char *p) {
	switch (type) {
	case kInt32: { int32_t v; memcpy(&v, p, 4); return v; }
	case kInt64: { int64_t v; memcpy(&v, p, 8); return v; }
	case kInt8: return *(const int8_t *)p;
	}
	return *(const uint8_t *)p;
}

inline void store_int(int type, char *p, int64_t v) {
	switch (type) {
	case kInt32: { int32_t x = (int32_t)v; memcpy(p, &x, 4); return; }
	case kInt64: memcpy(p, &v, 8); return;
	}
	*(uint8_t *)p = (uint8_t)v;
}

// exp1 is e^x: 0 below -87, +Inf above 88, else within 2 units in the last place.
inline float exp1(float x) {
	if (x < -87.0f) return 0;
	if (x > 88.0f) return INFINITY;
	float t = x * 1.44269504088896341f;
	t = t + 12582912.0f;
	float n = t - 12582912.0f;
	float r = n * 0.693359375f;
	r = x - r;
	float q = n * -2.12194440e-4f;
	r = r - q;
	float p = 1.9875691500e-4f * r;
	p = p + 1.3981999507e-3f;
	p = p * r;
	p = p + 8.3334519073e-3f;
	p = p * r;
	p = p + 4.1665795894e-2f;
	p = p * r;
	p = p + 1.6666665459e-1f;
	p = p * r;
	p = p + 5.0000001201e-1f;
	float rr = r * r;
	p = p * rr;
	p = p + r;
	p = p + 1.0f;
	return p * from_bits((bits(t) + 0xb4c0007fu) << 23);
}

// View is a strided array as an operator sees it; steps are in elements.
struct View {
	int type = -1;
	int nd = 0;
	int64_t dim[8] = {};
	int64_t step[8] = {};
	char *data = nullptr;

	size_t width() const { return size_of(type); }
	int64_t count() const {
		int64_t n = 1;
		for (int i = 0; i < nd; i++) n *= dim[i];
		return n;
	}
	bool contiguous() const {
		int64_t want = 1;
		for (int i = nd - 1; i >= 0; i--) {
			if (dim[i] != 1 && step[i] != want) return false;
			want *= dim[i];
		}
		return true;
	}
	char *row(int64_t i) const { return data + i * step[0] * (int64_t)width(); }
	bool same_shape(const View &o) const {
		if (nd != o.nd) return false;
		for (int i = 0; i < nd; i++) if (dim[i] != o.dim[i]) return false;
		return true;
	}
};

// broadcast gives v the shape of to; repeated dimensions have step 0. False if
// the shapes do not fit.
inline bool broadcast(View *v, const View &to) {
	if (v->nd > to.nd) return false;
	View out = *v;
	out.nd = to.nd;
	for (int i = 0; i < to.nd; i++) {
		int from = i - (to.nd - v->nd);
		out.dim[i] = to.dim[i];
		if (from < 0 || (v->dim[from] == 1 && to.dim[i] != 1)) out.step[i] = 0;
		else if (v->dim[from] == to.dim[i]) out.step[i] = v->step[from];
		else return false;
	}
	*v = out;
	return true;
}

// each calls f with the addresses of the elements of n views of one shape, in
// row-major order.
template <int N, class F> void each(const View *(&v)[N], F f) {
	const View &s = *v[0];
	if (s.count() == 0) return;
	int64_t at[8] = {};
	char *p[N];
	for (int k = 0; k < N; k++) p[k] = v[k]->data;
	for (;;) {
		f(p);
		int d = s.nd - 1;
		for (; d >= 0; d--) {
			bool wraps = ++at[d] == s.dim[d];
			for (int k = 0; k < N; k++) {
				int64_t w = (int64_t)v[k]->width() * v[k]->step[d];
				p[k] += wraps ? -w * (s.dim[d] - 1) : w;
			}
			if (!wraps) break;
			at[d] = 0;
		}
		if (d < 0) return;
	}
}

} // namespace op

#endif
