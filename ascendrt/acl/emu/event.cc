// Events. Those of aclrtCreateEventExWithFlag behave as a counter of records: a
// wait takes the latest record at its call. Those of aclrtCreateEventWithFlag
// are a flag of the hardware: a record sets it, a wait holds until it is set, a
// reset clears it.
#include "core.h"

using namespace emu;

static int create(const char *name, aclrtEvent *h, uint32_t flags, bool ex) {
	Device *d;
	if (int rc = enter(name, &d)) return rc;
	if (flags & ~0x7bu) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: flags %#x", name, flags);
	if (ex && flags & SL_EVENT_EXTERNAL) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: external events are made by aclrtCreateEventWithFlag", name);
	if (!ex && d->events++ >= setting("SLUICE_EMU_EVENTS", 65536)) {
		d->events--;
		return fail(ACL_ERROR_RT_NO_EVENT_RESOURCE, "%s: no event id is left on device %d", name, d->id);
	}
	auto e = std::make_shared<Event>();
	e->dev = d, e->ex = ex, e->flags = flags;
	*h = events().add(e);
	return 0;
}
EMU_API aclError aclrtCreateEventWithFlag(aclrtEvent *h, uint32_t flags) { return create("aclrtCreateEventWithFlag", h, flags, false); }
EMU_API aclError aclrtCreateEventExWithFlag(aclrtEvent *h, uint32_t flags) { return create("aclrtCreateEventExWithFlag", h, flags, true); }

static std::shared_ptr<Event> eventOf(const char *name, aclrtEvent h, int *rc) {
	auto e = events().get(h);
	*rc = e ? 0 : fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: the event %p does not exist (destroyed before?)", name, h);
	return e;
}

EMU_API aclError aclrtDestroyEvent(aclrtEvent h) {
	Device *d;
	int rc = enter("aclrtDestroyEvent", &d);
	if (rc) return rc;
	auto e = eventOf("aclrtDestroyEvent", h, &rc);
	if (rc) return rc;
	{
		std::lock_guard<std::mutex> l(d->pulse);
		if (e->users > 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtDestroyEvent: a record or a wait of the event is still queued");
	}
	e.reset();
	return events().remove(h) ? 0 : fail(ACL_ERROR_RT_INVALID_HANDLE, "aclrtDestroyEvent: the event %p does not exist (destroyed before?)", h);
}

EMU_API aclError aclrtRecordEvent(aclrtEvent h, aclrtStream hs) {
	Device *d;
	int rc = enter("aclrtRecordEvent", &d);
	if (rc) return rc;
	auto e = eventOf("aclrtRecordEvent", h, &rc);
	if (rc) return rc;
	auto s = streamOf(hs, &rc);
	if (rc) return rc;
	if (!e->ex) {
		Node n;
		n.record = e;
		return submit(s, std::move(n), "aclrtRecordEvent");
	}
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclrtRecordEvent: only operators stand in a task update");
		if (s->cap) {
			if (s->cap->invalid) return fail(ACL_ERROR_RT_CAPTURE_INVALIDATED, "aclrtRecordEvent: the capture was invalidated");
			if (s->cap->open) {
				s->cap->invalid = true;
				return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclrtRecordEvent: a task group holds operators alone");
			}
			e->cap = s->cap, e->from = s.get(), e->work = s->cap->work[s.get()];
			return 0;
		}
		e->cap.reset();
	}
	uint64_t n;
	{
		std::lock_guard<std::mutex> l(d->pulse);
		n = ++e->issued;
		e->users++;
	}
	s->push([e, n, d](Stream &) {
		std::lock_guard<std::mutex> l(d->pulse);
		e->reached = std::max(e->reached, n);
		e->users--;
		e->us = nowMicros();
		d->beat.notify_all();
	});
	return 0;
}

EMU_API aclError aclrtResetEvent(aclrtEvent h, aclrtStream hs) {
	int rc = enter("aclrtResetEvent", nullptr);
	if (rc) return rc;
	auto e = eventOf("aclrtResetEvent", h, &rc);
	if (rc) return rc;
	auto s = streamOf(hs, &rc);
	if (rc) return rc;
	if (e->ex) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtResetEvent: an event of aclrtCreateEventExWithFlag is not reset");
	Node n;
	n.reset = e;
	return submit(s, std::move(n), "aclrtResetEvent");
}

