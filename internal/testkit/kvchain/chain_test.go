package kvchain

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/multi"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/faulty"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bs = 4

// parts are the sides of the connectors of one engine.
type parts struct {
	pds  *pd.Scheduler
	pdw  *pd.Worker
	offs *offload.Scheduler
	offw *offload.Worker
	ms   *multi.Scheduler
	mw   *multi.Worker
}

type setup struct {
	id     string
	role   pd.Role
	script *faulty.Script
	slots  int // of the host tier; 0: none
	share  offload.Sharing
	files  string
	lease  time.Duration
	settle time.Duration
}

func (s setup) connect(out *parts) func(connector.Layout, []connector.Region) (connector.Scheduler, connector.Worker, error) {
	return func(l connector.Layout, regions []connector.Region) (connector.Scheduler, connector.Worker, error) {
		var err error
		out.pdw, err = pd.NewWorker(pd.WorkerConfig{EngineID: s.id, Lease: s.lease, Transport: func(n transport.Notified) (transport.Transport, error) {
			t, err := tcp.New(tcp.Config{Notified: n})
			if err != nil || s.script == nil {
				return t, err
			}
			return faulty.Wrap(t, s.script), nil
		}})
		if err != nil {
			return nil, nil, err
		}
		out.pds, err = pd.NewScheduler(pd.SchedulerConfig{Role: s.role, Self: out.pdw.Endpoint(), BlockSize: bs, Lease: s.lease})
		if err != nil || s.slots == 0 {
			return out.pds, out.pdw, firstError(err, out.pdw.Register(l, regions))
		}
		wc := offload.WorkerConfig{Slots: s.slots}
		if s.files != "" {
			wc.Files = &offload.FileConfig{Dir: s.files, Bytes: 1 << 20}
		}
		if out.offw, err = offload.NewWorker(wc); err != nil {
			return nil, nil, err
		}
		if out.mw, err = multi.NewWorker(0, out.offw, out.pdw); err != nil {
			return nil, nil, err
		}
		if err = out.mw.Register(l, regions); err != nil {
			return nil, nil, err
		}
		out.offs, err = offload.NewScheduler(offload.Config{BlockSize: bs, Slots: s.slots, Sharing: s.share, Files: out.offw.Files()})
		if err != nil {
			return nil, nil, err
		}
		out.ms, err = multi.NewScheduler(bs, out.offs, out.pds)
		return out.ms, out.mw, err
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func engine(t *testing.T, blocks int, mode scheduler.Scheduling, s setup) (*Engine, *parts) {
	t.Helper()
	var out parts
	e, err := New(Config{
		Blocks: blocks, BlockSize: bs, Connect: s.connect(&out), Settle: s.settle,
		Scheduler: scheduler.Config{
			MaxModelLen: 200, MaxBatchedTokens: 64, MaxNumSeqs: 8, Scheduling: mode, VocabSize: vocab, LoadFailure: scheduler.RecomputeLoad,
			LoadTimeout: 10 * time.Second,
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e, &out
}

type question struct {
	name   string
	prompt []kvcache.Token
	n      int
}

func questions(seed uint64, n, least, most, out int) []question {
	r := rand.New(rand.NewPCG(seed, 0))
	qs := make([]question, n)
	for i := range qs {
		p := make([]kvcache.Token, least+r.IntN(most-least+1))
		for k := range p {
			p[k] = kvcache.Token(r.IntN(vocab))
		}
		qs[i] = question{fmt.Sprintf("q%d", i), p, out}
	}
	return qs
}

func clone(p []kvcache.Token) []kvcache.Token { return append([]kvcache.Token(nil), p...) }

// prefill computes prompts on P and returns what it tells D of each.
func prefill(t *testing.T, p *Engine, qs []question) map[string]*pd.Params {
	t.Helper()
	for _, q := range qs {
		_, err := p.Scheduler.Add(scheduler.Request{ID: q.name, Prompt: clone(q.prompt), MaxTokens: 1, Params: &pd.Params{DoRemoteDecode: true}})
		require.NoError(t, err)
	}
	for len(p.Ends) < len(qs) {
		_, err := p.Step()
		require.NoError(t, err)
	}
	out := map[string]*pd.Params{}
	for _, q := range qs {
		out[q.name] = p.Ends[q.name].Params.(*pd.Params)
		delete(p.Ends, q.name)
		require.Equal(t, Answer(q.prompt, 1), p.Tokens[q.name])
		delete(p.Tokens, q.name)
	}
	return out
}

func ask(t *testing.T, d *Engine, qs []question, params map[string]*pd.Params) {
	t.Helper()
	for _, q := range qs {
		req := scheduler.Request{ID: q.name, Prompt: clone(q.prompt), MaxTokens: q.n}
		if p := params[q.name]; p != nil {
			req.Params, req.Route = p, scheduler.RemotePrefill
		}
		_, err := d.Scheduler.Add(req)
		require.NoError(t, err)
	}
}

func answered(t *testing.T, d *Engine, qs []question) {
	t.Helper()
	for _, q := range qs {
		require.NoError(t, d.Ends[q.name].Err)
		require.Equal(t, scheduler.FinishLength, d.Ends[q.name].Finish)
		require.Equal(t, Answer(q.prompt, q.n), d.Tokens[q.name], q.name)
	}
}

// rest serves P's releases until it has all its blocks back.
func rest(t *testing.T, p *Engine) {
	t.Helper()
	require.NoError(t, p.Run(30*time.Second))
}

func both(t *testing.T, f func(t *testing.T, mode scheduler.Scheduling)) {
	for _, mode := range []scheduler.Scheduling{scheduler.Sync, scheduler.Async} {
		t.Run(mode.String(), func(t *testing.T) { f(t, mode) })
	}
}

func TestPulledPromptsAnswerAsIfComputedHere(t *testing.T) {
	both(t, func(t *testing.T, mode scheduler.Scheduling) {
		p, pp := engine(t, 200, mode, setup{id: "p", role: pd.Producer})
		d, dp := engine(t, 60, mode, setup{id: "d", role: pd.Consumer})
		qs := questions(1, 12, 3, 60, 20)
		ask(t, d, qs, prefill(t, p, qs))
		require.NoError(t, d.Run(30*time.Second))
		answered(t, d, qs)
		rest(t, p)
		require.Zero(t, pp.pdw.Stats().LeasesNow)
		require.EqualValues(t, 12, pp.pdw.Stats().LeasesReleased)
		require.Zero(t, pp.pdw.Stats().ReleasesUnknown)
		require.EqualValues(t, 12, dp.pds.Stats().Loads+dp.pds.Stats().Empty)
		require.Zero(t, dp.pds.Live())
		require.NotZero(t, d.Scheduler.Stats().Preemptions, "the pool is too small for all of them")
	})
}

func TestFaultyTransportNeverChangesAnAnswer(t *testing.T) {
	both(t, func(t *testing.T, mode scheduler.Scheduling) {
		script, err := faulty.Parse("read%3 corrupt; read%5 error; read%7 delay 5ms; read#11 kill", 1)
		require.NoError(t, err)
		p, pp := engine(t, 300, mode, setup{id: "p", role: pd.Producer})
		d, dp := engine(t, 80, mode, setup{id: "d", role: pd.Consumer, script: script})
		qs := questions(2, 20, 8, 60, 10)
		ask(t, d, qs, prefill(t, p, qs))
		require.NoError(t, d.Run(60*time.Second))
		answered(t, d, qs)
		rest(t, p)
		require.Zero(t, pp.pdw.Stats().LeasesNow)
		require.NotZero(t, dp.pdw.Stats().LoadsFailed)
		require.GreaterOrEqual(t, len(script.Done()), 8)
	})
}

func TestPushedPromptsAnswerAsIfComputedHere(t *testing.T) {
	both(t, func(t *testing.T, mode scheduler.Scheduling) {
		p, pp := engine(t, 60, mode, setup{id: "p", role: pd.Producer}) // too small for all at once
		d, dp := engine(t, 90, mode, setup{id: "d", role: pd.Consumer, slots: 100})
		qs := questions(6, 12, 20, 90, 12)
		params := map[string]*pd.Params{}
		ep := pp.pdw.Endpoint()
		for _, q := range qs { // P and D hear of a request at the same time
			params[q.name] = &pd.Params{
				DoRemotePrefill: true, Mode: "push", Transfer: "t-" + q.name, EngineID: ep.EngineID, Host: ep.Host, Port: ep.Port,
			}
			_, err := p.Scheduler.Add(scheduler.Request{
				ID: q.name, Prompt: clone(q.prompt), MaxTokens: 1, Params: &pd.Params{DoRemoteDecode: true, Mode: "push", Transfer: "t-" + q.name},
			})
			require.NoError(t, err)
		}
		ask(t, d, qs, params)
		for end := time.Now().Add(60 * time.Second); len(d.Ends) < len(qs); {
			require.True(t, time.Now().Before(end), "%d of %d answered", len(d.Ends), len(qs))
			for _, e := range []*Engine{p, d} {
				_, err := e.Step()
				require.NoError(t, err)
			}
		}
		answered(t, d, qs)
		require.NoError(t, d.Run(30*time.Second))
		rest(t, p)
		require.Zero(t, pp.pdw.Stats().LeasesNow+pp.pdw.Stats().PushesNow)
		require.NotZero(t, pp.pdw.Stats().BytesPushed)
		require.Zero(t, dp.pdw.Stats().LoadsFailed)
		require.EqualValues(t, 12, dp.pdw.Stats().Loads)
	})
}

// chain is the order of things that happened to one request, from the log.
func chain(d *Engine, id string) string {
	var out []string
	for _, line := range d.Log {
		if rest, ok := strings.CutPrefix(line, id+" "); ok && (len(out) == 0 || out[len(out)-1] != rest) { // a composite has two ops
			out = append(out, rest)
		}
	}
	return strings.Join(out, " ")
}

func TestPreemptedRequestsComeBackFromTheHost(t *testing.T) {
	both(t, func(t *testing.T, mode scheduler.Scheduling) {
		p, _ := engine(t, 300, mode, setup{id: "p", role: pd.Producer})
		d, dp := engine(t, 50, mode, setup{id: "d", role: pd.Consumer, slots: 200, settle: time.Millisecond}) // a save takes less than a step
		qs := questions(3, 12, 20, 40, 60)
		ask(t, d, qs, prefill(t, p, qs))
		require.NoError(t, d.Run(60*time.Second))
		answered(t, d, qs)
		rest(t, p)
		st := dp.offs.Stats()
		require.NotZero(t, st.Restores)
		require.Zero(t, st.Records+st.Jobs)
		require.Equal(t, 200, st.Free)
		require.Zero(t, dp.mw.Stats().Waiting)
		require.Zero(t, dp.mw.Stats().Unknown)
		whole := 0
		for _, e := range d.Ends {
			if strings.Contains(chain(d, e.Request.String()), "load received preempted save saved load received") {
				whole++
			}
		}
		require.NotZero(t, whole, "pull, preemption, save, ready, restore, to the end\n%s", strings.Join(d.Log, "\n"))
	})
}

func TestTurnsComeBackFromHostAndFiles(t *testing.T) {
	both(t, func(t *testing.T, mode scheduler.Scheduling) {
		dir := t.TempDir()
		s := setup{id: "d", role: pd.Consumer, slots: 12, share: offload.Turns, files: dir}
		d, dp := engine(t, 40, mode, s)
		qs := questions(4, 6, 30, 60, 10)
		for round := range 3 {
			for i := range qs { // one after the other: each evicts the others' blocks
				one := qs[i : i+1]
				ask(t, d, one, nil)
				require.NoError(t, d.Run(30*time.Second))
				answered(t, d, one)
				qs[i].name = fmt.Sprintf("q%d.%d", i, round)
				qs[i].prompt = append(append(qs[i].prompt, Answer(qs[i].prompt, 10)...), kvcache.Token(round), 7, 8)
			}
		}
		require.NotZero(t, dp.offs.Stats().Hits)
		require.NotZero(t, dp.offw.Stats().FileReads, "the host tier is too small")
		require.Zero(t, dp.offw.Stats().FileDamaged)
		require.NoError(t, d.Close())
		// Another engine finds the files.
		s.id = "d2"
		d2, dp2 := engine(t, 40, mode, s)
		for i := range qs {
			qs[i].name = fmt.Sprintf("again%d", i)
		}
		ask(t, d2, qs, nil)
		require.NoError(t, d2.Run(60*time.Second))
		answered(t, d2, qs)
		require.NotZero(t, dp2.offw.Stats().FileReads)
	})
}

// The harness itself: one wrong byte anywhere changes the answer.
func TestOneWrongByteIsNoticed(t *testing.T) {
	d, _ := engine(t, 60, scheduler.Sync, setup{id: "d", role: pd.Consumer})
	qs := questions(5, 1, 30, 30, 10)
	ask(t, d, qs, nil)
	for range 3 {
		_, err := d.Step()
		require.NoError(t, err)
	}
	d.exec.mem.own[d.exec.mem.at(d.exec.tables[0][2], 1)] ^= 1
	require.NoError(t, d.Run(30*time.Second))
	require.NotEqual(t, Answer(qs[0].prompt, 10), d.Tokens[qs[0].name])
}
