package abi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// config is what sluice_new takes as JSON.
type config struct {
	Cache     kvcache.Config
	Scheduler scheduler.Config
	Graphs    *graphsConfig
	Connector *connectorConfig
	Record    *recordConfig
}

// graphsConfig has the keys of graphs.Config beside its own.
type graphsConfig struct {
	graphs.Config
	Captured captured
}

// captured is the capture state at the beginning.
type captured uint8

const (
	capturedAll captured = iota
	capturedNothing
)

// connectorConfig says what requests can load where they do not say it, and
// what becomes of KV that leaves.
type connectorConfig struct {
	Lookup    lookupDefault
	Preempted preempted
	Delivery  delivery
}

type lookupDefault uint8

const (
	lookupNone lookupDefault = iota
	lookupAsk
)

type preempted uint8

const (
	preemptedDrop preempted = iota
	preemptedSave
)

type delivery uint8

const (
	deliveryOptional delivery = iota
	deliveryRequired
)

// recordConfig names the file of a recording.
type recordConfig struct {
	Path string
}

// constants are the names of enumerations' values, in their order, as their
// constants in Go are called. A value's String counts as well.
var constants = map[reflect.Type][]string{
	reflect.TypeFor[scheduler.Chunking]():    {"ChunkedPrefill", "WholePrefill"},
	reflect.TypeFor[scheduler.TailPadding](): {"PadBesideRunning", "PadAlways"},
	reflect.TypeFor[scheduler.Admission]():   {"WholeSequence", "FirstChunk"},
	reflect.TypeFor[scheduler.Policy]():      {"FCFS", "Priority", "ShortFirst", "EarliestDeadline", "FairShare"},
	reflect.TypeFor[scheduler.Victim]():      {"VictimByPolicy", "VictimByRecompute"},
	reflect.TypeFor[scheduler.Scheduling]():  {"Sync", "Async"},
	reflect.TypeFor[scheduler.LoadFailure](): {"FailRequest", "RecomputeLoad"},
	reflect.TypeFor[scheduler.Recompute]():   {"RecomputeHere", "RecomputeAway"},
	reflect.TypeFor[scheduler.Executor]():    {"CachedResume", "NewResume"},
	reflect.TypeFor[scheduler.Overload]():    {"IgnoreRemote", "CompareRemote"},
	reflect.TypeFor[scheduler.TierUse]():     {"DeviceOnly", "RestoreFromTier"},
	reflect.TypeFor[kvcache.Caching]():       {"CachingOn", "CachingOff"},
	reflect.TypeFor[kvcache.EventMode]():     {"EventsOff", "EventsOn"},
	reflect.TypeFor[kvcache.HashAlgorithm](): {"SHA256CBOR", "XXH3CBOR"},
	reflect.TypeFor[kvcache.Scope]():         {"SharedScope", "PrivateScope"},
	reflect.TypeFor[kvcache.GroupKind]():     {"FullAttention", "SlidingWindow", "ChunkedLocal", "Recurrent"},
	reflect.TypeFor[graphs.ModeConfig]():     {"ModeFullAndPiecewise", "ModeNone", "ModePiecewise", "ModeFull", "ModeFullDecodeOnly"},
	reflect.TypeFor[graphs.Policy]():         {"OneNewTokenHardened", "Strict", "ConsumerOneToken", "OneNewToken", "ShapeOnly"},
	reflect.TypeFor[graphs.Bonus]():          {"OneBonus", "NoBonus"},
	reflect.TypeFor[graphs.DraftTrim]():      {"FixedDrafts", "AdaptiveDrafts"},
	reflect.TypeFor[graphs.LoRACases]():      {"LoRAByCount", "LoRAOneCase"},
	reflect.TypeFor[graphs.LadderRules]():    {"RulesCUDA", "RulesAscend"},
	reflect.TypeFor[graphs.Grid]():           {"GridThroughput", "GridInteractive"},
	reflect.TypeFor[graphs.Runner]():         {"RunnerV2", "RunnerV1"},
	reflect.TypeFor[graphs.KVRole]():         {"RoleNone", "RoleProducer", "RoleConsumer", "RoleBoth"},
	reflect.TypeFor[captured]():              {"All", "Nothing"},
	reflect.TypeFor[lookupDefault]():         {"None", "Ask"},
	reflect.TypeFor[preempted]():             {"Drop", "Save"},
	reflect.TypeFor[delivery]():              {"Optional", "Required"},
}

// parse reads one JSON object into a pointer to a struct. Every fault is
// reported, with the path to its key.
func parse(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("configuration: is empty")
		}
		return fmt.Errorf("configuration: is no JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("configuration: something follows the JSON object")
	}
	var r reader
	r.value("", tree, reflect.ValueOf(into).Elem())
	return errors.Join(r.errs...)
}

// reader writes a tree of JSON values into Go values.
type reader struct{ errs []error }

func (r *reader) bad(path, format string, args ...any) {
	if path == "" {
		path = "the whole"
	}
	r.errs = append(r.errs, fmt.Errorf("configuration: %s: %s", path, fmt.Sprintf(format, args...)))
}

