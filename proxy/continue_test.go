package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

func continuing(c *Config) {
	c.Backend, _ = Preset("sluice")
	c.Backend.Continue = true
}

// clientText is the text that a client reads from an answer of either shape.
func clientText(t *testing.T, r reply) string {
	t.Helper()
	var text strings.Builder
	one := func(raw string) {
		var m struct {
			ID      string
			Choices []struct {
				Text    string
				Delta   struct{ Content string }
				Message struct{ Content string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(raw), &m), raw)
		for _, c := range m.Choices {
			text.WriteString(c.Text + c.Delta.Content + c.Message.Content)
		}
	}
	if !strings.HasPrefix(r.body, "data:") {
		one(r.body)
		return text.String()
	}
	for line := range strings.Lines(r.body) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && data != "[DONE]" {
			one(data)
		}
	}
	return text.String()
}

// F-29, O-12: an answer that the Decoder gives up is continued from exact token
// ids, never through text: the retry's prompt is the prompt's ids and every id
// that was emitted, no message travels, the budget counts by ids, and the
// client sees one answer under one id.
func TestContinue(t *testing.T) {
	for _, chatty := range []bool{true, false} {
		for _, stream := range []bool{true, false} {
			for _, route := range []string{"pd", "local"} {
				t.Run(fmt.Sprintf("chat %v stream %v %s", chatty, stream, route), func(t *testing.T) {
					c := start(t, setup{decoders: 2, change: continuing, backend: func(b *backendtest.Backend) { b.Tokens, b.Cached = 9, 32 }})
					more := `,"max_tokens":8,"min_tokens":5,"seed":3`
					if stream {
						more += `,"stream":true,"stream_options":{"include_usage":true}`
					}
					path, body := chatPath, turnBody(1, more)
					if !chatty {
						path, body = "/v1/completions", `{"model":"fake","prompt":"question"`+more+`}`
					}
					whole := c.post(path, body)
					require.Equal(t, backendtest.Text(8), clientText(t, whole))
					if route == "local" {
						c.post(path, body, "X-Session-ID", "s")
					}
					for _, b := range c.d {
						b.Set(func(b *backendtest.Backend) { b.GiveUp = 3 })
					}
					c.forget()
					r := c.post(path, body, "X-Session-ID", "s", "X-Request-Id", "one")
					require.Equal(t, 200, r.status)
					require.Equal(t, backendtest.Text(8), clientText(t, r), r.body)
					require.NotContains(t, r.body, "recomputed")
					require.NotContains(t, r.body, "token_ids")
					require.NotContains(t, r.body, "kv_transfer_params")
					require.Contains(t, r.body, `"finish_reason":"length"`)
					require.Contains(t, r.body, `"completion_tokens":8`)
					if route == "pd" {
						require.Contains(t, r.body, `"cached_tokens":32`)
					}
					require.Equal(t, strings.Count(r.body, `"id":`), strings.Count(r.body, `cmpl-one"`), "one response id")
					if stream {
						require.Equal(t, 1, strings.Count(r.body, "[DONE]"))
					}
					p, local, d := c.legs()
					if route == "pd" {
						require.Equal(t, [3]int{3, 0, 3}, [3]int{p, local, d}) // 3, 3 and 2 tokens
					} else {
						require.Equal(t, [3]int{2, 1, 2}, [3]int{p, local, d})
					}
					var retries []backendtest.Record
					for _, b := range c.d {
						for _, rec := range b.Records() {
							if rec.Path == "/v1/completions" && strings.Contains(string(rec.Body), "[1,2,3,4,5,1000") {
								retries = append(retries, rec)
							}
						}
					}
					require.Len(t, retries, 2)
					for _, rec := range retries {
						m := rec.JSON()
						require.NotContains(t, m, "messages")
						require.InDelta(t, 3, m["seed"], 0)
						if strings.Contains(string(rec.Body), "1005]") {
							require.InDelta(t, 2, m["max_tokens"], 0)
							require.NotContains(t, m, "min_tokens")
						} else {
							require.Contains(t, string(rec.Body), "[1,2,3,4,5,1000,1001,1002]")
							require.InDelta(t, 5, m["max_tokens"], 0)
							require.InDelta(t, 2, m["min_tokens"], 0)
						}
					}
				})
			}
		}
	}
}

