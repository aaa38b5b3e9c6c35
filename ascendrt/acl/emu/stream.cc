// Streams: ordered queues, each on a thread of its own; and operators on them.
#include "core.h"

namespace emu {

Stream::Stream(Device *d, uint32_t f) : dev(d), flags(f), worker([this] { loop(); }) {}

Stream::~Stream() {
	{
		std::lock_guard<std::mutex> l(mu);
		stop = true;
		queue.clear();
		wake.notify_all();
	}
	{
		std::lock_guard<std::mutex> l(dev->pulse);
		dev->beat.notify_all();
	}
	if (worker.get_id() == std::this_thread::get_id()) worker.detach();
	else worker.join();
	if (counted) dev->streams--;
}

void Stream::loop() {
	std::unique_lock<std::mutex> l(mu);
	for (;;) {
		wake.wait(l, [this] { return stop || !queue.empty(); });
		if (stop) return;
		auto f = std::move(queue.front());
		queue.pop_front();
		busy = true;
		l.unlock();
		if (int us = delayMicros()) std::this_thread::sleep_for(std::chrono::microseconds(us));
		if (!dev->lost && !aborted) f(*this);
		f = nullptr; // before the stream looks idle: it holds memory and graphs
		l.lock();
		busy = false;
		if (queue.empty()) idle.notify_all();
	}
}

void Stream::push(std::function<void(Stream &)> f) {
	std::lock_guard<std::mutex> l(mu);
	queue.push_back(std::move(f));
	wake.notify_one();
}

bool Stream::drained() {
	std::lock_guard<std::mutex> l(mu);
	return queue.empty() && !busy;
}

bool Stream::drain(int ms) {
	std::unique_lock<std::mutex> l(mu);
	auto done = [this] { return queue.empty() && !busy; };
	if (ms < 0) {
		idle.wait(l, done);
		return true;
	}
	return idle.wait_for(l, std::chrono::milliseconds(ms), done);
}

std::shared_ptr<Stream> streamOf(aclrtStream h, int *rc) {
	*rc = 0;
	Context *c = thread().ctx;
	if (!h) {
		std::lock_guard<std::mutex> l(c->mu);
		if (!c->standard) {
			c->standard = std::make_shared<Stream>(c->dev, 0);
			c->standard->counted = false;
		}
		return c->standard;
	}
	auto s = streams().get(h);
	if (!s) {
		*rc = fail(ACL_ERROR_RT_INVALID_HANDLE, "the stream %p does not exist (destroyed before?)", h);
		return nullptr;
	}
	if (s->dev != c->dev) {
		*rc = fail(ACL_ERROR_RT_STREAM_CONTEXT, "the stream is of device %d; the current context is of device %d", s->dev->id, c->dev->id);
		return nullptr;
	}
	return s;
}

// checkLaunch checks the memory of an operator's operands. late: when it runs.
int checkLaunch(Device *d, const Launch &l, bool lateCheck, std::vector<std::shared_ptr<Block>> *keep, std::string *why) {
	char buf[300];
	auto &ops = l.task->operands;
	for (size_t i = 0; i < ops.size(); i++) {
		const Tensor &t = ops[i].t;
		size_t n = (size_t)t.extent();
		if (n == 0) continue;
		auto b = hold(t.data, n);
		if (!b || b->host) {
			snprintf(buf, sizeof buf, "%s: %s: %zu bytes at %p are %s", l.task->name.c_str(), ops[i].what.c_str(), n, (void *)t.data,
				b ? "host memory" : blockOf(t.data) ? "past the end of the allocation" : lateCheck ? "freed before the task ran" : "no live device memory");
			*why = buf;
			return lateCheck ? ACL_ERROR_RT_AICORE_EXCEPTION : ACLNN_ERR_PARAM_INVALID;
		}
		if (b->device != d->id && !b->foreign && devices()[(size_t)b->device]->refs <= 0) {
			*why = l.task->name + ": " + ops[i].what + " is memory of a device that was reset";
			return ACLNN_ERR_PARAM_INVALID;
		}
		if ((uintptr_t)t.data % 32) {
			snprintf(buf, sizeof buf, "%s: %s: address %p is no multiple of 32", l.task->name.c_str(), ops[i].what.c_str(), (void *)t.data);
			*why = buf;
			return ACLNN_ERR_PARAM_INVALID;
		}
		if (keep) keep->push_back(std::move(b));
		if (!(ops[i].use & Writes) || lateCheck) continue;
		for (size_t k = 0; k < ops.size(); k++) {
			const Tensor &o = ops[k].t;
			if (k == i || ops[i].alias == (int)k || (k < i && (ops[k].use & Writes))) continue;
			bool same = o.data == t.data && o.sameShape(t) && o.dtype == t.dtype;
			for (int r = 0; same && r < t.rank; r++) same = o.stride[r] == t.stride[r] || t.dim[r] == 1;
			if (same) continue;
			// Interleaved columns of one matrix do not overlap: compare rows where both have one row stride.
			const char *a = t.data, *c = o.data;
			size_t m = (size_t)o.extent();
			if (m == 0 || a >= c + m || c >= a + n) continue;
			int64_t pitch = t.rank >= 2 && o.rank >= 2 && t.dim[0] > 1 && o.dim[0] > 1 && t.stride[0] * t.size() == o.stride[0] * o.size() ? t.stride[0] * t.size() : 0;
			if (pitch > 0) {
				Tensor tr = t, orow = o;
				tr.dim[0] = 1, orow.dim[0] = 1;
				int64_t off = ((c - a) % pitch + pitch) % pitch, tn = tr.extent(), on = orow.extent();
				if (off >= tn && off + on <= pitch) continue;
			}
			*why = l.task->name + ": " + ops[i].what + " overlaps " + ops[k].what;
			return ACLNN_ERR_PARAM_INVALID;
		}
	}
	if (l.task->workspace > 0) {
		auto b = hold(l.ws, l.task->workspace);
		if (!b || b->host) {
			snprintf(buf, sizeof buf, "%s: the workspace of %llu bytes at %p is no live device memory", l.task->name.c_str(), (unsigned long long)l.task->workspace, l.ws);
			*why = buf;
			return lateCheck ? ACL_ERROR_RT_AICORE_EXCEPTION : ACLNN_ERR_PARAM_INVALID;
		}
		if (keep) keep->push_back(std::move(b));
	}
	return 0;
}

void runLaunch(Device *d, const Launch &l) {
	std::vector<std::shared_ptr<Block>> keep;
	std::string why;
	if (int rc = checkLaunch(d, l, true, &keep, &why)) {
		d->lose(rc, why);
		return;
	}
	if (int code = injectedRun(l.task->name.c_str())) {
		d->lose(code, l.task->name + ": injected exception");
		return;
	}
	Run r;
	r.ws_ = l.ws;
	l.task->body(r);
	if (r.code_) d->lose(r.code_, l.task->name + ": " + r.text_);
}

static int refuseCapture(Capture &c, int code, const char *format, const char *what) {
	c.invalid = true;
	return fail(code, format, what);
}

int submit(const std::shared_ptr<Stream> &s, Node n, const char *what) {
	std::shared_ptr<Capture> cap;
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->updating) {
			if (!n.launch.task) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "%s: only operators stand in a task update", what);
			s->update.push_back(n.launch);
			return 0;
		}
		cap = s->cap;
		if (cap) {
			if (cap->invalid) return fail(ACL_ERROR_RT_CAPTURE_INVALIDATED, "%s: the capture was invalidated", what);
			if (cap->open) {
				if (cap->openOn != s.get()) return refuseCapture(*cap, ACL_ERROR_STREAM_TASK_GROUP_INTR, "%s: another stream has a task group open", what);
				if (!n.launch.task) return refuseCapture(*cap, ACL_ERROR_STREAM_TASK_GROUP_STATUS, "%s: a task group holds operators alone", what);
				n.group = cap->open;
				n.place = cap->open->launches.size();
				cap->open->launches.push_back(n.launch);
			}
			if (Capture *g = grouping(); g && g != cap.get())
				return refuseCapture(*cap, ACL_ERROR_STREAM_TASK_GROUP_INTR, "%s: another capture has a task group open", what);
			cap->work[s.get()]++;
			cap->graph->nodes.push_back(std::move(n));
			return 0;
		}
	}
	s->push([n = std::move(n)](Stream &s) { runNode(s.dev, s, n); });
	return 0;
}

