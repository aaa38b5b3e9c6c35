package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

func sources(s ...route.Source) func(*Config) { return func(c *Config) { c.Sources = s } }

// Each answer of /v1/responses has an id of its own, and a request goes on from
// the one that it names, whichever that is.
func TestPreviousResponse(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint(stream), func(t *testing.T) {
			var n atomic.Int64
			c := start(t, setup{decoders: 3, change: sources(route.SourceSessionHeader, route.SourcePreviousID), backend: func(b *backendtest.Backend) {
				b.Hook = func(w http.ResponseWriter, _ *http.Request, rec backendtest.Record) bool {
					if rec.Leg != "p" {
						n.Add(1)
					}
					id := fmt.Sprintf("resp_%d", n.Load())
					if stream && rec.Leg != "p" {
						w.Header().Set("Content-Type", "text/event-stream")
						fmt.Fprint(w, strings.ReplaceAll(responsesStream, "resp_1", id))
						return true
					}
					answering(200, strings.ReplaceAll(responsesWhole, "resp_1", id))(w, nil)
					return true
				}
			}})
			more := ""
			if stream {
				more = `,"stream":true`
			}
			ask := func(previous string) int {
				c.forget()
				body := `{"model":"m","input":"q"` + more
				if previous != "" {
					body += `,"previous_response_id":"` + previous + `"`
				}
				r := c.post("/v1/responses", body+"}")
				require.Equal(t, 200, r.status)
				require.Contains(t, r.body, fmt.Sprintf(`"resp_%d"`, n.Load()))
				at, _ := c.serving()
				return at
			}
			first := ask("")
			c.wantLegs(1, 0, 1)
			for _, previous := range []string{"resp_1", "resp_2", "resp_1", "resp_3"} { // resp_1 is gone on from twice
				require.Equal(t, first, ask(previous), previous)
				c.wantLegs(0, 1, 0)
			}
			ask("resp_unknown")
			c.wantLegs(1, 0, 1)
			c.forget()
			c.post("/v1/responses", `{"model":"m","input":"q","previous_response_id":"resp_1"`+more+"}", "Authorization", "Bearer other")
			c.wantLegs(1, 0, 1) // another tenant's answer
			var resident int64
			for _, d := range c.proxy.Snapshot().Decoders {
				resident += d.Ranks[0].ResidentTokens
			}
			// The chain's tokens count under its newest names alone: resp_4, resp_5
			// and the two first turns after it.
			require.EqualValues(t, 4*102, resident)
		})
	}
}

// Clients that name no session are followed by the history that they repeat:
// the longest one known, forks included.
func TestHistory(t *testing.T) {
	c := start(t, setup{decoders: 3, ranks: 2, change: sources(route.SourceSessionHeader, route.SourceHistory), backend: resident})
	serve := func(body string, p, local, d int, headers ...string) (int, int) {
		t.Helper()
		c.forget()
		require.Equal(t, 200, c.post(chatPath, body, headers...).status)
		c.wantLegs(p, local, d)
		return c.serving()
	}
	d, k := serve(turnBody(1, ""), 1, 0, 1)
	for n := 2; n < 5; n++ {
		d2, k2 := serve(turnBody(n, ""), 0, 1, 0)
		require.Equal(t, [2]int{d, k}, [2]int{d2, k2})
	}
	fork := strings.Replace(turnBody(3, ""), `"question"}]`, `"another question"}]`, 1)
	d2, k2 := serve(fork, 0, 1, 0)
	require.Equal(t, [2]int{d, k}, [2]int{d2, k2})
	for what, body := range map[string]string{
		"another model":  strings.Replace(turnBody(3, ""), `"fake"`, `"other"`, 1),
		"other tools":    turnBody(3, `,"tools":[{"type":"function"}]`),
		"other system":   strings.Replace(turnBody(3, ""), "be brief", "be long", 1),
		"a later change": strings.Replace(turnBody(1, ""), "question", "something else", 1),
	} {
		serve(body, 1, 0, 1)
		_ = what
	}
	serve(turnBody(3, ""), 1, 0, 1, "Authorization", "Bearer other")
	serve(turnBody(2, ""), 1, 0, 1, "X-Session-ID", "named") // a session id goes first
	serve(turnBody(1, `,"n":2`), 1, 0, 1)                    // known, not eligible
	require.Equal(t, 200, c.post("/v1/completions", `{"model":"m","prompt":"p"}`).status)
	long := `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"q"},`, maxHistory) + `{"role":"user","content":"q"}]}`
	serve(long, 1, 0, 1)
	serve(long, 1, 0, 1) // too long to be followed
}

func resident(b *backendtest.Backend) {
	b.Hook = func(w http.ResponseWriter, _ *http.Request, rec backendtest.Record) bool {
		if rec.Leg != "local" {
			return false
		}
		answering(200, decodeReply)(w, nil)
		return true
	}
}

// The engine is told how long the Prefillers would take, once one has been seen
// to compute a prompt.
func TestRemoteETA(t *testing.T) {
	c := start(t, setup{backend: func(b *backendtest.Backend) { b.Prefill = 20 * time.Millisecond }})
	pad := `,"user":"` + strings.Repeat("x", 2000) + `"`
	c.post(chatPath, turnBody(1, pad), "X-Session-ID", "s")
	c.post(chatPath, turnBody(2, pad), "X-Session-ID", "s")
	records := c.d[0].Records()
	local := records[len(records)-1]
	require.Equal(t, "local", local.Leg)
	eta, ok := local.Params()["remote_eta_ms"].(float64)
	require.True(t, ok, string(local.Body))
	require.Positive(t, eta)
	require.Equal(t, true, local.Params()["decoder_append_prefill"])
	require.NotContains(t, records[0].Params(), "remote_eta_ms")

	c = start(t, setup{change: preset(t, "vllm-ascend")})
	c.post(chatPath, turnBody(1, pad), "X-Session-ID", "s")
	c.post(chatPath, turnBody(2, pad), "X-Session-ID", "s")
	for _, r := range c.d[0].Records() {
		require.NotContains(t, r.Params(), "remote_eta_ms")
	}
}
