package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

const (
	responsesWhole  = `{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":100,"output_tokens":2,"input_tokens_details":{"cached_tokens":96}},"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h"}}`
	responsesStream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":100,\"output_tokens\":2,\"input_tokens_details\":{\"cached_tokens\":96}}}}\n\n"
	messagesWhole  = `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":100,"output_tokens":2,"cache_read_input_tokens":96},"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h"}}`
	messagesStream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":100}}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
)

// The other two APIs take the same routes: a first turn P/D, a follow-up the
// owner, a refusal P/D once; their events keep their names and their ids, which
// later requests may refer to.
func TestOtherAPIs(t *testing.T) {
	for _, api := range []struct{ path, body, limit, whole, stream string }{
		{"/v1/responses", `{"model":"m","input":[{"role":"user","content":"q"}],"max_output_tokens":9`, "max_output_tokens", responsesWhole, responsesStream},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"q"}],"max_tokens":9`, "max_tokens", messagesWhole, messagesStream},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(api.path, func(t *testing.T) {
				refuse := false
				hook := func(w http.ResponseWriter, _ *http.Request, rec backendtest.Record) bool {
					switch {
					case rec.Leg == "local" && refuse:
						answering(412, `{"error":{"type":"append_prefill_miss","code":"no_prefix","message":"m"}}`)(w, nil)
					case stream && rec.Leg != "p":
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = io.WriteString(w, api.stream)
					default:
						answering(200, api.whole)(w, nil)
					}
					return true
				}
				c := start(t, setup{backend: func(b *backendtest.Backend) { b.Hook = hook }})
				body := api.body + "}"
				if stream {
					body = api.body + `,"stream":true}`
				}
				r := c.post(api.path, body, "X-Session-ID", "s")
				require.Equal(t, 200, r.status)
				c.wantLegs(1, 0, 1)
				p := c.p[0].Records()[0]
				require.Equal(t, api.path, p.Path)
				require.InDelta(t, 1, p.JSON()[api.limit], 0)
				require.Equal(t, false, p.JSON()["stream"])
				d := c.d[0].Records()[0]
				require.InDelta(t, 9, d.JSON()[api.limit], 0)
				require.Equal(t, "h", d.Params()["remote_host"])
				if stream {
					require.Equal(t, api.stream, r.body)
				} else {
					require.NotContains(t, r.body, "kv_transfer_params")
					require.Contains(t, r.body, `_1"`)
				}
				c.post(api.path, body, "X-Session-ID", "s")
				c.wantLegs(1, 1, 1)
				line := c.traces(2)[1]
				require.Equal(t, "local", line.Route)
				require.Equal(t, 100, line.Prompt)
				if !(stream && strings.HasSuffix(api.path, "messages")) { // which tells none
					require.Equal(t, 96, line.Cached)
				}
				refuse = true
				require.Equal(t, 200, c.post(api.path, body, "X-Session-ID", "s").status)
				c.wantLegs(2, 2, 2)
			})
		}
	}
}

// A stream of the other APIs that ends before its last event was cut.
func TestOtherAPIsCut(t *testing.T) {
	c := start(t, setup{backend: func(b *backendtest.Backend) {
		b.Hook = on("d", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, responsesStream[:strings.Index(responsesStream, "event: response.completed")])
		})
	}})
	r := c.post("/v1/responses", `{"model":"m","input":"q","stream":true}`)
	require.Contains(t, r.body, `"delta":"hi"`)
	require.Contains(t, r.body, `data: {"error":`)
}

// On the ordinary route the client sees the Prefiller's cached tokens, wherever
// the usage stands; on a local hit the Decoder's.
func TestOtherAPIsUsage(t *testing.T) {
	started := strings.Replace(messagesStream, `{"input_tokens":100}`, `{"input_tokens":100,"cache_read_input_tokens":96}`, 1)
	for _, api := range []struct{ path, body, whole, stream string }{
		{"/v1/responses", `{"model":"m","input":"q"`, responsesWhole, strings.Replace(responsesStream, `{"id":"resp_1","usage":{`, `{"id":"resp_1","kv_transfer_params":{"resident_tokens":7},"usage":{`, 1)},
		{"/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"q"}]`, messagesWhole, started},
	} {
		for _, stream := range []bool{false, true} {
			c := start(t, setup{backend: func(b *backendtest.Backend) {
				b.Hook = func(w http.ResponseWriter, _ *http.Request, rec backendtest.Record) bool {
					switch {
					case rec.Leg == "p":
						answering(200, strings.ReplaceAll(api.whole, "96", "32"))(w, nil)
					case stream:
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = io.WriteString(w, api.stream)
					default:
						answering(200, api.whole)(w, nil)
					}
					return true
				}
			}})
			body := api.body + "}"
			if stream {
				body = api.body + `,"stream":true}`
			}
			for turn, want := range []string{`cached_tokens":32`, `cached_tokens":96`} {
				if strings.HasSuffix(api.path, "messages") {
					want = strings.Replace(want, "cached_tokens", "cache_read_input_tokens", 1)
				}
				r := c.post(api.path, body, "X-Session-ID", "s")
				require.Contains(t, r.body, want, "%s %v", api.path, stream)
				require.NotContains(t, r.body, "kv_transfer_params")
				require.Equal(t, 1, strings.Count(r.body, "96")+strings.Count(r.body, "32"), r.body)
				require.Equal(t, [2]int{32, 96}[turn], c.traces(turn + 1)[turn].Cached)
			}
			if stream && strings.HasSuffix(api.path, "responses") {
				require.EqualValues(t, 7, c.proxy.Snapshot().Decoders[0].Ranks[0].ResidentTokens)
			}
		}
	}
}
