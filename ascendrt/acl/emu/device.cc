// Devices, contexts, error text and injected faults.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "core.h"

namespace emu {

Thread &thread() {
	static thread_local Thread t;
	return t;
}

uint64_t nowMicros() {
	return (uint64_t)std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

long setting(const char *name, long otherwise) {
	const char *v = getenv(name);
	return v && *v ? strtol(v, nullptr, 10) : otherwise;
}

// Objects of the process are never destroyed: threads may outlive main.
Registry<Stream> &streams() { static auto *r = new Registry<Stream>; return *r; }
Registry<Event> &events() { static auto *r = new Registry<Event>; return *r; }
Registry<Graph> &graphs() { static auto *r = new Registry<Graph>; return *r; }
Registry<Group> &groups() { static auto *r = new Registry<Group>; return *r; }
std::mutex &captureMutex() { static auto *m = new std::mutex; return *m; }

std::vector<std::unique_ptr<Device>> &devices() {
	static auto *all = [] {
		auto *v = new std::vector<std::unique_ptr<Device>>;
		long n = std::max(0L, setting("SLUICE_EMU_DEVICES", 2));
		for (long i = 0; i < n; i++) {
			v->emplace_back(new Device);
			v->back()->id = (int)i;
			v->back()->ctx.reset(new Context);
			v->back()->ctx->dev = v->back().get();
		}
		return v;
	}();
	return *all;
}

int fail(int code, const char *format, ...) {
	char buf[512];
	va_list a;
	va_start(a, format);
	vsnprintf(buf, sizeof buf, format, a);
	va_end(a);
	Thread &t = thread();
	t.text = "EZ9999: ";
	t.text += buf;
	t.lastError = code;
	return code;
}

// A fault is "CALL:N=CODE" (the n-th call of that name answers the code),
// "run:OP:N=CODE" (the n-th run of that operator is an exception of the
// device), "delay=MICROS" (each task of a stream takes that much longer) or
// "lost=CODE" (all devices are lost now).
struct Fault { std::string name; bool run; long left; int code; };
static std::mutex faultMutex;
static std::vector<Fault> &faults() { static auto *f = new std::vector<Fault>; return *f; }
static std::atomic<int> delay{ 0 };
static std::atomic<bool> anyFault{ false };

static int parseFaults(const char *text) {
	std::vector<Fault> parsed;
	int wait = 0, lost = 0;
	std::stringstream in(text);
	for (std::string item; std::getline(in, item, ',');) {
		item.erase(std::remove_if(item.begin(), item.end(), [](unsigned char c) { return isspace(c); }), item.end());
		if (item.empty()) continue;
		auto eq = item.rfind('=');
		if (eq == std::string::npos) return -1;
		char *end = nullptr;
		long value = strtol(item.c_str() + eq + 1, &end, 10);
		if (!end || *end || end == item.c_str() + eq + 1) return -1;
		std::string what = item.substr(0, eq);
		if (what == "delay") { wait = (int)value; continue; }
		if (what == "lost") { lost = (int)value; continue; }
		bool run = what.compare(0, 4, "run:") == 0;
		if (run) what = what.substr(4);
		auto colon = what.rfind(':');
		if (colon == std::string::npos) return -1;
		long n = strtol(what.c_str() + colon + 1, &end, 10);
		if (*end || n < 1) return -1;
		parsed.push_back({ what.substr(0, colon), run, n, (int)value });
	}
	std::lock_guard<std::mutex> l(faultMutex);
	faults() = parsed;
	delay = wait;
	anyFault = !parsed.empty();
	if (lost) for (auto &d : devices()) d->lose(lost, "injected loss of the device");
	return 0;
}

static void loadFaults() {
	static std::once_flag once;
	std::call_once(once, [] { if (const char *v = getenv("SLUICE_EMU_FAULTS")) if (parseFaults(v)) fprintf(stderr, "emulated Ascend: SLUICE_EMU_FAULTS is not understood: %s\n", v); });
}

static int hit(const char *name, bool run) {
	if (!anyFault) return 0;
	std::lock_guard<std::mutex> l(faultMutex);
	for (auto &f : faults())
		if (f.run == run && f.name == name && f.left > 0 && --f.left == 0) return f.code;
	return 0;
}
int injected(const char *name) { return hit(name, false); }
int injectedRun(const char *name) { return hit(name, true); }
int delayMicros() { return delay; }

void Device::lose(int code, const std::string &text) {
	std::lock_guard<std::mutex> l(pulse);
	if (!lost) {
		lostText = text;
		lost = code;
	}
	beat.notify_all();
}

static std::atomic<int> initialised{ 0 };

int enter(const char *name, Device **dev) {
	if (!initialised) return fail(ACL_ERROR_UNINITIALIZE, "%s: aclInit was not called", name);
	if (int code = injected(name)) return fail(code, "%s: injected fault %d", name, code);
	Context *c = thread().ctx;
	if (!c || c->dev->refs <= 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "%s: this thread has no context: call aclrtSetDevice or aclrtSetCurrentContext on it", name);
	if (int code = c->dev->lost) {
		std::string text;
		{
			std::lock_guard<std::mutex> l(c->dev->pulse);
			text = c->dev->lostText;
		}
		return fail(code, "%s: %s", name, text.c_str());
	}
	if (dev) *dev = c->dev;
	return 0;
}

} // namespace emu

using namespace emu;

EMU_API int sluice_emu_fail(int code, const char *text) { return fail(code, "%s", text); }
EMU_API int sluice_emu_fault_point(const char *name) { return injected(name); }
// sluice_emu_faults replaces the injected faults; "" takes them away and
// repairs lost devices, which no real one can.
EMU_API int sluice_emu_faults(const char *text) {
	loadFaults();
	if (!*text) for (auto &d : devices()) d->lost = 0;
	return parseFaults(text);
}
// sluice_emu_live counts what was created and not destroyed, by kind: 0
// streams, 1 events, 2 graphs, 3 memory blocks.
EMU_API long sluice_emu_live(int kind);

EMU_API aclError aclInit(const char *) {
	loadFaults();
	if (int code = injected("aclInit")) return fail(code, "injected fault");
	if (initialised++ > 0) return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: initialised before");
	return 0;
}
EMU_API aclError aclFinalize(void) { initialised = 0; return 0; }
EMU_API aclError aclFinalizeReference(uint64_t *left) {
	int n = initialised > 0 ? --initialised : 0;
	if (left) *left = (uint64_t)n;
	return 0;
}

EMU_API const char *aclGetRecentErrMsg(void) {
	Thread &t = thread();
	std::fill(t.shown.begin(), t.shown.end(), '?'); // what the caller still points to is gone
	if (t.text.empty()) return nullptr;
	t.shown.swap(t.text);
	t.text.clear();
	return t.shown.c_str();
}
EMU_API aclError aclrtPeekAtLastError(uint32_t) { return thread().lastError; }
EMU_API const char *aclrtGetSocName(void) { return "Ascend910B4-emulated"; }
EMU_API aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
	*major = 1, *minor = 17, *patch = 0;
	return 0;
}
EMU_API aclError aclsysGetVersionStr(char *, char *out) { strcpy(out, "emulated"); return 0; }

