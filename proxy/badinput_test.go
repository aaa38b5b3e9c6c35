package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// Bodies that cannot be read get a 4xx in the OpenAI shape, and no backend
// hears of them.
func TestBadBodies(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.MaxBody = 1 << 20 }})
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	for name, want := range map[string]struct {
		body   string
		status int
	}{
		"empty":             {"", 400},
		"no json":           {"hello", 400},
		"list":              {"[]", 400},
		"cut":               {`{"model":"m","messages":[`, 400},
		"trailing":          {`{"model":"m"} {}`, 400},
		"duplicate":         {`{"model":"m","conversation_id":"a","conversation_id":"b"}`, 400},
		"duplicate escaped": {`{"conversation_id":"a","c\u006fnversation_id":"b"}`, 400},
		"utf-8":             {"{\"model\":\"\xff\"}", 400},
		"deep":              {`{"messages":` + deep + `}`, 400},
		"long":              {`{"x":"` + strings.Repeat("a", 1<<20) + `"}`, 413},
		"negative limit":    {`{"model":"m","messages":[],"max_tokens":-1}`, 400},
		"wrong limit":       {`{"model":"m","messages":[],"max_completion_tokens":"7"}`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.post(chatPath, want.body, "X-Session-ID", "s")
			require.Equal(t, want.status, r.status, r.body)
			r.errorOf(t)
		})
	}
	c.wantLegs(0, 0, 0)
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
}

// A gigabyte is refused by its length, before a byte of it is asked for; one
// that does not tell its length, at the limit.
func TestGigabyte(t *testing.T) {
	c := start(t, setup{})
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		status, answer := c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + expect + "Content-Length: 1073741824\r\n\r\n")
		require.Equal(t, 413, status)
		require.Contains(t, reply{status: status, body: answer}.errorOf(t)["message"], "33554432")
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	require.NoError(t, err)
	piece := []byte("100000\r\n" + strings.Repeat("a", 1<<20) + "\r\n")
	sent := 0
	for err == nil && sent < 1<<30 {
		_, err = conn.Write(piece)
		sent += len(piece)
	}
	require.Less(t, sent, 256<<20, "the connection ends near the limit")
	c.wantLegs(0, 0, 0)
}

// A session that is named twice in different ways is nobody's.
func TestConflictingSessions(t *testing.T) {
	c := start(t, setup{change: sources(route.SourceSessionHeader, route.SourceClaudeCode, route.SourceConversation)})
	ask := func(headers ...string) reply {
		req, err := http.NewRequest(http.MethodPost, c.url+chatPath, strings.NewReader(turnBody(1, `,"conversation_id":"c"`)))
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		resp, err := c.http.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return reply{resp.StatusCode, resp.Header, string(raw)}
	}
	for _, headers := range [][]string{
		{"X-Session-ID", "a", "X-Session-ID", "b"}, {"X-Session-ID", "a", "X-Session-ID", ""}, {"X-Claude-Code-Session-Id", "a", "X-Claude-Code-Session-Id", "b"},
		{"X-Session-ID", "a", "X-Parent-Session-ID", "b", "X-Parent-Session-ID", "c"},
	} {
		r := ask(headers...)
		require.Equal(t, 400, r.status, headers)
		require.Contains(t, r.errorOf(t)["message"], http.CanonicalHeaderKey(headers[len(headers)-2]))
	}
	c.wantLegs(0, 0, 0)
	require.Equal(t, 200, ask("X-Session-ID", "a", "X-Session-ID", "a").status, "twice the same is one")
	// Several sources may name several sessions: the first in order counts.
	require.Equal(t, 200, ask("X-Session-ID", "a", "X-Claude-Code-Session-Id", "b").status)
	c.wantLegs(1, 1, 1)
}

// Instances whose name leads nowhere are instances that cannot be reached, and
// IPv6 literals are addresses like others.
func TestHosts(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.Decoders[0].Addr = "nowhere.invalid:8000" }})
	r := c.post(chatPath, turnBody(1, ""))
	require.Equal(t, 502, r.status)
	require.Contains(t, r.errorOf(t)["message"], "cannot be reached")
	require.NotContains(t, r.body, "nowhere")

	b := backendtest.New()
	if err := b.Start("[::1]:0"); err != nil {
		t.Skip("there is no IPv6 here: ", err)
	}
	t.Cleanup(b.Stop)
	require.True(t, strings.HasPrefix(b.Addr, "[::1]:"))
	c = start(t, setup{change: func(cfg *Config) { cfg.Prefillers[0], cfg.Decoders[0].Addr = b.Addr, b.Addr }})
	for range 2 {
		require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	}
	require.Equal(t, "hit", c.traces(2)[1].Reason)
	require.Len(t, b.Records(), 3)
}

