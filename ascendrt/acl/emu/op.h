// The inside of the emulated operator library: how an aclnn operator is
// written. A file op_*.cc defines the two phases of its operators with
// external linkage, so that libopapi.so exports them under the vendor's names:
//
//	EMU_OP(aclnnSwiGlu)(const aclTensor *x, int64_t dim, const aclTensor *out, uint64_t *ws, aclOpExecutor **ex) {
//		emu::Call c("aclnnSwiGlu", ws, ex);
//		auto X = c.in(x, "x"), Y = c.out(out, "out"); // a null pointer is noted as 161001
//		c.require(X.dtype == Y.dtype, "x and out differ in type"); // noted as 161002
//		c.contiguous(X, "x");
//		if (!c.ok()) return c.status();
//		return c.ready([=](emu::Run &r) { ... X.data, X.dim[0], r.fault(...) ... });
//	}
//	EMU_OP_END(aclnnSwiGlu)
//
// EMU_OP declares the first phase, EMU_OP_END defines the second one, which
// hands the executor to a stream.
//
// Rules:
//  1. Everything that can be known from shapes, types and host values is checked in
//     phase 1: the first wrong thing is kept, status() returns its code, and its
//     text is what aclGetRecentErrMsg gives on this thread.
//  2. Tensors and host arrays are copied out of the vendor objects in phase 1:
//     the caller destroys them as soon as phase 2 returned. Values on the device
//     (ids, block tables, lengths) are read only by the body.
//  3. The body runs once per execution of the task, on the thread of a stream:
//     once after an eager phase 2, once per replay when it was captured. It
//     keeps no state; several bodies of one operator run at a time. It does not
//     throw, calls no acl function, and computes docs/numerics.md (products
//     rounded on their own: the folder is compiled with -ffp-contract=off).
//  4. A value on the device that the hardware would fault at (an index past the
//     end) is r.fault(ACL_ERROR_RT_AICORE_EXCEPTION, text): the device is lost.
//  5. Memory that was not declared with in, out, inout is not touched, but for
//     r.workspace(), which has the size asked for with c.workspace(n).
//  6. At phase 2 and again before each run the emulation itself checks each
//     declared tensor: it lies in one live allocation of the device, its
//     address is a multiple of 32 bytes, and no output overlaps another operand
//     unless both are the very same view or c.alias allows it.
//  7. Operands keep the order in which in, out and inout were called: that, the
//     types and the shapes are what a task update must repeat. Host values (ints
//     and scalars) may differ in an update.
#ifndef SLUICE_EMU_OP_H
#define SLUICE_EMU_OP_H

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../abi.h"

