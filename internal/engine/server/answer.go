package server

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// answer follows the stream of one choice.
type answer struct {
	index  int
	stream *engine.Stream
	prompt []scheduler.Token // given back where the request asks for ids
	text   text
	calls  *toolCalls // nil: tool calls are text

	alone  bool           // the prompt's echo is all of it: its one token is not
	begun  bool           // it has a token
	scores []sample.Score // of the prompt's tokens, where they are asked for; with the first piece

	output  int    // tokens of the answer
	offset  int    // characters of the answer whose log probabilities are out
	cached  int    // tokens of the prompt that were not computed
	seen    counts // as of the last piece that was used
	done    bool
	finish  string
	stop    any // nil, a token id or a string
	refusal scheduler.Refusal
	params  any
	kept    int       // tokens that stay cached
	until   time.Time // as long as that is promised; zero if it is not
	err     error
}

// counts are the numbers of an answer that usage reports.
type counts struct{ output, cached int }

// piece is what one look at a stream adds to a choice.
type piece struct {
	of     *answer
	text   string
	calls  []openai.ToolCall
	tokens []scheduler.Token
	probs  []sample.Logprobs // of tokens, where they are asked for
}

// next waits for more. After the last piece done is set; err of the answer is
// set if the engine failed it. The error of next is that of ctx.
func (a *answer) next(ctx context.Context) (piece, error) {
	p, err := a.read(ctx)
	if err != nil || a.calls == nil {
		return p, err
	}
	p.text, p.calls = a.calls.push(p.text)
	if a.done {
		text, calls := a.calls.flush()
		p.text += text
		p.calls = append(p.calls, calls...)
		if a.calls.found > 0 && a.finish == openai.FinishStop {
			a.finish = openai.FinishToolCalls
			if a.until, err = a.stream.EndInTool(ctx); err != nil && !errors.Is(err, engine.ErrClosed) {
				return p, err
			}
		}
	}
	return p, nil
}

// read is next with tool calls still in the text.
func (a *answer) read(ctx context.Context) (piece, error) {
	p := piece{of: a}
	for {
		d, err := a.stream.Next(ctx)
		if err != nil {
			return p, err
		}
		a.cached = d.Cached + d.External
		a.begun = a.begun || len(d.Tokens) > 0
		if d.Scores != nil {
			a.scores = d.Scores
		}
		if a.alone {
			d.Tokens, d.Logprobs = nil, nil
		}
		if a.finish == "" {
			text, used, hit := a.text.push(d.Tokens)
			p.text += text
			p.tokens = append(p.tokens, d.Tokens[:used]...)
			p.probs = append(p.probs, d.Logprobs[:min(used, len(d.Logprobs))]...)
			a.output += used
			if hit != "" {
				a.finish, a.stop = openai.FinishStop, hit
				a.stream.Finish()
			}
		}
		if d.Finish != scheduler.NotFinished {
			p.text += a.end(d)
			return p, nil
		}
		if a.finish == "" {
			return p, nil
		}
		// The stop string is found; what follows is only the end of the stream.
	}
}

// end takes the last delta in and returns the text that was still held.
func (a *answer) end(d engine.Delta) string {
	a.done, a.params, a.kept, a.until, a.refusal = true, d.Params, d.Resident, d.ResidentUntil, d.Refusal
	if a.finish != "" {
		return "" // by a stop string
	}
	a.finish = d.Finish.String()
	switch {
	case d.Finish == scheduler.FinishError:
		a.err = d.Err
		if a.err == nil {
			a.err = errors.New("the request failed")
		}
	case d.Finish == scheduler.FinishRefused && d.Refusal.Reason == scheduler.BelowThreshold:
		a.finish = openai.FinishCacheThreshold
	case d.Finish == scheduler.FinishRefused:
		a.stop = openai.TypeAppendPrefillMiss
	case d.Finish == scheduler.FinishRecomputed:
		a.stop = openai.StopRecomputed
	case d.Finish == scheduler.FinishRepetition:
		a.stop = "repetition_detected"
	case a.alone && a.begun: // by whatever the token was
		a.finish = openai.FinishLength
	case d.Stop == scheduler.StopID:
		a.stop = int32(d.StopToken)
	}
	return a.text.flush()
}

// refused reports whether the choice is a refused append attempt that the
// client is told by a status.
func (a *answer) refused() bool {
	return a.done && a.refusal.Reason != scheduler.NotRefused && a.refusal.Reason != scheduler.BelowThreshold
}

// transfer is the kv_transfer_params of the answer: the connector's, and how
// much of a session stays here.
func (a *answer) transfer(resident bool) json.RawMessage {
	members := map[string]json.RawMessage{}
	if a.params != nil {
		raw, err := json.Marshal(a.params)
		if err == nil {
			err = json.Unmarshal(raw, &members)
		}
		if err != nil {
			return nil // no connector gives what is no object
		}
	}
	if resident && a.done && a.output > 0 {
		n, _ := json.Marshal(a.kept)
		members["resident_tokens"] = n
		if !a.until.IsZero() {
			members["resident_until_ms"] = strconv.AppendInt(nil, a.until.UnixMilli(), 10)
		}
	}
	if len(members) == 0 {
		return nil
	}
	raw, _ := json.Marshal(members) // of raw messages that were just made
	return raw
}

// failure is the answer to a failed request that has sent nothing yet.
func failure(err error) *openai.Error {
	var invalid *engine.InvalidError
	switch {
	case errors.As(err, &invalid):
		return openai.BadRequest(invalid.Param, "%s", invalid.Error())
	case errors.Is(err, engine.ErrQueueFull):
		return openai.TooMany(1, "%v", err)
	case errors.Is(err, engine.ErrDraining), errors.Is(err, engine.ErrClosed):
		return openai.Unavailable(1, "%v", err)
	case errors.Is(err, scheduler.ErrLoadFailed), errors.Is(err, scheduler.ErrLoadTimeout), errors.Is(err, scheduler.ErrLookupTimeout):
		return openai.BadGateway("%v", err)
	}
	return openai.Internal("%v", err)
}

func ids(tokens []scheduler.Token) []int32 {
	out := make([]int32, len(tokens))
	for i, t := range tokens {
		out[i] = int32(t)
	}
	return out
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
