package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// Limits of what one HTTP request may ask for.
const (
	maxBody     = 8 << 20 // bytes
	maxChoices  = 64      // prompts times n
	maxStops    = 16      // stop strings
	maxStopText = 1024    // bytes of one
	maxID       = 256     // bytes of X-Request-Id
	defaultMax  = 16      // max_tokens of a completion that names none, as the API defines it
)

// call is a checked request: what to run and how to answer.
type call struct {
	id       string // the caller's request id
	answerID string // the response's id
	chat     bool
	model    string
	choices  []engine.Request
	params   json.RawMessage // kv_transfer_params as they came
	stops    []string
	min      int // tokens before stop strings count
	sampling sample.Params

	perPrompt int   // choices per prompt
	lengths   []int // tokens of each choice's prompt

	echo    *echo // the answers begin with their prompts; nil: they do not
	prompts *int  // most likely tokens per token of a prompt; nil: prompts have no log probabilities

	stream     bool
	noise      bool
	usage      bool // a last chunk with usage
	everyUsage bool // usage in every chunk
	tokenIDs   bool
	tools      bool // tool calls are taken out of the text
	attempt    bool // an append attempt that may be refused
	session    bool
}

// decode reads a JSON body into v. The member kv_noise, which is no part of the
// wire types, is returned.
func decode(w http.ResponseWriter, r *http.Request, v any) (noise bool, e *openai.Error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return false, openai.BodyTooLarge(maxBody)
	case err != nil:
		return false, openai.BadRequest("", "the body could not be read: %v", err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return false, badJSON(err)
	}
	return gjson.GetBytes(body, "kv_noise").Bool(), nil
}

func badJSON(err error) *openai.Error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		field := wrong.Field // with the names of the embedded structs, which are not on the wire
		for _, embedded := range []string{"Sampling.", "Routing."} {
			field = strings.TrimPrefix(field, embedded)
		}
		return openai.BadRequest(field, "%s has the wrong type: it is a %s", field, wrong.Value)
	}
	return openai.BadRequest("", "the body is no valid request: %v", err)
}

func (s *Server) readCompletion(w http.ResponseWriter, r *http.Request) (*call, *openai.Error) {
	var q openai.CompletionRequest
	noise, e := decode(w, r, &q)
	if e != nil {
		return nil, e
	}
	c := &call{stream: q.Stream, noise: noise, params: q.KVTransferParams}
	c.streamOptions(q.StreamOptions)
	a := alternatives{param: "logprobs"}
	if q.Logprobs != nil {
		a.on, a.top = true, *q.Logprobs
	}
	if q.Echo {
		c.echo = &echo{top: q.Logprobs}
	}
	if e := s.common(c, r, q.Model, &q.Sampling, &q.Routing, a); e != nil {
		return c, e
	}
	c.answerID = "cmpl-" + c.id
	switch {
	case q.Suffix != "":
		return c, openai.BadRequest("suffix", "suffix is not supported by this model")
	case q.Prompt.Len() == 0:
		return c, openai.BadRequest("prompt", "the prompt is missing or empty")
	}
	prompts := make([][]scheduler.Token, 0, q.Prompt.Len())
	words := s.engine.Tokenizer()
	if len(q.Prompt.Texts) > 0 && words == nil {
		return c, openai.BadRequest("prompt", noText)
	}
	for _, text := range q.Prompt.Texts {
		prompts = append(prompts, words.Encode(text))
	}
	if c.echo != nil {
		c.echo.texts = q.Prompt.Texts
	}
	for _, ids := range q.Prompt.Tokens {
		p := make([]scheduler.Token, len(ids))
		for i, id := range ids {
			p[i] = scheduler.Token(id)
			if !s.valid(int(id)) {
				return c, openai.BadRequest("prompt", "token id %d is not in the vocabulary of %d", id, s.engine.Vocab())
			}
		}
		prompts = append(prompts, p)
	}
	return c, s.choices(c, prompts, &q.Sampling, &q.Routing, defaultMax)
}

// noText is the answer to text where the model has no tokenizer.
const noText = "this engine has no tokenizer for its model: give the prompt as token ids, and set return_token_ids"

func (s *Server) valid(id int) bool { return id >= 0 && id < s.engine.Vocab() }

