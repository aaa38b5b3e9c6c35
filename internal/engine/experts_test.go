package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/scheduler"
)

// hostConsumer is a Decoder without a Prefiller: no goroutine of it waits for a
// network, which a bubble would not see. An operator cannot have that, see open.
const hostConsumer = `{"kv_connector":"offload","kv_role":"kv_consumer","kv_connector_extra_config":{"cpu_bytes_to_use":1048576}}`

// sharing is a Decoder of two ranks that have the experts of the tiny model among
// them, with steps and a pool that are small.
func sharing(t *testing.T, change func(*Config)) Config {
	t.Helper()
	cfg := parsed(t, hostConsumer, sched(switchedOn))
	cfg.Model, cfg.DataParallel, cfg.ExpertParallel = "random:tiny-moe", 2, true
	cfg.MaxTokens, cfg.MaxSeqs, cfg.KVBlocks, cfg.MaxModelLen, cfg.DeviceWorkers = 32, 8, 48, 512, 1
	cfg.DumpDir = t.TempDir() // a rank that fails writes its last steps
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// pulling is such a Decoder as operators have it.
func pulling(t *testing.T, change func(*Config)) Config {
	t.Helper()
	return sharing(t, func(c *Config) {
		c.KVTransfer = parsed(t, pdConsumer, "").KVTransfer
		if change != nil {
			change(c)
		}
	})
}

func start(t *testing.T, cfg Config, o Options) *attempts {
	t.Helper()
	a := &attempts{T: t}
	o.Open = func(rank int) (_ ascendrt.Device, err error) {
		a.devices[rank], err = host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
		return a.devices[rank], err
	}
	var err error
	a.e, err = open(t.Context(), cfg.withDefaults(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.e.Close() }) // its error is what the test looks at before
	return a
}

func on(rank int, more ...func(*Request)) func(*Request) {
	return func(r *Request) {
		r.Rank = rank
		for _, f := range more {
			f(r)
		}
	}
}

func tokens(n int) func(*Request) { return func(r *Request) { r.MaxTokens = n } }

func appending(r *Request) { r.Append = true }

// read gives a stream's tokens and its end.
func (a *attempts) read(s *Stream) (out []scheduler.Token, last Delta) {
	a.Helper()
	for {
		d, err := s.Next(context.Background())
		require.NoError(a, err)
		out = append(out, d.Tokens...)
		if d.Finish != scheduler.NotFinished {
			return out, d
		}
	}
}

// tinyMoE is the generated model as the reference reads it.
var tinyMoE = sync.OnceValues(func() (model.Config, model.Weights) {
	c, err := model.Shape("tiny-moe")
	if err != nil {
		panic(err)
	}
	w := model.Weights{}
	for _, x := range c.Tensors() {
		d, err := (model.Random{Config: c, Seed: builtinSeed}).Get(x.Name, x.Shape...)
		if err != nil {
			panic(err)
		}
		w[x.Name] = d.Widen(nil, 0, x.Len())
	}
	return c, w
})

func byReference(prompt []scheduler.Token, n int) (out []scheduler.Token) {
	p := make([]int, len(prompt))
	for i, v := range prompt {
		p[i] = int(v)
	}
	for _, v := range model.NewReference(tinyMoE()).Greedy(p, n) {
		out = append(out, scheduler.Token(v))
	}
	return out
}

// Two ranks that share the experts answer as one rank with all of them, as two
// ranks that each have all, and as the reference.
func TestExpertParallelIdentity(t *testing.T) {
	prompts := [][]scheduler.Token{ids(1, 5), ids(2, 40), ids(3, 90), ids(4, 17)}
	const n = 24
	for _, v := range []struct {
		name   string
		change func(*Config)
	}{
		{"one rank", func(c *Config) { c.DataParallel = 1 }},
		{"two ranks", func(c *Config) { c.ExpertParallel = false }},
		{"shared", nil},
		{"shared, eager", func(c *Config) { c.Eager = true }},
		{"shared, one step at a time", func(c *Config) { c.Sync = true }},
		{"shared by four", func(c *Config) { c.DataParallel = 4 }},
		{"shared, drafts", func(c *Config) { c.Speculative = Speculative{Method: "ngram", Tokens: 3} }},
	} {
		t.Run(v.name, func(t *testing.T) {
			cfg := sharing(t, v.change)
			a := start(t, cfg, Options{})
			var streams []*Stream
			for i, p := range prompts {
				streams = append(streams, a.submit(fmt.Sprint(i), p, on(i%cfg.DataParallel, tokens(n))))
			}
			for i, s := range streams {
				got, last := a.read(s)
				require.Equal(t, byReference(prompts[i], n), got, "answer %d: %v", i, last.Err)
			}
			require.NoError(t, a.e.Close())
		})
	}
}

// While a chunk of an append attempt runs on rank 0 the other rank may do or
// suffer anything: the attempt ends with the right answer, or with the reason why
// it cannot. A wait for ever would be a deadlock of the bubble.
func TestAppendBesideAnotherRank(t *testing.T) {
	turn, next := ids(1, 60), ids(1, 190)
	const n = 8
	want := byReference(next, n)
	for _, v := range []struct {
		name   string
		change func(*Config)
		begin  func(a *attempts) (streams []*Stream) // on rank 1, before the attempt
		during func(a *attempts, streams []*Stream)  // while it runs
		ends   string                                // the attempt's error; "": it is answered
		check  func(a *attempts, streams []*Stream)  // behind the attempt
	}{
		{name: "idle", check: func(a *attempts, _ []*Stream) { require.Positive(a, a.e.ranks[1].party.idle.Load()) }},
		{name: "decoding", begin: begun(3, 4, 100), check: answered},
		{name: "prefilling", begin: func(a *attempts) []*Stream {
			return []*Stream{a.submit("long", ids(9, 400), on(1))}
		}, check: answered},
		{name: "preempting", begin: func(a *attempts) (out []*Stream) {
			for i := range 6 {
				out = append(out, a.submit("big", ids(20+i, 100), on(1, tokens(80))))
			}
			return out
		}, check: func(a *attempts, streams []*Stream) {
			answered(a, streams)
			require.Positive(a, a.count("vllm:num_preemptions_total", "engine", "1"))
		}},
		{name: "preempting without a host tier", change: func(c *Config) { c.Additional.Scheduler.Recompute = true }, begin: func(a *attempts) (out []*Stream) {
			for i := range 6 {
				out = append(out, a.submit("big", ids(20+i, 100), on(1, tokens(80))))
			}
			return out
		}, check: func(a *attempts, streams []*Stream) {
			for _, s := range streams {
				a.read(s)
			}
		}},
		{name: "refusing", during: func(a *attempts, _ []*Stream) {
			for i := range 20 {
				_, last := a.read(a.submit("no", ids(30+i, 50), on(1, appending)))
				require.NotEqual(a, scheduler.Refusal{}, last.Refusal)
			}
		}},
		{name: "appending too", begin: func(a *attempts) []*Stream {
			a.read(a.submit("turn", ids(8, 60), on(1)))
			return []*Stream{a.submit("next", ids(8, 170), on(1, appending))}
		}, check: answered},
		{name: "aborting", begin: begun(3, 4, 400), during: func(_ *attempts, streams []*Stream) {
			for _, s := range streams {
				s.Cancel()
			}
		}},
		{name: "stopping", begin: begun(1, 4, 400), during: func(a *attempts, streams []*Stream) {
			streams[0].Finish()
			_, last := a.read(streams[0])
			require.Equal(a, scheduler.FinishStop, last.Finish)
		}},
		{name: "failing", begin: begun(1, 4, 400), during: func(a *attempts, _ []*Stream) { lose(a, 1) }, ends: "the engine has ended"},
		{name: "failing while idle", during: func(a *attempts, _ []*Stream) { lose(a, 1) }, ends: "the engine has ended"},
		{name: "closing", begin: begun(1, 4, 400), during: func(a *attempts, _ []*Stream) { require.NoError(a, a.e.Close()) }, ends: "the engine has ended"},
		{name: "draining", begin: begun(1, 4, 40), during: func(a *attempts, _ []*Stream) { require.NoError(a, a.e.Drain(a.Context())) }, check: answered},
	} {
		for mode, set := range map[string]func(*Config){
			"": func(*Config) {}, " eager": func(c *Config) { c.Eager = true }, " in turn": func(c *Config) { c.Sync = true },
		} {
			if raced && mode != "" && v.name != "decoding" {
				continue
			}
			t.Run(v.name+mode, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cfg := sharing(t, func(c *Config) {
						set(c)
						if v.change != nil {
							v.change(c)
						}
					})
					a := start(t, cfg, Options{})
					a.read(a.submit("turn", turn[:len(turn):len(turn)], on(0)))
					var streams []*Stream
					if v.begin != nil {
						streams = v.begin(a)
					}
					s := a.submit("next", next, on(0, appending, tokens(n)))
					if v.during != nil {
						v.during(a, streams)
					}
					got, last := a.read(s)
					if v.ends != "" {
						if last.Finish == scheduler.FinishError { // it may have been faster
							require.ErrorContains(t, last.Err, v.ends)
						}
					} else {
						require.Equal(t, want, got)
						require.GreaterOrEqual(t, last.Cached, 48, "it appended")
					}
					if v.check != nil {
						v.check(a, streams)
					}
				})
			})
		}
	}
}

