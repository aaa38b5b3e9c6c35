package transport

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRows(t *testing.T) {
	b := func(x ...int32) []int32 { return x }
	long := make([]int32, maxRow+3)
	for i := range long {
		long[i] = int32(i + 1)
	}
	for _, c := range []struct {
		name         string
		ours, theirs []int32
		want         []row
	}{
		{"nothing", nil, nil, nil},
		{"one row", b(4, 5, 6), b(9, 10, 11), []row{{0, 3}}},
		{"broken here", b(4, 5, 7), b(9, 10, 11), []row{{0, 2}, {2, 1}}},
		{"broken there", b(4, 5, 6), b(9, 11, 12), []row{{0, 1}, {1, 2}}},
		{"backwards", b(6, 5, 4), b(11, 10, 9), []row{{0, 1}, {1, 1}, {2, 1}}},
		{"too long", long, long, []row{{0, maxRow}, {maxRow, 3}}},
	} {
		require.Equal(t, c.want, Blocks{Local: c.ours, Remote: c.theirs}.rows(), c.name)
	}
}

// listPeer keeps the segments of a read or write and fails some of them.
type listPeer struct {
	Peer
	segs  []Segment
	wrote bool
	err   error
}

func (p *listPeer) Write(_ context.Context, _ Capability, segs []Segment) error {
	p.segs, p.wrote = segs, true
	return p.err
}

func (p *listPeer) Read(_ context.Context, _ Capability, segs []Segment) error {
	p.segs = segs
	return p.err
}

// A peer that knows of segments alone moves blocks too, and what fails is told by the
// blocks.
func TestBlocksByPieces(t *testing.T) {
	for name, move := range map[string]func(context.Context, Peer, Capability, Blocks) error{"read": ReadBlocks, "write": WriteBlocks} {
		t.Run(name, func(t *testing.T) { blocksByPieces(t, name == "write", move) })
	}
}

func blocksByPieces(t *testing.T, writes bool, move func(context.Context, Peer, Capability, Blocks) error) {
	b := Blocks{
		Regions: []RegionPair{{Local: 1, Remote: 7, Bytes: 100}, {Local: 2, Remote: 8, Bytes: 10}},
		Local:   []int32{3, 4, 9}, Remote: []int32{5, 6, 0},
	}
	p := &listPeer{}
	require.NoError(t, move(t.Context(), p, Capability{}, b))
	require.Equal(t, []Segment{
		{1, 7, 300, 500, 200}, {1, 7, 900, 0, 100},
		{2, 8, 30, 50, 20}, {2, 8, 90, 0, 10},
	}, p.segs)
	require.Equal(t, writes, p.wrote)
	p.err = &TransferError{Failed: []int{2}, Err: ErrCorrupt}
	err := move(t.Context(), p, Capability{}, b)
	require.ErrorIs(t, err, ErrCorrupt)
	require.Equal(t, []int{0, 1}, FailedSegments(err, 3))
	p.err = errors.New("all of it")
	require.Equal(t, []int{0, 1, 2}, FailedSegments(move(t.Context(), p, Capability{}, b), 3))
	p.segs = nil
	require.NoError(t, move(t.Context(), p, Capability{}, Blocks{Regions: b.Regions}))
	require.NoError(t, move(t.Context(), p, Capability{}, Blocks{Local: b.Local, Remote: b.Remote}))
	require.Nil(t, p.segs)
	for name, bad := range map[string]Blocks{
		"more local units": {Regions: b.Regions, Local: b.Local, Remote: b.Remote[:2]},
		"negative":         {Regions: b.Regions, Local: []int32{-1}, Remote: []int32{1}},
		"negative there":   {Regions: b.Regions, Local: []int32{1}, Remote: []int32{-1}},
		"no bytes":         {Regions: []RegionPair{{Local: 1, Remote: 2}}, Local: []int32{1}, Remote: []int32{1}},
	} {
		require.Error(t, move(t.Context(), p, Capability{}, bad), name)
		require.Nil(t, p.segs, name)
	}
}
