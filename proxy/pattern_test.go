package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
)

// relayOf is a relay whose client is w, for events alone.
func relayOf(t testing.TB, p *Proxy, w http.ResponseWriter) *relay {
	req, err := http.NewRequest(http.MethodPost, chatPath, nil)
	require.NoError(t, err)
	x := &exchange{p: p, w: w, r: req, at: chat, id: "id", path: chatPath, start: time.Now()}
	x.out = answer{w: w, flush: http.NewResponseController(w), timeout: time.Minute}
	x.turn, _ = p.router.Begin(time.Now(), route.Query{Bytes: 100})
	target, ok := p.router.Decoder(time.Now(), x.turn)
	require.True(t, ok)
	return &relay{scratch: new(scratch), x: x, c: call{leg: route.LegDecode, target: target}, ctx: t.Context(), mode: relayMode{rewriteCached: true, cached: 7}, status: 200}
}

func idleProxy(t testing.TB) *Proxy {
	p, err := New(Config{Append: true, ScrapeEvery: -1, Prefillers: []string{"127.0.0.1:1"}, Decoders: []Decoder{{Addr: "127.0.0.1:2"}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// transcript keeps what a client is sent.
type transcript struct {
	sink
	text strings.Builder
}

func (w *transcript) Write(p []byte) (int, error) { return w.text.Write(p) }

// relayed is what the client gets of a stream, and the number of events with output.
func relayed(t testing.TB, p *Proxy, stream string, learn bool) (string, int, int) {
	w := &transcript{sink: sink{header: http.Header{}}}
	r := relayOf(t, p, w)
	defer p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
	events := openai.NewReader(strings.NewReader(stream), 0)
	alike := 0
	for {
		ev, err := events.Next()
		if err != nil {
			return w.text.String(), r.outputs, alike
		}
		if !learn {
			r.pattern.forget()
		}
		used := r.pattern.used
		if _, over := r.event(ev, false); over {
			return w.text.String(), r.outputs, alike
		}
		if r.pattern.used > used {
			alike++
		}
	}
}

// However events follow one another, those that are recognised come out as
// those that are parsed.
func TestAlikeEventsComeOutAsParsedOnes(t *testing.T) {
	p := idleProxy(t)
	texts := []string{`a`, ``, `two words`, `\n\"`, `\u00e9`, "é", "\xff", "a\tb", `a","role":"b`, `\x`, `]}`, `a"},"finish_reason":"stop`, strings.Repeat("long ", 40)}
	tails := []string{`},"finish_reason":null}`, `},"finish_reason":"stop"}`, `},"finish_reason":null,"stop_reason":"recomputed"}`, `},"token_ids":[1],"finish_reason":null}`, `}}`, `}`}
	ends := []string{`]}`, `],"usage":{"prompt_tokens":9,"completion_tokens":2}}`, `],"kv_transfer_params":{"resident_tokens":5}}`, `],"error":{"message":"x"}}`, `],"id":"again"}`, `]`}
	heads := []string{`{"id":"x","choices":[{"index":0,"delta":{"content":"`, `{"choices":[{"index":1,"delta":{"content":"`, `{"id":"x","choices":[{"delta":{"reasoning_content":"`,
		`{"id":"x","choices":[{"text":"`, `{"choices":[{"index":0},{"delta":{"content":"`, `{"id":"x","choices":[{"delta":{"role":"`}
	frames := []string{"data: %s\n\n", "data:%s\r\n\r\n", "event: e\nid: 1\ndata: %s\n\n", ": c\ndata: %s\n\n", "data: {}\ndata: %s\n\n"}
	pick := func(t *rapid.T, list []string, name string) string {
		if rapid.IntRange(0, 3).Draw(t, "plain "+name) > 0 {
			return list[0]
		}
		return rapid.SampledFrom(list).Draw(t, name)
	}
	rapid.Check(t, func(rt *rapid.T) {
		var stream strings.Builder
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			data := pick(rt, heads, "head") + rapid.SampledFrom(texts).Draw(rt, "text") + `"` + pick(rt, tails, "tail") + pick(rt, ends, "end")
			fmt.Fprintf(&stream, pick(rt, frames, "frame"), data)
		}
		want, outputs, _ := relayed(t, p, stream.String(), false)
		got, counted, _ := relayed(t, p, stream.String(), true)
		require.Equal(t, want, got)
		require.Equal(t, outputs, counted)
	})
}

// An event with the ids of a long prompt is not looked through for a pattern: no other
// event has them. Those behind it are recognised as ever.
func TestPromptsTokensAreNoPattern(t *testing.T) {
	p := idleProxy(t)
	r := relayOf(t, p, &transcript{sink: sink{header: http.Header{}}})
	defer p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
	event := func(text, more string) {
		data := `{"id":"x"` + more + `,"choices":[{"index":0,"delta":{"content":"` + text + `"}}]}`
		r.event(openai.Event{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data), DataAt: 6}, false)
	}
	event("a", `,"prompt_token_ids":[`+strings.Repeat("123456,", 12_287)+`7]`)
	require.False(t, r.pattern.known)
	require.Zero(t, r.pattern.missed)
	event("b", "")
	event("c", "")
	event("d", "")
	require.Equal(t, 2, r.pattern.used)
	require.Equal(t, 4, r.outputs)
}

// Of an ordinary stream all events but the first and the last are recognised,
// whatever it streams.
func TestOrdinaryStreamsAreAlike(t *testing.T) {
	p := idleProxy(t)
	for _, delta := range []string{`"delta":{"content":%s}`, `"delta":{"role":"assistant","content":null,"reasoning_content":%s}`, `"text":%s`,
		`"delta":{"tool_calls":[{"index":0,"function":{"arguments":%s}}]}`} {
		var stream strings.Builder
		for i := range 50 {
			finish := "null"
			if i == 49 {
				finish = `"stop"`
			}
			fmt.Fprintf(&stream, `data: {"id":"x","created":1,"choices":[{"index":0,`+delta+`,"finish_reason":%s}]}`+"\n\n", strconv.Quote("word "+strconv.Itoa(i)), finish)
		}
		got, outputs, alike := relayed(t, p, stream.String(), true)
		require.Equal(t, 48, alike, delta)
		require.Equal(t, 50, outputs)
		require.Equal(t, strings.ReplaceAll(stream.String(), `"id":"x"`, `"id":"chatcmpl-id"`), got)
	}
	// Streams whose events have nothing in common are not learned for ever.
	w := &transcript{sink: sink{header: http.Header{}}}
	r := relayOf(t, p, w)
	for i := range 50 {
		data := fmt.Sprintf(`{"id":"x","created":%d,"choices":[{"index":0,"delta":{"content":"a"}}]}`, i)
		r.event(openai.Event{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data), DataAt: 6}, false)
	}
	require.Equal(t, maxMissed+1, r.pattern.missed)
	p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
}

// However a stream is made, what the client gets of it is what it would get if every
// event were parsed.
func FuzzEvents(f *testing.F) {
	const plain = `{"id":"x","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}`
	event := func(text string) string { return "data: " + fmt.Sprintf(plain, text) + "\n\n" }
	for _, s := range []string{
		event("a") + event("b") + event(`c","finish_reason":"stop`) + event(`\"`) + "data: [DONE]\n\n",
		event("a") + event("b") + ": c\r\n\r\n" + strings.ReplaceAll(event("c"), "\n", "\r\n") + "data: [DONE]\n\n" + event("d"),
		event("a") + strings.ReplaceAll(event("b"), `{"index"`, "\ndata: {\"index\"") + event("c"),
		event("a") + strings.ReplaceAll(event("b"), `]}`, `],"usage":{"completion_tokens":1}}`) + event("c"),
		event("a") + strings.ReplaceAll(event("b"), `"id":"x"`, `"id":"x","id":"y"`) + event("\xff") + event(""),
	} {
		f.Add([]byte(s))
	}
	p := idleProxy(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		want, outputs, _ := relayed(t, p, string(in), false)
		got, counted, _ := relayed(t, p, string(in), true)
		require.Equal(t, want, got)
		require.Equal(t, outputs, counted)
	})
}
