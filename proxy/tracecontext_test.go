package proxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const exampleParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTraceParent(t *testing.T) {
	got, ok := parseTraceParent(exampleParent)
	require.True(t, ok)
	require.Equal(t, traceContext{trace: "4bf92f3577b34da6a3ce929d0e0e4736", parent: "00f067aa0ba902b7", flags: "01"}, got)
	_, ok = parseTraceParent("01" + exampleParent[2:] + "-more")
	require.True(t, ok, "a later version")
	for _, bad := range []string{
		"", "00", exampleParent + "-more", exampleParent + "x", "ff" + exampleParent[2:], strings.ToUpper(exampleParent), strings.Replace(exampleParent, "-", "_", 1),
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
	} {
		_, ok := parseTraceParent(bad)
		require.False(t, ok, bad)
	}
}

// One trace over all legs, a span of its own for each.
func TestTraceOverLegs(t *testing.T) {
	c := start(t, setup{})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	c.d[0].Evict("s")
	c.forget()
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s", "Traceparent", exampleParent, "Tracestate", "a=1")
	spans := map[string]bool{"00f067aa0ba902b7": true}
	for _, r := range append(c.p[0].Records(), c.d[0].Records()...) {
		got, ok := parseTraceParent(r.Header.Get("Traceparent"))
		require.True(t, ok)
		require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", got.trace)
		require.Equal(t, "01", got.flags)
		require.Equal(t, "a=1", r.Header.Get("Tracestate"))
		require.False(t, spans[got.parent], "a span of its own")
		spans[got.parent] = true
	}
	require.Len(t, spans, 4)
	require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", c.traces(2)[1].Trace)
	c.forget()
	c.post(chatPath, turnBody(1, ""), "Traceparent", "nonsense")
	p, ok := parseTraceParent(c.p[0].Records()[0].Header.Get("Traceparent"))
	require.True(t, ok)
	d, ok := parseTraceParent(c.d[0].Records()[0].Header.Get("Traceparent"))
	require.True(t, ok)
	require.Equal(t, p.trace, d.trace)
	require.Equal(t, "00", d.flags)
}
