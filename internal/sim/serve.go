package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// wall is the virtual time as the router wants it.
func wall(t Time) time.Time { return time.Unix(0, int64(t)) }

// Run plays the whole workload and returns what happened. It is called once.
func (c *Cluster) Run() (*Result, error) {
	c.openNext()
	for c.cal.len() > 0 {
		e := c.cal.pop()
		c.sampleQueue(e.at)
		c.now = e.at
		c.events++
		var err error
		switch e.kind {
		case eventEligible:
			err = c.eligible(e.a, e.b)
		case eventArrive:
			err = c.arrive(e.a, e.b)
		case eventBack:
			err = c.prefill(e.a)
		case eventStepEnd:
			err = c.stepEnd(c.groups[e.a])
		case eventWake:
			g := c.groups[e.a]
			g.waking = false
			err = c.pump(g)
		case eventKV:
			c.kvArrived(e.a, scheduler.RequestID(e.tag), e.b)
		case eventSent:
			c.deliver(c.ranks[e.a], connector.Event{Kind: connector.Sent, Request: scheduler.RequestID(e.tag)})
		case eventDone:
			c.done(e.a)
		}
		if err != nil {
			return nil, fmt.Errorf("at %.6f s: %w", float64(c.now)/1e9, err)
		}
	}
	if c.pending > 0 {
		return nil, fmt.Errorf("at %.6f s: %d requests never ended", float64(c.now)/1e9, c.pending)
	}
	return c.finish()
}

// openNext schedules the first turn of the next session, so that the calendar
// holds one start at a time.
func (c *Cluster) openNext() {
	if c.opened < c.load.Sessions() {
		c.cal.push(c.load.Start(c.opened), eventEligible, int32(c.opened), 0, 0)
		c.opened++
	}
}

func (c *Cluster) newTurn() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	c.turns = append(c.turns, turn{})
	return int32(len(c.turns) - 1)
}

// eligible: the client has turn t of a session to send.
func (c *Cluster) eligible(s, t int32) error {
	ss := c.live[s]
	if ss == nil {
		ss = &session{key: route.KeyOf("", strconv.Itoa(int(s))), lastOn: -1}
		c.live[s] = ss
	}
	if t == 0 {
		c.openNext()
		if parent := c.load.Parent(int(s)); parent >= 0 {
			if p := c.live[int32(parent)]; p != nil {
				ss.history = append(ss.history, p.history...)
			}
		}
	}
	c.scratch = c.load.Prompt(int(s), int(t), append(c.scratch[:0], ss.history...))
	fresh := len(c.scratch) - common(ss.history, c.scratch)
	i := c.newTurn()
	tr := &c.turns[i]
	*tr = turn{on: -1, prompt: slices.Clone(c.scratch), rec: Record{Session: s, Turn: t, Eligible: c.now, Prompt: int32(len(c.scratch)), Fresh: int32(fresh)}}
	ss.history = tr.prompt
	c.pending++
	q := route.Query{HasSession: true, Session: ss.key, Bytes: 4 * len(tr.prompt), Eligible: true, FollowUp: t > 0}
	if p := c.load.Parent(int(s)); p >= 0 {
		q.HasParent, q.Parent = true, route.KeyOf("", strconv.Itoa(p))
	}
	var d route.Decision
	tr.rt, d = c.router.Begin(wall(c.now), q)
	if d.Route == route.Local {
		tr.stage = attempted
		c.send(i, c.byName[d.Target.Decoder]+int32(d.Target.Rank))
		return nil
	}
	tr.rec.Reason = string(d.Reason)
	return c.prefill(i)
}