void runNode(Device *d, Stream &s, const Node &n) {
	if (n.launch.task) {
		Launch l = n.launch;
		if (n.group) {
			std::lock_guard<std::mutex> g(n.group->mu);
			l = n.group->launches[n.place];
		}
		runLaunch(d, l);
	} else if (n.wait) {
		await(d, s, [&] { return n.wait->flag; });
	} else if (n.record || n.reset) {
		auto &e = n.record ? n.record : n.reset;
		std::lock_guard<std::mutex> l(d->pulse);
		e->flag = n.record != nullptr;
		e->us = nowMicros();
		d->beat.notify_all();
	} else if (n.run) {
		std::string why;
		if (int rc = n.run(why)) d->lose(rc, why);
	}
}

int safe(const char *name) {
	std::lock_guard<std::mutex> l(captureMutex());
	bool bad = false;
	for (Capture *c : captures()) {
		bool own = c->thread == std::this_thread::get_id();
		if (c->mode == SL_CAPTURE_RELAXED) continue;
		if (own ? thread().mode != SL_CAPTURE_RELAXED : c->mode == SL_CAPTURE_GLOBAL && thread().mode == SL_CAPTURE_GLOBAL) {
			c->invalid = true;
			bad = true;
		}
	}
	return bad ? fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "%s: not while a stream is captured in this mode", name) : 0;
}

} // namespace emu