#define EMU_API extern "C" __attribute__((visibility("default")))
#define EMU_OP(name) EMU_API aclnnStatus name##GetWorkspaceSize
#define EMU_OP_END(name) \
	EMU_API aclnnStatus name(void *ws, uint64_t n, aclOpExecutor *ex, aclrtStream s) { return sluice_emu_launch(#name, ws, n, ex, s); }

namespace emu {

enum { maxDims = 8 };

inline int typeSize(int dtype) {
	switch (dtype) {
	case ACL_DOUBLE: case ACL_INT64: case ACL_UINT64: return 8;
	case ACL_FLOAT: case ACL_INT32: case ACL_UINT32: return 4;
	case ACL_FLOAT16: case ACL_BF16: case ACL_INT16: case ACL_UINT16: return 2;
	case ACL_INT8: case ACL_UINT8: case ACL_BOOL: return 1;
	}
	return 0;
}

// Tensor is a view as the operator sees it; a copy, valid without its aclTensor.
struct Tensor {
	char *data = nullptr;         // of element (0, …, 0)
	int dtype = -1;               // ACL_FLOAT, …
	int rank = 0;
	int64_t dim[maxDims] = {};    // elements
	int64_t stride[maxDims] = {}; // elements
	bool given = false;           // false: an optional tensor that was null

	int size() const { return typeSize(dtype); } // bytes per element
	int64_t count() const {
		int64_t n = 1;
		for (int i = 0; i < rank; i++) n *= dim[i];
		return n;
	}
	bool contiguous() const {
		int64_t n = 1;
		for (int i = rank - 1; i >= 0; i--) {
			if (dim[i] != 1 && stride[i] != n) return false;
			n *= dim[i];
		}
		return true;
	}
	// extent is the number of bytes from data to the end of the last element.
	int64_t extent() const {
		int64_t last = 0;
		for (int i = 0; i < rank; i++) {
			if (dim[i] <= 0) return 0;
			last += (dim[i] - 1) * stride[i];
		}
		return (last + 1) * size();
	}
	// at is the address of an element; missing indices are 0.
	template <class T> T *at(int64_t i = 0, int64_t j = 0, int64_t k = 0, int64_t l = 0) const {
		const int64_t index[4] = { i, j, k, l };
		int64_t off = 0;
		for (int d = 0; d < rank && d < 4; d++) off += index[d] * stride[d];
		return reinterpret_cast<T *>(data) + off;
	}
	bool sameShape(const Tensor &o) const {
		if (rank != o.rank) return false;
		for (int i = 0; i < rank; i++) if (dim[i] != o.dim[i]) return false;
		return true;
	}
};

// Run is one execution of a body.
class Run {
public:
	void *workspace() const { return ws_; }
	// fault ends the body's device as an exception of the hardware does; the body returns.
	void fault(int code, std::string text) { if (!code_) { code_ = code; text_ = std::move(text); } }

	void *ws_ = nullptr;
	int code_ = 0;
	std::string text_;
};

enum Use { Reads = 1, Writes = 2, Updates = 3 };

struct Operand {
	Tensor t;
	Use use;
	std::string what;
	int alias; // index of the operand that it may overlap, -1
};

// Task is a checked operation, shared by the executor, the queue and graphs.
struct Task {
	std::string name;
	std::vector<Operand> operands;
	uint64_t workspace = 0;
	std::function<void(Run &)> body;
};

} // namespace emu

// The vendor's opaque objects.
struct aclTensor { uint64_t magic; emu::Tensor t; };
struct aclScalar { uint64_t magic; int dtype; char bytes[16]; };
struct aclIntArray { uint64_t magic; std::vector<int64_t> v; };
struct aclTensorList { uint64_t magic; std::vector<const aclTensor *> v; };
struct aclOpExecutor { uint64_t magic; bool repeatable; std::shared_ptr<emu::Task> task; };

// What libopapi.so takes from the other emulated libraries.
EMU_API int sluice_emu_fail(int code, const char *text); // sets the thread's error text; gives code
EMU_API int sluice_emu_check_object(const void *object, int kind); // 1: a live object of that kind
EMU_API aclOpExecutor *sluice_emu_executor(const std::shared_ptr<emu::Task> *task);
EMU_API aclnnStatus sluice_emu_launch(const char *name, void *ws, uint64_t n, aclOpExecutor *ex, aclrtStream s);
EMU_API int sluice_emu_fault_point(const char *name); // the code of an injected fault, 0

namespace emu {

enum ObjectKind { IsTensor = 1, IsScalar, IsIntArray, IsTensorList, IsExecutor };

// Call is a first phase.
class Call {
public:
	Call(const char *name, uint64_t *ws, aclOpExecutor **ex) : ws_(ws), ex_(ex), task_(std::make_shared<Task>()) {
		task_->name = name;
		if (int code = sluice_emu_fault_point((task_->name + "GetWorkspaceSize").c_str())) refuse(code, "injected fault");
		if (!ws || !ex) refuse(ACLNN_ERR_PARAM_NULLPTR, "the workspace size or the executor is a null pointer");
	}
	Tensor in(const aclTensor *t, const char *what) { return operand(t, what, Reads, true); }
	Tensor out(const aclTensor *t, const char *what) { return operand(t, what, Writes, true); }
	Tensor inout(const aclTensor *t, const char *what) { return operand(t, what, Updates, true); }
	Tensor optIn(const aclTensor *t, const char *what) { return operand(t, what, Reads, false); }
	Tensor optOut(const aclTensor *t, const char *what) { return operand(t, what, Writes, false); }
	// list gives the tensors of a required list.
	std::vector<Tensor> list(const aclTensorList *l, const char *what) {
		std::vector<Tensor> out;
		if (!object(l, IsTensorList, what, true)) return out;
		for (auto *t : l->v) out.push_back(in(t, what));
		return out;
	}
	// ints copies a host array; optional ones may be null (empty).
	std::vector<int64_t> ints(const aclIntArray *a, const char *what, bool required) {
		if (!object(a, IsIntArray, what, required)) return {};
		return a->v;
	}
	// scalar is a host scalar as a double.
	double scalar(const aclScalar *s, const char *what) {
		if (!object(s, IsScalar, what, true)) return 0;
		switch (s->dtype) {
		case ACL_FLOAT: return *reinterpret_cast<const float *>(s->bytes);
		case ACL_DOUBLE: return *reinterpret_cast<const double *>(s->bytes);
		case ACL_INT32: return *reinterpret_cast<const int32_t *>(s->bytes);
		case ACL_INT64: return (double)*reinterpret_cast<const int64_t *>(s->bytes);
		case ACL_BOOL: case ACL_UINT8: return *reinterpret_cast<const uint8_t *>(s->bytes);
		}
		refuse(ACLNN_ERR_PARAM_INVALID, "%s: scalars of type %d are not emulated", what, s->dtype);
		return 0;
	}
	// none refuses an optional argument that is not emulated.
	void none(const void *p, const char *what) {
		if (p) refuse(ACLNN_ERR_PARAM_INVALID, "%s is not emulated: pass a null pointer", what);
	}
	bool require(bool ok, const char *format, ...)  {
		if (ok) return true;
		va_list a;
		va_start(a, format);
		note(ACLNN_ERR_PARAM_INVALID, format, a);
		va_end(a);
		return false;
	}
	void refuse(int code, const char *format, ...)  {
		va_list a;
		va_start(a, format);
		note(code, format, a);
		va_end(a);
	}
	bool oneOf(const Tensor &t, std::initializer_list<int> types, const char *what) {
		for (int d : types) if (t.dtype == d) return true;
		return require(false, "%s: type %d is not supported", what, t.dtype);
	}
	bool rank(const Tensor &t, int n, const char *what) { return require(t.rank == n, "%s has %d dimensions, not %d", what, t.rank, n); }
	bool contiguous(const Tensor &t, const char *what) { return require(t.contiguous(), "%s is not contiguous", what); }
	// alias lets two operands overlap, by the names they were declared with.
	void alias(const char *a, const char *b) {
		int i = find(a), j = find(b);
		if (i >= 0 && j >= 0) task_->operands[i].alias = j, task_->operands[j].alias = i;
	}
	void workspace(uint64_t n) { task_->workspace = n; }
	bool ok() const { return code_ == 0; }
	aclnnStatus status() const { return code_ ? sluice_emu_fail(code_, text_.c_str()) : 0; }
	// ready gives the executor, unless something was wrong.
	aclnnStatus ready(std::function<void(Run &)> body) {
		if (code_) return status();
		task_->body = std::move(body);
		*ws_ = task_->workspace;
		*ex_ = sluice_emu_executor(&task_);
		return 0;
	}

private:
	bool object(const void *p, int kind, const char *what, bool required) {
		if (!p) {
			if (required) refuse(ACLNN_ERR_PARAM_NULLPTR, "%s is a null pointer", what);
			return false;
		}
		if (sluice_emu_check_object(p, kind)) return true;
		refuse(ACLNN_ERR_PARAM_INVALID, "%s was destroyed, or is of another kind", what);
		return false;
	}
	Tensor operand(const aclTensor *t, const char *what, Use use, bool required) {
		if (!object(t, IsTensor, what, required)) return Tensor();
		Tensor v = t->t;
		v.given = true;
		task_->operands.push_back({ v, use, what, -1 });
		return v;
	}
	int find(const char *what) const {
		for (size_t i = 0; i < task_->operands.size(); i++) if (task_->operands[i].what == what) return (int)i;
		return -1;
	}
	void note(int code, const char *format, va_list a) {
		if (code_) return;
		char buf[400];
		int n = snprintf(buf, sizeof buf, "%s: ", task_->name.c_str());
		vsnprintf(buf + n, sizeof buf - n, format, a);
		code_ = code;
		text_ = buf;
	}

	uint64_t *ws_;
	aclOpExecutor **ex_;
	std::shared_ptr<Task> task_;
	int code_ = 0;
	std::string text_;
};

} // namespace emu

#endif
