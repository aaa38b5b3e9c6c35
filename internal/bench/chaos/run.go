package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/up"
)

// Params says what is run.
type Params struct {
	Seed        uint64
	Requests    int           // default 500
	Kills       int           // default 12
	Concurrency int           // sessions at a time; default 12
	Dir         string        // for logs, traces and tiers
	Timeout     time.Duration // of one request; beyond it it counts as hung; default 30 s
	Rest        time.Duration // until everything must be at rest; default 20 s
}

func (p Params) withDefaults() Params {
	if p.Requests == 0 {
		p.Requests = 500
	}
	if p.Kills == 0 {
		p.Kills = 12
	}
	if p.Concurrency == 0 {
		p.Concurrency = 12
	}
	if p.Timeout == 0 {
		p.Timeout = 30 * time.Second
	}
	if p.Rest == 0 {
		p.Rest = 20 * time.Second
	}
	return p
}

// Report is the outcome.
type Report struct {
	Seed         uint64
	Plan         string // its hash
	Requests     int
	Right        int // the answer of an undisturbed engine
	Failed       int // an error that says so
	Left         int // the client went away
	Wrong        []string
	Kills, Hit   int // of them those whose engine had requests
	Slowest      time.Duration
	SlowestStart time.Duration // of an engine that was started again
	Recovered    int           // of Recovery requests after everything, all of which must be right
	Recovery     int
	Restless     []string
	Seconds      float64
	ByError      map[string]int
}

// Broken lists what must hold and does not.
func (r *Report) Broken() []string {
	var out []string
	bad := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	bad(len(r.Wrong) > 0, "%d requests have neither the right answer nor a clear error, the first: %s", len(r.Wrong), strings.Join(r.Wrong[:min(3, len(r.Wrong))], "; "))
	bad(2*r.Right < r.Requests, "only %d of %d requests have an answer, less than half", r.Right, r.Requests)
	bad(5*r.Hit < r.Kills, "only %d of %d kills met a request, less than a fifth: the run shows little", r.Hit, r.Kills)
	bad(r.Recovered != r.Recovery, "%d of %d requests after the last kill are right", r.Recovered, r.Recovery)
	bad(len(r.Restless) > 0, "not at rest: %s", strings.Join(r.Restless, "; "))
	return out
}

// recovery is how many sessions of one turn are asked at the end.
const recovery = 16

type runner struct {
	p       *Params
	plan    Plan
	out     io.Writer
	client  *http.Client
	cluster *cluster
	begin   time.Time
	want    [][]measure.Record // by session and turn
	report  *Report

	mu    sync.Mutex
	bar   *progress.Bar
	done  load.Progress
	begun int
	next  int // the kill that comes next
}

// Run makes the plan and carries it out. An error means that the run could not
// be finished. Every process has ended when Run returns.
func Run(ctx context.Context, p Params, out io.Writer) (report *Report, err error) {
	p = p.withDefaults()
	plan := NewPlan(p.Seed, p.Requests, p.Kills)
	fmt.Fprintf(out, "seed %d, plan %s: %d requests in %d sessions, %d kills\n", p.Seed, plan.Hash(), plan.Requests(), len(plan.Sessions), len(plan.Kills))
	if err := os.RemoveAll(filepath.Join(p.Dir, "tiers")); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(p.Dir, "tiers"), 0o755); err != nil {
		return nil, err
	}
	sup, stop, err := up.NewIn(p.Dir, up.Overwrite, up.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r := &runner{
		p: &p, plan: plan, out: out, client: load.NewHTTPClient(), begin: time.Now(),
		report: &Report{Seed: p.Seed, Plan: plan.Hash(), Requests: plan.Requests(), ByError: map[string]int{}},
	}
	defer r.client.CloseIdleConnections()
	if err := r.right(ctx, sup); err != nil {
		return nil, fmt.Errorf("the undisturbed engine: %w", err)
	}
	if r.cluster, err = startCluster(ctx, sup, filepath.Join(p.Dir, "tiers"), p.Seed); err != nil {
		return nil, err
	}
	if err := r.disturb(ctx, sup); err != nil {
		return nil, err
	}
	r.report.Seconds = time.Since(r.begin).Seconds()
	r.print()
	return r.report, nil
}

// show draws a bar of the plan's requests until the function that it gives is
// called.
func (r *runner) show(label string) (end func()) {
	r.bar, r.done = progress.Start(r.out, label), load.Progress{Total: r.plan.Requests()}
	return r.bar.End
}

func (r *runner) sent() {
	r.mu.Lock()
	r.done.Sent++
	r.mu.Unlock()
}

func (r *runner) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done.Done++
	r.bar.Observe(r.done)
}

