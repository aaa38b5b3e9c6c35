package sim

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/scheduler"
)

// What clients do about failures. The front door does what route's defaults say.
const (
	maxTries = 30 // times that a client asks for the same turn
	maxPause = 8  // seconds: it waits 1, 2, 4, 8, 8, … in between
)

// failure says how a leg of a turn failed.
type failure uint8

const (
	unfailed  failure = iota // it did not, or the attempt was refused
	broken                   // its instance ended before any output
	unreached                // its instance was not there
)

// inject begins a fault, or ends it.
func (c *Cluster) inject(f Fault, ends bool) error {
	if !ends && !c.faulted {
		c.faulted = true
		for i := range c.turns {
			if c.turns[i].rt != nil {
				c.turns[i].rec.Phase = AcrossFault
			}
		}
	}
	for _, g := range c.groups {
		if g.prefix != map[FaultKind]string{DecoderRestart: "d", PrefillerLoss: "p"}[f.Kind] || g.instance != f.Instance {
			continue
		}
		if ends {
			for _, r := range g.ranks {
				r.down--
			}
			continue
		}
		if err := c.die(g); err != nil {
			return err
		}
	}
	return nil
}

// die ends the ranks of a group: what they hold is gone, and so is what they
// were asked for. The next life begins empty.
func (c *Cluster) die(g *group) error {
	for _, r := range g.ranks {
		for _, o := range r.owners {
			if o.id != 0 {
				c.lose(o.turn)
			}
		}
		late := make([]scheduler.RequestID, 0, len(r.late))
		for id := range r.late {
			late = append(late, id)
		}
		slices.Sort(late)
		for _, id := range late {
			c.lose(r.late[id])
		}
		cfg := c.cfg.Decode
		if g.prefix == "p" {
			cfg = c.cfg.Prefill
		}
		next, err := newRank(r.index, cfg)
		if err != nil {
			return err
		}
		next.group, next.name, next.dp, next.steps = r.group, r.name, r.dp, r.steps
		next.life, next.down = r.life+1, r.down+1
		*r = *next
	}
	g.life++
	g.queue, g.free, g.busy, g.waking, g.wakeAt = nil, nil, false, false, -1
	if g.pace.runs {
		g.computed += c.now - g.pace.begun
		g.pace.runs = false
	}
	c.repace()
	return nil
}

// lose ends the leg of a turn whose rank has just ended.
func (c *Cluster) lose(i int32) {
	tr := &c.turns[i]
	if tr.stage == prefilling && !tr.begun {
		c.waiting--
	}
	if tr.rec.Out > 0 {
		c.result.Faults.Cut++
		c.tell(i, broken)
		return
	}
	c.result.Faults.Broken++
	tr.failure = broken
	c.cal.push(c.now+Seconds(c.cfg.Hop), eventBack, i, 0, 0)
}

// tell lets the client of a turn know that there is no answer, or no more of it.
func (c *Cluster) tell(i int32, f failure) {
	c.turns[i].failure = f
	c.cal.push(c.now+Seconds(c.cfg.Hop), eventFailed, i, 0, 0)
}

// leg is the kind of a turn's leg.
func (s stage) leg() route.Leg {
	return map[stage]route.Leg{attempted: route.LegLocal, prefilling: route.LegPrefill, decoding: route.LegDecode}[s]
}

// learnFailure tells the router about a leg that failed.
func (c *Cluster) learnFailure(tr *turn) {
	name, leg := c.ranks[tr.on].name, tr.stage.leg()
	c.router.LegDone(wall(c.now), leg, name, route.LegFailed)
	if leg != route.LegPrefill {
		c.router.Unreachable(name)
	}
}

// learnAnswer tells it about one that was answered, and by which life.
func (c *Cluster) learnAnswer(tr *turn, r *rank) {
	leg := tr.stage.leg()
	c.router.LegDone(wall(c.now), leg, r.name, route.LegOK)
	if leg != route.LegPrefill {
		c.router.Observe(r.name, route.Rank(r.dp), strconv.Itoa(int(r.life)))
	}
}

