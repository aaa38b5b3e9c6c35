package server

import (
	"errors"
	"slices"
	"strconv"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// alternatives are the log probabilities that a request asks for.
type alternatives struct {
	on    bool
	top   int    // most likely tokens beside the one that was chosen
	param string // the member that says so

	prompt *int // the same of the prompt's tokens; nil: none
}

// sampling reads how a request's tokens are chosen. What it does not name is
// what the model's defaults say.
func (s *Server) sampling(q *openai.Sampling, a alternatives) (sample.Params, *openai.Error) {
	for param, v := range map[string]*float64{"top_p": q.TopP, "repetition_penalty": q.RepetitionPenalty} {
		if v != nil && *v == 0 {
			return sample.Params{}, openai.BadRequest(param, "%s is 0, must be above 0", param)
		}
	}
	p := s.engine.Defaults().With(sample.Defaults{
		Temperature: q.Temperature, TopK: q.TopK, TopP: q.TopP, MinP: q.MinP, Repetition: q.RepetitionPenalty,
	}).Params()
	if q.PresencePenalty != nil {
		p.Presence = *q.PresencePenalty
	}
	if q.FrequencyPenalty != nil {
		p.Frequency = *q.FrequencyPenalty
	}
	p.Logprobs, p.Top = a.on, a.top
	if a.prompt != nil {
		p.Prompt, p.PromptTop = true, *a.prompt
	}
	for key, v := range q.LogitBias {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return p, openai.BadRequest("logit_bias", "logit_bias has the member %q, which is no token id", key)
		}
		p.Bias = append(p.Bias, sample.Bias{Token: scheduler.Token(id), Value: v})
	}
	slices.SortFunc(p.Bias, func(a, b sample.Bias) int { return int(a.Token) - int(b.Token) })
	p.Seed = engine.RandomSeed()
	if q.Seed != nil {
		p.Seed = uint64(*q.Seed)
	}
	var wrong *sample.RangeError
	if err := p.Validate(s.engine.Vocab()); errors.As(err, &wrong) {
		if wrong.Field == "logprobs" {
			wrong.Field = a.param
		}
		return p, openai.BadRequest(wrong.Field, "%v", wrong)
	}
	return p, nil
}