EMU_API aclError aclrtStreamWaitEvent(aclrtStream hs, aclrtEvent h) {
	Device *d;
	int rc = enter("aclrtStreamWaitEvent", &d);
	if (rc) return rc;
	auto e = eventOf("aclrtStreamWaitEvent", h, &rc);
	if (rc) return rc;
	auto s = streamOf(hs, &rc);
	if (rc) return rc;
	if (e->ex && !(e->flags & SL_EVENT_SYNC)) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtStreamWaitEvent: the event has no SYNC flag");
	if (!e->ex) {
		Node n;
		n.wait = e;
		return submit(s, std::move(n), "aclrtStreamWaitEvent");
	}
	{
		std::lock_guard<std::mutex> l(captureMutex());
		if (s->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "aclrtStreamWaitEvent: only operators stand in a task update");
		auto cap = e->cap.lock();
		if (!cap && s->cap) {
			s->cap->invalid = true;
			return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, "aclrtStreamWaitEvent: the event was not recorded in this capture");
		}
		if (cap) {
			if (s->cap && s->cap != cap) {
				s->cap->invalid = cap->invalid = true;
				return fail(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "aclrtStreamWaitEvent: the event is of another capture");
			}
			if (cap->invalid) return fail(ACL_ERROR_RT_CAPTURE_INVALIDATED, "aclrtStreamWaitEvent: the capture was invalidated");
			if (!hs) {
				cap->invalid = true;
				return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "aclrtStreamWaitEvent: the default stream cannot join a capture");
			}
			s->cap = cap; // a fork, if it was none
			if (e->from != s.get()) cap->joined[e->from] = std::max(cap->joined[e->from], e->work);
			cap->work[s.get()]++;
			return 0;
		}
	}
	uint64_t n;
	{
		std::lock_guard<std::mutex> l(d->pulse);
		n = e->issued;
		e->users++;
	}
	s->push([e, n, d](Stream &s) {
		await(d, s, [&] { return e->reached >= n; });
		std::lock_guard<std::mutex> l(d->pulse);
		e->users--;
	});
	return 0;
}

static int eventCaptured(const char *name, Event &e) {
	std::lock_guard<std::mutex> l(captureMutex());
	auto cap = e.cap.lock();
	if (!cap) return 0;
	cap->invalid = true;
	return fail(ACL_ERROR_RT_EVENT_CAPTURED, "%s: the event was recorded in a capture", name);
}

static bool complete(Event &e) { return e.ex ? e.reached >= e.issued : e.flag; }

EMU_API aclError aclrtQueryEventStatus(aclrtEvent h, uint32_t *status) {
	Device *d;
	int rc = enter("aclrtQueryEventStatus", &d);
	if (rc) return rc;
	auto e = eventOf("aclrtQueryEventStatus", h, &rc);
	if (rc || (rc = eventCaptured("aclrtQueryEventStatus", *e))) return rc;
	std::lock_guard<std::mutex> l(d->pulse);
	*status = complete(*e) ? SL_EVENT_COMPLETE : SL_EVENT_NOT_READY;
	return 0;
}

EMU_API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent h, int32_t ms) {
	Device *d;
	int rc = enter("aclrtSynchronizeEventWithTimeout", &d);
	if (rc) return rc;
	auto e = eventOf("aclrtSynchronizeEventWithTimeout", h, &rc);
	if (rc || (rc = eventCaptured("aclrtSynchronizeEventWithTimeout", *e))) return rc;
	if (ms < -1 || ms == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSynchronizeEventWithTimeout: %d ms", ms);
	{
		std::unique_lock<std::mutex> l(d->pulse);
		auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
		uint64_t n = e->issued;
		auto done = [&] { return d->lost || (e->ex ? e->reached >= n : e->flag); };
		if (ms < 0) d->beat.wait(l, done);
		else if (!d->beat.wait_until(l, end, done)) {
			l.unlock();
			return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "aclrtSynchronizeEventWithTimeout: not reached after %d ms", ms);
		}
	}
	return enter("aclrtSynchronizeEventWithTimeout", &d);
}

EMU_API aclError aclrtEventElapsedTime(float *out, aclrtEvent from, aclrtEvent to) {
	Device *d;
	int rc = enter("aclrtEventElapsedTime", &d);
	if (rc) return rc;
	auto a = eventOf("aclrtEventElapsedTime", from, &rc);
	if (rc) return rc;
	auto b = eventOf("aclrtEventElapsedTime", to, &rc);
	if (rc) return rc;
	std::unique_lock<std::mutex> l(d->pulse);
	bool ready = a->issued && b->issued && complete(*a) && complete(*b), timed = a->flags & b->flags & SL_EVENT_TIME_LINE;
	double us = (double)b->us - (double)a->us;
	l.unlock();
	if (!timed || !ready) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtEventElapsedTime: %s", timed ? "an event was not reached" : "an event has no time line");
	*out = (float)(us / 1e3);
	return 0;
}

EMU_API aclError aclrtGetEventAvailNum(uint32_t *n) {
	Device *d;
	if (int rc = enter("aclrtGetEventAvailNum", &d)) return rc;
	*n = (uint32_t)std::max(0L, setting("SLUICE_EMU_EVENTS", 65536) - d->events.load());
	return 0;
}