func (r *reader) value(path string, tree any, v reflect.Value) {
	t := v.Type()
	switch {
	case tree == nil:
		if v.Kind() != reflect.Pointer && v.Kind() != reflect.Slice {
			r.bad(path, "is null")
		}
		return
	case t == reflect.TypeFor[time.Duration]():
		if s, ok := tree.(string); ok {
			d, err := time.ParseDuration(s)
			if err != nil {
				r.bad(path, "%q is no duration", s)
			}
			v.SetInt(int64(d))
			return
		}
	case constants[t] != nil:
		if s, ok := tree.(string); ok {
			r.constant(path, s, v)
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		r.value(path, tree, v.Elem())
	case reflect.Struct:
		r.object(path, tree, v)
	case reflect.Slice:
		list, ok := tree.([]any)
		if !ok {
			r.bad(path, "is %s, not a list", named(tree))
			return
		}
		v.Set(reflect.MakeSlice(t, len(list), len(list)))
		for i, x := range list {
			r.value(fmt.Sprintf("%s[%d]", path, i), x, v.Index(i))
		}
	case reflect.String:
		s, ok := tree.(string)
		if !ok {
			r.bad(path, "is %s, not a text", named(tree))
			return
		}
		v.SetString(s)
	case reflect.Bool:
		b, ok := tree.(bool)
		if !ok {
			r.bad(path, "is %s, not a truth value", named(tree))
			return
		}
		v.SetBool(b)
	default:
		r.number(path, tree, v)
	}
}

func (r *reader) object(path string, tree any, v reflect.Value) {
	m, ok := tree.(map[string]any)
	if !ok {
		r.bad(path, "is %s, not an object", named(tree))
		return
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		at := strings.TrimPrefix(path+"."+k, ".")
		f, ok := v.Type().FieldByName(k)
		if !ok || !f.IsExported() || f.Anonymous || f.Type.Kind() == reflect.Func {
			r.bad(at, "there is no such key")
			continue
		}
		r.value(at, m[k], v.FieldByIndex(f.Index))
	}
}

func (r *reader) number(path string, tree any, v reflect.Value) {
	n, ok := tree.(json.Number)
	if !ok {
		r.bad(path, "is %s, not a number", named(tree))
		return
	}
	f, err := n.Float64()
	if err != nil {
		r.bad(path, "%s is out of range", n)
		return
	}
	if v.CanFloat() {
		v.SetFloat(f)
		return
	}
	i, err := n.Int64()
	if err != nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 { // 1e9
		i, err = int64(f), nil
	}
	switch {
	case err != nil:
		r.bad(path, "%s is no whole number that fits", n)
	case v.CanInt() && !v.OverflowInt(i):
		v.SetInt(i)
	case v.CanUint() && i >= 0 && !v.OverflowUint(uint64(i)):
		v.SetUint(uint64(i))
	default:
		r.bad(path, "%s is out of range", n)
	}
}

// constant finds an enumeration's value by name.
func (r *reader) constant(path, name string, v reflect.Value) {
	names := constants[v.Type()]
	for i, constant := range names {
		v.SetUint(uint64(i))
		if s, ok := v.Interface().(fmt.Stringer); name == constant || ok && s.String() == name {
			return
		}
	}
	v.SetUint(0)
	r.bad(path, "%q is none of %s", name, strings.Join(names, ", "))
}

func named(tree any) string {
	switch tree.(type) {
	case string:
		return "a text"
	case json.Number:
		return "a number"
	case bool:
		return "a truth value"
	case []any:
		return "a list"
	}
	return "an object"
}

// parseConfig reads what sluice_new takes. Values are checked by whom they
// belong to.
func parseConfig(data []byte) (config, error) {
	var c config
	err := parse(data, &c)
	if g := c.Graphs; g != nil {
		if g.MaxNumSeqs == 0 {
			g.MaxNumSeqs = orDefault(c.Scheduler.MaxNumSeqs, 128)
		}
		if g.MaxNumBatchedTokens == 0 {
			g.MaxNumBatchedTokens = orDefault(c.Scheduler.MaxBatchedTokens, 2048)
		}
	}
	if c.Record != nil && c.Record.Path == "" {
		err = errors.Join(err, errors.New("configuration: Record.Path: is empty"))
	}
	return c, errors.Join(err, checkOwn(c))
}

// checkOwn checks the enumerations of this package.
func checkOwn(c config) error {
	var r reader
	check := func(path string, v, end int) {
		if v > end {
			r.bad(path, "has the unknown value %d", v)
		}
	}
	if c.Graphs != nil {
		check("Graphs.Captured", int(c.Graphs.Captured), int(capturedNothing))
	}
	if c.Connector != nil {
		check("Connector.Lookup", int(c.Connector.Lookup), int(lookupAsk))
		check("Connector.Preempted", int(c.Connector.Preempted), int(preemptedSave))
		check("Connector.Delivery", int(c.Connector.Delivery), int(deliveryRequired))
	}
	return errors.Join(r.errs...)
}

func orDefault(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}
