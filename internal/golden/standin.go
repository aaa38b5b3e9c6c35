package golden

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/scheduler"
)

// standIn is the connector that the histories were recorded with: what it
// answers is a function of the request's kv fields alone.
type standIn struct {
	connector.Base
	state map[scheduler.RequestID]*loadable
}

type loadable struct {
	kv      KV
	lookups int
	used    bool
}

func newStandIn() *standIn { return &standIn{state: map[scheduler.RequestID]*loadable{}} }

var _ connector.Scheduler = (*standIn)(nil)

func (c *standIn) Added(r *connector.Request) {
	kv, _ := connector.ParamsOf[KV](r)
	c.state[r.ID] = &loadable{kv: kv}
}

func (c *standIn) Lookup(r *connector.Request, local int) connector.Answer {
	l := c.state[r.ID]
	l.lookups++
	if l.lookups <= l.kv.Unknown {
		return connector.Answer{Pending: true}
	}
	if l.used && (l.kv.Once == nil || *l.kv.Once) {
		return connector.Answer{}
	}
	n := max(0, l.kv.Remote-local)
	if l.kv.Mode == "sync" {
		return connector.Answer{Tokens: min(n, len(r.Tokens)-1-local)}
	}
	return connector.Answer{Tokens: n, Async: true}
}

func (c *standIn) Allocated(r *connector.Request, _ connector.Tables, _, external int) {
	if external > 0 {
		c.state[r.ID].used = true
	}
}

func (c *standIn) Finished(r *connector.Request, _ connector.Tables, end connector.End) connector.Hold {
	return connector.Hold{Delay: c.state[r.ID].kv.Send && end.Reason.Complete()}
}