// ask sends one turn of a session, whose earlier replies are the right ones.
func (r *runner) ask(ctx context.Context, url, prefix string, session, turn int) measure.Record {
	a := r.plan.Sessions[session][turn]
	body := &openai.ChatRequest{
		Model: "builtin", Messages: r.messages(session, turn), Stream: true, StreamOptions: &openai.StreamOptions{IncludeUsage: true},
		Sampling: openai.Sampling{MaxTokens: &a.MaxTokens, ReturnTokenIDs: true},
	}
	rec := measure.Record{RequestID: fmt.Sprintf("%s%d-%d", prefix, session, turn), Session: fmt.Sprintf("%s%d", prefix, session), Turn: turn}
	call := &load.Call{Endpoint: load.Chat, Body: body, Header: http.Header{"X-Session-Id": {rec.Session}, "X-Request-Id": {rec.RequestID}}}
	server := load.Server{URL: url, Model: "builtin", Client: r.client}
	server.Do(ctx, call, r.begin, &rec)
	return rec
}

func (r *runner) messages(session, turn int) []openai.Message {
	var out []openai.Message
	for i := range turn + 1 {
		out = append(out, openai.Message{Role: "user", Content: openai.Content(r.plan.Sessions[session][i].Text)})
		if i < turn {
			out = append(out, openai.Message{Role: "assistant", Content: openai.Content(r.want[session][i].Text)})
		}
	}
	return out
}