// The same on a Decoder as operators have it, with its network, whose other rank
// decodes.
func TestAppendOnSharedExperts(t *testing.T) {
	e, err := New(t.Context(), pulling(t, nil), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	a := &attempts{T: t, e: e}
	a.read(a.submit("turn", ids(1, 60), on(0)))
	streams := begun(2, 4, 100)(a)
	got, last := a.read(a.submit("next", ids(1, 190), on(0, appending, tokens(8))))
	require.Equal(t, byReference(ids(1, 190), 8), got)
	require.GreaterOrEqual(t, last.Cached, 48, "it appended")
	answered(a, streams)
	require.NoError(t, e.Drain(t.Context()))
}

// begun submits so many requests to rank 1 and waits for their first tokens.
func begun(n, prompt, output int) func(a *attempts) []*Stream {
	return func(a *attempts) []*Stream { return begunOn(a, 1, n, prompt, output) }
}

func begunOn(a *attempts, rank, n, prompt, output int) (out []*Stream) {
	for i := range n {
		s := a.submit("other", ids(40+i, prompt), on(rank, tokens(output)))
		_, err := s.Next(context.Background())
		require.NoError(a, err)
		out = append(out, s)
	}
	return out
}

// answered reads the streams of the other rank to their ends.
func answered(a *attempts, streams []*Stream) {
	require.NotEmpty(a, streams)
	for _, s := range streams {
		_, last := a.read(s)
		require.Equal(a, scheduler.FinishLength, last.Finish, "%v", last.Err)
	}
}

// lose loses the device of a rank, waits until the engine has ended and looks
// whether it says why. Only steps tell of a device: one comes, should what ran
// before have ended by now.
func lose(a *attempts, rank int) {
	a.devices[rank].(interface{ Lose(string) }).Lose("pulled out")
	_, err := a.e.Submit(context.Background(), Request{ID: "late", TraceID: "late", Prompt: ids(5, 20), MaxTokens: 3, IgnoreEOS: true})
	if err != nil {
		require.ErrorIs(a, err, ErrClosed)
	}
	err = a.e.Wait()
	require.ErrorIs(a, err, ascendrt.ErrDeviceLost, "the process must be restarted")
	require.ErrorContains(a, err, "pulled out")
	require.ErrorIs(a, a.e.Err(), ErrClosed)
}

// failing is a scheduler whose n-th plan with rows is spoiled.
type failing struct {
	*scheduler.Scheduler
	n     int
	spoil func(p *scheduler.Plan) *scheduler.Plan
}

func (f *failing) Plan(now scheduler.Time) *scheduler.Plan {
	p := f.Scheduler.Plan(now)
	if p.Rows() > 0 {
		if f.n--; f.n == 0 {
			return f.spoil(p)
		}
	}
	return p
}

// A rank that fails with its device whole ends the others: before it votes on a
// step, and behind its vote, when the others have begun the step and wait for it
// on their devices. The engine says what failed, and closes.
func TestAFailingRankEndsTheOthers(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(p *scheduler.Plan) *scheduler.Plan
		text  string
	}{
		"before its vote": {func(*scheduler.Plan) *scheduler.Plan { return nil }, "rank 1: no plan"},
		"behind its vote": {func(p *scheduler.Plan) *scheduler.Plan { p.Inputs[0] = 9999; return p }, "token 9999 is not in the vocabulary"},
	} {
		for _, n := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s, step %d", name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := start(t, sharing(t, nil), Options{Scheduler: func(rank int, s *scheduler.Scheduler) Scheduler {
						if rank == 0 {
							return s
						}
						return &failing{Scheduler: s, n: n, spoil: c.spoil}
					}})
					streams := begunOn(a, 0, 2, 90, 400)
					streams = append(streams, a.submit("bad", ids(70, 20), on(1, tokens(40))))
					for _, s := range streams {
						_, last := a.read(s)
						require.ErrorIs(t, last.Err, ErrClosed)
					}
					require.ErrorContains(t, a.e.Wait(), c.text)
					require.ErrorContains(t, a.e.Close(), c.text)
				})
			})
		}
	}
}

