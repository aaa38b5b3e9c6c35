package scheduler_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// TestHistories runs the scripts in testdata. Each shows one behaviour.
//
//	new …           a scheduler; sizes and switches as key=value
//	add ID …        prompt=1-8,5x3 (ranges and repeats), max=, min=, eos=, stop=, …
//	step [n=1]      plan and apply
//	plan, apply     one half of it; "plan fail" is a step that is not computed
//	run             until nothing is left, then what each request yielded
//	abort, finish, received, sent, failed, grammar, pause, reset, advance
//	queues, dump, stats, deadline
func TestHistories(t *testing.T) {
	recorded := readStreams(t)
	seen := 0
	datadriven.Walk(t, "testdata/histories", func(t *testing.T, path string) {
		var sc script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return sc.run(t, d) })
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if want, ok := recorded[name]; ok && sc.r != nil {
			seen++
			require.Equal(t, want, fmt.Sprintf("%016x", sc.r.stream.Sum64()), "the plans of this history have changed")
		}
		if os.Getenv("SLUICE_RECORD_STREAMS") != "" && sc.r != nil {
			fmt.Printf("STREAM %s %016x\n", name, sc.r.stream.Sum64())
		}
	})
	require.Equal(t, len(recorded), seen, "a recorded history is gone")
}

// readStreams reads the recorded hashes of plan streams: a line per history.
func readStreams(t *testing.T) map[string]string {
	data, err := os.ReadFile("testdata/plan-streams.txt")
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && !strings.HasPrefix(line, "#") {
			out[f[0]] = f[1]
		}
	}
	return out
}

type script struct {
	r *rig
	// disguise changes what the script asks for, if it is set.
	disguise func(*scheduler.Config, *scheduler.Request)
}

