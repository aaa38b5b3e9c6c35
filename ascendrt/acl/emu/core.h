// The inside of the emulated libascendcl.so.
#ifndef SLUICE_EMU_CORE_H
#define SLUICE_EMU_CORE_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "op.h"

namespace emu {

struct Context;
struct Stream;
struct Graph;
struct Capture;
struct Group;

// Block is one allocation. Whoever holds it keeps the memory itself, so that a
// task that outlives a free reads no foreign memory before it is told.
struct Block {
	char *base = nullptr;
	size_t size = 0, mapped = 0;
	int fd = -1;         // of shareable memory
	bool host = false;   // pinned host memory
	bool foreign = false; // imported from another process
	int device = -1;
	~Block();
};

struct Device {
	int id = 0;
	std::unique_ptr<Context> ctx;
	std::atomic<int> refs{ 0 };
	std::atomic<int> lost{ 0 }; // the sticky code
	std::string lostText;       // under pulse
	std::mutex pulse;           // guards events; notified at each change
	std::condition_variable beat;
	std::atomic<int> streams{ 0 }, events{ 0 };
	size_t used = 0; // under the heap's mutex
	void lose(int code, const std::string &text);
};

struct Context {
	Device *dev = nullptr;
	std::mutex mu;
	std::shared_ptr<Stream> standard; // the default stream
};

struct Event {
	Device *dev;
	bool ex;       // records overwrite, any number of them
	uint32_t flags;
	// Under the device's pulse.
	uint64_t issued = 0, reached = 0;
	int users = 0;     // queued records and waits of the first kind
	bool flag = false; // of the other kind: set by a record, cleared by a reset
	uint64_t us = 0;
	// Within a capture.
	std::weak_ptr<Capture> cap;
	Stream *from = nullptr;
	size_t work = 0;
	bool external() const { return flags & SL_EVENT_EXTERNAL; }
	~Event() { if (!ex) dev->events--; }
};

// Launch is a task with the workspace of its call.
struct Launch {
	std::shared_ptr<Task> task;
	void *ws = nullptr;
};

// Node is one step of a graph.
struct Node {
	Launch launch;                                // an operator, or
	std::function<int(std::string &)> run;        // anything else
	std::shared_ptr<Event> wait, record, reset;   // external events
	std::shared_ptr<Group> group;
	size_t place = 0; // within the group
};

struct Group {
	std::weak_ptr<Graph> graph;
	std::mutex mu;
	std::vector<Launch> launches; // what the next replay runs
	std::atomic<bool> updating{ false };
};

struct Graph {
	Device *dev = nullptr;
	std::vector<Node> nodes;
	std::vector<std::shared_ptr<Group>> groups;
	int streams = 0;
	std::atomic<bool> running{ false };
	std::atomic<uint64_t> launched{ 0 }, completed{ 0 };
	~Graph() { dev->streams -= streams; }
};

struct Capture {
	Stream *origin = nullptr;
	std::thread::id thread;
	uint32_t mode = 0;
	bool invalid = false;
	std::shared_ptr<Graph> graph;
	std::map<Stream *, size_t> work, joined; // per stream in the capture
	std::shared_ptr<Group> open;
	Stream *openOn = nullptr;
};

struct Stream {
	Device *dev;
	uint32_t flags;
	bool counted = true;
	std::mutex mu;
	std::condition_variable wake, idle;
	std::deque<std::function<void(Stream &)>> queue;
	bool busy = false, stop = false;
	std::atomic<bool> aborted{ false };
	std::shared_ptr<Capture> cap;     // under the capture mutex
	std::shared_ptr<Group> updating;  // between TaskUpdateBegin and End
	std::vector<Launch> update;
	std::thread worker;

	Stream(Device *d, uint32_t f);
	~Stream();
	void push(std::function<void(Stream &)> f);
	bool drained();
	// drain waits for everything queued; false after the milliseconds (-1: never).
	bool drain(int ms);
	void loop();
};

// Thread is what belongs to an OS thread.
struct Thread {
	Context *ctx = nullptr;
	std::string text;   // not yet asked for
	std::string shown;  // what aclGetRecentErrMsg returned last
	int lastError = 0;
	uint32_t mode = SL_CAPTURE_GLOBAL;
};
Thread &thread();

int fail(int code, const char *format, ...);
// enter is the head of every call: injected faults, context, lost device.
int enter(const char *name, Device **dev);
// safe refuses calls that are illegal while this thread captures.
int safe(const char *name);
int injected(const char *name);
int injectedRun(const char *name);
int delayMicros();
long setting(const char *name, long otherwise);
uint64_t nowMicros();

// Handles: a word is good as long as its object is registered.
template <class T> class Registry {
public:
	void *add(std::shared_ptr<T> v) {
		std::lock_guard<std::mutex> l(mu_);
		void *p = v.get();
		live_[p] = std::move(v);
		return p;
	}
	std::shared_ptr<T> get(const void *p) {
		std::lock_guard<std::mutex> l(mu_);
		auto it = live_.find(p);
		return it == live_.end() ? nullptr : it->second;
	}
	std::shared_ptr<T> remove(const void *p) {
		std::lock_guard<std::mutex> l(mu_);
		auto it = live_.find(p);
		if (it == live_.end()) return nullptr;
		auto v = std::move(it->second);
		live_.erase(it);
		return v;
	}
	size_t size() {
		std::lock_guard<std::mutex> l(mu_);
		return live_.size();
	}
	// take empties the registry of what f chooses.
	template <class F> std::vector<std::shared_ptr<T>> take(F f) {
		std::vector<std::shared_ptr<T>> out;
		std::lock_guard<std::mutex> l(mu_);
		for (auto it = live_.begin(); it != live_.end();)
			if (f(*it->second)) { out.push_back(it->second); it = live_.erase(it); }
			else ++it;
		return out;
	}
private:
	std::mutex mu_;
	std::unordered_map<const void *, std::shared_ptr<T>> live_;
};

Registry<Stream> &streams();
Registry<Event> &events();
Registry<Graph> &graphs();
Registry<Group> &groups();
std::mutex &captureMutex(); // guards all that captures are about
std::set<Capture *> &captures();
Capture *&grouping(); // the capture with an open task group
std::vector<std::unique_ptr<Device>> &devices();

// stream resolves a handle; null is the default stream of the context.
std::shared_ptr<Stream> streamOf(aclrtStream h, int *rc);
// hold gives the block around [p, p+n), null if there is none.
std::shared_ptr<Block> hold(const void *p, size_t n);
std::shared_ptr<Block> blockOf(const void *p);
void releaseMemory(Device *d);

// submit runs a node on the stream, or adds it to the stream's capture.
int submit(const std::shared_ptr<Stream> &s, Node n, const char *what);
// runLaunch executes an operator with all checks; it loses the device at a fault.
void runLaunch(Device *d, const Launch &l);
int checkLaunch(Device *d, const Launch &l, bool late, std::vector<std::shared_ptr<Block>> *keep, std::string *why);
void runNode(Device *d, Stream &s, const Node &n);
// wait blocks a stream until the condition holds, or the stream or device ends.
template <class F> void await(Device *d, Stream &s, F ready) {
	std::unique_lock<std::mutex> l(d->pulse);
	while (!ready() && !d->lost && !s.aborted && !s.stop) d->beat.wait_for(l, std::chrono::milliseconds(20));
}

} // namespace emu

#endif
