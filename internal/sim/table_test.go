package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

const grid = `{"decode":[{"rows":1,"seconds":0.01},{"rows":9,"seconds":0.018}],
 "prefill":[{"context":0,"tokens":1,"seconds":0.001},{"context":0,"tokens":101,"seconds":0.011},
            {"context":1000,"tokens":1,"seconds":0.002},{"context":1000,"tokens":101,"seconds":0.022}]}`

func TestTableInterpolates(t *testing.T) {
	c, err := ReadTable(strings.NewReader(grid))
	require.NoError(t, err)
	step := func(decodes, prefill int, context float64) float64 {
		return c.Step(Work{StepWork: scheduler.StepWork{Decodes: decodes, Prefill: prefill, Context: context * float64(prefill)}}, 0)
	}
	require.Zero(t, step(0, 0, 0))
	require.InDelta(t, 0.014, step(5, 0, 0), 1e-9)
	require.InDelta(t, 0.026, step(17, 0, 0), 1e-9, "beyond the table")
	require.InDelta(t, 0.006, step(0, 51, 0), 1e-9)
	require.InDelta(t, 0.009, step(0, 51, 500), 1e-9)
	require.InDelta(t, 0.010+0.012, step(1, 51, 1000), 1e-9)
}

func TestTableSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		`{`:              "unexpected EOF",
		`{"decodes":[]}`: "unknown field",
		`{}`:             "has 0 decode points",
		strings.Replace(grid, `"rows":9`, `"rows":1`, 1):                                     "do not come after",
		strings.Replace(grid, `0.018`, `-1`, 1):                                              "9 rows in -1 s",
		strings.Replace(grid, `"context":1000,"tokens":101`, `"context":1000,"tokens":7`, 1): "stands where the grid has 101",
		strings.Replace(grid, `{"context":0,"tokens":1,"seconds":0.001},`, "", 1):            "are no grid",
	} {
		_, err := ReadTable(strings.NewReader(text))
		require.ErrorContains(t, err, want, text)
	}
}

// steps is a table with a step at every tile of 256 tokens and a decode time
// that is no line: nothing that the governor's model could fit exactly.
func steps(t *testing.T) *Table {
	var decode, prefill []string
	for _, rows := range []int{1, 2, 4, 8, 16, 32, 64} {
		decode = append(decode, fmt.Sprintf(`{"rows":%d,"seconds":%g}`, rows, 0.2+0.0095*float64(rows)/(4+float64(rows))))
	}
	for _, context := range []int{0, 16000, 32000} {
		for _, tokens := range []int{1, 255, 256, 511, 512, 1023, 1024, 2047, 2048} {
			prefill = append(prefill, fmt.Sprintf(`{"context":%d,"tokens":%d,"seconds":%g}`, context, tokens,
				publishedChunk/8*float64((tokens+255)/256)*(1+float64(context)/32000)/1.4))
		}
	}
	c, err := ReadTable(strings.NewReader(`{"decode":[` + strings.Join(decode, ",") + `],"prefill":[` + strings.Join(prefill, ",") + `]}`))
	require.NoError(t, err)
	return c
}