// common is the length of the common prefix.
func common(a, b []kvcache.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// send lets a turn arrive at a rank one hop later.
func (c *Cluster) send(i, rank int32) {
	c.cal.push(c.now+Seconds(c.cfg.Hop), eventArrive, i, rank, 0)
}

// prefill sends a turn to a Prefiller.
func (c *Cluster) prefill(i int32) error {
	tr := &c.turns[i]
	name, ok := c.router.Prefiller(wall(c.now), tr.rt)
	if !ok {
		return errors.New("no prefiller is available")
	}
	tr.stage = prefilling
	c.send(i, c.byName[name])
	return nil
}

// arrive: a turn reaches an engine.
func (c *Cluster) arrive(i, on int32) error {
	tr := &c.turns[i]
	r := c.ranks[on]
	tr.on = on
	req := scheduler.Request{
		ID:        strconv.Itoa(int(tr.rec.Session)) + "." + strconv.Itoa(int(tr.rec.Turn)),
		Session:   strconv.Itoa(int(tr.rec.Session)),
		Prompt:    slices.Clip(tr.prompt),
		MaxTokens: c.load.Output(int(tr.rec.Session), int(tr.rec.Turn)),
		Arrival:   c.now,
	}
	if c.cfg.Ends == EndsAnnounced && int(tr.rec.Turn)+1 >= c.load.Turns(int(tr.rec.Session)) {
		req.TurnEnd = scheduler.EndOfSession
	}
	switch tr.stage {
	case attempted:
		if c.cfg.Local == Attempts {
			req.Route = scheduler.AppendPrefill
			req.RemoteETA = c.remoteETA(tr)
		}
		tr.kv = transfer{from: -1}
	case prefilling:
		req.MaxTokens = 1
		tr.kv = transfer{keep: true, from: -1}
		if c.cfg.Reverse == ReversePull {
			tr.kv.back = c.heldBy(tr)
		}
		c.waiting++
		r.backlog += int64(len(tr.prompt))
	case decoding:
		req.Route = scheduler.RemotePrefill
	}
	kv := tr.kv
	req.Params = &kv
	id, err := r.sched.Add(req)
	if err != nil {
		return err
	}
	tr.id = id
	r.bind(id, i)
	c.wake(r.group)
	return nil
}

// remoteETA is what the front door expects of the other route: the prompts
// that wait at the least loaded Prefiller and this one, at the measured pace of
// Prefillers, and then the time that such turns were measured to take from there
// to their first token. It is 0 until one prompt was measured.
func (c *Cluster) remoteETA(tr *turn) time.Duration {
	if c.pace == 0 {
		return 0
	}
	least := int64(1) << 62
	for _, r := range c.ranks[:c.cfg.Prefillers] {
		least = min(least, r.backlog)
	}
	return time.Duration(c.pace*float64(least+int64(len(tr.prompt))) + c.rest)
}

// heldBy is the number of tokens of a turn's prompt that the Decoder rank of
// the session's last turn still has cached.
func (c *Cluster) heldBy(tr *turn) int {
	ss := c.live[tr.rec.Session]
	if ss == nil || ss.lastOn < 0 {
		return 0
	}
	cache := c.ranks[ss.lastOn].cache
	return cache.Match(kvcache.Namespace{}, tr.prompt, len(tr.prompt)-1).Tokens
}

// wake lets a group that does not compute look at its work, once for all that
// happens at this moment.
func (c *Cluster) wake(g *group) {
	if !g.waking && (!g.busy || len(g.queue) < g.depth) {
		g.waking = true
		c.cal.push(c.now, eventWake, g.index, 0, 0)
	}
}

func (c *Cluster) deliver(r *rank, ev connector.Event) {
	r.sched.Deliver(ev)
	c.wake(r.group)
}

// kvArrived: the KV of a Decoder's request is there, and its Prefiller may let go.
func (c *Cluster) kvArrived(on int32, id scheduler.RequestID, _ int32) {
	c.deliver(c.ranks[on], connector.Event{Kind: connector.Received, Request: id})
}

// output is what one request gained.
func (c *Cluster) output(r *rank, o *scheduler.Output) error {
	i := r.turn(o.Request)
	tr := &c.turns[i]
	switch tr.stage {
	case prefilling:
		if o.Finish == scheduler.NotFinished {
			return nil
		}
		if o.Finish != scheduler.FinishLength {
			return fmt.Errorf("session %d turn %d: prefill ended as %v: %v", tr.rec.Session, tr.rec.Turn, o.Finish, o.Err)
		}
		c.result.PrefillTokens += int(tr.rec.Prompt - o.Cached)
		c.result.PrefillCalls++
		r.backlog -= int64(len(tr.prompt))
		c.measurePace(r)
		c.router.Prefilled(wall(c.now), tr.rt)
		target, ok := c.router.Decoder(wall(c.now), tr.rt)
		if !ok {
			return errors.New("no decoder is available")
		}
		tr.stage = decoding
		tr.prefilled = c.now
		tr.kv = transfer{from: r.index, id: o.Request, tokens: len(tr.prompt)}
		c.send(i, c.byName[target.Decoder]+int32(target.Rank))
		return nil
	case attempted, decoding:
	default:
		return fmt.Errorf("session %d turn %d: output for a turn that no engine has", tr.rec.Session, tr.rec.Turn)
	}
	if o.Finish == scheduler.FinishRefused {
		tr.rec.Route = Fallback
		tr.rec.Reason = o.Refusal.Reason.String()
		c.router.Missed(tr.rt)
		if o.Refusal.Reason != scheduler.Busy && o.Refusal.Reason != scheduler.Draining {
			c.router.Lost(tr.rt)
		}
		c.cal.push(c.now+Seconds(c.cfg.Hop), eventBack, i, 0, 0)
		return nil
	}
	if o.Finish == scheduler.FinishError || o.Finish == scheduler.FinishAbort {
		return fmt.Errorf("session %d turn %d: ended as %v: %v", tr.rec.Session, tr.rec.Turn, o.Finish, o.Err)
	}
	if n := len(o.Tokens); n > 0 {
		if tr.rec.Out == 0 {
			tr.rec.First = c.now + Seconds(c.cfg.Hop)
			tr.rec.Pure = -r.group.pure
			tr.rec.Cached = o.Cached + o.External
			if tr.stage == attempted {
				tr.rec.Route = Hit
			} else {
				c.measureRest(float64(tr.rec.First - tr.prefilled))
			}
			c.router.Output(wall(c.now), tr.rt)
		}
		tr.rec.Out += int32(n)
		tr.rec.Last = c.now + Seconds(c.cfg.Hop)
	}
	if o.Finish != scheduler.NotFinished {
		tr.stage = finished
		if err := c.turnEnds(r, tr); err != nil {
			return err
		}
		tr.rec.Pure += r.group.pure
		c.cal.push(c.now+Seconds(c.cfg.Hop), eventDone, i, 0, 0)
	}
	return nil
}

// turnEnds tells the scheduler what the answer says about the client's next
// turn, as an engine does.
func (c *Cluster) turnEnds(r *rank, tr *turn) error {
	w, ok := c.load.(ToolCaller)
	if !ok || !w.InTool(int(tr.rec.Session), int(tr.rec.Turn)) {
		return nil
	}
	if c.cfg.Ends == EndsAnnounced && int(tr.rec.Turn)+1 >= c.load.Turns(int(tr.rec.Session)) {
		return nil // the request said more
	}
	err := r.sched.EndTurn(strconv.Itoa(int(tr.rec.Session)), scheduler.EndInTool)
	if errors.Is(err, scheduler.ErrUnknown) { // forgotten already
		return nil
	}
	return err
}

// measurePace follows the time per token of steps at Prefillers.
func (c *Cluster) measurePace(r *rank) {
	s := r.group.last
	if s.tokens == 0 {
		return
	}
	now := s.seconds * 1e9 / float64(s.tokens)
	if c.pace == 0 {
		c.pace = now
	}
	c.pace += (now - c.pace) / 16
}

// measureRest follows the time from the end of a prompt at a Prefiller to the
// first token at the client.
func (c *Cluster) measureRest(ns float64) {
	if c.rest == 0 {
		c.rest = ns
	}
	c.rest += (ns - c.rest) / 16
}

// done: the client has the whole answer.
func (c *Cluster) done(i int32) {
	tr := &c.turns[i]
	s, t := tr.rec.Session, int(tr.rec.Turn)
	ss := c.live[s]
	ss.lastOn = tr.on
	last := t+1 >= c.load.Turns(int(s))
	c.router.Finish(wall(c.now), tr.rt, route.Outcome{
		Result: route.Completed, PromptTokens: len(tr.prompt), CachedTokens: int(tr.rec.Cached), OutputTokens: int(tr.rec.Out),
		End: last && c.cfg.Ends == EndsAnnounced,
	})
	c.result.add(tr.rec)
	c.pending--
	if last {
		delete(c.live, s)
	} else {
		ss.history = slices.Clip(ss.history)
		for k := range tr.rec.Out {
			ss.history = append(ss.history, c.load.Answer(int(s), t, int(k)))
		}
		c.cal.push(c.now+c.load.Think(int(s), t), eventEligible, s, int32(t+1), 0)
	}
	*tr = turn{}
	c.free = append(c.free, i)
}

// sampleQueue notes the queue's length up to a moment.
func (c *Cluster) sampleQueue(at Time) {
	if c.cfg.Window == 0 || c.now <= Seconds(c.cfg.Window) {
		c.result.QueuePeak = max(c.result.QueuePeak, c.waiting)
	}
	if c.cfg.Sample == 0 {
		return
	}
	for step := Seconds(c.cfg.Sample); c.sampled <= at; c.sampled += step {
		c.result.Queue = append(c.result.Queue, int32(c.waiting))
	}
}

// finish checks that nothing is left behind and closes the result.
func (c *Cluster) finish() (*Result, error) {
	for _, r := range c.ranks {
		if held := r.cache.Usable() - r.cache.Available(); held != 0 {
			return nil, fmt.Errorf("rank %d holds %d blocks after the last request", r.index, held)
		}
	}
	for _, g := range c.groups {
		if g.prefix == "d" {
			c.result.Decode.merge(g.stats)
		} else {
			c.result.Prefill.merge(g.stats)
		}
	}
	c.result.Events = c.events
	return &c.result, nil
}
