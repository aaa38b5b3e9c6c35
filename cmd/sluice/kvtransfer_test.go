package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/server"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
	"github.com/sluice-serving/sluice/proxy"
)

type members map[string]any

// serving is engines in this process behind a proxy, or one engine alone.
type serving struct {
	t     *testing.T
	url   string // of what clients talk to
	http  *http.Client
	hosts map[string]string // URL by name
	proxy *proxy.Proxy      // nil for one engine alone
}

// run starts engines by name: those with p are Prefillers, those with d
// Decoders, in order.
func run(t *testing.T, names []string, configs map[string]engine.Config, change func(*proxy.Config)) *serving {
	t.Helper()
	s := &serving{t: t, hosts: map[string]string{}, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(s.http.CloseIdleConnections)
	cfg := proxy.Config{Append: true}
	for _, name := range names {
		c := configs[name]
		c.MaxSeqs, c.KVBlocks, c.DeviceWorkers = 8, 1024, 1
		e, err := engine.New(t.Context(), c, engine.Options{})
		require.NoError(t, err)
		srv := httptest.NewServer(server.New(e, server.Options{Noise: server.NoiseAllowed}))
		t.Cleanup(func() {
			srv.Close()
			require.NoError(t, e.Close())
		})
		s.url, s.hosts[name] = srv.URL, srv.URL
		addr := strings.TrimPrefix(srv.URL, "http://")
		if name[0] == 'p' {
			cfg.Prefillers = append(cfg.Prefillers, addr)
		} else {
			cfg.Decoders = append(cfg.Decoders, proxy.Decoder{Addr: addr})
		}
	}
	if change == nil {
		return s
	}
	var err error
	cfg.Backend, err = proxy.Preset("sluice")
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.url = "http://" + l.Addr().String()
	cfg.Metaserver = s.url + "/v1/metaserver"
	change(&cfg)
	p, err := proxy.New(cfg)
	require.NoError(t, err)
	s.proxy = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, 5*time.Second) }()
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		cancel()
		require.NoError(t, <-done)
	})
	return s
}

// post gives the answer and, from a proxy, its route.
func (s *serving) post(path string, body members, headers ...string) ([]byte, string) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(s.t, err)
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, bytes.NewReader(raw))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.http.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, 200, resp.StatusCode, "%s", out)
	return out, resp.Header.Get("X-Sluice-Route")
}

func (s *serving) metric(name, metric string, labels ...string) float64 {
	s.t.Helper()
	page, err := scrape.Fetch(s.t.Context(), s.http, s.hosts[name]+"/metrics")
	require.NoError(s.t, err)
	m := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		m[labels[i]] = labels[i+1]
	}
	return page.Sum(metric, m)
}

// received is the blocks that an engine has read or been given.
func (s *serving) received(name string) float64 {
	return s.metric(name, "sluice_kv_transfer_blocks_total", "direction", "received")
}

type chatAnswer struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		TokenIDs identity.Answer `json:"token_ids"`
	} `json:"choices"`
	Usage struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	} `json:"usage"`
}

func (s *serving) chat(messages []members, more members, headers ...string) (chatAnswer, string) {
	s.t.Helper()
	body := members{"model": "builtin", "messages": messages, "max_tokens": 12, "temperature": 0, "return_token_ids": true}
	for k, v := range more {
		body[k] = v
	}
	raw, route := s.post("/v1/chat/completions", body, headers...)
	var out chatAnswer
	require.NoError(s.t, json.Unmarshal(raw, &out))
	require.Len(s.t, out.Choices, 1)
	return out, route
}

// talk is recorded conversations: what is asked, and what an engine answers
// that keeps nothing from one turn to the next.
type talk struct {
	asked [][][]members // by session and turn
	want  [][]chatAnswer
}

const block = 16

func recordTalk(t *testing.T, sessions, turns int) *talk {
	t.Helper()
	alone := run(t, []string{"d"}, map[string]engine.Config{"d": {NoPrefix: true, Sync: true, Eager: true}}, nil)
	rng := rand.New(rand.NewPCG(7, 11))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "%c%c%c ", 'a'+rng.IntN(26), 'a'+rng.IntN(26), 'a'+rng.IntN(26))
		}
		return b.String()
	}
	k := &talk{}
	for range sessions {
		history := []members{{"role": "system", "content": "You answer in few words."}}
		var asked [][]members
		var want []chatAnswer
		for turn := range turns {
			n := 60
			if turn > 0 {
				n = 8
			}
			history = append(history, members{"role": "user", "content": words(n)})
			asked = append(asked, append([]members(nil), history...))
			out, _ := alone.chat(history, nil)
			want = append(want, out)
			history = append(history, members{"role": "assistant", "content": out.Choices[0].Message.Content})
		}
		k.asked, k.want = append(k.asked, asked), append(k.want, want)
	}
	return k
}

