package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/load"
)

func TestAFileGetsTwoLinesWhateverHappens(t *testing.T) {
	var out bytes.Buffer
	b := Start(&out, "arm pd")
	for i := range 50 {
		b.Observe(load.Progress{Total: 50, Sent: i + 1, Done: i + 1})
	}
	b.End()
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "50 of 50 done, 0 failed")
}

func TestTheBarShowsWhatRunsAndWhatFailed(t *testing.T) {
	b := &Bar{label: "arm", live: true, last: load.Progress{Total: 4, Sent: 3, Done: 2, Failed: 1}}
	line := b.line(b.start.Add(2 * time.Second))
	require.Contains(t, line, "###############...............")
	require.Contains(t, line, "2/4  2.0 s  1 running  1 failed")
}

func TestATerminalIsRedrawnSparingly(t *testing.T) {
	var out bytes.Buffer
	b := &Bar{out: &out, live: true, start: time.Now()}
	for i := range 1000 {
		b.Observe(load.Progress{Total: 2000, Done: i})
	}
	require.Less(t, strings.Count(out.String(), "\r"), 100)
}