// The control: an engine whose ranks take no part in the steps of others stands
// still as soon as one has work, whatever time passes, and only then.
func TestDeafRanksHang(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := start(t, sharing(t, nil), Options{deaf: deaf})
			s := a.submit("first", ids(1, 60), on(0, tokens(4)))
			time.Sleep(time.Hour)
			s.mu.Lock()
			ended := s.ended
			s.mu.Unlock()
			require.Equal(t, !deaf, ended)
			select {
			case <-a.e.ranks[1].party.Called():
				require.True(t, deaf, "rank 1 is called")
			default:
				require.False(t, deaf, "nobody waits")
			}
			require.NoError(t, a.e.Close(), "closing ends it")
			got, last := a.read(s)
			if deaf {
				require.Empty(t, got)
				require.ErrorIs(t, last.Err, ErrClosed)
			} else {
				require.Equal(t, byReference(ids(1, 60), 4), got)
			}
		})
	}
}

// A long run of everything at once on both ranks, over a pool that is too small
// for it: nothing hangs, and each answer that comes is the one of an engine of one
// rank that has all experts.
func TestSharedExpertsAtRandom(t *testing.T) {
	const users, turns = 24, 3
	var mu sync.Mutex
	prompts := map[string][]scheduler.Token{}
	answers := map[string][]scheduler.Token{}
	counts := map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		a := start(t, sharing(t, func(c *Config) { c.KVBlocks = 34 }), Options{})
		var wg sync.WaitGroup
		for u := range users {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(u), 11))
				prompt := ids(u, 40+rng.IntN(100))
				for turn := range turns {
					name := fmt.Sprintf("%d-%d", u, turn)
					how := []func(*Request){tokens(20 + rng.IntN(60))}
					if rng.IntN(2) == 0 {
						how = append(how, appending)
					}
					s := a.submit(name, prompt[:len(prompt):len(prompt)], on(u%2, how...))
					if rng.IntN(5) == 0 {
						if rng.IntN(2) == 0 {
							_, err := s.Next(context.Background())
							require.NoError(t, err)
						}
						s.Cancel()
						mu.Lock()
						counts["cancelled"]++
						mu.Unlock()
						continue
					}
					got, last := a.read(s)
					mu.Lock()
					switch {
					case last.Refusal != scheduler.Refusal{}:
						counts["refused"]++
					default:
						counts["answered"]++
						prompts[name], answers[name] = prompt, got
					}
					mu.Unlock()
					prompt = append(append(prompt[:len(prompt):len(prompt)], got...), ids(u+turn, 5+rng.IntN(30))...)
				}
			})
		}
		wg.Wait()
		for rank := range 2 {
			counts["dummy steps"] += int(a.e.ranks[rank].party.idle.Load())
		}
		counts["preempted"] = int(a.count("vllm:num_preemptions_total"))
		require.NoError(t, a.e.Close())
	})
	t.Log(counts)
	for _, what := range []string{"answered", "refused", "cancelled", "preempted", "dummy steps"} {
		require.Positive(t, counts[what], what)
	}
	one := start(t, sharing(t, func(c *Config) { c.DataParallel, c.KVBlocks = 1, 400 }), Options{})
	for name, p := range prompts {
		got, _ := one.read(one.submit(name, p, tokens(len(answers[name]))))
		require.Equal(t, answers[name], got, name)
	}
	require.NoError(t, one.e.Close())
}

