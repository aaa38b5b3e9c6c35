package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/kvcache"
)

// followed is a small engine whose ranks are followed.
func followed(t *testing.T, change func(*engine.Config)) (*node, []*follower) {
	t.Helper()
	cfg := engine.Config{
		KVBlocks: 40, MaxModelLen: 512, MaxTokens: 64, MaxSeqs: 4, BlockSize: blockSize, DeviceWorkers: 1, Eager: true,
		HashSeed: hashSeed, KVEvents: engine.KVEvents{Enable: true, Endpoint: "tcp://127.0.0.1:0", Topic: topic},
	}
	change(&cfg)
	n := serve(t, cfg)
	var all []*follower
	for rank := range n.engine.Ranks() {
		all = append(all, n.subscribe(rank))
		n.await("the subscriber", func() bool { return n.metric("sluice_kv_events_subscribers", rank) == 1 })
	}
	return n, all
}

// leave breaks off in the middle of an answer.
func (n *node) leave(rank int, prompt []kvcache.Token) {
	n.Helper()
	raw, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 300, "ignore_eos": true, "stream": true, "return_token_ids": true})
	require.NoError(n, err)
	ctx, cancel := context.WithCancel(n.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/completions", bytes.NewReader(raw))
	require.NoError(n, err)
	req.Header.Set("X-data-parallel-rank", strconv.Itoa(rank))
	res, err := http.DefaultClient.Do(req)
	require.NoError(n, err)
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for range 3 { // pieces, each a line with data and an empty one
		_, err = lines.ReadString('\n')
		require.NoError(n, err)
	}
}

// However steps are planned and run, routers know what is cached: behind turns,
// requests that were broken off, and preemptions.
func TestRoutersFollowInEveryMode(t *testing.T) {
	for name, change := range map[string]func(*engine.Config){
		"overlapping steps":  func(*engine.Config) {},
		"one step at a time": func(c *engine.Config) { c.Sync = true },
		"drafts":             func(c *engine.Config) { c.Speculative = engine.Speculative{Method: "ngram", Tokens: 3} },
		"graphs":             func(c *engine.Config) { c.Eager = false },
		"shared experts": func(c *engine.Config) {
			c.Model, c.DataParallel, c.ExpertParallel = "random:tiny-moe", 2, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, all := followed(t, change)
			agree := func(what string) {
				t.Helper()
				for rank, f := range all {
					n.agree(what, rank, f)
				}
			}
			for rank := range all {
				history, _ := n.turn(rank, "", prompt(1+rank, 150))
				_, hit := n.turn(rank, "", append(history, prompt(9, 30)...))
				require.Positive(t, hit)
				n.leave(rank, prompt(20+rank, 100))
			}
			agree("turns, and one broken off")
			next := 40
			n.await("preemptions", func() bool { // which need requests that run at the same time
				var together sync.WaitGroup
				for range 4 * len(all) {
					i := next
					next++
					together.Go(func() { n.ask(i%len(all), prompt(i, 100), 200, nil) })
				}
				together.Wait()
				for rank := range all {
					if n.metric("vllm:num_preemptions_total", rank) == 0 {
						return false
					}
				}
				return true
			})
			agree("more at once than there is room for")
		})
	}
}

// A block whose KV comes from a Prefiller is told of by both engines; one that
// did not arrive is told of when it is computed.
func TestRoutersKnowWhatIsPulled(t *testing.T) {
	for faults, failures := range map[string]bool{"": false, "read%2 error": true} {
		p, prefiller := followed(t, func(c *engine.Config) {
			c.KVTransfer = engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleProducer}
		})
		d, decoder := followed(t, func(c *engine.Config) {
			c.KVTransfer = engine.KVTransfer{Connector: engine.ConnectorPD, Role: engine.RoleConsumer, Extra: engine.ConnectorExtra{Faults: faults}}
		})
		for i := range 6 {
			text := prompt(1+i/2, 100+i%2*50)
			first := p.ask(0, text, 1, map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true}})
			d.ask(0, text, 24, map[string]any{"kv_transfer_params": first.KVTransferParams})
			p.agree("the Prefiller", 0, prefiller...)
			d.agree("the Decoder", 0, decoder...)
		}
		require.Equal(t, failures, d.metric("sluice_kv_transfer_failures_total", 0) > 0)
		require.Positive(t, d.metric("sluice_kv_transfer_blocks_total", 0))
	}
}

// What the host tier holds is told of as such: a block may be in one of the two,
// or in both.
func TestRoutersKnowTheHostTier(t *testing.T) {
	transfer, err := engine.ParseKVTransfer(`{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{"enable_offload_prefix_caching":true,"offload_host_memory_ratio":0.5}}`)
	require.NoError(t, err)
	n, all := followed(t, func(c *engine.Config) { c.KVTransfer = transfer })
	f := all[0]
	// agree waits until the follower knows what both hold, and gives how much that is.
	agree := func(what string) (device, host int) {
		t.Helper()
		want := n.cached(0)
		host, err := n.engine.HostBlocks(t.Context(), 0)
		require.NoError(t, err)
		n.await(what, func() bool {
			all, err := f.read()
			require.NoError(t, err)
			got, err := rebuild(all)
			require.NoError(t, err)
			there := len(got)
			maps.DeleteFunc(got, func(b block, _ bool) bool { return b.medium == "CPU" })
			return maps.Equal(got, want) && there-len(got) == host
		})
		return len(want), host
	}
	history, _ := n.turn(0, "", prompt(1, 100))
	device, host := agree("a turn that is saved")
	require.Equal(t, device, host)
	for i := range 6 {
		n.turn(0, "", prompt(20+i, 300))
		device, host = agree("turns that push others out of both")
	}
	require.Equal(t, 39, device)
	require.Equal(t, 20, host)
	n.turn(0, "", append(history, prompt(2, 40)...))
	agree("a turn behind what has gone")
	n.await("a reset", func() bool {
		status, _ := n.post("/reset_prefix_cache", "0", map[string]any{})
		return status == http.StatusOK
	})
	device, host = agree("a reset")
	require.Zero(t, device+host)
	require.Equal(t, 1, count(t, f, "AllBlocksCleared"))
}