// right asks an engine without a cache that nothing happens to.
func (r *runner) right(ctx context.Context, sup *up.Supervisor) error {
	alone, err := sup.Start(ctx, up.Command{Name: "alone", Args: []string{
		"serve", "--port", "0", "--no-enable-prefix-caching", "--max-num-seqs", "16", "--max-model-len", "256", "--device-workers", "1",
	}})
	if err != nil {
		return err
	}
	r.want = make([][]measure.Record, len(r.plan.Sessions))
	defer r.show("one engine without any cache")()
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for s, asks := range r.plan.Sessions {
		group.Go(func() error {
			for turn := range asks {
				r.sent()
				rec := r.ask(within, alone.URL(), "right-", s, turn)
				r.answered()
				if !rec.Valid() {
					return fmt.Errorf("session %d, turn %d: %s", s, turn, rec.Error)
				}
				if rec.PromptTokens > 128 {
					return fmt.Errorf("session %d, turn %d: a prompt of %d tokens", s, turn, rec.PromptTokens)
				}
				r.want[s] = append(r.want[s], rec)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return sup.Stop(alone)
}

// disturb serves the plan and kills as it says.
func (r *runner) disturb(ctx context.Context, sup *up.Supervisor) error {
	url := r.cluster.proxy.URL()
	kills, killing := errgroup.WithContext(ctx)
	group, within := errgroup.WithContext(killing)
	group.SetLimit(r.p.Concurrency)
	pace := bursts(within, r.p.Concurrency)
	defer r.show("the cluster, with kills and faults")()
	for s := range r.plan.Sessions {
		group.Go(func() error {
			for turn := range r.plan.Sessions[s] {
				if !admitted(within, pace) {
					break
				}
				r.enter(killing, kills)
				r.sent()
				outcome := r.one(within, url, s, turn)
				r.answered()
				if outcome == failed { // a client that was refused does not come back at once
					sleep(within, burstEvery)
				}
			}
			return within.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return errors.Join(err, kills.Wait())
	}
	if err := kills.Wait(); err != nil {
		return err
	}
	if err := r.recover(ctx, url); err != nil {
		return err
	}
	r.client.CloseIdleConnections()
	var err error
	r.report.Restless, err = r.cluster.settle(ctx, r.p.Rest)
	return err
}

// enter counts a request that begins, and sets the kills off that are due after
// it.
func (r *runner) enter(ctx context.Context, kills *errgroup.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; r.next < len(r.plan.Kills) && r.begun >= r.plan.Kills[r.next].After; r.next++ {
		k := r.plan.Kills[r.next]
		kills.Go(func() error { return r.kill(ctx, k) })
	}
	r.begun++
}

// kill ends an engine and starts it again.
func (r *runner) kill(ctx context.Context, k Kill) error {
	m := r.cluster.members[k.Who]
	m.dying.Lock() // an engine dies once at a time
	defer m.dying.Unlock()
	inFlight, err := r.cluster.kill(ctx, k.Who)
	if err != nil {
		return fmt.Errorf("kill %s: %w", m.name, err)
	}
	r.mu.Lock()
	r.report.Kills++
	if inFlight > 0 {
		r.report.Hit++
	}
	r.mu.Unlock()
	select {
	case <-time.After(k.Down):
	case <-ctx.Done():
		return ctx.Err()
	}
	begin := time.Now()
	err = r.cluster.start(ctx, k.Who)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.SlowestStart = max(r.report.SlowestStart, time.Since(begin))
	return err
}

// burstEvery is the time between two bursts of requests. They come in bursts, so
// that a fast machine neither is through before engines are back, nor has a
// single request at a time.
const burstEvery = 250 * time.Millisecond

// bursts gives leave for n requests at a time until ctx ends.
func bursts(ctx context.Context, n int) <-chan struct{} {
	leave := make(chan struct{}, n)
	go func() {
		tick := time.NewTicker(burstEvery)
		defer tick.Stop()
		for {
			for range n {
				select {
				case leave <- struct{}{}:
				default: // the last burst is not used up
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return leave
}

// admitted waits for leave; false when ctx has ended.
func admitted(ctx context.Context, leave <-chan struct{}) bool {
	select {
	case <-leave:
		return true
	case <-ctx.Done():
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// errLeft is the cause of a client's going away.
var errLeft = errors.New("the client goes away")

// verdict is what became of a request.
type verdict uint8

const (
	right verdict = iota
	failed
	gone
	wrong
)

// one sends a request and judges what came.
func (r *runner) one(ctx context.Context, url string, s, turn int) verdict {
	a := r.plan.Sessions[s][turn]
	limited, cancel := context.WithTimeout(ctx, r.p.Timeout)
	defer cancel()
	asked := limited
	if a.Leave > 0 {
		var leave context.CancelFunc
		asked, leave = context.WithTimeoutCause(limited, a.Leave, errLeft)
		defer leave()
	}
	begin := time.Now()
	rec := r.ask(asked, url, "c-", s, turn)
	took := time.Since(begin)
	left := errors.Is(context.Cause(asked), errLeft) && !rec.Valid()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Slowest = max(r.report.Slowest, took)
	bad := func(format string, args ...any) verdict {
		r.report.Wrong = append(r.report.Wrong, rec.RequestID+": "+fmt.Sprintf(format, args...))
		return wrong
	}
	want := r.want[s][turn].TokenIDs
	switch {
	case left && !begins(want, rec.TokenIDs):
		return bad("other tokens before the client went away")
	case left:
		r.report.Left++
		return gone
	case limited.Err() != nil && ctx.Err() == nil:
		return bad("nothing came within %v", r.p.Timeout)
	case rec.Valid() && measure.SameAnswer(&rec, &r.want[s][turn]):
		r.report.Right++
		return right
	case rec.Valid():
		return bad("tokens %v instead of %v", rec.TokenIDs, want)
	case !clear(&rec):
		return bad("status %d, %s", rec.Status, rec.Error)
	case !begins(want, rec.TokenIDs):
		return bad("other tokens before the error")
	}
	r.report.Failed++
	r.report.ByError[fmt.Sprintf("%d %s", rec.Status, short(rec.Error))]++
	return failed
}

// begins reports whether the tokens that came are the first of the right ones.
func begins(right, got []int32) bool {
	return len(got) <= len(right) && slices.Equal(right[:len(got)], got)
}

// clear reports whether a failed answer says that it failed: by a status with
// an error body, or by an error event in a stream.
func clear(rec *measure.Record) bool {
	if rec.Status == 0 {
		return false // the proxy lives: it must answer
	}
	return !strings.Contains(rec.Error, "without its end marker") && !strings.Contains(rec.Error, "read stream") && rec.Error != ""
}

func short(s string) string {
	for _, cut := range []string{"127.0.0.1", "\n"} {
		if i := strings.Index(s, cut); i > 0 {
			s = s[:i]
		}
	}
	return s[:min(len(s), 90)]
}

// recover asks some first turns again, now that everything is up.
func (r *runner) recover(ctx context.Context, url string) error {
	if _, err := r.cluster.all(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(r.p.Timeout); ; { // breakers open again after a while
		rec := r.ask(ctx, url, "probe-", 0, 0)
		if rec.Valid() || time.Now().After(end) {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for s := range min(recovery, len(r.plan.Sessions)) {
		limited, cancel := context.WithTimeout(ctx, r.p.Timeout)
		rec := r.ask(limited, url, "after-", s, 0)
		cancel()
		r.report.Recovery++
		if rec.Valid() && measure.SameAnswer(&rec, &r.want[s][0]) {
			r.report.Recovered++
		} else {
			fmt.Fprintf(r.out, "after the last kill: %s: %s\n", rec.RequestID, rec.Error)
		}
	}
	return nil
}

func (r *runner) print() {
	x := r.report
	fmt.Fprintf(r.out, `right answers                %d of %d
clear errors                 %d
clients that went away       %d
neither right nor an error   %d
kills, of them with requests %d, %d
slowest request, restart     %v, %v
right after the last kill    %d of %d
not at rest                  %d
time                         %.1f s
`, x.Right, x.Requests, x.Failed, x.Left, len(x.Wrong), x.Kills, x.Hit, x.Slowest.Round(time.Millisecond), x.SlowestStart.Round(time.Millisecond),
		x.Recovered, x.Recovery, len(x.Restless), x.Seconds)
	for _, e := range slices.Sorted(maps.Keys(x.ByError)) {
		fmt.Fprintf(r.out, "  %4d × %s\n", x.ByError[e], e)
	}
	for _, w := range append(slices.Clone(x.Wrong), x.Restless...) {
		fmt.Fprintf(r.out, "  %s\n", w)
	}
}
