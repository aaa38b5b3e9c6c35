package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/up"
)

// turn is one request of a conversation and what the traces must say of it.
type turn struct {
	what   string // the rule that it shows
	header string // X-Session-ID; empty: none
	body   string // the conversation_id member as JSON; empty: none
	salt   string
	text   string // user message
	route  string
	legs   string
}

const story = "The harbour crane stopped twice this week and the night shift wrote everything down. "

// The session rules with the real engine behind the proxy. Request ids are
// t0, t1, … in the order of the table.
var turns = []turn{
	{"R42: a first turn takes the P/D route", "A", "", "", story, "pd", "p d"},
	{"R4, R5, R9, R27, R43: a later turn is prefilled on its owner and rank", "A", "", "", story + "And then?", "local", "local"},
	{"R28: the id may be in the body", "", `"A"`, "", story + "And now?", "local", "local"},
	{"R29: the header wins over the body", "A", `"unknown"`, "", story + "Go on.", "local", "local"},
	{"R30: no id, no local attempt", "", "", "", story, "pd", "p d"},
	{"R30: a number is no id", "", `7`, "", story, "pd", "p d"},
	{"R30: null is no id", "", `null`, "", story, "pd", "p d"},
	{"R30: a list is no id", "", `["A"]`, "", story, "pd", "p d"},
	{"R30: an object is no id", "", `{"id":"A"}`, "", story, "pd", "p d"},
	{"R30: an empty string is no id", "", `""`, "", story, "pd", "p d"},
	{"R26: another id is another conversation", "B", "", "", story, "pd", "p d"},
	{"R2, R7, R8, R39, R44: nothing usable is left, so the Prefiller takes over", "A", "", "elsewhere", story, "fallback", "local p d"},
	{"R6, R38: after the fallback the prefix is really there again", "A", "", "elsewhere", story + "Well?", "local", "local"},
	{"R31: a history that shrank is served for what it is", "A", "", "", story[:60], "local", "local"},
}

func (x *turn) send(t *testing.T, url, id string) {
	t.Helper()
	body := map[string]any{
		"model": "builtin", "max_tokens": 3, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": x.text}},
	}
	if x.body != "" {
		body["conversation_id"] = json.RawMessage(x.body)
	}
	if x.salt != "" {
		body["cache_salt"] = x.salt
	}
	text, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(string(text)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	if x.header != "" {
		req.Header.Set("X-Session-ID", x.header)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode, "%s: %s", x.what, answer)
}

// rowsOf waits for the traces of the given requests.
func rowsOf(t *testing.T, ids []string, files ...string) []join.Row {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		traces, err := join.ReadFiles(files...)
		require.NoError(t, err)
		rows := traces.Rows(ids, func(id string) bool { return id != "t0" })
		complete := true
		for i := range rows {
			complete = complete && rows[i].Route != "" && rows[i].Admission != nil
		}
		if complete || time.Now().After(deadline) {
			return rows
		}
	}
}

func TestSessionRulesOnTheRealEngine(t *testing.T) {
	shape := up.Cluster{Decoder: up.Engine{Ranks: 2}, TraceDir: t.TempDir()}
	r := cluster(t, up.AppendPrefill, shape)
	var ids []string
	for i := range turns {
		id := fmt.Sprintf("t%d", i)
		turns[i].send(t, r.Proxy.URL(), id)
		ids = append(ids, id)
	}
	rows := rowsOf(t, ids, shape.TraceFile("proxy"), shape.TraceFile("d0"), shape.TraceFile("p0"))
	var appends []join.Row // those that may try their owner hold the rules of a hit and of a miss
	for i := range rows {
		x, row := &turns[i], &rows[i]
		require.Equal(t, x.route, row.Route, "%s (reason %s)", x.what, row.Reason)
		var legs []string
		for _, l := range row.Attempts {
			legs = append(legs, l.Leg)
		}
		require.Equal(t, x.legs, strings.Join(legs, " "), x.what)
		if row.Hit() {
			require.Equal(t, rows[0].Rank, row.Rank, x.what)
			require.Equal(t, rows[0].Decoder, row.Decoder, x.what)
			require.Positive(t, row.Admission.CachedTokens, x.what)
			require.Less(t, row.Admission.CachedTokens, row.Admission.PromptTokens, "at least one token is computed")
		}
		if row.Route != join.RoutePD {
			appends = append(appends, *row)
		}
	}
	require.Empty(t, join.Check(appends, join.Expect{AppendPrefill: true}))
	require.Zero(t, held(t, r.Prefiller, r.Decoder))
	http.DefaultClient.CloseIdleConnections()
}

// R25: without its switch the proxy ignores session ids. R36, R37: it asks the
// engines for nothing beyond readiness.
func TestWithoutTheSwitchEveryTurnTakesTheOrdinaryRoute(t *testing.T) {
	shape := up.Cluster{Decoder: up.Engine{Ranks: 2}, TraceDir: t.TempDir()}
	r := cluster(t, up.OrdinaryPD, shape)
	var ids []string
	for i := range 3 {
		x := turn{what: "no switch", header: "A", text: story + strings.Repeat("more ", i)}
		id := fmt.Sprintf("t%d", i)
		x.send(t, r.Proxy.URL(), id)
		ids = append(ids, id)
	}
	rows := rowsOf(t, ids, shape.TraceFile("proxy"), shape.TraceFile("d0"), shape.TraceFile("p0"))
	for i := range rows {
		require.Equal(t, join.RoutePD, rows[i].Route, rows[i].Reason)
	}
	require.Zero(t, held(t, r.Prefiller, r.Decoder))
	http.DefaultClient.CloseIdleConnections()
}
