// What the first phases of the operators share.
#ifndef SLUICE_EMU_OP_CALLS_H
#define SLUICE_EMU_OP_CALLS_H

#include "op.h"
#include "op_kernels.h"

namespace op {

inline View view(const emu::Tensor &t) {
	View v;
	v.type = t.dtype;
	v.nd = t.rank;
	v.data = t.data;
	for (int i = 0; i < t.rank; i++) {
		v.dim[i] = t.dim[i];
		v.step[i] = t.stride[i];
	}
	return v;
}

// The real operators take float16 too; the emulation computes none of it.
inline bool floats(emu::Call &c, const emu::Tensor &t, const char *what) { return c.oneOf(t, { ACL_FLOAT, ACL_BF16 }, what); }

inline bool same(emu::Call &c, const emu::Tensor &a, const char *an, const emu::Tensor &b, const char *bn) {
	return c.require(a.dtype == b.dtype, "%s and %s differ in type", an, bn) && c.require(a.sameShape(b), "%s and %s differ in shape", an, bn);
}

inline bool fits(const emu::Tensor &from, const emu::Tensor &to) {
	View v = view(from);
	return broadcast(&v, view(to));
}

inline void finish(emu::Run &r, const std::string &fault) {
	if (!fault.empty()) r.fault(ACL_ERROR_RT_AICORE_EXCEPTION, fault);
}

} // namespace op

#endif