// idsOf are the lists of a prompt's ids in an answer, and the ids of its output.
func idsOf(t *testing.T, body string) (prompts [][]int, ids []int) {
	body = strings.TrimSuffix(strings.ReplaceAll(body, "data: [DONE]\n\n", ""), "\n\n")
	for ev := range strings.SplitSeq(body, "\n\n") {
		var m struct {
			Prompt  []int `json:"prompt_token_ids"`
			Choices []struct {
				Prompt []int `json:"prompt_token_ids"`
				IDs    []int `json:"token_ids"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(ev, "data: ")), &m), ev)
		lists := [][]int{m.Prompt}
		for _, choice := range m.Choices {
			lists, ids = append(lists, choice.Prompt), append(ids, choice.IDs...)
		}
		for _, list := range lists {
			if list != nil {
				prompts = append(prompts, list)
			}
		}
	}
	return prompts, ids
}

// A client that asks for token ids gets those of the answer and, once, those of its prompt
// through a continuation too, as if the Decoder had not given the answer up.
func TestContinueWithIDs(t *testing.T) {
	for _, stream := range []string{"", streamTurn} {
		more := `,"max_tokens":6,"return_token_ids":true` + stream
		for path, body := range map[string]string{chatPath: turnBody(1, more), "/v1/completions": `{"model":"fake","prompt":"question"` + more + `}`} {
			c := start(t, setup{change: continuing, backend: func(b *backendtest.Backend) { b.Tokens = 6 }})
			prompts, ids := idsOf(t, c.post(path, body).body)
			require.Equal(t, [][]int{{1, 2, 3, 4, 5}}, prompts)
			require.Equal(t, []int{1000, 1001, 1002, 1003, 1004, 1005}, ids)
			c.d[0].Set(func(b *backendtest.Backend) { b.GiveUp = 4 })
			r := c.post(path, body)
			got, gotIDs := idsOf(t, r.body)
			require.Equal(t, prompts, got, r.body)
			require.Equal(t, ids, gotIDs, r.body)
			c.wantLegs(3, 0, 3)
		}
	}
}

// What ids alone cannot continue ends with an error event, as does an answer
// that is given up again and again.
func TestNotContinued(t *testing.T) {
	for name, more := range map[string]string{
		"tools":        `,"max_tokens":8,"tools":[{"type":"function"}]`,
		"logprobs":     `,"max_tokens":8,"logprobs":true`,
		"two choices":  `,"max_tokens":8,"n":2`,
		"model length": ``, // the fake does not name its model's length
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{change: continuing, backend: func(b *backendtest.Backend) { b.Tokens, b.GiveUp = 8, 3 }})
			r := c.post(chatPath, turnBody(1, more+streamTurn))
			require.Contains(t, r.body, "w2 ")
			require.Contains(t, r.body, `data: {"error":`)
			require.NotContains(t, r.body, "[DONE]")
			c.wantLegs(1, 0, 1)
		})
	}
	c := start(t, setup{change: continuing, backend: func(b *backendtest.Backend) { b.Tokens, b.GiveUp = 100, 1 }})
	r := c.post(chatPath, turnBody(1, `,"max_tokens":50`+streamTurn))
	require.Contains(t, r.body, `data: {"error":`)
	c.wantLegs(1+maxContinuations, 0, 1+maxContinuations)
	// Without the option nothing is asked for and nothing continued.
	c = start(t, setup{backend: func(b *backendtest.Backend) { b.Tokens, b.GiveUp = 8, 3 }})
	r = c.post(chatPath, turnBody(1, `,"max_tokens":8`+streamTurn))
	require.Contains(t, r.body, `data: {"error":`)
	require.NotContains(t, c.d[0].Records()[0].JSON(), "return_token_ids")
}

// Where it is wanted, an answer whose Decoder dies goes on elsewhere from the
// ids that the client has, so that nothing is said twice.
func TestContinueBroken(t *testing.T) {
	c := start(t, setup{decoders: 2, change: func(c *Config) {
		continuing(c)
		c.Backend.ContinueBroken = true
	}, backend: func(b *backendtest.Backend) { b.Tokens = 8 }})
	c.d[0].BreakOff = 3
	for range 4 {
		r := c.post(chatPath, turnBody(1, `,"max_tokens":8`+streamTurn))
		require.Equal(t, backendtest.Text(8), clientText(t, r), r.body)
		require.Equal(t, 1, strings.Count(r.body, "[DONE]"))
	}
	for path, body := range map[string]string{chatPath: turnBody(1, ""), "/v1/completions": `{"model":"fake","prompt":"question"}`} {
		for range 4 {
			r := c.post(path, body[:len(body)-1]+`,"max_tokens":8,"return_token_ids":true`+streamTurn+"}")
			prompts, ids := idsOf(t, r.body)
			require.Equal(t, [][]int{{1, 2, 3, 4, 5}}, prompts, r.body)
			require.Equal(t, []int{1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}, ids, r.body)
		}
	}
	require.NotEmpty(t, c.d[0].Records())
	// With the other one gone as well the client is told.
	c.d[1].Set(func(b *backendtest.Backend) { b.BreakOff = 1 })
	r := c.post(chatPath, turnBody(1, `,"max_tokens":8`+streamTurn))
	require.Contains(t, r.body, `data: {"error":`)
}
