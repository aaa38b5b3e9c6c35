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

// Run plays the whole workload and returns what happened. It is called once. A
// fault that comes after the last turn is an error: the run was not the one that was asked for.
func (c *Cluster) Run() (*Result, error) {
	for i, f := range c.cfg.Faults {
		c.cal.push(Seconds(f.At), eventFault, int32(i), 0, 0)
		if f.For > 0 {
			c.cal.push(Seconds(f.At+f.For), eventFault, int32(i), 1, 0)
		}
	}
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
			err = c.back(e.a)
		case eventStepStart:
			if g := c.groups[e.a]; g.life == e.b {
				c.compute(g)
			}
		case eventStepEnd:
			if g := c.groups[e.a]; g.life == e.b && g.pace.version == e.tag {
				err = c.stepEnd(g)
			}
		case eventPace:
			c.repace()
		case eventWake:
			if g := c.groups[e.a]; g.life == e.b {
				g.waking = false
				err = c.pump(g)
			}
		case eventKV:
			if int32(c.ranks[e.a].life) == e.b {
				c.kvArrived(e.a, scheduler.RequestID(e.tag))
			}
		case eventCopied:
			if r := c.ranks[e.a]; int32(r.life) == e.b && r.link.host.way.version == e.tag {
				c.copied(r)
			}
		case eventSent:
			if r := c.ranks[e.a]; int32(r.life) == e.b {
				c.deliver(r, connector.Event{Kind: connector.Sent, Request: scheduler.RequestID(e.tag)})
			}
		case eventDone:
			c.done(e.a)
		case eventRound:
			err = c.round(e.a)
		case eventFailed:
			c.failed(e.a)
		case eventAgain:
			err = c.begin(e.a)
		case eventFault:
			err = c.inject(c.cfg.Faults[e.a], e.b == 1)
		}
		if err != nil {
			return nil, fmt.Errorf("at %.6f s: %w", float64(c.now)/1e9, err)
		}
	}
	if c.pending > 0 {
		return nil, fmt.Errorf("at %.6f s: %d requests never ended", float64(c.now)/1e9, c.pending)
	}
	for _, f := range c.cfg.Faults {
		if Seconds(f.At) >= c.ends {
			return nil, fmt.Errorf("fault %v: the run ended before it, at %.3f s", f, float64(c.ends)/1e9)
		}
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
		ss = &session{key: route.KeyOf("", strconv.Itoa(int(s))), lastOn: -1, met: c.faulted}
		c.live[s] = ss
		c.result.LivePeak = max(c.result.LivePeak, len(c.live))
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
	if c.faulted {
		tr.rec.Phase = AfterFault
		if !ss.met {
			ss.met, tr.rec.Phase = true, AcrossFault
		}
	}
	ss.history = tr.prompt
	c.pending++
	return c.begin(i)
}

// begin: the front door gets a turn, for the first time or again.
func (c *Cluster) begin(i int32) error {
	tr := &c.turns[i]
	s, t := tr.rec.Session, tr.rec.Turn
	ss := c.live[s]
	tr.rec.Tries++
	q := route.Query{HasSession: true, Session: ss.key, Bytes: 4 * len(tr.prompt), Eligible: true, FollowUp: t > 0}
	if p := c.load.Parent(int(s)); p >= 0 {
		q.HasParent, q.Parent = true, route.KeyOf("", strconv.Itoa(p))
	}
	var d route.Decision
	tr.rt, d = c.router.Begin(wall(c.now), q)
	if d.Route == route.Local {
		tr.stage = attempted
		c.cal.push(c.now+Seconds(c.cfg.Hop+c.cfg.Attempt), eventArrive, i, c.byName[d.Target.Decoder]+int32(d.Target.Rank), 0)
		return nil
	}
	tr.rec.Reason = string(d.Reason)
	return c.round(i)
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

// round begins a P/D round of a turn: it sends it to a Prefiller.
func (c *Cluster) round(i int32) error {
	tr := &c.turns[i]
	name, ok := c.router.Prefiller(wall(c.now), tr.rt)
	if !ok {
		c.tell(i, unfailed)
		return nil
	}
	tr.stage = prefilling
	tr.begun = false
	tr.rounds++
	c.send(i, c.byName[name])
	return nil
}

// arrive: a turn reaches an engine.
func (c *Cluster) arrive(i, on int32) error {
	tr := &c.turns[i]
	r := c.ranks[on]
	tr.on = on
	if r.down > 0 {
		c.result.Faults.Unreached++
		tr.failure = unreached
		c.cal.push(c.now+Seconds(c.cfg.Hop), eventBack, i, 0, 0)
		return nil
	}
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
			tr.kv.back, tr.kv.backOn = c.heldBy(tr)
			tr.kv.backLife = c.ranks[tr.kv.backOn].life
		}
		c.waiting++
		r.backlog += int64(len(tr.prompt))
	case decoding:
		req.Route = scheduler.RemotePrefill
	}
	if tr.legs++; tr.rec.Tries > 1 || tr.rounds > 1 { // an engine may still hold what an earlier leg left there
		req.ID += "." + strconv.Itoa(tr.legs)
	}
	kv := tr.kv
	req.Params, tr.asked = &kv, &kv
	id, err := r.sched.Add(req)
	if err != nil {
		return err
	}
	tr.id = id
	r.bind(id, i)
	c.wake(r.group)
	return nil
}