using namespace emu;

EMU_API aclError aclrtCreateStreamWithConfig(aclrtStream *h, uint32_t, uint32_t flags) {
	Device *d;
	if (int rc = enter("aclrtCreateStreamWithConfig", &d)) return rc;
	if (flags & ~0x3fu) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtCreateStreamWithConfig: flags %#x", flags);
	long limit = setting("SLUICE_EMU_STREAMS", 1984);
	if (d->streams++ >= limit) {
		d->streams--;
		return fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "insufficient_stream_resources: %ld streams exist on device %d", limit, d->id);
	}
	auto s = std::make_shared<Stream>(d, flags);
	*h = streams().add(s);
	return 0;
}

static int destroy(const char *name, aclrtStream h, bool wait) {
	int rc = enter(name, nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	if (!h) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: the default stream ends with its context", name);
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->cap) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "%s: the stream is capturing", name);
		if (s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "%s: a task update is open", name);
	}
	if (wait) s->drain(-1);
	streams().remove(h);
	return 0;
}
EMU_API aclError aclrtDestroyStream(aclrtStream h) { return destroy("aclrtDestroyStream", h, true); }
EMU_API aclError aclrtDestroyStreamForce(aclrtStream h) { return destroy("aclrtDestroyStreamForce", h, false); }

static int captured(const char *name, Stream &s) {
	std::lock_guard<std::mutex> l(captureMutex());
	if (!s.cap) return 0;
	s.cap->invalid = true;
	return fail(ACL_ERROR_RT_STREAM_CAPTURED, "%s: the stream is capturing", name);
}

