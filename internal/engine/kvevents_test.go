package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/kvcache/publish"
)

// What operators of vLLM write is read, and means what it means there.
func TestParseKVEvents(t *testing.T) {
	k, err := ParseKVEvents(`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6557", "replay_endpoint": "tcp://*:6558",
		"buffer_steps": 100, "hwm": 200, "max_queue_size": 300, "topic": "kv@pod@model"}`)
	require.NoError(t, err)
	require.NoError(t, Config{KVEvents: k}.Validate())
	require.True(t, k.on())
	require.Equal(t, publish.Config{
		Endpoint: "tcp://*:6557", Replay: "tcp://*:6558", Buffer: 100, HighWater: 200, Queue: 300, Topic: "kv@pod@model", Rank: 3,
	}, k.publisher(3, nil))

	for text, on := range map[string]bool{
		"": false, "{}": false, `{"publisher":"zmq"}`: false, `{"enable_kv_cache_events":true}`: true, `{"enable_kv_cache_events":true,"publisher":null,"replay_endpoint":null}`: true,
		`{"enable_kv_cache_events":true,"publisher":"null"}`: false,
	} {
		k, err := ParseKVEvents(text)
		require.NoError(t, err, text)
		require.NoError(t, Config{KVEvents: k}.Validate(), text)
		require.Equal(t, on, k.on(), text)
		require.Equal(t, publish.Config{Endpoint: "tcp://*:5557"}, k.publisher(0, nil), "%s: the library's defaults are vLLM's", text)
		mode := kvcache.EventsOff
		if on {
			mode = kvcache.EventsOn
		}
		require.Equal(t, mode, Config{KVEvents: k, HashSeed: "7"}.cacheEvents().Mode, text)
	}
	require.Equal(t, "7", Config{KVEvents: KVEvents{Enable: true}, HashSeed: "7"}.cacheEvents().Seed)
	require.Equal(t, publish.EventArrays, KVEvents{Form: "arrays"}.publisher(0, nil).Events)

	for endpoint, want := range map[string]publish.Attach{
		"tcp://*:5557": publish.Bind, "tcp://[::]:5557": publish.Bind, "tcp://[::1]:5557": publish.Bind, "tcp://127.0.0.1:0": publish.Bind, "tcp://0.0.0.0:5557": publish.Bind,
		"tcp://router:5557": publish.Connect, "tcp://127.0.0.1:5557": publish.Connect, "tcp://10.0.0.0:50": publish.Connect,
	} {
		require.Equal(t, want, attach(endpoint), endpoint)
	}
}

// What is wrong is an error that names the member and its value.
func TestBadKVEvents(t *testing.T) {
	for text, want := range map[string]string{
		`{"enable_kv_cache_event":true}`:              `kv-events-config: there is no member "enable_kv_cache_event"; did you mean "enable_kv_cache_events"?`,
		`{"enable_kv_cache_events":"yes"}`:            "kv-events-config: enable_kv_cache_events is a JSON string, must be true or false",
		`{"endpoint":5557}`:                           "kv-events-config: endpoint is a JSON number, must be a string",
		`{"buffer_steps":"many"}`:                     "kv-events-config: buffer_steps is a JSON string, must be a whole number",
		`{"hwm":1.5}`:                                 "kv-events-config: hwm is a JSON number 1.5, must be a whole number",
		`[]`:                                          "kv-events-config: ",
		`{`:                                           "kv-events-config: ",
		`{} {}`:                                       "kv-events-config: more than one JSON value",
		`{"publisher":"kafka"}`:                       `kv-events-config.publisher is "kafka", must be zmq or null`,
		`{"event_form":"xml"}`:                        `kv-events-config.event_form is "xml", must be maps or arrays`,
		`{"buffer_steps":0}`:                          "kv-events-config.buffer_steps is 0, must be within 1 to 1048576",
		`{"hwm":-1}`:                                  "kv-events-config.hwm is -1, must be within 1 to 1048576",
		`{"max_queue_size":2000000}`:                  "kv-events-config.max_queue_size is 2000000, must be within 1 to 1048576",
		`{"endpoint":"*:5557"}`:                       `kv-events-config.endpoint is "*:5557", must be tcp://host:port`,
		`{"endpoint":"ipc:///tmp/events"}`:            `kv-events-config.endpoint is "ipc:///tmp/events", must be tcp://host:port`,
		`{"endpoint":"tcp://*:65535"}`:                `kv-events-config.endpoint is "tcp://*:65535", must be tcp://host:port, with a port for each rank`,
		`{"replay_endpoint":"tcp://*"}`:               `kv-events-config.replay_endpoint is "tcp://*", must be tcp://host:port`,
		`{"replay_endpoint":"tcp://*:70000"}`:         `kv-events-config.replay_endpoint is "tcp://*:70000", must be tcp://host:port`,
		`{"endpoint":"tcp://:5557"}`:                  `kv-events-config.endpoint is "tcp://:5557", must be tcp://host:port`,
		`{"publisher":"kafka","hwm":0,"endpoint":""}`: "kv-events-config.hwm is 0",
	} {
		k, err := ParseKVEvents(text)
		if err == nil {
			err = Config{KVEvents: k, DataParallel: 2}.Validate()
			_, settings := faults(err)
			require.NotEmpty(t, settings, text)
		}
		require.ErrorContains(t, err, want, text)
	}
}

