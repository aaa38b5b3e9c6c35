package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func explain(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	cmd := newExplainCmd()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

func TestExplainCommand(t *testing.T) {
	const batch = `[{"scheduled":1,"drafts":0,"placeholders":0,"computed":200,"prefill":128},{"scheduled":1,"drafts":0,"placeholders":0,"computed":128,"prefill":129}]`
	out, err := explain(t, batch, "--json", "--ladder", "1,2,4", "--max-num-seqs", "8")
	require.NoError(t, err)
	require.JSONEq(t, `{"mode":"FULL","padded_tokens":2,"padded_reqs":2,"uniform":1,"key":"FULL t=2 r=2 uniform=1","reason":"full",
		"rows":["decode","tail"],"causes":["past its prefill","one prompt token over context"]}`, out)

	for _, tc := range []struct {
		args string
		want string
	}{
		{"--policy strict", "prefill_row"},
		{"--policy consumer-one-token", "prefill_row"},
		{"--policy consumer-one-token --role kv_consumer --connector NixlConnector", "full"},
		{"--policy consumer-one-token --role kv_both --connector NixlConnector", "prefill_row"},
		{"--pcp 2", "pcp"},
		{"--k 3", "no_candidate_for_width"},
		{"--mode PIECEWISE", "mode_config"},
		{`--dp-peer-json [{"scheduled":9,"prefill":9}]`, "dp_peer"},
	} {
		out, err := explain(t, batch, strings.Fields(tc.args)...)
		require.NoError(t, err, tc.args)
		require.Contains(t, out, "reason   "+tc.want+":", tc.args)
	}
	for _, args := range []string{"--policy none", "--mode HALF", "--role reader", "--ladder 0", "--ladder x", "--k -1", "--max-num-seqs 0", "--dp-peer-json {", "--unknown", "file"} {
		_, err := explain(t, batch, strings.Fields(args)...)
		require.Error(t, err, args)
	}
	_, err = explain(t, `[{"scheduled":"one"}]`)
	require.ErrorContains(t, err, "rows cannot be read")
}
