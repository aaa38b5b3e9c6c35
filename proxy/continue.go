package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// maxContinuations bounds how often one answer is continued.
const maxContinuations = 4

// continuation is what is needed to go on with an answer that a Decoder gave
// up: the exact token ids of the prompt and of everything that the client was
// sent. The text is never tokenised again and no message is touched.
type continuation struct {
	asked    bool // the client itself asked for token ids
	chat     bool
	stream   bool
	skeleton []byte // the client's body without its prompt
	limit    int    // output tokens that the client allows; 0 means the model's length
	least    int    // min_tokens

	list   []byte  // the prompt's ids as they came, until somebody needs them
	prompt []int32 // its ids then; see promptIDs
	ids    []int32
	broken bool // an output came without its token ids
	rounds int  // continuations so far

	text     strings.Builder // of an answer that is not streamed
	template []byte          // its first part
	cached   int             // cached tokens that the client is to see
}

// continuable prepares for a continuation, where the pool's Decoders are asked
// for token ids and the request is one that ids alone can continue.
func (x *exchange) continuable() *continuation {
	c := &continuation{chat: x.at.prompt == "messages", stream: string(x.body.Raw("stream")) == "true", asked: string(x.body.Raw("return_token_ids")) == "true"}
	if !x.eligible() {
		return nil
	}
	for _, key := range []string{"tools", "functions", "logprobs", "top_logprobs", "response_format", "guided_json", "structured_outputs", "suffix"} {
		if v := x.body.Raw(key); filled(v) && string(v) != "false" && string(v) != "0" {
			return nil // what these need does not go through plain token ids
		}
	}
	if c.limit = intOf(x.body.Raw("max_completion_tokens")); c.limit == 0 {
		c.limit = intOf(x.body.Raw("max_tokens"))
	}
	if c.limit == 0 && !c.chat {
		c.limit = 16 // what a completion without a limit gets
	}
	c.least = intOf(x.body.Raw("min_tokens"))
	c.skeleton = x.body.Apply(nil, splice.Delete("messages"), splice.Delete("prompt"), splice.Delete("kv_transfer_params"), splice.Delete("max_tokens"),
		splice.Delete("max_completion_tokens"), splice.Delete("min_tokens"), splice.Delete("chat_template_kwargs"), splice.Delete("add_generation_prompt"))
	return c
}

// take notes the token ids of an answer or event.
func (c *continuation) take(o *splice.Object, f features) {
	choice := firstChoice(o)
	if c.list == nil { // they come with the first token, which must not wait until they are read
		if ids := splice.Field(choice, "prompt_token_ids"); filled(ids) {
			c.list = bytes.Clone(ids)
		} else if ids := o.Raw("prompt_token_ids"); filled(ids) {
			c.list = bytes.Clone(ids)
		}
	}
	ids := splice.Field(choice, "token_ids")
	if f.text && !filled(ids) {
		c.broken = true
	}
	if filled(ids) {
		more, ok := openai.ParseIDs(ids)
		c.broken = c.broken || !ok
		c.ids = append(c.ids, more...)
	}
}

// promptIDs are the prompt's token ids; nil while they are not known.
func (c *continuation) promptIDs() []int32 {
	if c.prompt == nil && c.list != nil {
		c.prompt, _ = openai.ParseIDs(c.list)
	}
	return c.prompt
}

func firstChoice(o *splice.Object) (choice []byte) {
	splice.Elements(o.Raw("choices"), func(raw []byte) bool {
		choice = raw
		return false
	})
	return choice
}

// ready reports whether the answer can be continued.
func (c *continuation) ready() bool {
	return c != nil && !c.broken && len(c.ids) > 0 && len(c.promptIDs()) > 0 && c.rounds < maxContinuations
}

// body is the request that continues the answer: the prompt's ids and those of
// the output, and what is left of the limits. False when nothing is left.
func (c *continuation) body(modelLength int) ([]byte, bool) {
	limit := c.limit
	if limit == 0 {
		limit = modelLength - len(c.promptIDs())
	}
	left := limit - len(c.ids)
	if left <= 0 {
		return nil, false
	}
	ids := openai.AppendIDs(nil, slices.Concat(c.promptIDs(), c.ids))
	o, err := splice.Parse(c.skeleton)
	if err != nil { // it was made of a checked body
		panic(err)
	}
	edits := []splice.Edit{splice.Set("prompt", ids), splice.Set("max_tokens", strconv.AppendInt(nil, int64(left), 10)), splice.Set("return_token_ids", []byte("true"))}
	if least := c.least - len(c.ids); least > 0 {
		edits = append(edits, splice.Set("min_tokens", strconv.AppendInt(nil, int64(least), 10)))
	}
	return o.Apply(nil, edits...), true
}

// strip gives a choices list without the token ids that the client did not ask for, and
// without those of a prompt, which in a continuation are not of the client's prompt alone.
func (c *continuation) strip(choices []byte) []byte {
	edits := []splice.Edit{splice.Delete("prompt_token_ids"), splice.Delete("token_ids")}
	if c.asked {
		edits = edits[:1]
	}
	out := []byte{'['}
	splice.Elements(choices, func(raw []byte) bool {
		if len(out) > 1 {
			out = append(out, ',')
		}
		if o, err := splice.Parse(raw); err == nil {
			out = o.Apply(out, edits...)
		} else {
			out = append(out, raw...)
		}
		return true
	})
	return append(out, ']')
}

