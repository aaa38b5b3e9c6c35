package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine"
)

// A prompt whose KV comes from a Prefiller costs its Decoder a step outside of
// FULL graphs under the strict policy alone: the engine tells the others its
// role and its connectors.
func TestPoliciesOnImportedPrompts(t *testing.T) {
	multi := decoder().KVTransfer
	multi.Connector, multi.Extra.Connectors = engine.ConnectorMulti, []engine.KVTransfer{{Connector: engine.ConnectorPD}, {Connector: engine.ConnectorOffload}}
	for _, transfer := range []engine.KVTransfer{decoder().KVTransfer, multi} {
		for _, policy := range graphs.Policies() {
			if transfer.Connector == engine.ConnectorMulti && policy != graphs.ConsumerOneToken {
				continue // no other policy asks for connectors
			}
			t.Run(fmt.Sprint(transfer.Connector, " ", policy), func(t *testing.T) {
				d := decoder()
				d.KVTransfer, d.GraphPolicy = transfer, policy
				x := startPair(t, prefiller(), d)
				var messages []m
				for _, n := range []int{40, 64} {
					text := make([]byte, n)
					for i := range text {
						text[i] = 'a' + byte(i%20)
					}
					messages = []m{{"role": "user", "content": string(text)}}
					x.remote(messages, m{"max_tokens": 4})
				}
				steps := func(mode string) float64 { return x.d.metric("sluice_graph_steps_total", "mode", mode) }
				lost := 0.0
				if policy == graphs.Strict {
					lost = 2
				}
				require.Equal(t, 8-lost, steps("FULL"))
				require.Equal(t, lost, steps("PIECEWISE"))
				x.nothingHeld()
			})
		}
	}
}
