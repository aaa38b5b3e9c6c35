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

var _ executor.Scorer = (*rank)(nil)

// Scored is how many positions of a request's prompt are read.
func (r *rank) Scored(id scheduler.RequestID) int {
	if s := r.streams[id]; s != nil {
		return s.sampler.Scored()
	}
	return 0
}

// Score takes the logits of one of them.
func (r *rank) Score(id scheduler.RequestID, pos int, logits []float32) {
	if s := r.streams[id]; !s.sampler.Score(pos, logits) {
		s.noNumber.Store(true)
		r.noNumber.Store(true)
	}
}

// scores takes those of a prompt with the first token behind it.
func (r *rank) scores(s *Stream, o *scheduler.Output) []sample.Score {
	if !s.req.Sampling.Prompt || s.count > 0 || len(o.Tokens) == 0 {
		return nil
	}
	scores, err := s.sampler.TakeScores()
	if err != nil { // a fault of this engine: better no answer than half of one
		r.log.Error("log probabilities of a prompt", "request", s.req.TraceID, "error", err)
		s.fail(err)
	}
	return scores
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
