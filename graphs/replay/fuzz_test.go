package replay

import (
	"bytes"
	"testing"

	"github.com/sluice-serving/sluice/graphs"
)

// FuzzPoison: writing poison to every padding slot and every placeholder
// changes no byte of a real row.
func FuzzPoison(f *testing.F) {
	f.Add(uint64(3), uint64(1), uint8(0), uint8(0))
	f.Add(uint64(4), uint64(2), uint8(3), uint8(1))
	f.Add(uint64(5), uint64(3), uint8(1), uint8(2))
	names := []string{"attention", "delta", "hybrid"}
	modes := []graphs.ModeConfig{graphs.ModeFullAndPiecewise, graphs.ModeFull, graphs.ModeFullDecodeOnly, graphs.ModePiecewise}
	f.Fuzz(func(t *testing.T, seed, poison uint64, k, which uint8) {
		a := arm{mode: graphs.ModeNone, kinds: architectures[names[which%3]], k: int(k % 5)}
		eager := play(t, a, seed, 15)
		a.mode, a.poison = modes[which/3%4], poison|1
		if which/12%2 == 1 {
			a.lengths, a.padding = LengthsFromHost, PadDummyRows
		}
		got := play(t, a, seed, 15)
		for i := range eager.logits {
			for j := range eager.logits[i] {
				if !bytes.Equal(eager.logits[i][j], got.logits[i][j]) {
					t.Fatalf("logits of step %d, row %d differ", i, j)
				}
			}
			if !bytes.Equal(eager.states[i], got.states[i]) {
				t.Fatalf("states of step %d differ", i)
			}
		}
	})
}