static int known(const char *name, int32_t id) {
	if (id < 0 || (size_t)id >= devices().size()) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s: device %d: there are %zu", name, id, devices().size());
	return 0;
}

EMU_API aclError aclrtGetDeviceCount(uint32_t *n) {
	if (!initialised) return fail(ACL_ERROR_UNINITIALIZE, "aclrtGetDeviceCount: aclInit was not called");
	if (int code = injected("aclrtGetDeviceCount")) return fail(code, "injected fault");
	*n = (uint32_t)devices().size();
	return 0;
}

EMU_API aclError aclrtSetDevice(int32_t id) {
	if (!initialised) return fail(ACL_ERROR_UNINITIALIZE, "aclrtSetDevice: aclInit was not called");
	if (int code = injected("aclrtSetDevice")) return fail(code, "injected fault");
	if (int rc = known("aclrtSetDevice", id)) return rc;
	devices()[id]->refs++;
	thread().ctx = devices()[id]->ctx.get();
	return 0;
}

EMU_API aclError aclrtResetDevice(int32_t id) {
	if (int rc = known("aclrtResetDevice", id)) return rc;
	Device *d = devices()[id].get();
	if (d->refs <= 0) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtResetDevice: device %d was not set", id);
	if (--d->refs > 0) return 0;
	{
		std::lock_guard<std::mutex> l(d->ctx->mu);
		d->ctx->standard.reset();
	}
	// What the program left behind ends with the device.
	auto left = graphs().take([d](Graph &g) { return g.dev == d; });
	auto queues = streams().take([d](Stream &s) { return s.dev == d; });
	queues.clear();
	left.clear();
	events().take([d](Event &e) { return e.dev == d; });
	releaseMemory(d);
	return 0;
}

