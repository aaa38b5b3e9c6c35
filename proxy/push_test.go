package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// layerwise makes a fake Decoder one that posts its blocks to the metaserver
// before it answers, and gives up when the Prefiller was not started.
type layerwise struct {
	posts    int // times that every child posts
	ids      []string
	mangle   func(id string) string
	statuses sync.Map
	count    atomic.Int64
}

func (l *layerwise) serve(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
	meta, _ := rec.Params()["metaserver"].(string)
	if meta == "" {
		return false
	}
	var all sync.WaitGroup
	ok := atomic.Bool{}
	ok.Store(true)
	children := []string{""}
	if l.ids != nil {
		children = l.ids
	}
	for _, child := range children {
		for range max(l.posts, 1) {
			all.Go(func() {
				id := "chatcmpl-" + rec.Header.Get("X-Request-Id") + child + "-8f3a"
				if l.mangle != nil {
					id = l.mangle(id)
				}
				body := fmt.Sprintf(`{"token_ids":[],"request_id":%q,"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[4,5]],"remote_engine_id":"d","remote_host":"127.0.0.1","remote_port":7}`, id)
				resp, err := http.Post(meta, "application/json", strings.NewReader(body))
				if err != nil {
					ok.Store(false)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				l.statuses.Store(l.count.Add(1), resp.StatusCode)
				if resp.StatusCode != 200 {
					ok.Store(false)
				}
			})
		}
	}
	all.Wait()
	if !ok.Load() {
		<-r.Context().Done() // as a Decoder that does not look at the status: it waits for KV
		return true
	}
	return false
}

func pushing(c *Config) { c.Backend, _ = Preset("sluice"); c.Backend.Push = true }

func startPush(t *testing.T, l *layerwise, s setup) *cluster {
	t.Helper()
	// The metaserver's URL is known when the proxy listens: it is put in then.
	s.change = func(c *Config) {
		pushing(c)
		c.Metaserver = "http://127.0.0.1:1/v1/metaserver"
		c.MaxRetries = 2
	}
	c := start(t, s)
	c.proxy.cfg.Metaserver = c.url + "/v1/metaserver"
	for _, d := range c.d {
		d.Hook = l.serve
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return c
}

// Push mode: the Decoder is asked first, posts its blocks, and the Prefiller
// gets the prompt with them, once however often they are posted.
func TestPush(t *testing.T) {
	for _, posts := range []int{1, 3} {
		for _, stream := range []string{"", streamTurn} {
			c := startPush(t, &layerwise{posts: posts}, setup{backend: func(b *backendtest.Backend) { b.Cached = 48 }})
			r := c.post(chatPath, turnBody(1, `,"max_tokens":4,"seed":1.0,"return_token_ids":true`+stream), "X-Request-Id", "me")
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, backendtest.Text(4), clientText(t, r))
			require.Contains(t, r.body, `"cached_tokens":48`)
			c.wantLegs(1, 0, 1)
			d := c.d[0].Records()[0]
			require.Equal(t, map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "metaserver": c.url + "/v1/metaserver"}, d.Params())
			require.Regexp(t, `^me-d-[0-9a-f]{32}$`, d.Header.Get("X-Request-Id"))
			p := c.p[0].Records()[0]
			require.Equal(t, true, p.Params()["do_remote_decode"])
			require.Equal(t, "d", p.Params()["remote_engine_id"])
			require.Equal(t, "me-p", p.Header.Get("X-Request-Id"))
			m := p.JSON()
			require.Equal(t, false, m["stream"])
			require.InDelta(t, 1, m["max_tokens"], 0)
			require.NotContains(t, m, "stream_options")
			require.NotContains(t, m, "return_token_ids")
			require.Contains(t, string(p.Body), `"seed":1.0`)
			line := c.traces(1)[0]
			require.Equal(t, c.p[0].Addr, line.Prefiller)
			require.Len(t, line.Legs, 2)
		}
	}
}

// Several prompts: the Prefiller is started when all children have posted, with
// the parameters of each.
func TestPushSeveralPrompts(t *testing.T) {
	c := startPush(t, &layerwise{ids: []string{"-0", "-1"}}, setup{})
	r := c.post("/v1/completions", `{"model":"m","prompt":["a","b"],"max_tokens":4}`, "X-Request-Id", "me")
	require.Equal(t, 200, r.status, r.body)
	c.wantLegs(1, 0, 1)
	batch, ok := c.p[0].Records()[0].JSON()["batch_kv_transfer_params"].(map[string]any)
	require.True(t, ok)
	leg := c.d[0].Records()[0].Header.Get("X-Request-Id")
	require.Contains(t, batch, "chatcmpl-"+leg+"-0-8f3a")
	require.Contains(t, batch, "chatcmpl-"+leg+"-1-8f3a")
}

