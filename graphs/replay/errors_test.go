package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

func TestExhaustion(t *testing.T) {
	ctx := context.Background()
	t.Run("reported with what to do", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{MaxGraphs: 3})
		s := p.set(Config{Dispatcher: d})
		err := s.Capture(ctx)
		var ex *ExhaustedError
		require.ErrorAs(t, err, &ex)
		require.ErrorIs(t, err, ascendrt.ErrResourceLimit)
		require.Equal(t, d.Keys()[1], ex.Key)
		require.Equal(t, 1, ex.Captured)
		require.Contains(t, ex.Advice, "fewer")
		require.Equal(t, 2, p.dev.Live().Graphs, "the half-captured key left nothing")
		require.False(t, s.Sealed())
	})
	t.Run("goes on with what fits", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{MaxGraphs: 7})
		s := p.set(Config{Dispatcher: d, OnExhausted: KeepSmaller})
		require.NoError(t, s.Capture(ctx))
		require.Equal(t, 4, s.Captured(), "three of PIECEWISE with two graphs each, one of FULL")
		require.Equal(t, graphs.PartlyCaptured, d.State())
		b, v := decodes(2)
		dec := d.Select(b)
		require.Equal(t, int32(8), dec.PaddedTokens, "the FULL graph that exists")
		res, err := s.Launch(ctx, Step{Decision: dec, Verdicts: v})
		require.NoError(t, err)
		require.NoError(t, res.Release())
	})
	t.Run("other errors are not mistaken for it", func(t *testing.T) {
		p, d, _ := newAdder(t, ascendrt.OpenOptions{Faults: "error@capture:1"})
		s := p.set(Config{Dispatcher: d, OnExhausted: KeepSmaller})
		var ex *ExhaustedError
		err := s.Capture(ctx)
		require.Error(t, err)
		require.False(t, errors.As(err, &ex))
	})
}

func TestAdvice(t *testing.T) {
	vendor := func(code int, text string) error {
		return fmt.Errorf("capture: %w", &ascendrt.Error{Backend: "ascend", Call: "aclmdlRICaptureEnd", Code: code, Text: text, Command: -1, Class: ascendrt.ErrCapture})
	}
	for _, tc := range []struct {
		err  error
		want string // part of the advice, empty = not recognised
	}{
		{vendor(207008, "stream resource is not enough"), "FULL_DECODE_ONLY"},
		{vendor(207005, "alloc stream failed"), "FULL_DECODE_ONLY"},
		{vendor(0, "EE1023: insufficient_stream_resources"), "FULL_DECODE_ONLY"},
		{vendor(0, "The Stream resources are insufficient, 1984 used"), "FULL_DECODE_ONLY"},
		{errors.New("error code 207008: out of stream resource"), "FULL_DECODE_ONLY"},
		{vendor(507018, "Alloc sq cq fail"), "25.5.1"},
		{vendor(207008, "something else"), ""},
		{vendor(507011, "aicore timeout"), ""},
		{fmt.Errorf("x: %w", ascendrt.ErrResourceLimit), "FULL_DECODE_ONLY"},
		{fmt.Errorf("x: %w", ascendrt.ErrOutOfMemory), "memory"},
		{errors.New("stream was closed"), ""},
		{nil, ""},
	} {
		got, ok := Advice(tc.err)
		require.Equal(t, tc.want != "", ok, "%v", tc.err)
		require.True(t, strings.Contains(got, tc.want), "%v: %q", tc.err, got)
	}
}
