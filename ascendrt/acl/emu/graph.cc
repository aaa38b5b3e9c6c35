// Capture, replay and the update of task groups.
#include "core.h"

namespace emu {

std::set<Capture *> &captures() { static auto *s = new std::set<Capture *>; return *s; }
Capture *&grouping() { static Capture *c; return c; }

// end takes a capture off its streams.
static void end(Capture &c) {
	for (auto &w : c.work) w.first->cap.reset();
	captures().erase(&c);
	if (grouping() == &c) grouping() = nullptr;
}

} // namespace emu

using namespace emu;

EMU_API aclError aclmdlRICaptureBegin(aclrtStream h, uint32_t mode) {
	Device *d;
	int rc = enter("aclmdlRICaptureBegin", &d);
	if (rc) return rc;
	if (!h) return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "aclmdlRICaptureBegin: the default stream cannot be captured");
	if (mode > SL_CAPTURE_RELAXED) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclmdlRICaptureBegin: mode %u", mode);
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::lock_guard<std::mutex> l(captureMutex());
	if (s->cap) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "aclmdlRICaptureBegin: the stream is capturing");
	if (s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureBegin: a task update is open");
	auto c = std::make_shared<Capture>();
	c->origin = s.get(), c->thread = std::this_thread::get_id(), c->mode = mode;
	c->graph = std::make_shared<Graph>();
	c->graph->dev = d;
	c->work[s.get()] = 0;
	s->cap = c;
	captures().insert(c.get());
	return 0;
}

EMU_API aclError aclmdlRICaptureGetInfo(aclrtStream h, uint32_t *status, aclmdlRI *ri) {
	int rc = enter("aclmdlRICaptureGetInfo", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::lock_guard<std::mutex> l(captureMutex());
	*status = !s->cap ? SL_CAPTURE_NONE : s->cap->invalid ? SL_CAPTURE_INVALIDATED : SL_CAPTURE_ACTIVE;
	if (ri) *ri = nullptr;
	return 0;
}

EMU_API aclError aclmdlRICaptureThreadExchangeMode(uint32_t *mode) {
	if (!mode || *mode > SL_CAPTURE_RELAXED) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclmdlRICaptureThreadExchangeMode: unknown mode");
	std::swap(*mode, thread().mode);
	return 0;
}

EMU_API aclError aclmdlRICaptureEnd(aclrtStream h, aclmdlRI *ri) {
	Device *d;
	int rc = enter("aclmdlRICaptureEnd", &d);
	if (rc && thread().ctx == nullptr) return rc;
	*ri = nullptr;
	int enterCode = rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::shared_ptr<Graph> g;
	{
		std::lock_guard<std::mutex> l(captureMutex());
		auto c = s->cap;
		if (!c) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "aclmdlRICaptureEnd: the stream is not capturing");
		if (c->origin != s.get()) return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "aclmdlRICaptureEnd: the capture began on another stream");
		if (c->mode != SL_CAPTURE_RELAXED && c->thread != std::this_thread::get_id())
			return fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "aclmdlRICaptureEnd: the capture began on another thread");
		end(*c);
		if (enterCode) return enterCode;
		if (c->invalid) return fail(ACL_ERROR_RT_CAPTURE_INVALIDATED, "aclmdlRICaptureEnd: the capture was invalidated");
		if (c->open) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureEnd: a task group is open");
		for (auto &w : c->work)
			if (w.first != c->origin && c->joined[w.first] < w.second)
				return fail(ACL_ERROR_RT_STREAM_UNJOINED, "aclmdlRICaptureEnd: a forked stream was not joined");
		g = c->graph;
		long limit = setting("SLUICE_EMU_STREAMS", 1984);
		int n = (int)c->work.size();
		if ((d->streams += n) > limit) {
			d->streams -= n;
			return fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "Alloc sq cq fail: a graph of %d streams, %ld exist", n, limit);
		}
		g->streams = n;
	}
	for (auto &grp : g->groups) {
		grp->graph = g;
		groups().add(grp);
	}
	*ri = graphs().add(g);
	return 0;
}

static std::shared_ptr<Graph> graphOf(const char *name, aclmdlRI h, int *rc) {
	auto g = graphs().get(h);
	*rc = g ? 0 : fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: the graph %p does not exist (destroyed before?)", name, h);
	return g;
}

