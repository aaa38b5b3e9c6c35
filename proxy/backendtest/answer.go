package backendtest

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// answer writes one Decoder answer, streamed or whole.
type answer struct {
	w      http.ResponseWriter
	chat   bool
	stream bool
	usage  bool
	id     string
	prompt int
	cached int
	ids    bool // token ids are asked for
	from   int  // tokens of the answer that the prompt already holds

	giveUp, breakOff int // after so many tokens; 0 never
}

// promptTokens is the number of token ids that every text prompt has; they are 1,
// 2, 3 and so on, and the n-th output token has the id firstID+n.
const (
	promptTokens = 5
	firstID      = 1000
)

// word is the text of the n-th output token.
func word(n int) string { return fmt.Sprintf("w%d ", n) }

// Text is the text of an answer of n tokens.
func Text(n int) string {
	var s strings.Builder
	for i := range n {
		s.WriteString(word(i))
	}
	return s.String()
}

func (a *answer) usageText(n int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, a.prompt, a.prompt+n, n, a.cached)
}

func (a *answer) head() string {
	if a.chat {
		object := "chat.completion"
		if a.stream {
			object += ".chunk"
		}
		return fmt.Sprintf(`{"id":"chatcmpl-%s","object":%q,"created":1,"model":"fake"`, a.id, object)
	}
	return fmt.Sprintf(`{"id":"cmpl-%s","object":"text_completion","created":1,"model":"fake"`, a.id)
}

// tokens are the members with token ids for the output tokens from n to m.
func (a *answer) tokens(n, m int, first bool) string {
	if !a.ids {
		return ""
	}
	var b strings.Builder
	b.WriteString(`,"token_ids":[`)
	for i := n; i < m; i++ {
		if i > n {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, firstID+i)
	}
	b.WriteByte(']')
	if first && !a.chat {
		b.WriteString(a.promptIDs())
	}
	return b.String()
}

func (a *answer) promptIDs() string {
	list := []string{"1", "2", "3", "4", "5"}
	for i := range a.from {
		list = append(list, fmt.Sprint(firstID+i))
	}
	return `,"prompt_token_ids":[` + strings.Join(list, ",") + `]`
}

func (a *answer) choice(text, finish, stop string) string {
	return a.choiceWith(text, finish, stop, "")
}

func (a *answer) choiceWith(text, finish, stop, more string) string {
	if more != "" {
		plain := a.choiceWith(text, finish, stop, "")
		return plain[:len(plain)-1] + more + "}"
	}
	if a.chat && a.stream {
		return fmt.Sprintf(`{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":%s,"stop_reason":%s}`, text, finish, stop)
	}
	if a.chat {
		return fmt.Sprintf(`{"index":0,"message":{"role":"assistant","content":%q},"logprobs":null,"finish_reason":%s,"stop_reason":%s}`, text, finish, stop)
	}
	return fmt.Sprintf(`{"index":0,"text":%q,"logprobs":null,"finish_reason":%s,"stop_reason":%s}`, text, finish, stop)
}

func (a *answer) event(text string) {
	fmt.Fprintf(a.w, "data: %s\n\n", text)
	_ = http.NewResponseController(a.w).Flush()
}

func (a *answer) begin() {
	if a.stream {
		a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	} else {
		a.w.Header().Set("Content-Type", "application/json")
	}
}

// refuse answers in band: zero tokens and the stop reason of a miss.
func (a *answer) refuse() {
	a.begin()
	if !a.stream {
		fmt.Fprintf(a.w, `%s,"choices":[%s],"usage":%s}`, a.head(), a.choice("", `"stop"`, `"append_prefill_miss"`), a.usageText(0))
		return
	}
	if a.chat {
		a.event(a.head() + `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`)
	}
	a.event(a.head() + `,"choices":[` + a.choice("", `"stop"`, `"append_prefill_miss"`) + `]}`)
	a.event("[DONE]")
}

// send writes an answer of n tokens; false when the client went away.
func (a *answer) send(r *http.Request, n int, perToken time.Duration) bool {
	a.begin()
	finish, stop := `"length"`, "null"
	if a.giveUp > 0 && n > a.giveUp {
		n, finish, stop = a.giveUp, `"stop"`, `"recomputed"`
	}
	if !a.stream {
		for range n {
			if !pause(r, perToken) {
				return false
			}
		}
		top := ""
		if a.chat && a.ids {
			top = a.promptIDs()
		}
		var text strings.Builder
		for i := range n {
			text.WriteString(word(a.from + i))
		}
		fmt.Fprintf(a.w, `%s%s,"choices":[%s],"usage":%s,"kv_transfer_params":null}`, a.head(), top, a.choiceWith(text.String(), finish, stop, a.tokens(a.from, a.from+n, true)), a.usageText(n))
		return true
	}
	if a.chat {
		top := ""
		if a.ids {
			top = a.promptIDs()
		}
		a.event(a.head() + top + `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`)
	}
	for i := range n {
		if !pause(r, perToken) {
			return false
		}
		if a.breakOff > 0 && i == a.breakOff {
			panic(http.ErrAbortHandler)
		}
		end, why := "null", "null"
		if i == n-1 && stop == "null" {
			end = finish
		}
		a.event(a.head() + `,"choices":[` + a.choiceWith(word(a.from+i), end, why, a.tokens(a.from+i, a.from+i+1, i == 0)) + `]}`)
	}
	if stop != "null" {
		a.event(a.head() + `,"choices":[` + a.choice("", finish, stop) + `]}`)
	}
	if a.usage {
		a.event(a.head() + `,"choices":[],"usage":` + a.usageText(n) + `}`)
	}
	a.event("[DONE]")
	return true
}
