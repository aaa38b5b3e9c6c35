package pd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

// What is ready goes out of every region; neighbouring regions that have sent as much share
// the list of blocks, and only what was to be sent and is not held is missing.
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
	pairs := func(first, last int) (out []transport.RegionPair) {
		for _, r := range theirs.Regions[first:last] {
			out = append(out, transport.RegionPair{Local: r.Memory.Region, Remote: r.Memory.Region, Bytes: testBlockBytes})
		}
		return out
	}
	require.Equal(t, []run{
		{0, transport.Blocks{Regions: pairs(0, 2), Local: []int32{11, 12, 14}, Remote: []int32{20, 21, 23}}},
		{0, transport.Blocks{Regions: pairs(2, 3), Local: []int32{11}, Remote: []int32{20}}},
		{0, transport.Blocks{Regions: pairs(3, 4), Local: []int32{11, 12, 14}, Remote: []int32{20, 21, 23}}},
		{0, transport.Blocks{Regions: pairs(4, 5), Local: []int32{14}, Remote: []int32{23}}},
		{0, transport.Blocks{Regions: pairs(5, regions), Local: []int32{11, 12, 14}, Remote: []int32{20, 21, 23}}},
	}, w.runs)
	require.Equal(t, int64(3*regions-4)*testBlockBytes, w.bytes)
	require.Empty(t, o.missing, "position 3 is wanted by nobody")
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