// replay asks all turns and calls between before every one but a session's
// first. Each session has a salt of its own, so none reads another's KV.
func (k *talk) replay(s *serving, more members, between func(session, turn int), route func(turn int, route string)) []identity.Answer {
	var got []identity.Answer
	for i, asked := range k.asked {
		with := members{"cache_salt": fmt.Sprint("s", i, more["kv_noise"])}
		for name, v := range more {
			with[name] = v
		}
		for turn, messages := range asked {
			if turn > 0 {
				between(i, turn)
			}
			out, how := s.chat(messages, with, "X-Session-ID", fmt.Sprint("s", i, more["kv_noise"]))
			route(turn, how)
			got = append(got, out.Choices[0].TokenIDs)
		}
	}
	return got
}

func (k *talk) answers() (out []identity.Answer) {
	for _, session := range k.want {
		for _, a := range session {
			out = append(out, a.Choices[0].TokenIDs)
		}
	}
	return out
}

func bidirectional(role engine.Role) engine.Config {
	c := engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: role}}
	c.KVTransfer.Extra.Bidirectional, c.KVTransfer.Extra.MinReverse = true, 1
	c.Additional.Scheduler.DecoderAppendPrefill = role == engine.RoleConsumer
	return c
}

// The owner does not take the turn, so a Prefiller does, and reads the session
// so far back from the owner: block for block what the turn before left.
func TestPrefillerReadsTheSessionBackThroughTheProxy(t *testing.T) {
	k := recordTalk(t, 2, 3)
	p := bidirectional(engine.RoleProducer)
	p.NoPrefix = true // what it knows of the session comes from the owner
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprintf("on=%v", on), func(t *testing.T) {
			s := run(t, []string{"p", "d"}, map[string]engine.Config{"p": p, "d": bidirectional(engine.RoleConsumer)}, func(c *proxy.Config) {
				c.Backend.Bidirectional, c.RouteHeader = on, true
				c.Backend.Guard.MaxSuffixTokens = 1 // the owner is never asked
			})
			want := 0.0
			count := func(session, turn int) {
				if on {
					require.Equal(t, want, s.received("p"), "before turn %d of session %d", turn, session)
					want += k.left(session, turn-1)
				}
			}
			pd := func(_ int, route string) { require.Contains(t, route, "pd") }
			got := k.replay(s, nil, count, pd)
			require.Equal(t, want, s.received("p"))
			require.Equal(t, on, want > 0)
			require.Zero(t, s.metric("p", "sluice_kv_transfer_failures_total"))
			identity.Check(t, k.answers(), got, func() []identity.Answer {
				return k.replay(s, members{"kv_noise": true}, func(int, int) {}, pd) // wrong answers go on otherwise: nothing to count
			})
		})
	}
}

// The owner is drained: a new one takes the session, reads it from the old one
// and computes what is new, without a Prefiller.
func TestNewOwnerReadsTheSessionThroughTheProxy(t *testing.T) {
	k := recordTalk(t, 2, 3)
	s := run(t, []string{"p", "d0", "d1"}, map[string]engine.Config{
		"p": bidirectional(engine.RoleProducer), "d0": bidirectional(engine.RoleConsumer), "d1": bidirectional(engine.RoleConsumer),
	}, func(c *proxy.Config) { c.Backend.Bidirectional, c.RouteHeader = true, true })
	prompts := 0.0                       // that P has served
	owner, moved, served := "", 0.0, 0.0 // served: by d1 before the session
	move := func(session, turn int) {
		if turn == 1 {
			owner = "d0"
			if n := s.metric("d1", "vllm:request_success_total"); n > served {
				owner = "d1"
			}
			s.admin("drain", owner)
			require.True(t, s.draining())
			prompts++
			moved += k.left(session, 0)
		}
	}
	routes := func(turn int, route string) {
		want := "pd"
		if turn == 2 {
			want = "local" // the new owner has it
			s.admin("add", owner)
			require.Eventually(t, func() bool { return !s.draining() }, 10*time.Second, time.Millisecond)
			served = s.metric("d1", "vllm:request_success_total")
		}
		require.Contains(t, route, want, "turn %d", turn)
	}
	got := k.replay(s, nil, move, routes)
	require.Equal(t, prompts, s.metric("p", "vllm:request_success_total"), "only first turns")
	require.Zero(t, s.received("p"))
	first := float64(0)
	for i := range k.want {
		first += float64((k.want[i][0].Usage.Prompt + block - 1) / block)
	}
	require.Equal(t, first+moved, s.received("d0")+s.received("d1"))
	identity.Check(t, k.answers(), got, func() []identity.Answer { return k.replay(s, members{"kv_noise": true}, move, routes) })
}

