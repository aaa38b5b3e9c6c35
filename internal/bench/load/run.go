package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/openai"
)

// Pace says how a run treats the workload's arrivals and think times.
type Pace uint8

// The paces.
const (
	Recorded Pace = iota // as the workload says
	Flat                 // no waiting: every session starts at once and never thinks
)

// EOS says what the end-of-sequence token does to an answer.
type EOS uint8

// The treatments of the end-of-sequence token.
const (
	StopAtEOS EOS = iota
	IgnoreEOS     // every answer has its full length
)

// TokenIDs says whether answers are asked to carry token ids.
type TokenIDs uint8

// Whether token ids are asked for.
const (
	WithTokenIDs    TokenIDs = iota
	WithoutTokenIDs          // for servers that refuse members they do not know
)

// Progress is how far a run is.
type Progress struct{ Total, Sent, Done, Failed int }

// Config says how a workload is replayed.
type Config struct {
	Server   Server
	Endpoint Endpoint
	Pace     Pace
	EOS      EOS
	TokenIDs TokenIDs

	Prefix         string        // put before request and session ids, so that runs differ
	CacheSalt      string        // namespace of the server's prefix cache; empty: none
	Timeout        time.Duration // of one request; 0: none
	MaxConcurrency int           // requests in flight; 0: no limit
	TimeScale      float64       // of arrivals and think times; 0: 1

	// Prepare, when set, may change a call before it is encoded, a little before it is
	// due. It is called from the session's goroutine.
	Prepare func(session string, turn int, call *Call)

	// Observe, when set, is called after every change, from one goroutine at a time.
	Observe func(Progress)
}

// RequestID is the client-visible id of a turn.
func (c *Config) RequestID(session string, turn int) string {
	return fmt.Sprintf("%s%s-t%d", c.Prefix, session, turn)
}

// SessionID is the id that the session has on the wire.
func (c *Config) SessionID(session string) string { return c.Prefix + session }

