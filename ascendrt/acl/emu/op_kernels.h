// The kernels of the emulated operators, over checked views. One that finds a
// bad index returns what a fault of the device says, else an empty string.
#ifndef SLUICE_EMU_OP_KERNELS_H
#define SLUICE_EMU_OP_KERNELS_H

#include <string>
#include <vector>

#include "op_math.h"

namespace op {

void add(const View &a, const View &b, float alpha, const View &out);
void cast(const View &x, const View &out);
void copy(const View &x, const View &out);
void zero(const View &out);
void less(const View &x, double limit, const View &out);
void at_least(const View &x, double limit, const View &out);
void fill_where(const View &mask, double value, const View &out);
void select(const View &mask, const View &a, const View &b, const View &out);
void swiglu(const View &x, const View &out);
void argmax(const View &x, const View &out);
std::string embedding(const View &table, const View &ids, const View &out);
void rms_norm(const View &x, const View &gamma, float eps, const View &y, const View &rstd);
void matmul(const View &a, const View &b, const View &out);
std::string rope(const View &positions, const View &q, const View &k, const View &table, int64_t head, const View &qo, const View &ko);
std::string scatter(const View &k, const View &v, const View &slots, const View &kc, const View &vc);

// Attention over a paged cache: q and out [T,N,D], caches [blocks, size, Hk*D],
// table [B,W]. queries are the ends of the requests' rows, lens their tokens.
struct Attention {
	View q, k, v, table, out;
	int64_t heads, kv_heads, block;
	float scale;
	int64_t window; // tokens that a row sees, itself included; 0: all before it
	std::vector<int64_t> queries, lens;
};
std::string attention(const Attention &a);

} // namespace op

#endif
