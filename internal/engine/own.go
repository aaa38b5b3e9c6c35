package engine

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Scheduler is what a rank drives, on one goroutine; the methods are those of
// [scheduler.Scheduler]. A caller's own embeds that one and decides some of it
// otherwise.
type Scheduler interface {
	Add(scheduler.Request) (scheduler.RequestID, error)
	Abort(scheduler.RequestID) error
	FinishWith(scheduler.RequestID, scheduler.FinishReason) (any, error)
	Deliver(...connector.Event)
	Plan(scheduler.Time) *scheduler.Plan
	Apply(*scheduler.Plan, scheduler.Result) ([]scheduler.Output, error)
	NextDeadline() (scheduler.Time, bool)

	EndTurn(session string, end scheduler.TurnEnd) error
	LeasedUntil(session string) (until scheduler.Time, tokens int)
	ResetCache(scheduler.Reset) error
	TakeEvents([]kvcache.Event) []kvcache.Event
	Drain()

	Config() scheduler.Config
	MaxLen() int
	Stats() scheduler.Stats
	Unfinished() int
}

var _ Scheduler = (*scheduler.Scheduler)(nil)
