package replay

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
)

// TestMain points the process at the emulated runtime before anything asks for one.
func TestMain(m *testing.M) {
	ascend.Prepare()
	os.Exit(m.Run())
}

// On the emulated Ascend runtime eager, PIECEWISE and FULL runs of the same
// steps give the bytes of the host's eager run: attention in a FULL graph is
// issued again before each launch, with the lengths and starts of the step, and
// padding, placeholders and the null block are poisoned.
func TestAscendModesAgreeToTheByte(t *testing.T) {
	const steps = 40
	kinds := architectures["attention"]
	for _, k := range []int{0, 3} {
		t.Run(fmt.Sprintf("K=%d", k), func(t *testing.T) {
			host := play(t, arm{mode: graphs.ModeNone, kinds: kinds, k: k, kept: half}, playSeed, steps)
			for i, mode := range []graphs.ModeConfig{graphs.ModeNone, graphs.ModePiecewise, graphs.ModeFull, graphs.ModeFullDecodeOnly, graphs.ModeFullAndPiecewise} {
				got := play(t, arm{mode: mode, kinds: kinds, k: k, kept: half, open: ascend.Open, padding: PadDummyRows, poison: uint64(i + 1)}, playSeed, steps)
				requireSame(t, host, got)
				if mode == graphs.ModeFullAndPiecewise {
					require.NotZero(t, got.count.Modes[graphs.Full])
					require.NotZero(t, got.count.Modes[graphs.Piecewise])
					require.NotZero(t, got.count.Tails, "the arm must have replayed tails")
					require.Greater(t, got.count.PaddedReqs, got.count.Reqs, "the arm must have replayed dummy rows")
				}
			}
		})
	}
}

// The comparison on this runtime notices padding that keeps slots of real rows,
// and lengths that stay those of the capture.
func TestAscendControlsFail(t *testing.T) {
	const steps = 25
	differs := func(a, b history) bool {
		return !slices.EqualFunc(a.logits, b.logits, func(x, y [][]byte) bool { return slices.EqualFunc(x, y, bytes.Equal) })
	}
	a := arm{mode: graphs.ModeNone, kinds: architectures["attention"], kept: half, open: ascend.Open, padding: PadDummyRows}
	eager := play(t, a, playSeed, steps)
	a.mode = graphs.ModeFullAndPiecewise
	require.False(t, differs(eager, play(t, a, playSeed, steps)))
	a.stale = true
	require.True(t, differs(eager, play(t, a, playSeed, steps)), "stale slots in the padding")
	a.stale = false
	a.wrap = func(d ascendrt.Device) ascendrt.Device { return frozenDevice{d} }
	require.True(t, differs(eager, play(t, a, playSeed, steps)), "lengths of the capture")
}

// frozenDevice forgets the values of updates.
type frozenDevice struct{ ascendrt.Device }

func (d frozenDevice) Capture(s ascendrt.Stream, c *ascendrt.Commands, o ascendrt.CaptureOptions) (ascendrt.Graph, error) {
	g, err := d.Device.Capture(s, c, o)
	if err != nil {
		return nil, err
	}
	return frozenGraph{g}, nil
}

type frozenGraph struct{ ascendrt.Graph }

func (g frozenGraph) Update([]ascendrt.Slot) error { return nil }