func (s *Server) readChat(w http.ResponseWriter, r *http.Request) (*call, *openai.Error) {
	var q openai.ChatRequest
	noise, e := decode(w, r, &q)
	if e != nil {
		return nil, e
	}
	c := &call{chat: true, stream: q.Stream, noise: noise, params: q.KVTransferParams}
	c.streamOptions(q.StreamOptions)
	a := alternatives{on: q.Logprobs, param: "top_logprobs"}
	if q.TopLogprobs != nil {
		a.top = *q.TopLogprobs
	}
	if e := s.common(c, r, q.Model, &q.Sampling, &q.Routing, a); e != nil {
		return c, e
	}
	c.answerID = "chatcmpl-" + c.id
	switch {
	case a.top > 0 && !a.on:
		return c, openai.BadRequest("top_logprobs", "top_logprobs is %d, but logprobs is not set", a.top)
	case q.Echo:
		return c, openai.BadRequest("echo", "echo is of completions: a chat's answer never begins with a message")
	case q.AddGenerationPrompt != nil && !*q.AddGenerationPrompt:
		return c, openai.BadRequest("add_generation_prompt", "the template always opens the assistant's answer")
	case s.engine.Tokenizer() == nil:
		return c, openai.BadRequest("messages", noText)
	case len(q.Messages) == 0:
		return c, openai.BadRequest("messages", "messages is missing or empty")
	}
	prompt, e := s.conversation(c, &q)
	if e != nil {
		return c, e
	}
	return c, s.choices(c, [][]scheduler.Token{prompt}, &q.Sampling, &q.Routing, 0)
}

func (c *call) streamOptions(o *openai.StreamOptions) {
	if o != nil && c.stream {
		c.usage, c.everyUsage = o.IncludeUsage, o.ContinuousUsageStats
	}
}

// common checks what both kinds share and does not depend on the prompt.
func (s *Server) common(c *call, r *http.Request, model string, q *openai.Sampling, route *openai.Routing, a alternatives) *openai.Error {
	c.id = r.Header.Get("X-Request-Id")
	if c.id == "" {
		c.id = route.RequestID
	}
	if c.id == "" {
		c.id = newID()
	}
	if len(c.id) > maxID {
		return openai.BadRequest("X-Request-Id", "the request id is longer than %d bytes", maxID)
	}
	c.model = s.engine.Config().ServedModelName
	if model != "" && model != c.model {
		return openai.NoModel(model)
	}
	if c.noise && s.noise == NoiseRefused {
		return openai.BadRequest("kv_noise", "kv_noise is not enabled on this engine")
	}
	c.tokenIDs = q.ReturnTokenIDs
	c.stops, c.min = q.Stop, q.MinTokens
	if len(q.Stop) > maxStops {
		return openai.BadRequest("stop", "more than %d stop strings", maxStops)
	}
	for _, stop := range q.Stop {
		if stop == "" || len(stop) > maxStopText {
			return openai.BadRequest("stop", "a stop string must have 1 to %d bytes", maxStopText)
		}
	}
	c.prompts, a.prompt = q.PromptLogprobs, c.scores(q.PromptLogprobs)
	var e *openai.Error
	if c.sampling, e = s.sampling(q, a); e != nil {
		return e
	}
	if name := q.Given(); name != "" {
		return openai.BadRequest(name, "%s is not supported: this engine has no constrained decoding", name)
	}
	switch t := route.CacheHitThreshold; {
	case t != nil && !(*t >= 0 && *t <= 1):
		return openai.BadRequest("cache_hit_threshold", "cache_hit_threshold is %v, must be within 0 to 1", *t)
	case q.PromptLogprobs != nil && c.stream:
		return openai.BadRequest("prompt_logprobs", "prompt_logprobs is %d, but with stream there are none", *q.PromptLogprobs)
	case q.N != nil && *q.N < 1:
		return openai.BadRequest("n", "n is %d, must be at least 1", *q.N)
	case q.MinTokens < 0:
		return openai.BadRequest("min_tokens", "min_tokens is %d, must not be negative", q.MinTokens)
	}
	return nil
}

