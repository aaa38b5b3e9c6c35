package chain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestComplete(t *testing.T) {
	whole := []string{
		`{"event":"admit","request_id":"a","route":"append"}`, `{"event":"preempt","request_id":"a","saved":true}`,
		`{"event":"kv_save","request_id":"a"}`, `{"event":"kv_ready","request_id":"a"}`, `{"event":"kv_restore","request_id":"a"}`,
		`{"event":"resume","request_id":"a","computed_tokens":96}`, `{"event":"finish","request_id":"a","output_tokens":512}`,
	}
	complete := func(lines ...string) []string { return Complete(strings.NewReader(strings.Join(lines, "\n")), 512) }
	require.Equal(t, []string{"a"}, complete(whole...))
	for i := range whole {
		var without []string
		without = append(append(without, whole[:i]...), whole[i+1:]...)
		require.Empty(t, complete(without...), "without %s", whole[i])
		if i > 0 {
			swapped := append([]string(nil), whole...)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			require.Empty(t, complete(swapped...), "%s too early", whole[i])
		}
	}
	edit := func(i int, line string) []string {
		out := append([]string(nil), whole...)
		out[i] = line
		return out
	}
	require.Empty(t, complete(edit(0, `{"event":"admit","request_id":"a","route":"remote"}`)...))
	require.Empty(t, complete(edit(1, `{"event":"preempt","request_id":"a","saved":false}`)...))
	require.Empty(t, complete(edit(3, `{"event":"kv_ready","request_id":"a","error":"full"}`)...))
	require.Empty(t, complete(edit(4, `{"event":"kv_restore","request_id":"a","error":"gone"}`)...))
	require.Empty(t, complete(edit(6, `{"event":"finish","request_id":"a","output_tokens":511}`)...))
	require.Empty(t, complete(edit(2, `{"event":"kv_save","request_id":"b"}`)...))
	again := append(append([]string(nil), whole[:5]...), whole[1:]...)
	require.Equal(t, []string{"a"}, complete(again...), "preempted a second time while it was restored")
}
