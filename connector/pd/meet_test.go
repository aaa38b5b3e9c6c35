package pd

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

// meta is a metaserver; every question that comes goes to answer.
func meta(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body []byte)) *Params {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		answer(w, r, body)
	}))
	t.Cleanup(srv.Close)
	return throughJSON(t, &Params{DoRemotePrefill: true, Metaserver: srv.URL + "/v1/metaserver"})
}

// D asks for a P, which is given what D has posted; then it is a push.
func TestPrefillerOfAPushIsFound(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	posted := make(chan []byte, 1)
	toD := meta(t, func(_ http.ResponseWriter, r *http.Request, body []byte) {
		posted <- body
		<-r.Context().Done() // P computes for longer than anybody asks
	})
	require.NoError(t, d.w.Allowed(toD))
	r := remote(1, 18, toD)
	d.s.Added(r)
	require.Equal(t, 10, d.s.Lookup(r, 8).Tokens)
	to := connector.Tables{blockRange(30, 5)}
	d.s.Allocated(r, to, 8, 10)
	d.flush()

	body := <-posted
	var what struct {
		ID     string  `json:"request_id"`
		Blocks [][]int `json:"remote_block_ids"`
		Cached int     `json:"remote_cached_tokens"`
	}
	require.NoError(t, json.Unmarshal(body, &what))
	require.Equal(t, "d-1-1.1", what.ID)
	require.Equal(t, [][]int{{32, 33, 34}}, what.Blocks)
	require.Equal(t, 8, what.Cached)
	toP, err := ParseParams(body)
	require.NoError(t, err, "%s", body)
	require.True(t, toP.Pushed())
	require.NoError(t, p.w.Allowed(toP))

	pr, from := pRequest(7, 18, toP), connector.Tables{blockRange(10, 5)}
	p.s.Added(pr)
	p.flush()
	p.fill(from[0], 9)
	p.s.Allocated(pr, from, 0, 0)
	p.s.Finished(pr, from, connector.End{Reason: connector.EndLength, Computed: 18, Output: 1})
	p.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, 3, ev.Payload.(Transfer).Blocks)
	require.Equal(t, "p-1", ev.Payload.(Transfer).Peer)
	sameBlocks(t, p, d, from[0][2:], to[0][2:])
	require.Equal(t, connector.Sent, p.next().Kind)
	require.Empty(t, d.w.meetings.m)
}

// A question without a good answer fails the load, at once or by its deadline.
func TestPrefillerOfAPushIsNotFound(t *testing.T) {
	for want, answer := range map[string]func(http.ResponseWriter, *http.Request, []byte){
		"status 502": func(w http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(w, "nobody", http.StatusBadGateway) },
		"status 307": func(w http.ResponseWriter, r *http.Request, _ []byte) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		},
		"no prefiller has come": func(http.ResponseWriter, *http.Request, []byte) {},
		"not finished within":   func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() },
	} {
		d := newEngine(t, "d-1", Consumer, 2, func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
			w.Call, s.Load = 50*time.Millisecond, 300*time.Millisecond
		})
		r := remote(1, 9, meta(t, answer))
		d.s.Added(r)
		d.s.Allocated(r, connector.Tables{blockRange(30, 3)}, 0, 9)
		d.flush()
		ev := d.next()
		require.Equal(t, connector.Failed, ev.Kind)
		require.ErrorContains(t, ev.Err, want)
		require.Equal(t, connector.Received, d.next().Kind)
		require.Empty(t, d.w.meetings.m)
	}
}

// Full local hits and requests that end early ask nobody, and a P whose D has
// gone does not wait for it.
func TestNobodyIsAskedForNothing(t *testing.T) {
	p, d := newEngine(t, "p-1", Producer, 1), newEngine(t, "d-1", Consumer, 2)
	toD := meta(t, func(http.ResponseWriter, *http.Request, []byte) { t.Error("asked") })
	full, early := remote(1, 9, toD), remote(2, 9, toD)
	d.s.Added(full)
	d.s.Added(early)
	d.s.Allocated(full, connector.Tables{blockRange(30, 3)}, 9, 0)
	d.s.Finished(early, nil, connector.End{Reason: connector.EndAbort})
	d.flush()
	d.quiet(20 * time.Millisecond)

	ep := d.w.Endpoint()
	gone := &Params{DoRemoteDecode: true, Mode: "push", Transfer: "over", EngineID: ep.EngineID, Host: ep.Host, Port: ep.Port}
	p.s.Added(pRequest(7, 18, throughJSON(t, gone)))
	p.flush()
	eventually(t, "the push is given up", func() bool { return p.w.pushes.len() == 0 })
}

func TestMetaserverAddresses(t *testing.T) {
	for _, bad := range []string{"ftp://x/", "http://", "x", "http://u@x/", "http://x:99999/", "://"} {
		_, err := ParseParams([]byte(`{"do_remote_prefill":true,"metaserver":"` + bad + `"}`))
		var e *ParamError
		require.ErrorAs(t, err, &e, bad)
		require.Equal(t, "metaserver", e.Field)
	}
	at, err := metaserver("https://proxy.local/v1/metaserver")
	require.NoError(t, err)
	require.Equal(t, Endpoint{"metaserver", "proxy.local", 443}, at)
	d := newEngine(t, "d-1", Consumer, 2)
	var e *PeerError
	require.ErrorAs(t, d.w.Allowed(&Params{DoRemotePrefill: true, Metaserver: "http://10.0.0.9:80/x"}), &e)
}
