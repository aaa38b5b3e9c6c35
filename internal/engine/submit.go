package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Submit takes a request in. The stream is the caller's to read to its end or
// to cancel. Errors: ErrQueueFull, ErrDraining, ErrClosed, *InvalidError.
func (e *Engine) Submit(ctx context.Context, req Request) (_ *Stream, err error) {
	r, err := e.pick(req.Rank)
	if err != nil {
		return nil, err
	}
	params, err := r.params(req.Params)
	if err != nil {
		return nil, &InvalidError{Param: "kv_transfer_params", Reason: err.Error()}
	}
	if req.Sampling.Prompt && params.remote { // the KV would come without the logits
		r.drop(params)
		params = transferParams{}
		req.Threshold = new(float64)
	}
	route := scheduler.Local
	switch {
	case params.remote:
		route = scheduler.RemotePrefill
	case req.Append && e.cfg.appendPrefill(): // with the switch off it is an ordinary request
		route = scheduler.AppendPrefill
		r.metrics.counter(r.metrics.m.attempts).Inc()
		defer func() {
			if err != nil {
				r.turnedAway(&req, err)
			}
		}()
	}
	threshold := e.cfg.CacheHitThreshold
	if req.Threshold != nil {
		threshold = *req.Threshold
	}
	if params.forPeer { // a prefiller computes what nobody has cached
		threshold = 0
	}
	if err := e.Err(); err != nil {
		r.drop(params)
		return nil, err
	}
	if r.live.Add(1) > int64(e.cfg.MaxQueue) {
		r.live.Add(-1)
		r.drop(params)
		return nil, ErrQueueFull
	}
	sreq := scheduler.Request{
		ID: req.ID + "-" + strconv.FormatUint(r.serial.Add(1), 36), Prompt: req.Prompt, Route: route,
		Namespace: kvcache.Namespace{Salt: req.Salt}, Session: req.Session, Params: params.value,
		MaxTokens: req.MaxTokens, MinTokens: req.MinTokens, StopIDs: req.StopIDs, Priority: req.Priority,
		Arrival:           scheduler.At(time.Now()),
		CacheHitThreshold: threshold, RemoteETA: params.eta, SkipCacheRead: req.Sampling.Prompt,
	}
	if req.EndSession { // known before its last turn ends, a session leaves nothing that anybody waits for
		sreq.TurnEnd = scheduler.EndOfSession
	}
	if !req.IgnoreEOS {
		sreq.EOS = e.model.eos
	}
	s := newStream(r, req, e.samplerOf(&req))
	s.route = route
	var added error
	if err := r.call(context.WithoutCancel(ctx), func() { added = r.add(s, sreq) }); err != nil {
		r.live.Add(-1)
		return nil, err
	}
	if added != nil {
		r.drop(params)
		return nil, invalid(added)
	}
	return s, nil
}

// invalid turns the scheduler's refusal of a request into the caller's terms.
func invalid(err error) error {
	var field *scheduler.RequestError
	var long *scheduler.TooLongError
	var never *scheduler.NeverFitsError
	switch {
	case errors.As(err, &field):
		return &InvalidError{Param: field.Field, Reason: field.Reason}
	case errors.As(err, &long), errors.As(err, &never):
		return &InvalidError{Param: "prompt", Reason: err.Error()}
	}
	return err
}

// pick chooses the rank of a request.
func (e *Engine) pick(rank int) (*rank, error) {
	if rank != AnyRank {
		if rank < 0 || rank >= len(e.ranks) {
			return nil, &InvalidError{Param: "X-data-parallel-rank", Reason: fmt.Sprintf("rank %d does not exist; this engine has %d", rank, len(e.ranks))}
		}
		return e.ranks[rank], nil
	}
	best := e.ranks[0]
	for _, r := range e.ranks[1:] {
		if r.live.Load() < best.live.Load() {
			best = r
		}
	}
	return best, nil
}
