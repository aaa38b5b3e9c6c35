package handles

import (
	"bytes"
	"log/slog"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeaks(t *testing.T) {
	var out bytes.Buffer
	l := &Leaks{Log: slog.New(slog.NewTextHandler(&out, nil))}
	stack := make([]uintptr, 4)
	stack = stack[:runtime.Callers(1, stack)]
	l.Report(Dropped{What: "buffer", Bytes: 64, Stack: stack})
	l.Report(Dropped{What: "event"})
	require.Equal(t, 2, l.Count())
	require.Contains(t, out.String(), "leaks_test.go")
	require.Contains(t, out.String(), "what=event")
	l.Stop()
	l.Report(Dropped{What: "late"})
	require.Equal(t, 2, l.Count(), "a closed device leaks nothing")
	(&Leaks{}).Report(Dropped{What: "silent"})
}
