package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// childEnv makes the test binary an engine of its own process: its value is the
// configuration. It prints where it listens, and ends with its input.
const childEnv = "SLUICE_SERVER_TEST_CHILD"

func child(config string) error {
	var cfg engine.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	e, err := engine.New(context.Background(), cfg, engine.Options{})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: New(e, Options{})}
	go srv.Serve(ln)
	fmt.Println("http://" + ln.Addr().String())
	_, err = io.Copy(io.Discard, os.Stdin)
	srv.Close()
	if cerr := e.Close(); err == nil {
		err = cerr
	}
	return err
}

// startChild starts an engine in another process, which ends with the test.
func startChild(t *testing.T, cfg engine.Config) *node {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	raw, err := json.Marshal(cfg)
	require.NoError(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childEnv+"="+string(raw))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		in.Close()
		require.NoError(t, c.Wait())
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the other process did not start")
	return &node{t: t, url: strings.TrimSpace(url), client: client}
}

// twoProcesses serves every turn by a prefiller in a process of its own, on a
// device of its own where there are two, and a decoder in this one.
func (s *subject) twoProcesses(t *testing.T, push bool) {
	t.Helper()
	if !s.Gives {
		t.Skip("this device gives no memory to other processes")
	}
	p := s.on(prefiller())
	p.KVBlocks = 1024
	if !strings.Contains(p.Device, ":") && s.Count(t) > 1 {
		p.Device += ":1"
	}
	x := &pair{startChild(t, p), start(t, s.on(decoder()), Options{Noise: NoiseAllowed})}
	forPeer := func(body m, params m) (leg m) {
		leg = merged(body, m{"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": merged(m{"do_remote_decode": true}, params)})
		delete(leg, "kv_noise")
		return leg
	}
	pull := func(body m) (identity.Answer, json.RawMessage) {
		raw := x.p.complete(forPeer(body, nil)).KVTransferParams
		var params m
		require.NoError(t, json.Unmarshal(raw, &params))
		return x.d.complete(merged(body, m{"kv_transfer_params": params})).Choices[0].TokenIDs, raw
	}
	var at endpoint // of the prefiller
	_, raw := pull(s.body(s.talks[0].prompts[0]))
	require.NoError(t, json.Unmarshal(raw, &at))
	var serial atomic.Int64
	s.same(t, s.talks, 0, nothing, func(_, _ int, body m) identity.Answer {
		if !push {
			got, _ := pull(body)
			return got
		}
		transfer := m{"transfer_mode": "push", "transfer_id": fmt.Sprintf("transfer-%d", serial.Add(1))}
		var wg sync.WaitGroup
		wg.Go(func() { x.p.complete(forPeer(body, transfer)) })
		out := x.d.complete(merged(body, m{"kv_transfer_params": merged(transfer, m{
			"do_remote_prefill": true, "remote_engine_id": at.EngineID, "remote_host": at.Host, "remote_port": at.Port,
		})}))
		wg.Wait()
		return out.Choices[0].TokenIDs
	})
	require.Zero(t, x.d.metric("sluice_kv_transfer_failures_total"))
	require.Zero(t, x.d.metric("sluice_kv_transfer_far_total"))
	received := x.d.metric("sluice_kv_transfer_bytes_total", "direction", "received")
	require.Positive(t, received)
	require.Equal(t, received, x.d.metric("sluice_kv_transfer_way_bytes_total", "way", "direct"), "by the device")
	require.Zero(t, x.d.metric("sluice_kv_transfer_way_bytes_total", "way", "connection"))
	x.d.nothingHeld()
	require.Eventually(t, func() bool { return x.p.metric("sluice_kv_blocks", "state", "held") == 0 }, waitFor, tick)
}
