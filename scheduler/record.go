package scheduler

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// RecordFormat is the version of recordings.
const RecordFormat = 1

// Recorder writes everything that a scheduler is told and every plan that it
// makes, as lines of JSON, so that Replay can make the same plans again. Graph
// choices are left out: they follow from the rows. Parameters of connectors are
// left out too; what a connector answered is recorded instead.
type Recorder struct {
	enc *json.Encoder
	err error
}

// NewRecorder writes to w, from within the calls of the scheduler: a write that
// blocks holds it up.
func NewRecorder(w io.Writer) *Recorder { return &Recorder{enc: json.NewEncoder(w)} }

// WithRecorder records what the scheduler does from its beginning on.
func WithRecorder(r *Recorder) Option { return func(s *Scheduler) { s.rec = r } }

// Err is the first error of the writer. Nothing is written after it.
func (rec *Recorder) Err() error { return rec.err }

// entry is a line of a recording: an operation, or what the connector answered
// during the operation on the next lines.
type entry struct {
	Op string `json:"op"`

	// of "begin"
	Format    int          `json:"format,omitempty"`
	Scheduler *Config      `json:"scheduler,omitempty"`
	Cache     *cacheConfig `json:"cache,omitempty"`
	Connector bool         `json:"connector,omitempty"`
	Delivery  bool         `json:"delivery,omitempty"`

	// of several
	ID     RequestID `json:"id,omitempty"`
	Value  int       `json:"value,omitempty"`
	Text   string    `json:"text,omitempty"`
	Result *Result   `json:"result,omitempty"`

	Request *Request  `json:"request,omitempty"` // of "add"
	Events  []Event   `json:"events,omitempty"`  // of "deliver"
	Now     Time      `json:"now,omitempty"`     // of "plan"
	Plan    []byte    `json:"plan,omitempty"`
	Seq     uint64    `json:"seq,omitempty"` // of "apply"
	Outputs []outLine `json:"outputs,omitempty"`

	// of "answer": Text names the question
	Answer *connector.Answer `json:"answer,omitempty"`
	Hold   *holdLine         `json:"hold,omitempty"`
	Yes    bool              `json:"yes,omitempty"`
	Takes  time.Duration     `json:"takes,omitempty"`

	Agreement *Agreement `json:"agreement,omitempty"`
}

type outLine struct {
	ID      RequestID     `json:"id"`
	Tokens  []Token       `json:"tokens,omitempty"`
	Finish  FinishReason  `json:"finish,omitempty"`
	Refusal RefusalReason `json:"refusal,omitempty"`
}

type holdLine struct {
	Delay   bool          `json:"delay"`
	Timeout time.Duration `json:"timeout,omitempty"`
}

// cacheConfig is what decisions depend on of a cache's configuration.
type cacheConfig struct {
	Blocks      int                 `json:"blocks"`
	BlockSize   int                 `json:"block_size"`
	Groups      []kvcache.GroupSpec `json:"groups,omitempty"`
	Caching     kvcache.Caching     `json:"caching,omitempty"`
	MaxInFlight int                 `json:"max_in_flight,omitempty"`
	LeaseShare  float64             `json:"lease_share,omitempty"`
}

func (rec *Recorder) write(l *entry) {
	if rec.err == nil {
		rec.err = rec.enc.Encode(l)
	}
}

// begin writes the configuration and puts the recorder between the scheduler
// and its connector.
func (rec *Recorder) begin(cfg Config, s *Scheduler) {
	c := s.cache.Config()
	l := &entry{Op: "begin", Format: RecordFormat, Scheduler: &cfg, Connector: s.conn != nil, Delivery: s.dropStale, Cache: &cacheConfig{
		Blocks: c.Blocks, BlockSize: c.BlockSize, Groups: c.Groups, Caching: c.Caching, MaxInFlight: c.MaxInFlight, LeaseShare: c.LeaseShare,
	}}
	rec.write(l)
	if s.conn != nil {
		s.conn = &recordedConnector{Scheduler: s.conn, rec: rec}
	}
}

func (rec *Recorder) added(id RequestID, req Request) {
	req.Params = nil
	rec.write(&entry{Op: "add", ID: id, Request: &req})
}

func (rec *Recorder) ended(id RequestID, why FinishReason) {
	rec.write(&entry{Op: "finish", ID: id, Value: int(why)})
}

func (rec *Recorder) delivered(events []Event) {
	plain := make([]Event, len(events))
	for i, ev := range events {
		ev.Err, ev.Payload = nil, nil
		plain[i] = ev
	}
	rec.write(&entry{Op: "deliver", Events: plain})
}

func (rec *Recorder) planned(now Time, p *Plan) {
	rec.write(&entry{Op: "plan", Now: now, Plan: encodePlain(p)})
}

// encodePlain is a plan's encoding without its graph choice.
func encodePlain(p *Plan) []byte {
	plain := *p
	plain.Verdicts = nil
	plain.Graph = noDecision
	b, _ := plain.AppendBinary(nil) // never fails
	return b
}

