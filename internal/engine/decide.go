package engine

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sluice-serving/sluice/scheduler"
)

// decided writes one line per append attempt that was admitted or refused: what
// was looked at, the rule that decided, and the verdict. Within a plan.
func (r *rank) decided(d scheduler.AppendDecision) {
	ctx := context.Background()
	if !r.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	name := d.ID
	if s := r.streams[d.Request]; s != nil {
		name = s.req.TraceID
	}
	r.log.LogAttrs(ctx, slog.LevelDebug, "append attempt",
		slog.String("request", name), slog.String("rule", d.Rule.String()), slog.String("verdict", d.Verdict.String()), slog.String("reason", d.Reason.String()),
		slog.Int("prompt_tokens", int(d.PromptTokens)), slog.Int("cached_tokens", int(d.CachedTokens)), slog.Int("restorable_tokens", int(d.RestorableTokens)),
		slog.Duration("local_eta", d.LocalETA), slog.Duration("remote_eta", d.RemoteETA), slog.Duration("waited", d.Waited), slog.Int("running", d.Running))
}

// turnedAway counts an append attempt that does not reach the scheduler. May be
// called from any goroutine.
func (r *rank) turnedAway(req *Request, err error) {
	if !errors.Is(err, ErrDraining) {
		r.metrics.counter(r.metrics.m.appends, "gone", "").Inc()
		return
	}
	r.metrics.counter(r.metrics.m.appends, "refused", scheduler.Draining.String()).Inc()
	r.log.LogAttrs(context.Background(), slog.LevelDebug, "append attempt",
		slog.String("request", req.TraceID), slog.String("rule", "draining"), slog.String("verdict", scheduler.AppendRefuse.String()),
		slog.String("reason", scheduler.Draining.String()), slog.Int("prompt_tokens", len(req.Prompt)))
}