// Run replays the workload and gives a record for each of its requests, by
// session and turn. A failed turn ends its session; the turns after it are
// recorded as not sent. The error is that of the context, or of a workload that
// the endpoint cannot carry.
func Run(ctx context.Context, w *workload.Workload, cfg Config) ([]measure.Record, error) {
	if err := fits(w, cfg.Endpoint); err != nil {
		return nil, err
	}
	r := &run{cfg: &cfg, start: time.Now(), progress: Progress{Total: w.Requests()}}
	if cfg.MaxConcurrency > 0 {
		r.slots = semaphore.NewWeighted(int64(cfg.MaxConcurrency))
	}
	perSession := make([][]measure.Record, len(w.Sessions))
	group, ctx := errgroup.WithContext(ctx)
	for i := range w.Sessions {
		group.Go(func() error {
			var err error
			perSession[i], err = r.session(ctx, &w.Sessions[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(perSession...), nil
}

func fits(w *workload.Workload, e Endpoint) error {
	for i := range w.Sessions {
		s := &w.Sessions[i]
		for j := range s.Turns {
			switch {
			case e == Chat && (len(s.Turns[j].Tokens) > 0 || s.Turns[j].Keep != nil):
				return fmt.Errorf("session %q turn %d has token ids, which the chat endpoint does not take", s.ID, j)
			case e == Completions && len(s.Turns) > 1 && len(s.Turns[j].Tokens) == 0 && s.Turns[j].Keep == nil:
				return fmt.Errorf("session %q turn %d has text: several turns over completions need token ids", s.ID, j)
			}
		}
	}
	return nil
}

type run struct {
	cfg   *Config
	start time.Time
	slots *semaphore.Weighted // nil: no limit

	mu       sync.Mutex
	progress Progress
}

// scale is how long a time of the workload takes in this run.
func (r *run) scale(d time.Duration) time.Duration {
	switch {
	case r.cfg.Pace == Flat:
		return 0
	case r.cfg.TimeScale == 0:
		return d
	}
	return time.Duration(float64(d) * r.cfg.TimeScale)
}

func (r *run) note(change func(*Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.progress)
	if r.cfg.Observe != nil {
		r.cfg.Observe(r.progress)
	}
}

func (r *run) session(ctx context.Context, s *workload.Session) ([]measure.Record, error) {
	records := make([]measure.Record, len(s.Turns))
	h := history{endpoint: r.cfg.Endpoint}
	if s.System != "" {
		h.say("system", s.System)
	}
	eligible := r.scale(s.Arrival)
	for j := range s.Turns {
		turn, rec := &s.Turns[j], &records[j]
		*rec = measure.Record{RequestID: r.cfg.RequestID(s.ID, j), Session: s.ID, Turn: j, Eligible: eligible}
		if j > 0 && records[j-1].Error != "" {
			rec.Error, rec.End = "not sent: the turn before failed", records[j-1].End
			r.note(func(p *Progress) { p.Done++; p.Failed++ })
			continue
		}
		due := r.start.Add(eligible)
		if err := wait(ctx, due.Add(-encodeAhead)); err != nil {
			return nil, err
		}
		h.ask(turn)
		call := r.call(s, turn, &h, rec)
		if err := sleepUntil(ctx, due); err != nil {
			return nil, err
		}
		if err := r.send(ctx, call, rec); err != nil {
			return nil, err
		}
		if rec.Error == "" && j+1 < len(s.Turns) && s.Turns[j+1].Keep == nil {
			if err := h.reply(rec); err != nil {
				rec.Error = err.Error()
			}
		}
		r.note(func(p *Progress) {
			p.Done++
			if rec.Error != "" {
				p.Failed++
			}
		})
		eligible = rec.End
		if j+1 < len(s.Turns) {
			eligible += r.scale(s.Turns[j+1].Think)
		}
	}
	return records, nil
}

// encodeAhead is how long before it is due a request is encoded, so that the time
// that this takes is not waited for. It is short, as a workload of many sessions
// should not hold all of its prompts in JSON.
const encodeAhead = 20 * time.Millisecond

// call is the request of a turn, encoded.
func (r *run) call(s *workload.Session, turn *workload.Turn, h *history, rec *measure.Record) *Call {
	call := &Call{Endpoint: r.cfg.Endpoint, Header: http.Header{}, Body: r.body(turn, h)}
	call.Header.Set("X-Request-Id", rec.RequestID)
	call.Header.Set("X-Session-ID", r.cfg.SessionID(s.ID))
	if s.Parent != "" {
		call.Header.Set("X-Parent-Session-ID", r.cfg.SessionID(s.Parent))
	}
	if r.cfg.Prepare != nil {
		r.cfg.Prepare(s.ID, rec.Turn, call)
	}
	if r.slots == nil { // else it may wait for long, with many others
		_ = call.encode() // Do gives its error
	}
	return call
}

// send does one request; its error is the end of the run, not of the request.
func (r *run) send(ctx context.Context, call *Call, rec *measure.Record) error {
	if r.slots != nil {
		if err := r.slots.Acquire(ctx, 1); err != nil {
			return err
		}
		defer r.slots.Release(1)
	}
	r.note(func(p *Progress) { p.Sent++ })
	reqCtx, cancel := ctx, context.CancelFunc(func() {})
	if r.cfg.Timeout > 0 {
		reqCtx, cancel = context.WithTimeoutCause(ctx, r.cfg.Timeout, fmt.Errorf("no answer within %v", r.cfg.Timeout))
	}
	defer cancel()
	r.cfg.Server.Do(reqCtx, call, r.start, rec)
	if err := ctx.Err(); err != nil {
		return err
	}
	if cause := context.Cause(reqCtx); cause != nil && rec.Error != "" {
		rec.Error = cause.Error()
	}
	return nil
}

func (r *run) body(turn *workload.Turn, h *history) any {
	zero, limit := 0.0, turn.MaxTokens
	sampling := openai.Sampling{
		MaxTokens: &limit, Temperature: &zero, IgnoreEOS: r.cfg.EOS == IgnoreEOS, ReturnTokenIDs: r.cfg.TokenIDs == WithTokenIDs,
	}
	routing := openai.Routing{CacheSalt: r.cfg.CacheSalt}
	usage := &openai.StreamOptions{IncludeUsage: true}
	if r.cfg.Endpoint == Completions {
		return &openai.CompletionRequest{Model: r.cfg.Server.Model, Prompt: h.prompt(), Stream: true, StreamOptions: usage, Sampling: sampling, Routing: routing}
	}
	return &openai.ChatRequest{Model: r.cfg.Server.Model, Messages: h.messages, Stream: true, StreamOptions: usage, Sampling: sampling, Routing: routing}
}

// history is the conversation so far.
type history struct {
	endpoint Endpoint
	messages []openai.Message // chat
	ids      []int32          // completions of token ids
	text     strings.Builder  // completions of text
}

func (h *history) say(role, text string) {
	if h.endpoint == Chat {
		h.messages = append(h.messages, openai.Message{Role: role, Content: openai.Content(text)})
		return
	}
	h.text.WriteString(text)
}

func (h *history) ask(t *workload.Turn) {
	if t.Keep != nil {
		h.ids = append(h.ids[:*t.Keep], t.Tokens...)
		return
	}
	if len(t.Tokens) > 0 {
		h.ids = append(h.ids, t.Tokens...)
		return
	}
	h.say("user", t.Text)
}

// reply adds the answer that came.
func (h *history) reply(rec *measure.Record) error {
	if h.endpoint == Completions && len(h.ids) > 0 {
		if len(rec.TokenIDs) != rec.OutputTokens {
			return errors.New("the server sent no token ids of its answer, which later turns over completions need")
		}
		h.ids = append(h.ids, rec.TokenIDs...)
		return nil
	}
	h.say("assistant", rec.Text)
	return nil
}

func (h *history) prompt() openai.Prompt {
	if len(h.ids) > 0 {
		return openai.TokenPrompt(h.ids)
	}
	return openai.Prompt{Texts: []string{h.text.String()}}
}