// Ranks of one engine that would listen at one port are refused before anything starts.
func TestKVEventPortsMeet(t *testing.T) {
	const on = `"enable_kv_cache_events":true`
	for _, c := range []struct {
		events   string
		ranks    int
		transfer string
		port     int
		conflict [2]string // none: they do not meet
		text     string
	}{
		{on + `,"replay_endpoint":"tcp://*:5558"`, 1, "", 0, [2]string{}, ""},
		{on + `,"replay_endpoint":"tcp://*:5558"`, 2, "", 0, [2]string{"kv-events-config.endpoint", "kv-events-config.replay_endpoint"}, "2 ranks meet at port 5558"},
		{on + `,"replay_endpoint":"tcp://127.0.0.1:5558"`, 2, "", 0, [2]string{"kv-events-config.endpoint", "kv-events-config.replay_endpoint"}, "5558"},
		{on + `,"replay_endpoint":"tcp://*:5556"`, 2, "", 0, [2]string{"kv-events-config.endpoint", "kv-events-config.replay_endpoint"}, "5557"},
		{on + `,"replay_endpoint":"tcp://*:5559"`, 2, "", 0, [2]string{}, ""},
		{on + `,"endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0"`, 2, "", 0, [2]string{}, ""},
		{on + `,"endpoint":"tcp://router:5557","replay_endpoint":"tcp://*:5557"`, 2, "", 0, [2]string{}, ""},
		{on + `,"endpoint":"tcp://[::1]:5557","replay_endpoint":"tcp://127.0.0.1:5557"`, 2, "", 0, [2]string{}, ""},
		{`"replay_endpoint":"tcp://*:5557"`, 2, "", 0, [2]string{}, ""},
		{on, 2, pdConsumer, 5556, [2]string{"kv-events-config.endpoint", "kv-port"}, "5557"},
		{on, 2, pdConsumer, 5559, [2]string{}, ""},
		{on, 2, "", 5557, [2]string{}, ""},
	} {
		k, err := ParseKVEvents("{" + c.events + "}")
		require.NoError(t, err)
		cfg := parsed(t, c.transfer, "")
		cfg.KVEvents, cfg.DataParallel, cfg.KVPort = k, c.ranks, c.port
		err = cfg.Validate()
		if c.text == "" {
			require.NoError(t, err, "%+v", c)
			continue
		}
		conflicts, _ := faults(err)
		require.Len(t, conflicts, 1, "%+v: %v", c, err)
		require.Equal(t, c.conflict, [2]string{conflicts[0].A, conflicts[0].B})
		require.ErrorContains(t, err, c.text)
	}
}

// What has no effect is said.
func TestKVEventWarnings(t *testing.T) {
	for text, want := range map[string][]string{
		`{"publisher":"zmq","topic":"x"}`: {"kv-events-config has no effect without enable_kv_cache_events"},
		`{"publisher":"null"}`:            nil,
		`{"enable_kv_cache_events":true}`: nil,
	} {
		k, err := ParseKVEvents(text)
		require.NoError(t, err)
		require.Equal(t, want, Config{KVEvents: k}.withDefaults().Warnings(), text)
	}
	require.Contains(t, Config{KVEvents: KVEvents{Enable: true}, NoPrefix: true}.withDefaults().Warnings()[0], "without prefix caching nothing is cached")
}

func publishing(endpoint string) Config {
	return Config{
		KVBlocks: 64, MaxModelLen: 512, MaxSeqs: 4, Eager: true, DeviceWorkers: 1,
		KVEvents: KVEvents{Enable: true, Endpoint: endpoint, Replay: "tcp://127.0.0.1:0"},
	}
}

// A port that another engine of the host has is an error that names the setting,
// the endpoint, the rank and the port, and nothing is left of what had begun.
func TestKVEventPortInUse(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const anyOf4 = "tcp://[::ffff:127.0.0.1]:" // 127.0.0.1, to listen at
	first, err := New(t.Context(), publishing(anyOf4+"0"), Options{})
	require.NoError(t, err)
	taken := first.ranks[0].pub.Addr().(*net.TCPAddr).Port
	_, err = New(t.Context(), publishing(fmt.Sprintf("%s%d", anyOf4, taken)), Options{})
	require.ErrorContains(t, err, "rank 0: kv-events-config: ")
	require.ErrorContains(t, err, fmt.Sprintf("listen on %s%d", anyOf4, taken))
	require.ErrorContains(t, err, "address already in use")

	replay := publishing(anyOf4 + "0")
	replay.KVEvents.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", taken)
	_, err = New(t.Context(), replay, Options{})
	require.ErrorContains(t, err, "listen on "+replay.KVEvents.Replay)

	for _, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Model, c.ExpertParallel = "random:tiny-moe", true }, // built at the same time
	} {
		second := publishing(fmt.Sprintf("%s%d", anyOf4, taken-1)) // its second rank comes to that port
		second.DataParallel = 2
		change(&second)
		_, err = New(t.Context(), second, Options{})
		require.ErrorContains(t, err, "kv-events-config: publish: listen on "+second.KVEvents.Endpoint)
		if text := err.Error(); !strings.Contains(text, fmt.Sprintf("127.0.0.1:%d: bind", taken-1)) { // which another process may have
			require.Contains(t, text, "rank 1")
			require.Contains(t, text, fmt.Sprintf("127.0.0.1:%d: bind: address already in use", taken))
		}
	}
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice")
}