// A Prefiller that cannot be started ends the decode leg, which would wait for
// ever, and the client is told; with another Prefiller the turn succeeds.
func TestPushPrefillFails(t *testing.T) {
	c := startPush(t, &layerwise{}, setup{})
	c.p[0].Hook = on("p", answering(500, errorObject))
	r := c.post(chatPath, turnBody(1, ""))
	require.Equal(t, 502, r.status, r.body)
	require.Contains(t, r.errorOf(t)["message"], "prefiller answered status 500")

	c = startPush(t, &layerwise{}, setup{prefillers: 2})
	c.p[0].Hook = on("p", answering(500, errorObject))
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)

	c = startPush(t, &layerwise{}, setup{})
	c.p[0].Hook = on("p", answering(400, errorObject))
	require.Equal(t, 502, c.post(chatPath, turnBody(1, "")).status)
}

func TestMetaserverErrors(t *testing.T) {
	c := startPush(t, &layerwise{}, setup{})
	for body, status := range map[string]int{`{`: 400, `[]`: 400, `{}`: 404, `{"request_id":7}`: 404, `{"request_id":"cmpl-unknown-0"}`: 404} {
		r := c.post("/v1/metaserver", body)
		require.Equal(t, status, r.status, body)
		r.errorOf(t)
	}
	for _, bad := range []string{"", "ftp://x/y", "http://0.0.0.0:1/v1/metaserver", "http://[::]:1/x", "http://1.2.3:80/x", "://"} {
		cfg := Config{Prefillers: []string{"a:1"}, Decoders: []Decoder{{Addr: "b:1"}}, Metaserver: bad}
		pushing(&cfg)
		require.Error(t, cfg.Validate(), bad)
	}
	// Without a pool in push mode the path does not exist.
	plain := start(t, setup{})
	require.Equal(t, 404, plain.post("/v1/metaserver", "{}").status)
}

// a session's fallback in push mode starts a Prefiller of its own.
func TestPushFallback(t *testing.T) {
	c := startPush(t, &layerwise{}, setup{})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	c.wantLegs(1, 1, 1)
	c.d[0].Evict("s")
	require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s").status)
	c.wantLegs(2, 2, 2)
	require.Equal(t, "fallback", c.traces(3)[2].Route)
}

func TestPushesFind(t *testing.T) {
	var p pushes
	q := &pushed{leg: "a-b-d"}
	p.add(q)
	for _, id := range []string{"a-b-d", "cmpl-a-b-d", "chatcmpl-a-b-d", "cmpl-a-b-d-0", "chatcmpl-a-b-d-0-1f2e"} {
		require.Same(t, q, p.find(id), id)
	}
	for _, id := range []string{"", "a", "a-b", "cmpl-", "x-a-b-d"} {
		require.Nil(t, p.find(id), id)
	}
	other := &pushed{leg: "a-b-d2"}
	p.add(other)
	p.remove(q)
	require.Nil(t, p.find("a-b-d"))
	require.Same(t, other, p.find("cmpl-"+other.leg+"-0"))
}

// A client cannot post blocks for its own request: it would have a Prefiller
// send KV to an address that it names.
func TestClientsCannotPostBlocks(t *testing.T) {
	c := startPush(t, &layerwise{}, setup{})
	h := newHang()
	c.d[0].Hook = on("d", h.serve())
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { c.postThen(stop, turnBody(1, streamTurn), "X-Request-Id", "mine") })
	wait(t, h.came)
	leg := c.d[0].Records()[0].Header.Get("X-Request-Id")
	for _, id := range []string{"mine", "mine-d", "chatcmpl-mine", "chatcmpl-mine-d", "chatcmpl-mine-d-0-8f3a", "cmpl-mine-d-", leg[:len(leg)-1], "x" + leg} {
		r := c.post("/v1/metaserver", fmt.Sprintf(`{"request_id":%q,"remote_host":"10.0.0.1","remote_port":80}`, id))
		require.Equal(t, 404, r.status, id)
	}
	require.Empty(t, c.p[0].Records())
	stop <- struct{}{}
	all.Wait()
	wait(t, h.left)
}
