package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/graphs"
)

// stdinLimit bounds what explain reads; a step of a million rows is far below.
const stdinLimit = 256 << 20

func newExplainCmd() *cobra.Command {
	var (
		policy, mode, role, connector, peerJSON string
		ladder                                  []int
		asJSON                                  bool
		c                                       = graphs.Config{MaxNumBatchedTokens: 1 << 20}
	)
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say which device graph a step may replay, and why not a better one",
		Long: `Reads the rows of one step as JSON on standard input, for example
  [{"scheduled":1,"drafts":0,"placeholders":0,"computed":128,"prefill":129}]
and prints the verdict of each row, the mode, the padded sizes, the key of the
graph and, where the step leaves FULL, the reason.`,
		Example: `  echo '[{"scheduled":1,"computed":200,"prefill":128},{"scheduled":1,"computed":128,"prefill":129}]' | sluice explain --policy strict`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Policy, err = graphs.ParsePolicy(policy); err != nil {
				return err
			}
			if c.Mode, err = graphs.ParseModeConfig(mode); err != nil {
				return err
			}
			if c.KV.Role, err = graphs.ParseKVRole(role); err != nil {
				return err
			}
			c.KV.Connector, c.Ladder.Sizes = connector, ladder
			in, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), stdinLimit))
			if err != nil {
				return fmt.Errorf("read rows: %w", err)
			}
			rows, err := graphs.ParseRows(in)
			if err != nil {
				return err
			}
			var peers []graphs.Peer
			if peerJSON != "" {
				if peers, err = graphs.ParsePeers([]byte(peerJSON)); err != nil {
					return err
				}
			}
			e, err := graphs.Explain(c, rows, peers)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(e)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), e.Text())
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&policy, "policy", graphs.OneNewTokenHardened.String(), "which prefilling rows may run as decodes: one-new-token-hardened, strict, consumer-one-token, one-new-token, shape-only")
	f.StringVar(&mode, "mode", graphs.ModeFullAndPiecewise.String(), "NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE")
	f.IntVar(&c.K, "k", 0, "speculative tokens per row")
	f.IntSliceVar(&ladder, "ladder", nil, "captured sizes in tokens (default: derived)")
	f.IntVar(&c.MaxNumSeqs, "max-num-seqs", 256, "rows per step at most")
	f.StringVar(&role, "role", "none", "none, kv_producer, kv_consumer or kv_both; read by consumer-one-token")
	f.StringVar(&connector, "connector", "", "name of the KV connector; read by consumer-one-token")
	f.IntVar(&c.PCP, "pcp", 1, "ranks that share a prompt's tokens")
	f.StringVar(&peerJSON, "dp-peer-json", "", "other data-parallel ranks as JSON: an array of rows per rank, or votes such as {\"mode\":\"PIECEWISE\",\"tokens\":16,\"reqs\":2}")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
