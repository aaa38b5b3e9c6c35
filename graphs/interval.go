package graphs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// record is one line of the interval table.
type record struct {
	tokens, padded int32
	mode           Mode
	reason         Reason
}

// Interval collects the executed steps between two reports, grouped by tokens
// before and after padding, mode and reason. Dummy steps are not observed.
type Interval struct {
	counts map[record]uint64
}

// Observe adds one executed step. It allocates only for a group that is new
// since construction.
func (v *Interval) Observe(d Decision) {
	if v.counts == nil {
		v.counts = make(map[record]uint64)
	}
	v.counts[record{d.Tokens, d.PaddedTokens, d.Mode, d.Reason}]++
}

// Table formats what was collected, the most frequent group first, and forgets
// it; the empty string where nothing was collected. The head names the
// configured mode and the captured sizes.
func (v *Interval) Table(mode ModeConfig, l Ladder) string {
	if len(v.counts) == 0 {
		return ""
	}
	records := slices.SortedFunc(maps.Keys(v.counts), func(a, b record) int {
		return cmp.Or(
			cmp.Compare(v.counts[b], v.counts[a]),
			cmp.Compare(a.tokens, b.tokens),
			cmp.Compare(a.padded, b.padded),
			cmp.Compare(b.mode, a.mode),
			cmp.Compare(a.reason, b.reason),
		)
	})
	cells := [][]string{{"Unpadded Tokens", "Padded Tokens", "Num Paddings", "Runtime Mode", "Reason", "Count"}}
	for _, r := range records {
		cells = append(cells, []string{
			fmt.Sprint(r.tokens), fmt.Sprint(r.padded), fmt.Sprint(r.padded - r.tokens),
			r.mode.String(), r.reason.String(), fmt.Sprint(v.counts[r]),
		})
	}
	clear(v.counts)
	var s strings.Builder
	fmt.Fprintf(&s, "Graph mode: %v, captured sizes: %v\n", mode, l.Sizes)
	writeTable(&s, cells)
	return s.String()
}

// writeTable writes rows of cells, left-justified, each column as wide as its
// longest cell, with a rule under the first row.
func writeTable(s *strings.Builder, cells [][]string) {
	widths := make([]int, len(cells[0]))
	for _, row := range cells {
		for i, c := range row {
			widths[i] = max(widths[i], len(c))
		}
	}
	line := func(row []string) {
		var l strings.Builder
		for i, c := range row {
			if i > 0 {
				l.WriteString(" | ")
			}
			fmt.Fprintf(&l, "%-*s", widths[i], c)
		}
		s.WriteString(strings.TrimRight(l.String(), " "))
		s.WriteByte('\n')
	}
	line(cells[0])
	rule := make([]string, len(widths))
	for i, w := range widths {
		rule[i] = strings.Repeat("-", w)
	}
	line(rule)
	for _, row := range cells[1:] {
		line(row)
	}
}