func (sc *script) run(t *testing.T, d *datadriven.TestData) string {
	out, err := sc.do(t, d)
	if err != nil {
		return out + "error: " + err.Error() + "\n"
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

func (sc *script) do(t *testing.T, d *datadriven.TestData) (string, error) {
	if d.Cmd == "new" {
		return "", sc.open(t, d)
	}
	r := sc.r
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "add":
		req, kv := parseRequest(t, d, name)
		if sc.disguise != nil {
			sc.disguise(nil, &req)
		}
		return "", r.add(req, kv)
	case "step":
		var b strings.Builder
		for range intArg(t, d, "n", 1) {
			p, err := r.plan(d.HasArg("fail"))
			if err != nil {
				return b.String(), err
			}
			b.WriteString(r.describe(p))
			for len(r.flight) > 0 {
				outs, err := r.apply()
				if err != nil {
					return b.String(), err
				}
				b.WriteString(tell(outs))
			}
		}
		return b.String(), nil
	case "plan":
		p, err := r.plan(d.HasArg("fail"))
		if err != nil {
			return "", err
		}
		return r.describe(p), nil
	case "apply":
		outs, err := r.apply()
		return tell(outs), err
	case "run":
		before := r.s.Stats()
		if err := r.quiesce(intArg(t, d, "max", 1000)); err != nil {
			return "", err
		}
		var b strings.Builder
		for _, id := range r.order {
			if err := r.verify(id); err != nil && !d.HasArg("unverified") {
				return b.String(), err
			}
			fmt.Fprintf(&b, "%s: %d tokens, %s\n", id, len(r.got[id]), r.ends[id])
		}
		after := r.s.Stats()
		fmt.Fprintf(&b, "%d plans, %d preemptions, free %d of %d\n", after.Steps-before.Steps, after.Preemptions-before.Preemptions, r.s.Free(), r.cache.Usable())
		return b.String(), nil
	case "abort":
		if err := r.s.Abort(r.ids[name]); err != nil {
			return "", err
		}
		return "", r.s.Check()
	case "finish":
		if err := r.s.Finish(r.ids[name], scheduler.FinishStop); err != nil {
			return "", err
		}
		return "", r.s.Check()
	case "received":
		return "", r.received(name, intArg(t, d, "worker", 0))
	case "sent":
		r.s.Deliver(scheduler.Event{Kind: connector.Sent, Request: r.ids[name], Worker: intArg(t, d, "worker", 0)})
		return "", r.s.Check()
	case "failed":
		return "", r.loadFailed(name, intsArg(t, d, "at"))
	case "reject": // the grammar rejects what the oldest plan in flight sampled
		f := &r.flight[0]
		f.res.GrammarErrors = append(f.res.GrammarErrors, int32(slices.Index(f.p.Requests, r.ids[name])))
		return "", nil
	case "work":
		return fmt.Sprintf("%v, unfinished %d\n", r.s.HasWork(), r.s.Unfinished()), nil
	case "grammar":
		g := scheduler.GrammarReady
		if d.HasArg("failed") {
			g = scheduler.GrammarFailed
		}
		return "", r.s.SetGrammar(r.ids[name], g)
	case "pause":
		mode := scheduler.Unpaused
		switch name {
		case "new":
			mode = scheduler.PauseNew
		case "all":
			mode = scheduler.PauseAll
		}
		r.s.SetPause(mode)
		return "", r.s.Check()
	case "throttle":
		mode := scheduler.NoThrottle
		if name == "on" {
			mode = scheduler.ThrottlePrefills
		}
		r.s.SetThrottle(mode)
		return "", r.s.Check()
	case "reset":
		mode := scheduler.ResetIdle
		if d.HasArg("preempt") {
			mode = scheduler.ResetPreempt
		}
		if err := r.s.ResetCache(mode); err != nil {
			return "", err
		}
		return "", r.s.Check()
	case "advance":
		dur, err := time.ParseDuration(name)
		if err != nil {
			return "", err
		}
		r.now = r.now.Add(dur)
		return "", nil
	case "deadline":
		at, ok := r.s.NextDeadline()
		if !ok {
			return "none\n", nil
		}
		return fmt.Sprintf("in %v\n", at.Sub(r.now)), nil
	case "queues":
		q := r.s.Queues()
		return fmt.Sprintf("running %v, waiting %v, skipped %v, idle %v, held %v, free %d\n", q.Running, q.Waiting, q.Skipped, q.Idle, q.Held, r.s.Free()), nil
	case "dump":
		return r.s.Dump(), nil
	case "stats":
		st := r.s.Stats()
		return fmt.Sprintf("prefix %+v\nresumed %+v\nconnector %+v\ndrafts %d of %d in %d rows, by position %v\nignored %d, timeouts %d\n",
			st.Prefix, st.Resumed, st.Connector, st.DraftsAccepted, st.DraftTokens, st.DraftRows, st.DraftsAcceptedAt, st.Ignored, st.Timeouts), nil
	case "ended":
		st := r.conn.reqs[r.ids[name]]
		return fmt.Sprintf("finished %d times, %d blocks, %+v\n", st.finishes, st.endTables.Blocks(), st.end), nil
	}
	return "", fmt.Errorf("unknown command %q", d.Cmd)
}

// open makes the scheduler of a script.
func (sc *script) open(t *testing.T, d *datadriven.TestData) error {
	c := rigConfig{}
	c.MaxModelLen = 256
	for _, a := range d.CmdArgs {
		v := ""
		if len(a.Vals) > 0 {
			v = a.Vals[0]
		}
		n, _ := strconv.Atoi(v)
		switch a.Key {
		case "blocks":
			c.blocks = n + 1 // usable ones
		case "block":
			c.blockSize = n
		case "budget":
			c.MaxBatchedTokens = n
		case "tokens":
			c.MaxScheduledTokens = n
		case "seqs":
			c.MaxNumSeqs = n
		case "len":
			c.MaxModelLen = n
		case "threshold":
			c.LongPrefillThreshold = n
		case "loras":
			c.MaxLoRAs = n
		case "drafts":
			c.Drafts = n
		case "lookahead":
			c.Lookahead = n
		case "slots":
			c.DraftSlots = n
		case "hold":
			c.HoldBack = n
		case "dynamic":
			c.DynamicDrafts = intsArg(t, d, "dynamic")
		case "inflight":
			c.InFlight = n
		case "workers":
			c.Workers = n
		case "short":
			c.ShortPrompt = n
		case "quantum":
			c.Quantum = n
		case "vocab":
			c.VocabSize = n
		case "watermark":
			f, err := strconv.ParseFloat(v, 64)
			require.NoError(t, err)
			c.Watermark = f
		case "policy":
			p, err := scheduler.ParsePolicy(v)
			require.NoError(t, err)
			c.Policy = p
		case "async":
			c.Scheduling = scheduler.Async
		case "whole":
			c.Chunking = scheduler.WholePrefill
		case "padalways":
			c.TailPadding = scheduler.PadAlways
		case "firstchunk":
			c.Admission = scheduler.FirstChunk
		case "nocache":
			c.caching = kvcache.CachingOff
		case "cheapest":
			c.Victim = scheduler.VictimByRecompute
		case "connector":
			c.connector = true
		case "producer":
			c.connector, c.producer = true, true
		case "reload":
			c.LoadFailure = scheduler.RecomputeLoad
		case "away":
			c.Recompute = scheduler.RecomputeAway
		case "newresume":
			c.Executor = scheduler.NewResume
		case "append":
			c.Append.Enable = true
		case "graphs":
			c.graphs = true
		case "guess":
		default:
			return fmt.Errorf("unknown key %q", a.Key)
		}
	}
	if sc.disguise != nil {
		sc.disguise(&c.Config, nil)
	}
	r, err := newRig(c)
	if err != nil {
		return err
	}
	sc.r = r
	if c.Drafts > 0 {
		r.propose(c.Drafts, intArg(t, d, "guess", 100))
	}
	return nil
}

// propose lets the executor propose k drafts, of which about the given share
// in percent is what the model will say.
func (r *rig) propose(k, percent int) {
	r.exec.drafts = func(id scheduler.RequestID, known []scheduler.Token, _ int) []scheduler.Token {
		right := answer(known, k)
		for i := range right {
			if (len(known)*7+i*13)%100 >= percent {
				right[i] = 1
			}
		}
		return right
	}
}

func parseRequest(t *testing.T, d *datadriven.TestData, name string) (scheduler.Request, remote) {
	req := scheduler.Request{ID: name, MaxTokens: 4}
	var kv remote
	for _, a := range d.CmdArgs[1:] {
		v := ""
		if len(a.Vals) > 0 {
			v = a.Vals[0]
		}
		n, _ := strconv.Atoi(v)
		switch a.Key {
		case "prompt":
			req.Prompt = parseTokens(t, a.Vals)
		case "max":
			req.MaxTokens = n
		case "min":
			req.MinTokens = n
		case "eos":
			req.EOS = parseTokens(t, a.Vals)
		case "stop":
			req.StopIDs = parseTokens(t, a.Vals)
		case "stopat": // stop at the model's own n-th token
			req.StopIDs = append(req.StopIDs, answer(req.Prompt, n)[n-1])
		case "prio":
			req.Priority = n
		case "at":
			req.Arrival = ms(n)
		case "due":
			req.Deadline = ms(n)
		case "salt":
			req.Namespace.Salt = v
		case "lora":
			req.Namespace.LoRA = kvcache.LoRA{ID: int64(n), Name: "lora" + v}
		case "loraname":
			req.Namespace.LoRA.Name = v
		case "tenant":
			req.Tenant = v
		case "skipread":
			req.SkipCacheRead = true
		case "resumable":
			req.Resumable = true
		case "grammar":
			req.Grammar = scheduler.GrammarPending
		case "repeat":
			req.Repetition = scheduler.Repetition{MaxSize: n, MinCount: 2}
		case "append":
			req.Route = scheduler.AppendPrefill
		case "remoteroute":
			req.Route = scheduler.RemotePrefill
		case "remote":
			kv.tokens = n
		case "sync":
			kv.sync = true
		case "pending":
			kv.pending = n
		case "send":
			kv.send = true
		case "always":
			kv.always = true
		case "save":
			kv.save = true
		default:
			t.Fatalf("%s: unknown key %q", d.Pos, a.Key)
		}
	}
	return req, kv
}

// parseTokens reads 3, 1-8 and 5x3.
func parseTokens(t *testing.T, vals []string) []scheduler.Token {
	var out []scheduler.Token
	for _, v := range strings.Split(strings.Join(vals, ","), ",") {
		if a, b, ok := strings.Cut(v, "x"); ok {
			tok, err := strconv.Atoi(a)
			require.NoError(t, err)
			n, err := strconv.Atoi(b)
			require.NoError(t, err)
			out = append(out, slices.Repeat([]scheduler.Token{scheduler.Token(tok)}, n)...)
			continue
		}
		a, b, ok := strings.Cut(v, "-")
		if !ok || a == "" {
			n, err := strconv.Atoi(v)
			require.NoError(t, err)
			out = append(out, scheduler.Token(n))
			continue
		}
		from, err := strconv.Atoi(a)
		require.NoError(t, err)
		to, err := strconv.Atoi(b)
		require.NoError(t, err)
		for i := from; i <= to; i++ {
			out = append(out, scheduler.Token(i))
		}
	}
	return out
}

func intArg(t *testing.T, d *datadriven.TestData, key string, otherwise int) int {
	if v := intsArg(t, d, key); len(v) == 1 {
		return v[0]
	}
	return otherwise
}

func intsArg(t *testing.T, d *datadriven.TestData, key string) []int {
	var out []int
	for _, a := range d.CmdArgs {
		if a.Key != key {
			continue
		}
		for _, v := range a.Vals {
			n, err := strconv.Atoi(v)
			require.NoError(t, err)
			out = append(out, n)
		}
	}
	return out
}
