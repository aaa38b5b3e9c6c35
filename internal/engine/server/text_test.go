package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
)

func TestStopStrings(t *testing.T) {
	for _, c := range []struct {
		name, in string
		stops    []string
		min      int
		out, hit string
		used     int
	}{
		{"none", "hello", nil, 0, "hello", "", 5},
		{"in the middle", "hello world", []string{"o w"}, 0, "hell", "o w", 7},
		{"at the start", "stop", []string{"st"}, 0, "", "st", 2},
		{"the first one in the text wins", "abcdef", []string{"ef", "cd"}, 0, "ab", "cd", 4},
		{"begun and not ended", "abc<", []string{"<end>"}, 0, "abc<", "", 4},
		{"begun twice", "<e<end>", []string{"<end>"}, 0, "<e", "<end>", 7},
		{"overlapping itself", "aab", []string{"ab"}, 0, "a", "ab", 3},
		{"before the minimum it does not count", "xyxy", []string{"xy"}, 3, "xy", "xy", 4},
		{"a character of several bytes", "né!", []string{"é"}, 0, "n", "é", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := text{stops: c.stops, min: c.min}
			out, used, hit := "", 0, ""
			for _, tok := range tokenizer.Encode(nil, c.in) {
				o, u, h := x.push([]token{tok})
				out, used, hit = out+o, used+u, h
				if hit != "" {
					break
				}
			}
			if hit == "" {
				out += x.flush()
			}
			require.Equal(t, c.out, out)
			require.Equal(t, c.hit, hit)
			require.Equal(t, c.used, used)
		})
	}
}

// However the tokens are cut into pieces, the text is what stands before the
// first stop string, and nothing of a stop string is ever shown.
func TestStopStringsAtEveryCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.StringMatching(`[ab<]{0,24}`).Draw(rt, "in")
		stops := rapid.SliceOfN(rapid.StringMatching(`[ab<]{1,4}`), 0, 3).Draw(rt, "stops")
		x := text{stops: stops}
		want, ends := in, false
		for end := 0; end <= len(in) && !ends; end++ { // the stop that is complete first
			at := -1
			for _, s := range stops {
				if strings.HasSuffix(in[:end], s) && (at < 0 || end-len(s) < at) {
					at, ends = end-len(s), true
				}
			}
			if ends {
				want = in[:at]
			}
		}
		tokens := tokenizer.Encode(nil, in)
		out, hit, longest := "", "", 0
		for len(tokens) > 0 && hit == "" {
			n := rapid.IntRange(1, len(tokens)).Draw(rt, "n")
			var o string
			o, _, hit = x.push(tokens[:n])
			out += o
			for _, s := range stops {
				longest = max(longest, len(s))
			}
			if len(x.held) >= max(longest, 1) {
				rt.Fatalf("%d bytes are held, the longest stop string has %d", len(x.held), longest)
			}
			tokens = tokens[n:]
		}
		if hit == "" {
			out += x.flush()
		}
		if out != want || (hit != "") != ends {
			rt.Fatalf("in %q stops %q: got %q hit %q, want %q", in, stops, out, hit, want)
		}
	})
}
