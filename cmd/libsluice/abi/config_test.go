package abi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

func TestConfig(t *testing.T) {
	c, err := parseConfig([]byte(`{
		"Cache": {"Blocks": 1e3, "BlockSize": 32, "LeaseShare": 0.25, "Caching": "CachingOff",
			"Groups": [{}, {"Kind": "SlidingWindow", "Window": 64}], "Events": {"Mode": "EventsOn", "Algorithm": "xxhash_cbor", "Scope": 1}},
		"Scheduler": {"MaxModelLen": 4096, "Policy": "priority", "Scheduling": "Async", "LoadTimeout": "1m30s", "Grace": 5, "Executor": 1,
			"DynamicDrafts": [3, 2], "Drafts": 3, "Append": {"Enable": true, "Overload": "compare", "Governor": {"TargetRatio": 1.1}, "Lease": null}},
		"Graphs": {"Mode": "FULL_DECODE_ONLY", "Policy": "strict", "Ladder": {"Sizes": [1, 2, 4]}, "Captured": "Nothing", "KV": {"Role": "kv_consumer", "Nested": [{"Connector": "pd"}]}},
		"Connector": {"Lookup": "Ask", "Preempted": "Save", "Delivery": "Required"},
		"Record": {"Path": "x"}}`))
	require.NoError(t, err)
	require.Equal(t, kvcache.Config{
		Blocks: 1000, BlockSize: 32, LeaseShare: 0.25, Caching: kvcache.CachingOff, Groups: []kvcache.GroupSpec{{}, {Kind: kvcache.SlidingWindow, Window: 64}},
		Events: kvcache.Events{Mode: kvcache.EventsOn, Algorithm: kvcache.XXH3CBOR, Scope: kvcache.PrivateScope},
	}, c.Cache)
	require.Equal(t, scheduler.Config{
		MaxModelLen: 4096, Policy: scheduler.Priority, Scheduling: scheduler.Async, LoadTimeout: 90 * time.Second, Grace: 5, Executor: scheduler.NewResume,
		DynamicDrafts: []int{3, 2}, Drafts: 3,
		Append: scheduler.AppendConfig{Enable: true, Overload: scheduler.CompareRemote, Governor: &scheduler.GovernorConfig{TargetRatio: 1.1}},
	}, c.Scheduler)
	require.Equal(t, graphsConfig{
		Config: graphs.Config{
			Mode: graphs.ModeFullDecodeOnly, Policy: graphs.Strict, Ladder: graphs.LadderConfig{Sizes: []int{1, 2, 4}}, MaxNumSeqs: 128, MaxNumBatchedTokens: 2048,
			KV: graphs.KVTransfer{Role: graphs.RoleConsumer, Nested: []graphs.KVTransfer{{Connector: "pd"}}},
		},
		Captured: capturedNothing,
	}, *c.Graphs)
	require.Equal(t, connectorConfig{lookupAsk, preemptedSave, deliveryRequired}, *c.Connector)
	require.Equal(t, "x", c.Record.Path)
}

// TestConfigKeysAreGos: what Go writes of its configurations is read back.
func TestConfigKeysAreGos(t *testing.T) {
	want := scheduler.Config{MaxModelLen: 100, Watermark: 0.5, AgingAfter: time.Second, Victim: scheduler.VictimByRecompute, Lookahead: scheduler.NoLookahead, Append: scheduler.Guarded(64)}
	data, err := json.Marshal(want)
	require.NoError(t, err)
	var got scheduler.Config
	require.NoError(t, parse(data, &got))
	require.Equal(t, want, got)
}

// TestConfigFaults: all are reported at once, each with its path.
func TestConfigFaults(t *testing.T) {
	_, err := parseConfig([]byte(`{"Cache": {"Blocks": "x", "Groups": [{"Windows": 1}]}, "Scheduler": {"Append": {"Enable": 1}, "Watermark": [], "MaxLoRAs": 9223372036854775808}, "Record": 5}`))
	for _, part := range []string{
		"Cache.Blocks: is a text, not a number", "Cache.Groups[0].Windows: there is no such key", "Scheduler.Append.Enable: is a number, not a truth value",
		"Scheduler.Watermark: is a list, not a number", "Scheduler.MaxLoRAs: 9223372036854775808 is no whole number that fits", "Record: is a number, not an object",
	} {
		require.ErrorContains(t, err, part)
	}
}

// TestConstants: every enumeration of a configuration has names, and a name
// stands for the constant of that name.
func TestConstants(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(x reflect.Type) {
		if seen[x] {
			return
		}
		seen[x] = true
		switch x.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(x.Elem())
		case reflect.Struct:
			for i := range x.NumField() {
				walk(x.Field(i).Type)
			}
		case reflect.Uint8:
			require.NotEmpty(t, constants[x], "%v has no names", x)
			for i, name := range constants[x] {
				v := reflect.New(x).Elem()
				var r reader
				r.constant("", name, v)
				require.Empty(t, r.errs)
				require.EqualValues(t, i, v.Uint(), name)
			}
			// One more than the last has no name of its own.
			v := reflect.New(x).Elem()
			v.SetUint(uint64(len(constants[x])))
			if s, ok := v.Interface().(fmt.Stringer); ok && x != reflect.TypeFor[scheduler.Scheduling]() { // it writes all but one alike
				require.Contains(t, s.String(), "(", "%v has more constants than names", x)
			}
		}
	}
	walk(reflect.TypeFor[config]())
	for x := range constants {
		require.True(t, seen[x], "%v is in no configuration", x)
	}
	for name, want := range map[string]any{
		"WholePrefill": scheduler.WholePrefill, "PadAlways": scheduler.PadAlways, "FirstChunk": scheduler.FirstChunk, "FairShare": scheduler.FairShare,
		"RecomputeAway": scheduler.RecomputeAway, "RestoreFromTier": scheduler.RestoreFromTier, "AdaptiveDrafts": graphs.AdaptiveDrafts,
		"LoRAOneCase": graphs.LoRAOneCase, "RulesAscend": graphs.RulesAscend, "GridInteractive": graphs.GridInteractive, "RunnerV1": graphs.RunnerV1,
		"NoBonus": graphs.NoBonus, "ShapeOnly": graphs.ShapeOnly, "ModeFullDecodeOnly": graphs.ModeFullDecodeOnly, "RoleBoth": graphs.RoleBoth,
		"Recurrent": kvcache.Recurrent, "VictimByRecompute": scheduler.VictimByRecompute, "RecomputeLoad": scheduler.RecomputeLoad,
	} {
		v := reflect.New(reflect.TypeOf(want)).Elem()
		var r reader
		r.constant("", name, v)
		require.Equal(t, want, v.Interface())
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"Cache": {"Blocks": 100, "Groups": [{"Kind": 1}]}, "Scheduler": {"MaxModelLen": 64, "LoadTimeout": "1s"}, "Graphs": {"K": 2}}`))
	f.Add([]byte(`{"Scheduler": {"Append": {"Governor": {}}}, "Connector": {"Lookup": "Ask"}, "Record": null}`))
	f.Add([]byte(`[1e400]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data)
		if err == nil && c.Graphs != nil && c.Graphs.MaxNumSeqs == 0 {
			t.Fatal("MaxNumSeqs has no default")
		}
	})
}