// heldBy is the number of tokens of a turn's prompt that the Decoder rank of
// the session's last turn still has cached, and that rank.
func (c *Cluster) heldBy(tr *turn) (tokens int, on int32) {
	ss := c.live[tr.rec.Session]
	if ss == nil || ss.lastOn < 0 {
		return 0, 0
	}
	r := c.ranks[ss.lastOn]
	if r.down > 0 {
		return 0, 0
	}
	return r.cache.Match(kvcache.Namespace{}, tr.prompt, len(tr.prompt)-1).Tokens, ss.lastOn
}

// wake lets a group that does not compute look at its work, once for all that
// happens at this moment.
func (c *Cluster) wake(g *group) {
	if !g.waking && (!g.busy || len(g.queue) < g.depth) {
		g.waking = true
		c.cal.push(c.now, eventWake, g.index, g.life, 0)
	}
}

func (c *Cluster) deliver(r *rank, ev connector.Event) {
	r.sched.Deliver(ev)
	c.wake(r.group)
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
		c.learnAnswer(tr, r)
		c.router.Prefilled(wall(c.now), tr.rt)
		tr.stage, tr.asked = decoding, nil
		tr.prefilled = c.now
		tr.kv = transfer{from: r.index, life: r.life, id: o.Request, tokens: len(tr.prompt)}
		target, ok := c.router.Decoder(wall(c.now), tr.rt)
		if !ok {
			c.letGo(tr)
			c.tell(i, unfailed)
			return nil
		}
		c.send(i, c.byName[target.Decoder]+int32(target.Rank))
		return nil
	case attempted, decoding:
	default:
		return fmt.Errorf("session %d turn %d: output for a turn that no engine has", tr.rec.Session, tr.rec.Turn)
	}
	if o.Finish == scheduler.FinishRefused {
		tr.rec.Route = Fallback
		tr.rec.Reason = o.Refusal.Reason.String()
		c.learnAnswer(tr, r)
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
			tr.rec.First = c.now + Seconds(c.cfg.Hop+c.cfg.Late)
			tr.rec.Pure = -r.group.pure
			tr.rec.Cached = o.Cached + o.External
			if tr.stage == attempted {
				tr.rec.Route = Hit
			} else {
				c.measureRest(float64(tr.rec.First - tr.prefilled))
			}
			c.learnAnswer(tr, r)
			c.router.Output(wall(c.now), tr.rt)
		}
		last := max(c.now+Seconds(c.cfg.Hop), tr.rec.First)
		if c.cfg.Gaps {
			beside := c.prompting()
			if tr.rec.Out > 0 {
				c.result.Gaps = append(c.result.Gaps, Gap{float64(last-tr.rec.Last) / 1e9, float64(beside-tr.beside) / 1e9})
			}
			tr.beside = beside
		}
		tr.rec.Out += int32(n)
		tr.rec.Last = last
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
	if c.tools == nil || !c.tools.InTool(int(tr.rec.Session), int(tr.rec.Turn)) {
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
	c.ended(tr.rec)
	if last {
		delete(c.live, s)
	} else {
		ss.history = slices.Clip(ss.history)
		for k := range tr.rec.Out {
			ss.history = append(ss.history, c.load.Answer(int(s), t, int(k)))
		}
		c.cal.push(c.now+c.load.Think(int(s), t), eventEligible, s, int32(t+1), 0)
	}
	c.release(i)
}

// release ends a turn.
func (c *Cluster) release(i int32) {
	c.pending--
	c.ends = c.now
	c.turns[i] = turn{}
	c.free = append(c.free, i)
}
