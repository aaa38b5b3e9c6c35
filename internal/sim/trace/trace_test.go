package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, s Strictness, lines ...string) (*Trace, error) {
	t.Helper()
	return Read(strings.NewReader(strings.Join(lines, "\n")), s)
}

func TestForms(t *testing.T) {
	tr, err := read(t, Strict, `{"timestamp": 30, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]}`)
	require.NoError(t, err)
	require.Equal(t, 512, tr.BlockSize)
	require.Equal(t, []Run{{0, 2}, {9, 1}}, tr.Requests[0].Blocks)

	tr, err = read(t, Strict, `{"session":"a","agent":"x","turn":2,"timestamp":7,"input_length":200,"output_length":3,"api_ms":null,"think_ms":40,"nblocks":3,"hash_runs":[1,2,7,1]}`)
	require.NoError(t, err)
	require.Equal(t, 64, tr.BlockSize)
	require.Equal(t, WithSessions, tr.Sessions)
	r := tr.Requests[0]
	require.Equal(t, Request{Session: "a", Agent: "x", Turn: 2, At: 7, Input: 200, Output: 3, API: -1, Think: 40, Blocks: []Run{{1, 2}, {7, 1}}, Line: 1}, r)
	id, ok := r.Block(2)
	require.True(t, ok)
	require.EqualValues(t, 7, id)
	_, ok = r.Block(3)
	require.False(t, ok)

	tr, err = read(t, Strict, "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:47.6805900,396,109")
	require.NoError(t, err)
	require.Len(t, tr.Requests, 2)
	require.EqualValues(t, 1000, tr.Requests[1].At)
}

func TestBrokenLines(t *testing.T) {
	lines := []string{
		`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}`,
		`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0]}`,
		`{"timestamp": 0, "input_length": "x"`,
		`{"timestamp": -4, "input_length": 5, "output_length": 5, "hash_ids": [3]}`,
		`{"timestamp": 9, "input_length": 5, "output_length": 5, "hash_ids": [3]}`,
	}
	_, err := read(t, Strict, lines...)
	var le *LineError
	require.ErrorAs(t, err, &le)
	require.Equal(t, 2, le.Line)
	require.Contains(t, le.Reason, "has 1 blocks, 600 tokens in blocks of 512 make 2")

	tr, err := read(t, Lenient, lines...)
	require.NoError(t, err)
	require.Len(t, tr.Requests, 2)
	require.Len(t, tr.Broken, 3)
	require.Equal(t, []int{2, 3, 4}, []int{tr.Broken[0].Line, tr.Broken[1].Line, tr.Broken[2].Line})

	_, err = read(t, Strict, "what is this")
	require.ErrorContains(t, err, "line 1: is of no form that is known")
	_, err = read(t, Strict)
	require.ErrorContains(t, err, "has no requests")
}

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		a, b []Run
		want int
	}{
		{nil, []Run{{1, 2}}, 0},
		{[]Run{{1, 5}}, []Run{{1, 3}}, 3},
		{[]Run{{1, 2}, {3, 4}}, []Run{{1, 6}}, 6},
		{[]Run{{1, 2}, {9, 1}}, []Run{{1, 2}, {8, 2}}, 2},
	} {
		require.Equal(t, c.want, Common(c.a, c.b))
		require.Equal(t, c.want, Common(c.b, c.a))
	}
}

// Every reference trace is read whole.
func TestReferenceTraces(t *testing.T) {
	dir := os.Getenv("SLUICE_REFERENCE")
	if dir == "" {
		t.Skip("SLUICE_REFERENCE is not set: it names the folder of reference data")
	}
	for name, rows := range map[string]int{
		"mooncake_conversation_w1.jsonl.gz": 5719, "mooncake_synthetic_w1.jsonl.gz": 1920, "mooncake_arxiv_head1000.jsonl.gz": 1000,
		"agentic_cc_local_a.jsonl.gz": 19280, "agentic_cc_global_a.jsonl.gz": 12682, "swe_miniagent_a.jsonl.gz": 242,
		"dynamo_pi_agent_run.jsonl": 17, "azure2023_conv_w1.csv.gz": 9754, "azure2023_code_w1.csv.gz": 5100,
	} {
		tr, err := Open(filepath.Join(dir, "traces", name), Strict)
		require.NoError(t, err, name)
		require.Len(t, tr.Requests, rows, name)
	}
}