// A rank that cannot be built ends the start of the others, which wait for it in
// the first steps, and is named.
func TestSharedExpertsThatCannotStart(t *testing.T) {
	for _, fault := range []string{"oom@alloc:9", "error@plan:3", "error@stream:1", "error@capture:5", "lost@command:400"} {
		for bad := range 2 {
			t.Run(fmt.Sprintf("%s on %d", fault, bad), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					devices := func(rank int) (ascendrt.Device, error) {
						o := ascendrt.OpenOptions{Workers: 1}
						if rank == bad {
							o.Faults = fault
						}
						return host.Backend{}.Open(0, o)
					}
					_, err := open(t.Context(), sharing(t, nil).withDefaults(), Options{Open: devices})
					require.ErrorContains(t, err, fmt.Sprintf("rank %d", bad))
					require.ErrorContains(t, err, "injected")
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		_, err := open(t.Context(), sharing(t, nil).withDefaults(), Options{Open: func(rank int) (ascendrt.Device, error) {
			if rank == 1 {
				return nil, fmt.Errorf("no such card")
			}
			return host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
		}})
		require.ErrorContains(t, err, "rank 1: no such card")
	})
}

func TestExpertSettings(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		text   string
	}{
		{func(c *Config) { c.Model = "builtin" }, "enable-expert-parallel is on, must be off: model builtin has no experts"},
		{func(c *Config) { c.Model = "random:tiny" }, "enable-expert-parallel is on, must be off: model tiny has no experts"},
		{func(c *Config) { c.DataParallel = 3 }, "data-parallel-size is 3, must be a divisor of the 8 experts of model tiny-moe"},
		{func(c *Config) { c.Device = "cuda:1" }, "device is cuda:1, must be host: model tiny-moe has experts"},
		{func(c *Config) { c.Device, c.BlockSize, c.ExpertParallel = "ascend", 128, false }, "device is ascend, must be host: model tiny-moe has experts"},
	} {
		err := pulling(t, c.change).Validate()
		var setting *SettingError
		require.ErrorAs(t, err, &setting)
		require.ErrorContains(t, err, c.text)
	}
	require.NoError(t, pulling(t, nil).Validate())
	alone := pulling(t, func(c *Config) { c.DataParallel = 1 })
	require.NoError(t, alone.Validate())
	require.Equal(t, []string{"enable-expert-parallel has no effect on one rank"}, alone.withDefaults().Warnings())
}

// Nothing is left of an engine whose ranks share experts, however it ended.
func TestSharedExpertsLeaveNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, end := range []string{"closed", "lost"} {
		a := start(t, sharing(t, nil), Options{})
		a.read(a.submit("first", ids(1, 60), on(0, tokens(4))))
		if end == "lost" {
			begun(1, 4, 400)(a)
			lose(a, 0)
			require.Error(t, a.e.Close())
			continue
		}
		require.NoError(t, a.e.Close())
	}
}
