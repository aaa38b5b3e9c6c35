package graphs

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	c := Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 512, Ladder: LadderConfig{Sizes: []int{1, 2, 4, 8}}}
	rows, err := ParseRows([]byte(`[{"scheduled":1,"drafts":0,"placeholders":0,"computed":200,"prefill":128},{"scheduled":1,"computed":128,"prefill":129}]`))
	require.NoError(t, err)
	e, err := Explain(c, rows, nil)
	require.NoError(t, err)
	out, err := json.Marshal(e)
	require.NoError(t, err)
	require.JSONEq(t, `{"mode":"FULL","padded_tokens":2,"padded_reqs":2,"uniform":1,"key":"FULL t=2 r=2 uniform=1","reason":"full",
		"rows":["decode","tail"],"causes":["past its prefill","one prompt token over context"]}`, string(out))

	rows = append(rows, fresh1)
	e, err = Explain(c, rows, nil)
	require.NoError(t, err)
	require.Equal(t, `row | scheduled | drafts | placeholders | computed | prefill | verdict | because
--- | --------- | ------ | ------------ | -------- | ------- | ------- | --------------------------------
0   | 1         | 0      | 0            | 200      | 128     | decode  | past its prefill
1   | 1         | 0      | 0            | 128      | 129     | tail    | one prompt token over context
2   | 1         | 0      | 0            | 0        | 1       | prefill | one-token prompt without context

mode     PIECEWISE
tokens   3, padded to 4
requests 3, not padded
uniform  no
key      PIECEWISE t=4
reason   fresh_one_token: a one-token prompt without context is no decode
`, e.Text())
	require.Nil(t, e.PaddedReqs)

	e, err = Explain(c, nil, nil)
	require.NoError(t, err)
	require.Equal(t, "no_tokens", e.Reason)
	require.Contains(t, e.Text(), "key      none")
	_, err = Explain(Config{}, nil, nil)
	require.Error(t, err)
}

func TestExplainPeers(t *testing.T) {
	c := Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 512}
	rows := []Row{decode1}
	for _, tc := range []struct {
		peers string
		mode  string
		why   string
	}{
		{`[[{"scheduled":1,"computed":9,"prefill":5}]]`, "FULL", "full"},
		{`[{"scheduled":5,"computed":0,"prefill":5}]`, "PIECEWISE", "dp_peer"},
		{`{"mode":"none","tokens":900,"reqs":3}`, "NONE", "dp_peer"},
		{`[{"mode":"FULL","tokens":3,"reqs":3,"uniform":1},{"mode":"PIECEWISE","tokens":8,"reqs":2}]`, "PIECEWISE", "dp_peer"},
		{`[[{"scheduled":1,"computed":9,"prefill":5}],{"mode":"FULL","tokens":3,"reqs":3,"uniform":1}]`, "FULL", "full"},
	} {
		peers, err := ParsePeers([]byte(tc.peers))
		require.NoError(t, err, tc.peers)
		e, err := Explain(c, rows, peers)
		require.NoError(t, err)
		require.Equal(t, tc.mode, e.Mode, tc.peers)
		require.Equal(t, tc.why, e.Reason, tc.peers)
	}
	for _, bad := range []string{``, `7`, `[7]`, `{"mode":"HALF","tokens":3}`, `{"mode":"FULL","tokens":-3}`, `{"mode":"FULL","tokens":3,"reqs":2,"uniform":2}`, `{"mode":"FULL"}{`, `[{"scheduled":1},{"mode":"FULL"}]x`} {
		_, err := ParsePeers([]byte(bad))
		require.ErrorIs(t, err, ErrInput, bad)
	}
}

func TestParseRowsRefuses(t *testing.T) {
	for _, bad := range []string{``, `{}`, `[{"scheduled":1,"width":2}]`, `[{"scheduled":1.5}]`, `[{"scheduled":99999999999}]`, `[{"scheduled":"1"}]`, `[]]`, `[1]`} {
		_, err := ParseRows([]byte(bad))
		require.ErrorIs(t, err, ErrInput, bad)
	}
	rows, err := ParseRows([]byte(`[]`))
	require.NoError(t, err)
	require.Empty(t, rows)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"scheduled":1,"drafts":0,"placeholders":0,"computed":128,"prefill":129}]`))
	f.Add([]byte(`[{"mode":"FULL","tokens":3,"reqs":3,"uniform":1}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		peers, _ := ParsePeers(data)
		if rows, err := ParseRows(data); err == nil {
			e, err := Explain(Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 64}, rows, peers)
			if err == nil {
				_ = e.Text()
			}
		}
	})
}
