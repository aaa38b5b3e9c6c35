package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The downgrade rules C1 to C9, and the rules of single layers around them.
func TestResolve(t *testing.T) {
	only := func(c Capability) Backend {
		return Backend{Capabilities: []Capability{c}, Piecewise: true, SplitPoint: true}
	}
	whole := func(c Capability) Backend { // attention is no split point, the model runs in one piece
		return Backend{Capabilities: []Capability{c}}
	}
	for _, tc := range []struct {
		rule    string
		mode    ModeConfig
		k       int
		backend Backend
		want    ModeConfig
		fails   bool
		quiet   bool // nothing to note
	}{
		{"C1", ModeNone, 0, only(CaptureNever), ModeNone, false, true},
		{"C2", ModeFull, 0, only(CaptureNever), 0, true, false},
		{"C3 single token", ModeFull, 0, only(CaptureSingleToken), ModeFullAndPiecewise, false, false},
		{"C3 uniform", ModeFull, 0, only(CaptureUniform), ModeFullAndPiecewise, false, false},
		{"C4", ModeFull, 0, whole(CaptureUniform), ModeFullDecodeOnly, false, false},
		{"C5", ModeFullAndPiecewise, 0, only(CaptureNever), ModePiecewise, false, false},
		{"C5 decode only", ModeFullDecodeOnly, 0, only(CaptureNever), ModePiecewise, false, false},
		{"C5 one piece", ModeFullDecodeOnly, 0, whole(CaptureNever), ModeNone, false, false},
		{"C6", ModeFullAndPiecewise, 3, only(CaptureSingleToken), ModePiecewise, false, false},
		{"C6 no split point", ModeFullDecodeOnly, 3, whole(CaptureSingleToken), ModeNone, false, false},
		{"C6 after C3", ModeFull, 3, only(CaptureSingleToken), ModePiecewise, false, false},
		{"FULL stays", ModeFull, 3, only(CaptureAlways), ModeFull, false, true},
		{"decode stays", ModeFullAndPiecewise, 3, only(CaptureUniform), ModeFullAndPiecewise, false, true},
		{"single token is enough without drafts", ModeFullAndPiecewise, 0, only(CaptureSingleToken), ModeFullAndPiecewise, false, true},
		{"PIECEWISE needs no capability", ModePiecewise, 0, only(CaptureNever), ModePiecewise, false, true},
		{"hybrid: the weakest counts", ModeFull, 0, Backend{Capabilities: []Capability{CaptureAlways, CaptureSingleToken}, Piecewise: true, SplitPoint: true}, ModeFullAndPiecewise, false, false},
		{"no pieces", ModePiecewise, 0, whole(CaptureAlways), ModeNone, false, false},
		{"decode graphs without pieces", ModeFullAndPiecewise, 0, whole(CaptureAlways), ModeFullDecodeOnly, false, false},
		{"layer-wise connector", ModeFullAndPiecewise, 0, Backend{Capabilities: []Capability{CaptureAlways}, Piecewise: true, SplitPoint: true, KVLayerwise: true}, ModePiecewise, false, false},
	} {
		c := Config{Mode: tc.mode, K: tc.k, MaxNumSeqs: 8, MaxNumBatchedTokens: 512}
		got, notes, err := c.Resolve(tc.backend)
		if tc.fails {
			require.ErrorIs(t, err, ErrMode, tc.rule)
			continue
		}
		require.NoError(t, err, tc.rule)
		require.Equal(t, tc.want, got, tc.rule)
		require.Equal(t, tc.quiet, len(notes) == 0, "%s: %v", tc.rule, notes)
	}

	t.Run("C8: runner generation 1 rounds sizes to the decode width", func(t *testing.T) {
		c := Config{K: 2, MaxNumSeqs: 8, MaxNumBatchedTokens: 512, Ladder: LadderConfig{Sizes: []int{1, 2, 4, 8, 16, 24}, Runner: RunnerV1}}
		l, err := newLadder(c)
		require.NoError(t, err)
		require.Equal(t, []int32{3, 6, 9, 18, 24}, l.Sizes)
	})

	t.Run("C9: recurrent state needs a block per row", func(t *testing.T) {
		c := Config{MaxNumSeqs: 256, MaxNumBatchedTokens: 8192}
		b := Backend{Capabilities: []Capability{CaptureSingleToken}, Piecewise: true, SplitPoint: true, Recurrent: true, KVBlocks: 200}
		_, _, err := c.Resolve(b)
		require.ErrorIs(t, err, ErrMode)
		require.ErrorContains(t, err, "200 blocks")
		b.KVBlocks = 0 // while profiling the pool has no size yet
		_, _, err = c.Resolve(b)
		require.NoError(t, err)
	})

	t.Run("drafts trimmed on the device", func(t *testing.T) {
		c := Config{Mode: ModeFullDecodeOnly, K: 3, Trim: AdaptiveDrafts, MaxNumSeqs: 8, MaxNumBatchedTokens: 512}
		got, notes, err := c.Resolve(only(CaptureAlways))
		require.NoError(t, err)
		require.Equal(t, ModeFullAndPiecewise, got)
		require.Len(t, notes, 1)
	})
}

func TestResolveAscend(t *testing.T) {
	all := Backend{Capabilities: []Capability{CaptureAlways}, Piecewise: true, SplitPoint: true}
	one := Backend{Capabilities: []Capability{CaptureAlways}}
	for _, tc := range []struct {
		name    string
		k       int
		b       Backend
		o       AscendOptions
		want    ModeConfig
		wantErr error
	}{
		{"plain", 0, all, AscendOptions{}, ModeFullAndPiecewise, nil},
		{"fused runtime for all steps", 0, all, AscendOptions{Xlite: XliteFull}, ModeNone, nil},
		{"fused runtime with drafts", 3, all, AscendOptions{Xlite: XliteFull}, ModeFullAndPiecewise, nil},
		{"fused runtime for decode steps", 0, all, AscendOptions{Xlite: XliteDecodeOnly}, ModeFullDecodeOnly, nil},
		{"encoder-decoder", 0, all, AscendOptions{EncoderDecoder: true}, ModePiecewise, nil},
		{"encoder-decoder in one piece", 0, one, AscendOptions{EncoderDecoder: true}, ModeNone, nil},
		{"synchronous launches", 0, all, AscendOptions{LaunchBlocking: true}, 0, ErrLaunchBlocking},
		{"synchronous launches without graphs", 0, all, AscendOptions{LaunchBlocking: true, Xlite: XliteFull}, ModeNone, nil},
	} {
		got, _, err := Config{K: tc.k, MaxNumSeqs: 8, MaxNumBatchedTokens: 512}.ResolveAscend(tc.b, tc.o)
		if tc.wantErr != nil {
			require.ErrorIs(t, err, tc.wantErr, tc.name)
			continue
		}
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.want, got, tc.name)
	}
}
