package draft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

func TestNGram(t *testing.T) {
	type ids = []kvcache.Token
	for name, c := range map[string]struct {
		g             NGram
		history, want ids
	}{
		"nothing":                   {NGram{1, 3, 2}, nil, nil},
		"one token":                 {NGram{1, 3, 2}, ids{7}, ids{7, 7}},
		"no match":                  {NGram{1, 3, 3}, ids{1, 2, 3}, ids{3, 3, 3}},
		"what followed":             {NGram{1, 3, 2}, ids{1, 2, 3, 4, 1, 2}, ids{3, 4}},
		"the longest end wins":      {NGram{1, 3, 1}, ids{5, 2, 9, 1, 2, 8, 5, 2}, ids{9}},
		"the first place wins":      {NGram{1, 1, 1}, ids{1, 2, 1, 3, 1}, ids{2}},
		"shorter ends do not count": {NGram{2, 3, 2}, ids{1, 2, 3, 1}, ids{1, 1}},
		"a loop goes on":            {NGram{1, 2, 5}, ids{4, 1, 2, 1, 2}, ids{1, 2, 1, 2, 1}},
		"one token over and over":   {NGram{1, 2, 3}, ids{6, 6, 6}, ids{6, 6, 6}},
		"longer than the history":   {NGram{1, 9, 4}, ids{3, 3}, ids{3, 3, 3, 3}},
	} {
		require.Equal(t, c.want, c.g.Propose(nil, c.history), name)
		require.Equal(t, append(ids{42}, c.want...), c.g.Propose(ids{42}, c.history), "%s: what dst has does not matter", name)
	}
}