func (rec *Recorder) applied(seq uint64, res Result, outs []Output) {
	l := &entry{Op: "apply", Seq: seq, Result: &res}
	for i := range outs {
		o := &outs[i]
		l.Outputs = append(l.Outputs, outLine{o.Request, o.Tokens, o.Finish, o.Refusal.Reason})
	}
	rec.write(l)
}

func (rec *Recorder) switched(op string, value int) { rec.write(&entry{Op: op, Value: value}) }

func (rec *Recorder) grammar(id RequestID, g GrammarState) {
	rec.write(&entry{Op: "grammar", ID: id, Value: int(g)})
}

func (rec *Recorder) agreed(a Agreement) { rec.write(&entry{Op: "agree", Agreement: &a}) }

func (rec *Recorder) turnEnded(session string, end TurnEnd) {
	rec.write(&entry{Op: "turn", Text: session, Value: int(end)})
}

// recordedConnector writes down what a connector answers.
type recordedConnector struct {
	connector.Scheduler
	rec *Recorder
}

var (
	_ connector.Scheduler  = (*recordedConnector)(nil)
	_ connector.Recovering = (*recordedConnector)(nil)
	_ connector.Tier       = (*recordedConnector)(nil)
	_ connector.Resetter   = (*recordedConnector)(nil)
)

func (c *recordedConnector) Lookup(r *connector.Request, local int) connector.Answer {
	a := c.Scheduler.Lookup(r, local)
	c.rec.write(&entry{Op: "answer", Text: "lookup", ID: r.ID, Value: local, Answer: &a})
	return a
}

func (c *recordedConnector) Preempting(r *connector.Request, t connector.Tables, computed int) bool {
	yes := c.Scheduler.Preempting(r, t, computed)
	c.rec.write(&entry{Op: "answer", Text: "preempting", ID: r.ID, Yes: yes})
	return yes
}

func (c *recordedConnector) Finished(r *connector.Request, t connector.Tables, end connector.End) connector.Hold {
	h := c.Scheduler.Finished(r, t, end)
	c.rec.write(&entry{Op: "answer", Text: "finished", ID: r.ID, Hold: &holdLine{h.Delay, h.Timeout}})
	return h
}

func (c *recordedConnector) Recovering(id RequestID) bool {
	yes := connector.HasRecovery(c.Scheduler, id)
	c.rec.write(&entry{Op: "answer", Text: "recovering", ID: id, Yes: yes})
	return yes
}

func (c *recordedConnector) Restorable(r *connector.Request, local int) (int, time.Duration) {
	n, d := connector.Restorable(c.Scheduler, r, local)
	c.rec.write(&entry{Op: "answer", Text: "restorable", ID: r.ID, Value: n, Takes: d})
	return n, d
}

func (c *recordedConnector) ResetCache() bool {
	yes := true
	if r, ok := c.Scheduler.(connector.Resetter); ok {
		yes = r.ResetCache()
	}
	c.rec.write(&entry{Op: "answer", Text: "reset", Yes: yes})
	return yes
}

// playedConnector answers what was recorded.
type playedConnector struct {
	connector.Base
	delivery bool
	answers  []*entry
	err      error
}

var (
	_ connector.Scheduler  = (*playedConnector)(nil)
	_ connector.Recovering = (*playedConnector)(nil)
	_ connector.Tier       = (*playedConnector)(nil)
	_ connector.Delivery   = (*playedConnector)(nil)
	_ connector.Resetter   = (*playedConnector)(nil)
)

// next is the answer to a question; an empty one if another was recorded.
func (c *playedConnector) next(what string, id RequestID) *entry {
	if len(c.answers) > 0 && c.answers[0].Text == what && c.answers[0].ID == id {
		l := c.answers[0]
		c.answers = c.answers[1:]
		return l
	}
	if c.err == nil {
		recorded := "nothing"
		if len(c.answers) > 0 {
			recorded = c.answers[0].Text + " of " + c.answers[0].ID.String()
		}
		c.err = fmt.Errorf("the connector is asked for %s of %s, recorded is %s", what, id, recorded)
	}
	return &entry{}
}

func (c *playedConnector) RequiresDelivery() bool { return c.delivery }

func (c *playedConnector) Lookup(r *connector.Request, _ int) connector.Answer {
	if l := c.next("lookup", r.ID); l.Answer != nil {
		return *l.Answer
	}
	return connector.Answer{}
}

func (c *playedConnector) Preempting(r *connector.Request, _ connector.Tables, _ int) bool {
	return c.next("preempting", r.ID).Yes
}

func (c *playedConnector) Finished(r *connector.Request, _ connector.Tables, _ connector.End) connector.Hold {
	if l := c.next("finished", r.ID); l.Hold != nil {
		return connector.Hold{Delay: l.Hold.Delay, Timeout: l.Hold.Timeout}
	}
	return connector.Hold{}
}

func (c *playedConnector) Recovering(id RequestID) bool { return c.next("recovering", id).Yes }

func (c *playedConnector) Restorable(r *connector.Request, _ int) (int, time.Duration) {
	l := c.next("restorable", r.ID)
	return l.Value, l.Takes
}

func (c *playedConnector) ResetCache() bool { return c.next("reset", 0).Yes }
