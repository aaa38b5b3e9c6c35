// The emulated libnnopbase.so: tensors, scalars, arrays and executors.
#include <mutex>
#include <unordered_map>

#include "op.h"

EMU_API int sluice_emu_enqueue(const std::shared_ptr<emu::Task> *task, void *ws, uint64_t n, aclrtStream s);

using namespace emu;

static std::mutex &mutex() { static auto *m = new std::mutex; return *m; }
static std::unordered_map<const void *, int> &live() { static auto *m = new std::unordered_map<const void *, int>; return *m; }

static void add(const void *p, int kind) {
	std::lock_guard<std::mutex> l(mutex());
	live()[p] = kind;
}
static bool take(const void *p, int kind) {
	std::lock_guard<std::mutex> l(mutex());
	auto it = live().find(p);
	if (it == live().end() || it->second != kind) return false;
	live().erase(it);
	return true;
}
template <class T> static aclnnStatus destroy(const T *p, int kind, const char *name) {
	if (!p) return 0;
	if (!take(p, kind)) return sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, (std::string(name) + ": destroyed before, or of another kind").c_str());
	delete p;
	return 0;
}

EMU_API int sluice_emu_check_object(const void *p, int kind) {
	std::lock_guard<std::mutex> l(mutex());
	auto it = live().find(p);
	return it != live().end() && it->second == kind;
}
// sluice_emu_objects counts live objects of all kinds.
EMU_API long sluice_emu_objects(int) {
	std::lock_guard<std::mutex> l(mutex());
	return (long)live().size();
}

EMU_API aclTensor *aclCreateTensor(const int64_t *dims, uint64_t rank, int dtype, const int64_t *strides, int64_t offset, int format,
	const int64_t *storage, uint64_t storageRank, void *data) {
	if (sluice_emu_fault_point("aclCreateTensor")) return nullptr;
	if (rank > maxDims || (rank && !dims) || !typeSize(dtype) || format != ACL_FORMAT_ND || offset < 0) {
		sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, "aclCreateTensor: rank, type, format or offset");
		return nullptr;
	}
	auto *t = new aclTensor{ IsTensor, {} };
	t->t.dtype = dtype;
	t->t.rank = (int)rank;
	int64_t next = 1, room = 1;
	for (uint64_t i = 0; i < storageRank; i++) room *= storage[i];
	for (int i = (int)rank - 1; i >= 0; i--) {
		t->t.dim[i] = dims[i];
		t->t.stride[i] = strides ? strides[i] : next;
		next *= dims[i];
	}
	t->t.data = (char *)data + offset * typeSize(dtype);
	if (t->t.extent() / typeSize(dtype) + offset > room) {
		delete t;
		sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, "aclCreateTensor: the view leaves its storage");
		return nullptr;
	}
	add(t, IsTensor);
	return t;
}
EMU_API aclnnStatus aclDestroyTensor(const aclTensor *t) { return destroy(t, IsTensor, "aclDestroyTensor"); }

EMU_API aclScalar *aclCreateScalar(void *v, int dtype) {
	int n = typeSize(dtype);
	if (!v || !n) return nullptr;
	auto *s = new aclScalar{ IsScalar, dtype, {} };
	__builtin_memcpy(s->bytes, v, (size_t)n);
	add(s, IsScalar);
	return s;
}
EMU_API aclnnStatus aclDestroyScalar(const aclScalar *s) { return destroy(s, IsScalar, "aclDestroyScalar"); }

EMU_API aclIntArray *aclCreateIntArray(const int64_t *v, uint64_t n) {
	if (!v && n) return nullptr;
	auto *a = new aclIntArray{ IsIntArray, std::vector<int64_t>(v, v + n) };
	add(a, IsIntArray);
	return a;
}
EMU_API aclnnStatus aclDestroyIntArray(const aclIntArray *a) { return destroy(a, IsIntArray, "aclDestroyIntArray"); }

EMU_API aclTensorList *aclCreateTensorList(const aclTensor *const *v, uint64_t n) {
	if (!v && n) return nullptr;
	auto *l = new aclTensorList{ IsTensorList, std::vector<const aclTensor *>(v, v + n) };
	add(l, IsTensorList);
	return l;
}
// The list owns its tensors.
EMU_API aclnnStatus aclDestroyTensorList(const aclTensorList *l) {
	if (l && sluice_emu_check_object(l, IsTensorList)) for (auto *t : l->v) aclDestroyTensor(t);
	return destroy(l, IsTensorList, "aclDestroyTensorList");
}

EMU_API aclOpExecutor *sluice_emu_executor(const std::shared_ptr<Task> *task) {
	auto *e = new aclOpExecutor{ IsExecutor, false, *task };
	add(e, IsExecutor);
	return e;
}
EMU_API aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *e) {
	if (!sluice_emu_check_object(e, IsExecutor)) return sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, "aclSetAclOpExecutorRepeatable: the executor was used or destroyed");
	e->repeatable = true;
	return 0;
}
EMU_API aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *e) {
	if (sluice_emu_check_object(e, IsExecutor) && !e->repeatable) return sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, "aclDestroyAclOpExecutor: the executor is not repeatable: its run frees it");
	return destroy(e, IsExecutor, "aclDestroyAclOpExecutor");
}

// A run frees an executor that is not repeatable, whatever comes of it.
EMU_API aclnnStatus sluice_emu_launch(const char *name, void *ws, uint64_t n, aclOpExecutor *e, aclrtStream s) {
	if (!e) return sluice_emu_fail(ACLNN_ERR_PARAM_NULLPTR, (std::string(name) + ": the executor is a null pointer").c_str());
	bool once;
	std::shared_ptr<Task> task;
	{
		std::lock_guard<std::mutex> l(mutex());
		auto it = live().find(e);
		if (it == live().end() || it->second != IsExecutor)
			return sluice_emu_fail(ACLNN_ERR_INNER_NULLPTR, (std::string(name) + ": the executor was used before: one first phase is good for one second phase").c_str());
		once = !e->repeatable;
		task = e->task;
		if (once) live().erase(it);
	}
	if (once) delete e;
	if (task->name != name) return sluice_emu_fail(ACLNN_ERR_PARAM_INVALID, (std::string(name) + ": the executor is of " + task->name).c_str());
	if (int code = sluice_emu_fault_point(name)) return sluice_emu_fail(code, "injected fault");
	return sluice_emu_enqueue(&task, ws, n, s);
}