EMU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream h, int32_t ms) {
	Device *d;
	int rc = enter("aclrtSynchronizeStreamWithTimeout", &d);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc || (rc = captured("aclrtSynchronizeStreamWithTimeout", *s))) return rc;
	if (ms < -1 || ms == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSynchronizeStreamWithTimeout: %d ms", ms);
	if (!s->drain(ms)) return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "aclrtSynchronizeStreamWithTimeout: not done after %d ms", ms);
	return enter("aclrtSynchronizeStreamWithTimeout", &d); // a fault of the work itself
}

EMU_API aclError aclrtStreamQuery(aclrtStream h, uint32_t *status) {
	int rc = enter("aclrtStreamQuery", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc || (rc = captured("aclrtStreamQuery", *s))) return rc;
	*status = s->drained() ? SL_STREAM_COMPLETE : SL_STREAM_NOT_READY;
	return 0;
}

EMU_API aclError aclrtStreamAbort(aclrtStream h) {
	int rc = enter("aclrtStreamAbort", nullptr);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	s->aborted = true;
	s->drain(-1);
	s->aborted = false;
	return 0;
}

EMU_API aclError aclrtSetStreamFailureMode(aclrtStream h, uint64_t mode) {
	int rc = enter("aclrtSetStreamFailureMode", nullptr);
	if (rc) return rc;
	streamOf(h, &rc);
	return rc ? rc : mode > 1 ? fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSetStreamFailureMode: mode %llu", (unsigned long long)mode) : 0;
}

EMU_API aclError aclrtSetStreamAttribute(aclrtStream h, uint32_t, aclrtStreamAttrValue *) {
	int rc = enter("aclrtSetStreamAttribute", nullptr);
	if (!rc) streamOf(h, &rc);
	return rc;
}

EMU_API aclError aclrtGetStreamAvailableNum(uint32_t *n) {
	Device *d;
	if (int rc = enter("aclrtGetStreamAvailableNum", &d)) return rc;
	*n = (uint32_t)std::max(0L, setting("SLUICE_EMU_STREAMS", 1984) - d->streams.load());
	return 0;
}

// The second phase of an operator; called by libnnopbase.so.
EMU_API int sluice_emu_enqueue(const std::shared_ptr<Task> *task, void *ws, uint64_t n, aclrtStream h) {
	const char *name = (*task)->name.c_str();
	Device *d;
	int rc = enter(name, &d);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	if (n < (*task)->workspace || (!ws && (*task)->workspace))
		return fail(ACLNN_ERR_PARAM_INVALID, "%s: a workspace of %llu bytes; %llu are needed", name, (unsigned long long)n, (unsigned long long)(*task)->workspace);
	Node node;
	node.launch = { *task, ws };
	std::string why;
	if ((rc = checkLaunch(d, node.launch, false, nullptr, &why))) return fail(rc, "%s", why.c_str());
	return submit(s, std::move(node), name);
}

// A task of another library, over ranges that it declares.
EMU_API int sluice_emu_task(const char *name, const std::function<int(std::string &)> *run, const void *const *at, const size_t *bytes, int n, aclrtStream h) {
	Device *d;
	int rc = enter(name, &d);
	if (rc) return rc;
	auto s = streamOf(h, &rc);
	if (rc) return rc;
	std::vector<std::pair<const void *, size_t>> ranges;
	for (int i = 0; i < n; i++) {
		if (bytes[i] && !hold(at[i], bytes[i])) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes at %p are no live device memory", name, bytes[i], at[i]);
		ranges.push_back({ at[i], bytes[i] });
	}
	Node node;
	node.run = [run = *run, ranges, what = std::string(name)](std::string &why) -> int {
		std::vector<std::shared_ptr<Block>> keep;
		for (auto &r : ranges) {
			if (!r.second) continue;
			keep.push_back(hold(r.first, r.second));
			if (!keep.back()) {
				why = what + ": memory was freed before the task ran";
				return ACL_ERROR_RT_AICORE_EXCEPTION;
			}
		}
		return run(why);
	};
	return submit(s, std::move(node), name);
}
