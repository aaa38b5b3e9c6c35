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
}

// Word is the text of the n-th output token.
func Word(n int) string { return fmt.Sprintf("w%d ", n) }

// Text is the text of an answer of n tokens.
func Text(n int) string {
	var s strings.Builder
	for i := range n {
		s.WriteString(Word(i))
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

func (a *answer) choice(text, finish, stop string) string {
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
	if !a.stream {
		for range n {
			if !pause(r, perToken) {
				return false
			}
		}
		fmt.Fprintf(a.w, `%s,"choices":[%s],"usage":%s,"kv_transfer_params":null}`, a.head(), a.choice(Text(n), `"length"`, "null"), a.usageText(n))
		return true
	}
	if a.chat {
		a.event(a.head() + `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`)
	}
	for i := range n {
		if !pause(r, perToken) {
			return false
		}
		finish := "null"
		if i == n-1 {
			finish = `"length"`
		}
		a.event(a.head() + `,"choices":[` + a.choice(Word(i), finish, "null") + `]}`)
	}
	if a.usage {
		a.event(a.head() + `,"choices":[],"usage":` + a.usageText(n) + `}`)
	}
	a.event("[DONE]")
	return true
}