// An answer that is compressed although none such was asked for cannot be read:
// another instance may do better.
func TestCompressedAnswers(t *testing.T) {
	packed := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, decodeReply)
		_ = z.Close()
	}
	for _, leg := range []string{"p", "d"} {
		c := start(t, setup{backend: func(b *backendtest.Backend) { b.Hook = on(leg, packed) }})
		r := c.post(chatPath, turnBody(1, ""))
		require.Equal(t, 502, r.status, leg)
		require.Contains(t, r.errorOf(t)["message"], `compressed its answer with "gzip"`)
		require.Equal(t, "identity", c.p[0].Records()[0].Header.Get("Accept-Encoding"))
	}
	c := start(t, setup{decoders: 2, prefillers: 2})
	c.d[0].Hook, c.p[1].Hook = on("d", packed), on("p", packed)
	for range 4 {
		require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	}
}

func TestChunkedBodyAboveLimit(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.MaxBody = 100_000 }})
	pr, pw := io.Pipe()
	go func() {
		_, err := pw.Write([]byte(`{"x":"`))
		for err == nil {
			_, err = pw.Write(bytes.Repeat([]byte("a"), 10_000))
		}
	}()
	req, err := http.NewRequest(http.MethodPost, c.url+chatPath, pr)
	require.NoError(t, err)
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 413, resp.StatusCode)
	pw.CloseWithError(io.EOF)
	c.wantLegs(0, 0, 0)
}

func TestGzip(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.MaxBody = 1 << 20 }})
	pack := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, s)
		_ = w.Close()
		return b.String()
	}
	require.Equal(t, 200, c.post(chatPath, pack(turnBody(1, "")), "Content-Encoding", "gzip").status)
	bomb := pack(`{"x":"` + strings.Repeat("a", 16<<20) + `"}`)
	require.Less(t, len(bomb), 1<<20)
	r := c.post(chatPath, bomb, "Content-Encoding", "gzip")
	require.Equal(t, 413, r.status)
	r.errorOf(t)
	require.Equal(t, 400, c.post(chatPath, "{}", "Content-Encoding", "gzip").status)
	require.Equal(t, 400, c.post(chatPath, bomb[:200], "Content-Encoding", "gzip").status)
	require.Equal(t, 415, c.post(chatPath, "{}", "Content-Encoding", "br").status)
}

func TestPathsAndMethods(t *testing.T) {
	c := start(t, setup{})
	get := func(method, path string) reply {
		req, err := http.NewRequest(method, c.url+path, nil)
		require.NoError(t, err)
		resp, err := c.http.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return reply{resp.StatusCode, resp.Header, string(raw)}
	}
	r := get("GET", chatPath)
	require.Equal(t, 405, r.status)
	require.Equal(t, "POST", r.header.Get("Allow"))
	r.errorOf(t)
	r = get("GET", "/nothing%0d%0ahere")
	require.Equal(t, 404, r.status)
	r.errorOf(t)
	require.Equal(t, 200, get("GET", "/health").status)
	require.Equal(t, 200, get("GET", "/v1/models").status)
	r = get("GET", "/healthcheck")
	require.JSONEq(t, `{"status":"ok","prefill_instances":1,"decode_instances":1,"request_num":0}`, r.body)
	require.Equal(t, 200, get("POST", "/reset_prefix_cache").status)
	require.Contains(t, get("GET", "/metrics").body, "sluice_proxy_sessions 0")
	c.p[0].Stop()
	require.Equal(t, 200, get("GET", "/v1/models").status)
	r = get("POST", "/reset_prefix_cache?x=1")
	require.Equal(t, 500, r.status)
	require.Contains(t, r.body, "/reset_prefix_cache")
	c.d[0].Stop()
	r = get("GET", "/v1/models")
	require.Equal(t, 503, r.status)
	r.errorOf(t)
}