// admin asks the proxy to change a Decoder.
func (s *serving) admin(what, name string) {
	s.t.Helper()
	raw, err := json.Marshal(members{"type": "decode", "instances": strings.TrimPrefix(s.hosts[name], "http://")})
	require.NoError(s.t, err)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/instances/"+what, bytes.NewReader(raw))
	r.Header.Set("Authorization", "Bearer secret")
	s.proxy.Admin("secret").ServeHTTP(w, r)
	require.Equal(s.t, 200, w.Code, "%s", w.Body)
}

// draining reports whether any Decoder takes no new work.
func (s *serving) draining() bool {
	for _, d := range s.proxy.Snapshot().Decoders {
		if d.Draining {
			return true
		}
	}
	return false
}

// left is the blocks that a turn leaves: its last token was sampled and has no
// KV.
func (k *talk) left(session, turn int) float64 {
	return float64((k.want[session][turn].Usage.Total - 1 + block - 1) / block)
}

// In push mode the Decoder asks the proxy's metaserver for a Prefiller, which
// writes each layer's KV into the Decoder's blocks as soon as it is computed.
func TestPushThroughTheProxy(t *testing.T) {
	k := recordTalk(t, 2, 2)
	p := engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleProducer}, MaxTokens: 64}
	d := engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleConsumer}, NoPrefix: true}
	s := run(t, []string{"p", "d"}, map[string]engine.Config{"p": p, "d": d}, func(c *proxy.Config) {
		c.Backend.Push, c.RouteHeader, c.Append = true, true, false
	})
	pd := func(_ int, route string) { require.Contains(t, route, "pd") }
	got := k.replay(s, nil, func(int, int) {}, pd)
	want := 0.0
	for _, session := range k.want {
		for _, a := range session {
			want += float64((a.Usage.Prompt + block - 1) / block)
		}
	}
	require.Equal(t, want, s.received("d"), "every block of every prompt was pushed")
	require.Equal(t, 4.0, s.metric("p", "vllm:request_success_total"))
	require.Zero(t, s.metric("d", "sluice_kv_transfer_failures_total"))
	require.Eventually(t, func() bool { return s.metric("p", "sluice_kv_leases") == 0 }, 10*time.Second, 5*time.Millisecond)
	identity.Check(t, k.answers(), got, func() []identity.Answer { return k.replay(s, members{"kv_noise": true}, func(int, int) {}, pd) })
}

// A prompt whose log probabilities are wanted is computed by the Decoder, which in
// push mode then asks for no Prefiller: it answers all the same, and nothing is
// held anywhere.
func TestPromptLogprobsThroughTheProxy(t *testing.T) {
	for _, push := range []bool{false, true} {
		t.Run(map[bool]string{false: "pull", true: "push"}[push], func(t *testing.T) {
			p := engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleProducer}, MaxTokens: 64}
			d := engine.Config{KVTransfer: engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleConsumer}}
			s := run(t, []string{"p", "d"}, map[string]engine.Config{"p": p, "d": d}, func(c *proxy.Config) {
				c.Backend.Push, c.RouteHeader, c.Append = push, true, false
			})
			raw, how := s.post("/v1/completions", members{"prompt": strings.Repeat("a long prompt. ", 20), "max_tokens": 3, "prompt_logprobs": 2})
			require.Contains(t, how, "pd")
			var out struct {
				Choices []struct {
					Prompt []map[string]struct{ Logprob float64 } `json:"prompt_logprobs"`
				}
				Usage struct {
					Prompt int `json:"prompt_tokens"`
				}
			}
			require.NoError(t, json.Unmarshal(raw, &out))
			require.Len(t, out.Choices, 1, "%s", raw)
			values := out.Choices[0].Prompt
			require.Len(t, values, out.Usage.Prompt)
			require.Nil(t, values[0])
			for _, v := range values[1:] {
				require.GreaterOrEqual(t, len(v), 2)
			}
			for _, name := range []string{"p", "d"} {
				require.Eventually(t, func() bool {
					return s.metric(name, "sluice_kv_leases") == 0 && s.metric(name, "sluice_kv_blocks", "state", "held") == 0
				}, 20*time.Second, 5*time.Millisecond, name)
			}
		})
	}
}
