package pd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// What is ready goes out of every region; regions that have sent as much share the
// list of blocks, and only what was to be sent and is not held is missing.
func TestWritingOfRegions(t *testing.T) {
	e := newEngine(t, "p-1", Producer, 1)
	p := e.w.pushes
	regions := len(p.w.id.Regions)
	theirs := p.w.id
	o := &outgoing{
		id: "t", theirs: &theirs, missing: map[int]bool{},
		offer: &offer{From: 1, Blocks: [][]kvcache.BlockID{{20, 21, kvcache.NullBlock, 23, 24}}, Open: make([]transport.Capability, 1)},
		table: connector.Tables{{10, 11, 12, kvcache.NullBlock, 14, 15}},
	}
	for range regions {
		o.ready, o.sent = append(o.ready, 5*testBlockSize+1), append(o.sent, 1)
	}
	o.ready[2], o.sent[4] = 2*testBlockSize, 4
	w, more, err := p.next(o)
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, w.runs, regions)
	for i, r := range w.runs {
		want := []pair{{11, 20}, {12, 21}, {14, 23}}
		switch i {
		case 2:
			want = want[:1]
		case 4:
			want = want[2:]
		}
		require.Equal(t, run{i, want}, r)
	}
	require.Same(t, &w.runs[0].pairs[0], &w.runs[1].pairs[0])
	require.Equal(t, int64(3*regions-4)*testBlockBytes, w.bytes)
	require.Empty(t, o.missing, "position 3 is wanted by nobody")
	segs := p.segments(o, w, 0)
	require.Len(t, segs, 3*regions-4)
	require.Equal(t, transport.Segment{
		Local: theirs.Regions[0].Memory.Region, Remote: theirs.Regions[0].Memory.Region, LocalOffset: 12 * testBlockBytes, RemoteOffset: 21 * testBlockBytes, Length: testBlockBytes,
	}, segs[1])
	o.offer.Blocks[0][2] = 22
	w, _, err = p.next(o)
	require.NoError(t, err)
	require.Equal(t, map[int]bool{3: true}, o.missing)
	copy(o.sent, w.upTo)
	w, more, err = p.next(o)
	require.NoError(t, err)
	require.False(t, more)
	require.Zero(t, w.total, "the prompt goes on")
	o.total = 6*testBlockSize - 1
	w, more, err = p.next(o)
	require.NoError(t, err)
	require.True(t, more, "the last block is not full")
	copy(o.sent, w.upTo)
	w, more, err = p.next(o)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, o.total, w.total)
	require.Equal(t, []int{3}, w.missing)
}