EMU_API aclError aclrtGetDevice(int32_t *id) {
	Device *d;
	if (int rc = enter("aclrtGetDevice", &d)) return rc;
	*id = d->id;
	return 0;
}

EMU_API aclError aclrtSetCurrentContext(aclrtContext c) {
	if (int code = injected("aclrtSetCurrentContext")) return fail(code, "injected fault");
	for (auto &d : devices())
		if (d->ctx.get() == c && d->refs > 0) {
			thread().ctx = d->ctx.get();
			return 0;
		}
	return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetCurrentContext: no such context");
}

EMU_API aclError aclrtGetCurrentContext(aclrtContext *c) {
	if (int rc = enter("aclrtGetCurrentContext", nullptr)) return rc;
	*c = thread().ctx;
	return 0;
}

EMU_API aclError aclrtGetDeviceInfo(uint32_t id, uint32_t attr, int64_t *v) {
	if (int rc = known("aclrtGetDeviceInfo", (int32_t)id)) return rc;
	switch (attr) {
	case SL_INFO_AICORES: *v = 20; return 0;
	case SL_INFO_MEMORY: *v = setting("SLUICE_EMU_MEMORY", 8L << 30); return 0;
	}
	return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtGetDeviceInfo: attribute %u is not emulated", attr);
}
EMU_API aclError aclGetDeviceCapability(uint32_t id, uint32_t, int64_t *v) {
	if (int rc = known("aclGetDeviceCapability", (int32_t)id)) return rc;
	*v = 20;
	return 0;
}
EMU_API aclError aclrtDeviceGetUuid(int32_t id, aclrtUuid *u) {
	if (int rc = known("aclrtDeviceGetUuid", id)) return rc;
	memset(u, 0, sizeof *u);
	snprintf(u->bytes, sizeof u->bytes, "emulated-%d", id);
	return 0;
}
EMU_API aclError aclrtDeviceTaskAbort(int32_t id, uint32_t) {
	if (int rc = known("aclrtDeviceTaskAbort", id)) return rc;
	devices()[id]->lose(ACL_ERROR_RT_DEVICE_TASK_ABORT, "the tasks of the device were aborted");
	return 0;
}
EMU_API aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t dev, int32_t peer) {
	if (int rc = known("aclrtDeviceCanAccessPeer", dev)) return rc;
	if (int rc = known("aclrtDeviceCanAccessPeer", peer)) return rc;
	if (dev == peer) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtDeviceCanAccessPeer: a device is no peer of itself");
	*can = 1;
	return 0;
}
EMU_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
	Device *d;
	if (int rc = enter("aclrtDeviceEnablePeerAccess", &d)) return rc;
	if (int rc = known("aclrtDeviceEnablePeerAccess", peer)) return rc;
	if (peer == d->id || flags) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtDeviceEnablePeerAccess: peer %d, flags %u", peer, flags);
	return 0;
}