// choices makes one engine request per prompt and choice. limit is the default
// of max_tokens, 0 for all that the model allows.
func (s *Server) choices(c *call, prompts [][]scheduler.Token, q *openai.Sampling, route *openai.Routing, limit int) *openai.Error {
	n := 1
	if q.N != nil {
		n = *q.N
	}
	if len(prompts)*n > maxChoices || n > maxChoices {
		return openai.BadRequest("n", "more than %d answers in one request", maxChoices)
	}
	c.perPrompt = n
	longest := s.engine.MaxModelLen()
	stopIDs := make([]scheduler.Token, 0, len(q.StopTokenIDs))
	for _, id := range q.StopTokenIDs {
		if !s.valid(int(id)) {
			return openai.BadRequest("stop_token_ids", "token id %d is not in the vocabulary of %d", id, s.engine.Vocab())
		}
		stopIDs = append(stopIDs, scheduler.Token(id))
	}
	params, perr := parseParams(route.KVTransferParams)
	if perr != nil {
		return perr
	}
	c.attempt = c.attempt || params.Append
	if params.ForPeer && s.engine.Transfers() { // the one who takes its KV reads no answer
		c.echo, c.prompts, c.sampling.Prompt = nil, nil, false
	}
	member := "prompt"
	if c.chat {
		member = "messages"
	}
	if e := c.boundScores(prompts, n); e != nil {
		return e
	}
	for k, p := range prompts {
		if len(p) == 0 {
			return openai.BadRequest(member, "the prompt is empty")
		}
		if len(p) >= longest {
			return openai.TooLong(member, "the prompt has %d tokens; this model reads and writes at most %d, so at most %d fit before one output token", len(p), longest, longest-1)
		}
		most, named := q.OutputLimit()
		switch {
		case !named && limit > 0:
			most = min(limit, longest-len(p))
		case !named:
			most = longest - len(p)
		case most == 0 && c.echo != nil:
			c.echo.alone = true
		case most < 1:
			return openai.BadRequest("max_tokens", "max_tokens is %d, must be at least 1", most)
		case most > longest-len(p):
			return openai.TooLong("max_tokens", "max_tokens is %d; the prompt has %d tokens and this model reads and writes at most %d", most, len(p), longest)
		}
		if q.MinTokens > most {
			return openai.BadRequest("min_tokens", "min_tokens is %d, more than max_tokens %d", q.MinTokens, most)
		}
		if c.echo != nil {
			c.echo.add(s, k, p)
		}
		for i := range n {
			sampling := c.sampling
			sampling.Seed += uint64(i) // as vLLM seeds the answers to one prompt
			c.lengths = append(c.lengths, len(p))
			c.choices = append(c.choices, engine.Request{
				ID: c.answerID, TraceID: c.id,
				Prompt: append([]scheduler.Token(nil), p...), MaxTokens: max(most, 1), MinTokens: q.MinTokens,
				StopIDs: stopIDs, Sampling: sampling, IgnoreEOS: q.IgnoreEOS, Salt: route.CacheSalt, Priority: route.Priority,
				Params: params.Raw, Threshold: route.CacheHitThreshold,
				Noise: c.noise,
			})
		}
	}
	return nil
}

// headers reads what the request's headers say.
func (s *Server) headers(c *call, r *http.Request) *openai.Error {
	for _, v := range r.Header.Values("Prefer") {
		for _, p := range strings.Split(v, ",") {
			if strings.EqualFold(strings.TrimSpace(p), openai.PreferIfAvailable) {
				c.attempt = true
			}
		}
	}
	session := r.Header.Get("X-Session-ID")
	c.session = session != ""
	rank := engine.AnyRank
	if n, ok := namedRank(r); ok {
		if n < 0 || n >= s.engine.Ranks() {
			return openai.BadRequest(rankHeader, "rank %d does not exist; this engine has %d", n, s.engine.Ranks())
		}
		rank = n
	}
	ends := strings.EqualFold(r.Header.Get("X-Session-End"), "true")
	for i := range c.choices {
		q := &c.choices[i]
		q.Session, q.Rank, q.EndSession, q.Append = session, rank, ends, c.attempt
	}
	return nil
}

// transferParams are the members of kv_transfer_params that concern the server.
type transferParams struct {
	Append  bool            // decoder_append_prefill
	ForPeer bool            // do_remote_decode
	Raw     json.RawMessage // all of it, nil if absent or null
}

func parseParams(raw json.RawMessage) (transferParams, *openai.Error) {
	if len(raw) == 0 || string(raw) == "null" {
		return transferParams{}, nil
	}
	var p struct {
		Append  *bool `json:"decoder_append_prefill"`
		ForPeer any   `json:"do_remote_decode"` // the connector says what is wrong with it
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return transferParams{}, openai.BadRequest("kv_transfer_params", "kv_transfer_params must be an object with members of the right types: %v", err)
	}
	return transferParams{Append: p.Append != nil && *p.Append, ForPeer: p.ForPeer == true, Raw: raw}, nil
}