// back: the front door learns how a leg without output ended, and goes on as
// the proxy does.
func (c *Cluster) back(i int32) error {
	tr := &c.turns[i]
	f := tr.failure
	tr.failure = unfailed
	if f == unfailed { // a refusal
		return c.round(i)
	}
	c.learnFailure(tr)
	name := c.ranks[tr.on].name
	switch tr.stage {
	case attempted:
		tr.rec.Route, tr.rec.Reason = Fallback, "error:connection"
		c.router.Missed(tr.rt)
		return c.round(i)
	case prefilling:
		c.router.Exclude(tr.rt, name)
	case decoding:
		c.router.Exclude(tr.rt, name)
		if f == unreached { // the KV waits still: another Decoder can have it
			if target, ok := c.router.Decoder(wall(c.now), tr.rt); ok {
				c.send(i, c.byName[target.Decoder]+int32(target.Rank))
				return nil
			}
		}
		c.letGo(tr)
	default:
		return fmt.Errorf("session %d turn %d: a failure for a turn that no engine has", tr.rec.Session, tr.rec.Turn)
	}
	if tr.rounds >= route.DefaultRounds {
		c.tell(i, unfailed)
		return nil
	}
	c.cal.push(c.now+Time(route.RetryDelay(route.DefaultRetryDelay, tr.rounds)), eventRound, i, 0, 0)
	return nil
}

// letGo ends the wait of a Prefiller for a Decoder that will not ask for a
// turn's KV, when its lease has run out.
func (c *Cluster) letGo(tr *turn) {
	if tr.kv.from >= 0 && !(tr.asked != nil && tr.asked.used) {
		c.cal.push(c.now+Time(connector.DefaultLease), eventSent, tr.kv.from, int32(tr.kv.life), uint64(tr.kv.id))
	}
}

// failed: the client learns that its turn has no answer, or only a part of one.
func (c *Cluster) failed(i int32) {
	tr := &c.turns[i]
	if tr.failure == broken { // in the middle of the answer
		c.learnFailure(tr)
		if tr.stage == decoding {
			c.letGo(tr)
		}
	}
	c.router.Finish(wall(c.now), tr.rt, route.Outcome{Result: route.Failed})
	rec := &tr.rec
	c.result.Faults.LostTokens += int(rec.Out)
	*rec = Record{Session: rec.Session, Turn: rec.Turn, Phase: rec.Phase, Eligible: rec.Eligible, Prompt: rec.Prompt, Fresh: rec.Fresh, Tries: rec.Tries}
	tr.failure, tr.stage, tr.on, tr.rounds = unfailed, atClient, -1, 0
	if rec.Tries < maxTries {
		c.result.Faults.Again++
		c.cal.push(c.now+Seconds(min(float64(int(1)<<min(rec.Tries-1, 10)), maxPause)), eventAgain, i, 0, 0)
		return
	}
	rec.Failed = true
	c.result.Faults.GivenUp++
	c.result.Faults.NotSent += c.load.Turns(int(rec.Session)) - int(rec.Turn) - 1
	c.ended(*rec)
	delete(c.live, rec.Session)
	c.release(i)
}

// sourceGone reports whether the KV that a turn's rank waits for cannot come,
// because the instance that had it has ended since.
func (c *Cluster) sourceGone(t *transfer) bool {
	return t.from >= 0 && c.ranks[t.from].life != t.life || t.back > 0 && c.ranks[t.backOn].life != t.backLife
}

// kvArrived: the KV of a rank's request is there, or will not come.
func (c *Cluster) kvArrived(on int32, id scheduler.RequestID) {
	r := c.ranks[on]
	if c.sourceGone(&c.turns[r.turn(id)].kv) {
		c.result.Faults.LostKV++
		c.deliver(r, connector.Event{Kind: connector.Failed, Request: id})
	}
	c.deliver(r, connector.Event{Kind: connector.Received, Request: id})
}

// remoteETA is what the front door expects of the other route: the prompts
// that wait at the least loaded Prefiller and this one, at the measured pace of
// Prefillers, and then the time that such turns were measured to take from there
// to their first token. It is 0 until one prompt was measured, and where no
// Prefiller is left.
func (c *Cluster) remoteETA(tr *turn) time.Duration {
	if c.pace == 0 {
		return 0
	}
	least := int64(-1)
	for _, r := range c.ranks[:c.cfg.Prefillers] {
		if r.down == 0 && (least < 0 || r.backlog < least) {
			least = r.backlog
		}
	}
	if least < 0 {
		return 0
	}
	return time.Duration(c.pace*float64(least+int64(len(tr.prompt))) + c.rest)
}