func TestSessionEnd(t *testing.T) {
	c := start(t, setup{})
	del := func(id, auth string) int {
		req, err := http.NewRequest(http.MethodDelete, c.url+"/v1/sessions/"+id, nil)
		require.NoError(t, err)
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		resp, err := c.http.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "a/b c")
	require.Equal(t, 404, del("a%2Fb%20c", "Bearer thief"))
	require.Equal(t, 204, del("a%2Fb%20c", ""))
	require.Equal(t, 404, del("a%2Fb%20c", ""))
	var told []string
	for _, d := range c.d {
		for _, r := range d.Records() {
			if r.Leg == "end" {
				told = append(told, r.Path)
			}
		}
	}
	digest := route.KeyOf("", "a/b c") // an id that no header carries
	require.Equal(t, []string{fmt.Sprintf("/v1/sessions/%x", digest[:])}, told, "the owner, once")
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "a/b c")
	c.wantLegs(2, 0, 2)
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "a/b c", "X-Session-End", "true")
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "a/b c")
	c.wantLegs(3, 1, 3)
}

// Session ids of any length and content are only keys.
func TestOddSessionIDs(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.MaxHeader = 4 << 20 }})
	for _, id := range []string{strings.Repeat("x", 1<<20), "ünïcode", "a b", "' OR 1=1", "../../etc"} {
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"q"}],"conversation_id":%q}`, id)
		c.forget()
		require.Equal(t, 200, c.post(chatPath, body).status)
		require.Equal(t, 200, c.post(chatPath, body).status)
		c.wantLegs(1, 1, 1)
		for _, r := range c.d[0].Records() {
			require.LessOrEqual(t, len(r.Header.Get("X-Session-Id")), 256)
		}
	}
	for _, id := range []string{"a\r\nX-Evil: 1", "a\x00b"} {
		body := strings.Replace(`{"model":"m","messages":[],"conversation_id":"ID"}`, "ID", strings.NewReplacer("\r", `\r`, "\n", `\n`, "\x00", `\u0000`).Replace(id), 1)
		c.forget()
		require.Equal(t, 200, c.post(chatPath, body).status)
		require.Empty(t, c.d[0].Records()[0].Header.Get("X-Evil"))
	}
}

// A client's request id travels only when it is harmless.
func TestRequestIDs(t *testing.T) {
	require.Equal(t, "abc-1_2.3:4", requestID("abc-1_2.3:4"))
	for _, bad := range []string{"", "a b", "a\"b", "ä", "a\r\nb", strings.Repeat("x", 129), "{}"} {
		got := requestID(bad)
		require.Len(t, got, 32, bad)
		require.NotEqual(t, got, requestID(bad))
	}
}

// raw sends bytes on a connection of its own and gives the first answer.
func (c *cluster) raw(text string) (int, string) {
	c.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(c.t, err)
	defer conn.Close()
	require.NoError(c.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(c.t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// Requests whose framing is ambiguous or whose header holds control characters
// are refused before any backend hears of them.
func TestSmuggling(t *testing.T) {
	c := start(t, setup{})
	body := turnBody(1, "")
	for name, head := range map[string]string{
		"two lengths":      fmt.Sprintf("Content-Length: %d\r\nContent-Length: 5\r\n", len(body)),
		"signed length":    fmt.Sprintf("Content-Length: +%d\r\n", len(body)),
		"odd encoding":     "Transfer-Encoding: xchunked\r\n",
		"space in name":    fmt.Sprintf("Content-Length : %d\r\n", len(body)),
		"control in value": fmt.Sprintf("Content-Length: %d\r\nX-Session-ID: a\x01b\r\n", len(body)),
		"folded":           fmt.Sprintf("Content-Length: %d\r\nX-A: b\r\n c\x00: d\r\n", len(body)),
	} {
		status, answer := c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + head + "\r\n" + body)
		require.GreaterOrEqual(t, status, 400, "%s: %s", name, answer)
		reply{status: status, body: answer}.errorOf(t)
	}
	c.wantLegs(0, 0, 0)
	// A session id of a megabyte is longer than any header may be.
	status, answer := c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nX-Session-ID: " + strings.Repeat("a", 1<<20) + "\r\n\r\n")
	require.Equal(t, 431, status)
	require.Contains(t, reply{status: status, body: answer}.errorOf(t)["message"], "Header Fields Too Large")
	// Trailers are read and dropped.
	status, _ = c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Session-ID\r\n\r\n" +
		fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Session-ID: s\r\n\r\n", len(body), body))
	require.Equal(t, 200, status)
	c.wantLegs(1, 0, 1)
	require.Empty(t, c.d[0].Records()[0].Header.Get("X-Session-Id"))
	// Of two framings the chunks count; what a backend gets is framed anew.
	c.forget()
	status, _ = c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" +
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\nPOST /reset_prefix_cache HTTP/1.1\r\nHost: x\r\n\r\n", len(body), body))
	require.Equal(t, 200, status)
	c.wantLegs(1, 0, 1)
	require.Len(t, c.p[0].Records(), 1)
	require.Equal(t, fmt.Sprint(len(c.p[0].Records()[0].Body)), c.p[0].Records()[0].Header.Get("Content-Length"))
}

// A client that sends its body too slowly is not waited for.
func TestSlowBody(t *testing.T) {
	c := start(t, setup{change: func(c *Config) { c.BodyTimeout = 50 * time.Millisecond }})
	status, _ := c.raw("POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	require.Equal(t, 400, status)
	c.wantLegs(0, 0, 0)
}

// A backend that says nothing is given up in time.
func TestTimeouts(t *testing.T) {
	for _, leg := range []string{"p", "d", "local"} {
		t.Run(leg, func(t *testing.T) {
			c := start(t, setup{change: func(c *Config) {
				c.PrefillTimeout, c.FirstTimeout, c.IdleTimeout, c.MaxRetries = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond, 1
			}})
			c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
			h := newHang()
			for _, b := range []*backendtest.Backend{c.p[0], c.d[0]} {
				b.Set(func(b *backendtest.Backend) { b.Hook = on(leg, h.serve()) })
			}
			session := "s"
			if leg != "local" {
				session = "other"
			}
			r := c.post(chatPath, turnBody(2, streamTurn), "X-Session-ID", session)
			wait(t, h.left)
			if leg == "local" {
				require.Equal(t, 200, r.status)
				require.Equal(t, "error:timeout", c.traces(2)[1].Reason)
				return
			}
			require.Equal(t, 502, r.status)
			require.Contains(t, r.errorOf(t)["message"], "in time")
		})
	}
	// A stream that stops is cut and the client is told.
	c := start(t, setup{change: func(c *Config) { c.IdleTimeout = 100 * time.Millisecond }})
	h := newHang()
	c.d[0].Hook = on("d", h.serve(tokenEvent))
	r := c.post(chatPath, turnBody(1, streamTurn))
	wait(t, h.left)
	require.Contains(t, r.body, "w0 ")
	require.Contains(t, r.body, "in time")
	require.NotContains(t, r.body, "[DONE]")
}

// A body's Content-Length that lies about more is a client that went away.
func TestShortBody(t *testing.T) {
	c := start(t, setup{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	require.NoError(t, err)
	conn.Close()
	time.Sleep(20 * time.Millisecond)
	c.wantLegs(0, 0, 0)
}

func TestConfigErrors(t *testing.T) {
	for want, cfg := range map[string]Config{
		"no prefiller":        {Decoders: []Decoder{{Addr: "a:1"}}},
		"no decoder":          {Prefillers: []string{"a:1"}},
		"missing port":        {Prefillers: []string{"a"}, Decoders: []Decoder{{Addr: "a:1"}}},
		"listed twice":        {Prefillers: []string{"a:1", "a:1"}, Decoders: []Decoder{{Addr: "a:1"}}},
		"host is empty":       {Prefillers: []string{":1"}, Decoders: []Decoder{{Addr: "a:1"}}},
		"too many colons":     {Prefillers: []string{"::1:80"}, Decoders: []Decoder{{Addr: "a:1"}}},
		"ranks":               {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1", Ranks: -1}}},
		"between 1 and 65535": {Prefillers: []string{"a:70000"}, Decoders: []Decoder{{Addr: "a:1"}}},
		"max retries is -1, must not be negative":           {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1"}}, MaxRetries: -1},
		"first timeout is -2s, must not be negative":        {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1"}}, FirstTimeout: -2 * time.Second},
		"store timeout is -1s, must not be negative":        {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1"}}, StoreTimeout: -time.Second},
		`metaserver "x" is no URL that a decoder can reach`: {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1"}}, Metaserver: "x"},
		"backend: max local attempts is -1":                 {Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "a:1"}}, Backend: Backend{Name: "x", Guard: route.Guard{MaxLocalAttempts: -1}}},
		"holds '/'":                                         {Prefillers: []string{"a/b:1"}, Decoders: []Decoder{{Addr: "a:1"}}},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
	}
	addrs, err := Addresses("decoder", []string{"::1", "[fe80::1]", "h"}, []string{"1", "2", "3"})
	require.NoError(t, err)
	require.Equal(t, []string{"[::1]:1", "[fe80::1]:2", "h:3"}, addrs)
	_, err = Addresses("decoder", []string{"h"}, []string{"1", "2"})
	require.ErrorContains(t, err, "same length")
	_, err = Addresses("decoder", []string{"h"}, []string{"x"})
	require.Error(t, err)
	list, err := DecoderList([]string{"a:1", "b:1"}, []string{"2"})
	require.NoError(t, err)
	require.Equal(t, []Decoder{{Addr: "a:1", Ranks: 2}, {Addr: "b:1", Ranks: 2}}, list)
	for _, sizes := range [][]string{{"1", "2", "3"}, {"0"}, {"x"}, {"2000"}} {
		_, err = DecoderList([]string{"a:1", "b:1"}, sizes)
		require.Error(t, err)
	}
	require.Equal(t, []string{"--prefiller-hosts", "a,b", "--port", "1", "x"}, JoinLists([]string{"--prefiller-hosts", "a", "b", "--port", "1", "x"}, "prefiller-hosts"))
	require.Equal(t, []string{"--prefiller-hosts=a", "b", "--prefiller-hosts"}, JoinLists([]string{"--prefiller-hosts=a", "b", "--prefiller-hosts"}, "prefiller-hosts"))
	for _, args := range [][]string{{"--prefiller-hosts", "a b\tc"}, {"--prefiller-hosts", "a, b ,c "}, {"--prefiller-hosts", "a,", "b c"}, {"--prefiller-hosts", " a", "b", "c"}} {
		require.Equal(t, []string{"--prefiller-hosts", "a,b,c"}, JoinLists(args, "prefiller-hosts"), args)
	}
	require.Equal(t, []string{"--prefiller-hosts=a,b", "--port=1 2"}, JoinLists([]string{"--prefiller-hosts=a b", "--port=1 2"}, "prefiller-hosts"))
}

// What is not eligible takes P/D although the owner is known.
func TestEligibility(t *testing.T) {
	c := start(t, setup{})
	one := func(prompt, more string) string {
		return `{"model":"m","prompt":` + prompt + more + `,"conversation_id":"s"}`
	}
	c.post("/v1/completions", one(`"a"`, ""))
	for _, yes := range []string{one(`"a"`, ""), one(`[1,2,3]`, ""), one(`["a"]`, ""), one(`[[1,2]]`, ""), one(`"a"`, `,"n":1`), one(`"a"`, `,"echo":false`), one(`"a"`, `,"n":null`), one(`"a"`, `,"prompt_logprobs":null`)} {
		c.forget()
		require.Equal(t, 200, c.post("/v1/completions", yes).status)
		_, local, _ := c.legs()
		require.Equal(t, 1, local, yes)
	}
	for _, no := range []string{one(`["a","b"]`, ""), one(`[[1],[2]]`, ""), one(`"a"`, `,"n":2`), one(`"a"`, `,"best_of":3`), one(`"a"`, `,"echo":true`), one(`"a"`, `,"prompt_logprobs":1`)} {
		c.forget()
		require.Equal(t, 200, c.post("/v1/completions", no).status)
		_, local, _ := c.legs()
		require.Equal(t, 0, local, no)
	}
}

func FuzzHandler(f *testing.F) {
	b := backendtest.New()
	if err := b.Start(""); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(b.Stop)
	p, err := New(Config{Prefillers: []string{b.Addr}, Decoders: []Decoder{{Addr: b.Addr, Ranks: 2}}, Append: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = p.Close() })
	h := p.Handler()
	f.Add(turnBody(2, `,"stream":true`), "s", "id", "")
	f.Add(`{"prompt":[1],"conversation_id":"x"}`, "", "", "gzip")
	f.Fuzz(func(t *testing.T, body, session, id, encoding string) {
		r := httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(body))
		r.Header["X-Session-Id"] = []string{session}
		r.Header["X-Request-Id"] = []string{id}
		r.Header["Content-Encoding"] = []string{encoding}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Contains(t, []int{200, 400, 404, 413, 415, 502, 503}, w.Code)
		require.NotEmpty(t, w.Body.Bytes())
		b.Forget()
	})
}