// An engine that takes another's place at the same port counts from 0 again, and
// sends what its last step did before it is gone.
func TestKVEventsOfARestart(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	endpoint := "tcp://[::ffff:127.0.0.1]:0"
	for range 2 {
		var log bytes.Buffer
		e, err := New(t.Context(), publishing(endpoint), Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		a := &attempts{T: t, e: e}
		addr := e.ranks[0].pub.Addr().(*net.TCPAddr)
		endpoint = fmt.Sprintf("tcp://[::ffff:127.0.0.1]:%d", addr.Port)
		require.Zero(t, a.count("sluice_kv_events_batches_total"))
		a.end(a.submit("first", ids(1, 60), nil))
		require.NoError(t, e.Close())
		require.Equal(t, 1.0, a.count("sluice_kv_events_batches_total"), "what is queued goes out")
		require.Equal(t, 1.0, a.count("sluice_kv_events_total"))
		require.ErrorIs(t, e.ranks[0].pub.Close(), publish.ErrClosed, "it was closed once")
		require.NotContains(t, log.String(), "did not close")
	}
}

// Without prefix caching there are subscribers and no events; with the publisher
// null, or without the switch, there is neither.
func TestNoKVEvents(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for name, change := range map[string]func(*Config){
		"no prefix caching": func(c *Config) { c.NoPrefix = true },
		"null":              func(c *Config) { c.KVEvents.Publisher = "null" },
		"off":               func(c *Config) { c.KVEvents.Enable = false },
	} {
		cfg := publishing("tcp://127.0.0.1:0")
		change(&cfg)
		e, err := New(t.Context(), cfg, Options{})
		require.NoError(t, err)
		a := &attempts{T: t, e: e}
		a.end(a.submit("first", ids(1, 60), nil))
		require.NoError(t, e.Close())
		require.Zero(t, a.count("sluice_kv_events_batches_total"), name)
		require.Equal(t, name == "no prefix caching", e.ranks[0].pub != nil, name)
	}
}

// A step that has nothing to tell allocates nothing for it, with events and without.
func TestTellingNothingIsFree(t *testing.T) {
	for _, on := range []bool{false, true} {
		cfg := publishing("tcp://127.0.0.1:0")
		cfg.KVEvents.Enable = on
		e, err := New(t.Context(), cfg, Options{})
		require.NoError(t, err)
		a := &attempts{T: t, e: e}
		a.end(a.submit("first", ids(1, 60), nil))
		require.NoError(t, e.Close()) // the loop has ended: its state is the test's
		r := e.ranks[0]
		require.Empty(t, r.sched.TakeEvents(nil))
		require.Zero(t, testing.AllocsPerRun(100, r.tell))
	}
}

// What had to be dropped is a metric, by where there was no room: a subscriber
// that does not read, and a queue of one batch.
func TestDroppedKVEventsAreCounted(t *testing.T) {
	cfg := publishing("tcp://127.0.0.1:0")
	one := 1
	cfg.KVEvents.HighWater, cfg.KVEvents.Queue, cfg.KVEvents.Buffer = &one, &one, &one
	e, err := New(t.Context(), cfg, Options{})
	require.NoError(t, err)
	a := &attempts{T: t, e: e}
	conn, err := net.Dial("tcp", e.ranks[0].pub.Addr().String())
	require.NoError(t, err)
	_, err = zmq4.Open(conn, null.Security(), zmq4.Sub, nil, false, nil)
	require.NoError(t, err)
	_, err = conn.Write([]byte{0, 1, 1}) // subscribes to everything
	require.NoError(t, err)
	dropped := func(where string) float64 { return a.count("sluice_kv_events_dropped_total", "where", where) }
	big := kvcache.Event{Kind: kvcache.Stored, Tokens: make([]kvcache.Token, 1<<18), Medium: "GPU"}
	given := 0.0
	for dropped("queue") == 0 || dropped("subscriber") == 0 {
		for range 4 { // faster than one is encoded
			_ = e.ranks[0].pub.Publish([]kvcache.Event{big}) // counted
			given++
		}
	}
	require.NoError(t, conn.Close())
	require.NoError(t, e.Close())
	require.Equal(t, given, a.count("sluice_kv_events_batches_total")+dropped("queue"), "each is sent or dropped")
}