EMU_API aclError aclmdlRIExecuteAsync(aclmdlRI h, aclrtStream hs) {
	Device *d;
	int rc = enter("aclmdlRIExecuteAsync", &d);
	if (rc) return rc;
	auto g = graphOf("aclmdlRIExecuteAsync", h, &rc);
	if (rc) return rc;
	auto s = streamOf(hs, &rc);
	if (rc) return rc;
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->cap) {
			s->cap->invalid = true;
			return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "aclmdlRIExecuteAsync: not in a capture");
		}
		if (s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRIExecuteAsync: only operators stand in a task update");
	}
	g->launched++;
	s->push([g, d](Stream &s) {
		if (g->running.exchange(true)) {
			d->lose(ACL_ERROR_RT_MODEL_EXECUTE, "a graph was replayed while it still ran");
			return;
		}
		for (auto &n : g->nodes) {
			if (d->lost || s.aborted || s.stop) break;
			runNode(d, s, n);
		}
		g->completed++;
		g->running = false;
	});
	return 0;
}

EMU_API aclError aclmdlRIDestroy(aclmdlRI h) {
	int rc = enter("aclmdlRIDestroy", nullptr);
	if (rc) return rc;
	auto g = graphOf("aclmdlRIDestroy", h, &rc);
	if (rc) return rc;
	if (g->completed != g->launched) return fail(ACL_ERROR_RT_MODEL_RUNNING, "aclmdlRIDestroy: the graph still runs");
	for (auto &grp : g->groups) groups().remove(grp.get());
	graphs().remove(h);
	return 0;
}

EMU_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream h) {
	int rc = enter("aclmdlRICaptureTaskGrpBegin", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::lock_guard<std::mutex> l(captureMutex());
	if (!s->cap) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "aclmdlRICaptureTaskGrpBegin: the stream is not capturing");
	if (grouping()) {
		s->cap->invalid = true;
		return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureTaskGrpBegin: a task group is open");
	}
	s->cap->open = std::make_shared<Group>();
	s->cap->openOn = s.get();
	grouping() = s->cap.get();
	return 0;
}

EMU_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream h, aclrtTaskGrp *grp) {
	int rc = enter("aclmdlRICaptureTaskGrpEnd", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::lock_guard<std::mutex> l(captureMutex());
	auto c = s->cap;
	if (!c) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "aclmdlRICaptureTaskGrpEnd: the stream is not capturing");
	if (!c->open || c->openOn != s.get()) {
		c->invalid = true;
		return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureTaskGrpEnd: no task group is open on this stream");
	}
	*grp = c->open.get();
	c->graph->groups.push_back(std::move(c->open));
	c->open.reset();
	grouping() = nullptr;
	return 0;
}

EMU_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream h, aclrtTaskGrp grp) {
	int rc = enter("aclmdlRICaptureTaskUpdateBegin", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	auto g = groups().get(grp);
	if (!g) return fail(ACL_ERROR_RT_INVALID_HANDLE, "aclmdlRICaptureTaskUpdateBegin: the task group %p does not exist", grp);
	std::lock_guard<std::mutex> l(captureMutex());
	if (s->cap) {
		s->cap->invalid = true;
		return fail(ACL_ERROR_RT_STREAM_CAPTURED, "aclmdlRICaptureTaskUpdateBegin: the stream is capturing");
	}
	if (s->updating || g->updating.exchange(true)) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureTaskUpdateBegin: an update is open");
	s->updating = g;
	s->update.clear();
	return 0;
}

EMU_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream h) {
	Device *d;
	int rc = enter("aclmdlRICaptureTaskUpdateEnd", &d);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::shared_ptr<Group> grp;
	std::vector<Launch> next;
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (!s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclmdlRICaptureTaskUpdateEnd: no update is open on this stream");
		grp = std::move(s->updating);
		s->updating.reset();
		next.swap(s->update);
	}
	auto g = grp->graph.lock();
	grp->updating = false;
	if (!g) return fail(ACL_ERROR_RT_INVALID_HANDLE, "aclmdlRICaptureTaskUpdateEnd: the graph was destroyed");
	{
		std::lock_guard<std::mutex> l(grp->mu);
		bool same = next.size() == grp->launches.size();
		for (size_t i = 0; same && i < next.size(); i++) {
			auto &a = *next[i].task, &b = *grp->launches[i].task;
			same = a.name == b.name && a.operands.size() == b.operands.size();
			for (size_t k = 0; same && k < a.operands.size(); k++)
				same = a.operands[k].t.sameShape(b.operands[k].t) && a.operands[k].t.dtype == b.operands[k].t.dtype;
		}
		if (!same) return fail(ACL_ERROR_RT_MODEL_UPDATE_FAILED, "aclmdlRICaptureTaskUpdateEnd: not the operators, types and shapes that were captured");
	}
	uint64_t launched = g->launched;
	s->push([g, grp, next, launched, d](Stream &) {
		// Only the newest replay may still be ahead of this update.
		if (launched > 0 && g->completed + 1 < launched) {
			d->lose(ACL_ERROR_RT_MODEL_EXECUTE, "a task update overtook a replay that had not finished");
			return;
		}
		std::lock_guard<std::mutex> l(grp->mu);
		grp->launches = next;
	});
	return 0;
}
