// Operators whose rows or elements are independent.
#pragma GCC optimize("O3")
#include "op_kernels.h"

#include <algorithm>

namespace op {

void add(const View &a, const View &b, float alpha, const View &out) {
	const View *v[] = { &out, &a, &b };
	each(v, [&](char **p) {
		float other = load(b.type, p[2]);
		if (alpha != 1.0f) other = other * alpha;
		store(out.type, p[0], load(a.type, p[1]) + other);
	});
}

static bool floating(int type) { return type == kFloat || type == kBF16; }

void cast(const View &x, const View &out) {
	const View *v[] = { &out, &x };
	each(v, [&](char **p) {
		if (floating(x.type) && floating(out.type)) store(out.type, p[0], load(x.type, p[1]));
		else if (floating(out.type)) store(out.type, p[0], (float)load_int(x.type, p[1]));
		else if (floating(x.type)) store_int(out.type, p[0], (int64_t)load(x.type, p[1]));
		else store_int(out.type, p[0], load_int(x.type, p[1]));
	});
}

void copy(const View &x, const View &out) {
	if (x.type != out.type) return cast(x, out);
	const View *v[] = { &out, &x };
	size_t w = out.width();
	each(v, [&](char **p) { memcpy(p[0], p[1], w); });
}

void zero(const View &out) {
	const View *v[] = { &out };
	size_t w = out.width();
	each(v, [&](char **p) { memset(p[0], 0, w); });
}

void less(const View &x, double limit, const View &out) {
	const View *v[] = { &out, &x };
	each(v, [&](char **p) {
		bool is = floating(x.type) ? (double)load(x.type, p[1]) < limit : load_int(x.type, p[1]) < (int64_t)limit;
		store_int(out.type, p[0], is);
	});
}

void at_least(const View &x, double limit, const View &out) {
	const View *v[] = { &out, &x };
	each(v, [&](char **p) {
		if (floating(x.type)) store(out.type, p[0], std::max(load(x.type, p[1]), (float)limit));
		else store_int(out.type, p[0], std::max(load_int(x.type, p[1]), (int64_t)limit));
	});
}

void fill_where(const View &mask, double value, const View &out) {
	View m = mask;
	broadcast(&m, out);
	const View *v[] = { &out, &m };
	each(v, [&](char **p) {
		if (!*p[1]) return;
		if (floating(out.type)) store(out.type, p[0], (float)value);
		else store_int(out.type, p[0], (int64_t)value);
	});
}

void select(const View &mask, const View &a, const View &b, const View &out) {
	View m = mask;
	broadcast(&m, out);
	const View *v[] = { &out, &m, &a, &b };
	size_t w = out.width();
	each(v, [&](char **p) { memcpy(p[0], *p[1] ? p[2] : p[3], w); });
}

// One row as binary32 values.
static void load_row(const View &x, const char *p, int64_t step, int64_t n, float *out) {
	int64_t w = (int64_t)x.width() * step;
	for (int64_t i = 0; i < n; i++) out[i] = load(x.type, p + i * w);
}

void swiglu(const View &x, const View &out) {
	int64_t f = out.dim[out.nd - 1], rows = out.count() / std::max<int64_t>(1, f);
	std::vector<float> in(2 * f);
	size_t w = x.width(), wo = out.width();
	for (int64_t r = 0; r < rows; r++) {
		load_row(x, x.data + r * 2 * f * w, 1, 2 * f, in.data());
		for (int64_t i = 0; i < f; i++) {
			float g = in[i];
			float s = g / (1.0f + exp1(-g));
			store(out.type, out.data + (r * f + i) * wo, s * in[f + i]);
		}
	}
}

void argmax(const View &x, const View &out) {
	int64_t n = x.dim[x.nd - 1];
	std::vector<float> row(n);
	View rows = x, to = out;
	rows.nd--;
	if (to.nd == x.nd) to.nd--; // the kept dimension has one element
	const View *v[] = { &to, &rows };
	each(v, [&](char **p) {
		load_row(x, p[1], x.step[x.nd - 1], n, row.data());
		float best = -INFINITY;
		int64_t at = 0;
		bool first = true;
		for (int64_t i = 0; i < n; i++) {
			if (row[i] > best || (first && row[i] == best)) {
				best = row[i];
				at = i;
				first = false;
			}
		}
		store_int(out.type, p[0], at);
	});
}

static std::string outside(const char *what, int64_t v, int64_t n) {
	return std::string(what) + " " + std::to_string(v) + " is not within 0 to " + std::to_string(n - 1);
}

std::string embedding(const View &table, const View &ids, const View &out) {
	int64_t n = ids.count(), w = (int64_t)table.width(), d = table.dim[1];
	for (int64_t i = 0; i < n; i++) {
		int64_t id = load_int(ids.type, ids.data + i * ids.step[0] * (int64_t)ids.width());
		if (id < 0 || id >= table.dim[0]) return outside("embedding: index", id, table.dim[0]);
		const char *from = table.row(id);
		char *to = out.row(i);
		if (table.step[1] == 1 && out.step[1] == 1) {
			memcpy(to, from, d * w);
			continue;
		}
		for (int64_t k = 0; k < d; k++) memcpy(to + k * out.step[1] * w, from + k * table.step[1] * w, w);
	}
	return "";
}

// norm_row writes y = x · inv · gamma and gives inv.
static float norm_row(const float *x, const float *gamma, int64_t d, float eps, float *y) {
	float ss = 0;
	for (int64_t i = 0; i < d; i++) {
		float s = x[i] * x[i];
		ss = ss + s;
	}
	float mean = ss / (float)d;
	float inv = 1.0f / sqrtf(mean + eps);
	for (int64_t i = 0; i < d; i++) {
		float t = x[i] * inv;
		y[i] = t * gamma[i];
	}
	return inv;
}

void rms_norm(const View &x, const View &gamma, float eps, const View &y, const View &rstd) {
	int64_t d = gamma.count();
	std::vector<float> g(d), in(d), out(d);
	load_row(gamma, gamma.data, gamma.step[0], d, g.data());
	View xr = x, yr = y, rr = rstd;
	xr.nd--, yr.nd--, rr.nd--; // the last dimension is the row
	const View *v[] = { &xr, &yr, &rr };
	int64_t yw = (int64_t)y.width() * y.step[y.nd - 1];
	each(v, [&](char **p) {
		load_row(x, p[0], x.step[x.nd - 1], d, in.data());
		float inv = norm_row(in.data(), g.data(), d, eps, out.data());
		for (int64_t i = 0; i < d; i++) store(y.type, p[1] + i * yw, out[i]);
		store(rstd.type, p[2], inv);
	});
}

std::string rope(const View &positions, const View &q, const View &k, const View &table, int64_t head, const View &qo, const View &ko) {
	int64_t n = positions.dim[0], half = head / 2;
	std::vector<float> cs(head), x(head);
	for (int64_t r = 0; r < n; r++) {
		int64_t at = load_int(positions.type, positions.data + r * positions.step[0] * (int64_t)positions.width());
		if (at < 0 || at >= table.dim[0]) return outside("rope: position", at, table.dim[0]);
		load_row(table, table.row(at), table.step[1], head, cs.data());
		for (int side = 0; side < 2; side++) {
			const View &in = side ? k : q, &out = side ? ko : qo;
			for (int64_t h = 0; h < in.dim[1]; h += head) {
				load_row(in, in.row(r) + h * in.step[1] * (int64_t)in.width(), in.step[1], head, x.data());
				char *to = out.row(r) + h * (int64_t)out.width();
				for (int64_t i = 0; i < half; i++) {
					float u = x[i], v = x[half + i], c = cs[i], s = cs[half + i];
					float uc = u * c, vs = v * s, vc = v * c, us = u * s;
					store(out.type, to + i * (int64_t)out.width(), uc - vs);
					store(out.type, to + (half + i) * (int64_t)out.width(), vc + us);
				}
			}
		}
	}
	return "";
}

std::string scatter(const View &k, const View &v, const View &slots, const View &kc, const View &vc) {
	int64_t n = slots.dim[0], block = kc.dim[1], total = kc.dim[0] * block, bytes = k.dim[1] * k.dim[2] * (int64_t)k.width();
	for (int64_t r = 0; r < n; r++) {
		int64_t slot = load_int(slots.type, slots.data + r * (int64_t)slots.width());
		if (slot < 0) continue;
		if (slot >= total) return outside("kv scatter: slot", slot, total);
		memcpy(kc.data + slot * bytes, k.data + r * bytes, bytes);
		memcpy(vc.data + slot * bytes, v.data + r * bytes, bytes);
	}
	return "";
}

} // namespace op
