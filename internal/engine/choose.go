package engine

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/scheduler"
)

var _ executor.Sampler = (*rank)(nil)

// OnHost reports whether a token of a request is chosen from its logits here.
func (r *rank) OnHost(id scheduler.RequestID, n int) bool {
	s := r.streams[id]
	return s != nil && s.sampler.OnHost(n)
}

// Choose gives a token of a request for its logits; of a request that has ended,
// any.
func (r *rank) Choose(id scheduler.RequestID, n int, logits []float32) scheduler.Token {
	s := r.streams[id]
	if s == nil {
		return 0
	}
	return s.sampler.Choose(n, logits)
}

// samplerOf makes the sampler of a request.
func (e *Engine) samplerOf(req *Request) *sample.Sampler {
	p := req.Sampling
	p.MinTokens, p.Ends = req.MinTokens, req.StopIDs
	if !req.IgnoreEOS {
		p.Ends = append(p.Ends[:len(p.Ends):len(p.Ends)], e.model.eos...)
	}
	return sample.New(p, req.Prompt)
}

// RandomSeed is a seed for a request that names none.
func RandomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Defaults are the sampling parameters of requests that name none: the model's,
// and what Config.Generation changes of them.
func (e *Engine) Defaults() sample.Defaults { return e.model.defaults.With(e.cfg.Generation) }