// usage is the account of the whole answer, of which this part is the last so far.
func (c *continuation) usage() []byte {
	u, err := json.Marshal(openai.NewUsage(len(c.promptIDs()), len(c.ids), c.cached))
	if err != nil { // numbers always encode
		panic(err)
	}
	return u
}

// convert gives an event of a continuing leg, which is a completion, the shape
// that the client's stream has.
func (c *continuation) convert(o *splice.Object, id []byte, f features) []byte {
	if !c.chat {
		edits := []splice.Edit{splice.Set("id", id), splice.Delete("kv_transfer_params"), splice.Delete("prompt_token_ids"), splice.Replace("choices", c.strip(o.Raw("choices")))}
		if f.hasUsage {
			edits = append(edits, splice.Set("usage", c.usage()))
		}
		return o.Apply(nil, edits...)
	}
	var b strings.Builder
	b.WriteString(`{"id":`)
	b.Write(id)
	b.WriteString(`,"object":"chat.completion.chunk","created":`)
	b.Write(or(o.Raw("created"), "0"))
	b.WriteString(`,"model":`)
	b.Write(or(o.Raw("model"), `""`))
	b.WriteString(`,"choices":[`)
	if choice := firstChoice(o); choice != nil {
		b.WriteString(`{"index":0,"delta":{"content":`)
		b.Write(or(splice.Field(choice, "text"), `""`))
		b.WriteString(`},"logprobs":null,"finish_reason":`)
		b.Write(or(splice.Field(choice, "finish_reason"), "null"))
		b.WriteString(`,"stop_reason":`)
		b.Write(or(splice.Field(choice, "stop_reason"), "null"))
		if ids := splice.Field(choice, "token_ids"); c.asked && ids != nil {
			b.WriteString(`,"token_ids":`)
			b.Write(ids)
		}
		b.WriteString(`}`)
	}
	b.WriteString(`]`)
	if f.hasUsage {
		b.WriteString(`,"usage":`)
		b.Write(c.usage())
	}
	b.WriteString(`}`)
	return []byte(b.String())
}

func or(raw []byte, otherwise string) []byte {
	if raw == nil {
		return []byte(otherwise)
	}
	return raw
}

// part notes the text of an answer that is not streamed.
func (c *continuation) part(o *splice.Object) {
	choice := firstChoice(o)
	text := splice.Field(choice, "text")
	if text == nil {
		text = splice.Field(splice.Field(choice, "message"), "content")
	}
	s, _ := splice.StringOf(text)
	c.text.WriteString(s)
	if c.template == nil {
		c.template = append(c.template, o.Source()...)
	}
}

// join is the whole answer: the first part with the text of all and the end of
// the last.
func (c *continuation) join(last *splice.Object, id []byte) []byte {
	o, err := splice.Parse(c.template)
	if err != nil { // it was a checked answer
		panic(err)
	}
	text, err := json.Marshal(c.text.String())
	if err != nil { // a string always encodes
		panic(err)
	}
	end := firstChoice(last)
	edits := []splice.Edit{splice.Set("finish_reason", or(splice.Field(end, "finish_reason"), "null")), splice.Set("stop_reason", or(splice.Field(end, "stop_reason"), "null"))}
	around := []splice.Edit{splice.Set("id", id), splice.Set("usage", c.usage()), splice.Delete("kv_transfer_params")}
	if c.asked {
		edits = append(edits, splice.Set("token_ids", openai.AppendIDs(nil, c.ids)))
	} else {
		edits = append(edits, splice.Delete("token_ids"), splice.Delete("prompt_token_ids"))
		around = append(around, splice.Delete("prompt_token_ids"))
	}
	first, err := splice.Parse(firstChoice(o))
	if err != nil { // a choice with output is an object
		panic(err)
	}
	if c.chat {
		if message, err := splice.Parse(first.Raw("message")); err == nil {
			edits = append(edits, splice.Set("message", message.Apply(nil, splice.Set("content", text))))
		}
	} else {
		edits = append(edits, splice.Set("text", text))
	}
	choices := append(first.Apply([]byte{'['}, edits...), ']')
	return o.Apply(nil, append(around, splice.Set("choices", choices))...)
}

// goOn continues the answer with further P/D rounds. The client knows nothing
// of it but the pause.
func (x *exchange) goOn() {
	c := x.cont
	for x.resume {
		x.resume = false
		length := 0
		if c.limit == 0 {
			length = x.modelLength()
		}
		body, ok := c.body(length)
		if !ok {
			x.p.metrics.blocked.Inc()
			x.out.fail(openai.Unavailable(1, "the decoder gave the request up and it cannot be continued"))
			return
		}
		o, err := splice.Parse(body)
		if err != nil { // it was made of a checked body
			panic(err)
		}
		c.rounds++
		x.body, x.path = o, completions.path
		x.p.mu.Lock()
		x.p.router.Resume(x.turn)
		x.p.mu.Unlock()
		x.p.metrics.continued.Inc()
		x.rounds()
	}
}

// modelLength asks the serving Decoder for its model's length in tokens; 0 when
// it does not say.
func (x *exchange) modelLength() int {
	ctx, cancel := context.WithTimeout(x.r.Context(), probeTimeout)
	defer cancel()
	raw, status := x.p.modelsOf(ctx, x.r, x.line.Decoder)
	if status != http.StatusOK {
		return 0
	}
	var list openai.ModelList
	if json.Unmarshal(raw, &list) != nil || len(list.Data) == 0 {
		return 0
	}
	return list.Data[0].MaxModelLen
}
