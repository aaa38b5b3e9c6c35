package ascendrt_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

// What CopyBlocks accepts leaves no view and writes no byte twice, whatever the values.
func TestCopyBlocksAccepts(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		const room = 256
		number := rapid.OneOf(rapid.IntRange(0, 40), rapid.SampledFrom([]int{-1, 1 << 31, 1 << 62, -1 << 63}))
		view := func(what string) ascendrt.View {
			at := rapid.IntRange(0, room).Draw(t, what)
			return ascendrt.View{Addr: ascendrt.Addr(1000 + at), Len: rapid.IntRange(0, room-at).Draw(t, what+" bytes"), Max: room - at}
		}
		c := &ascendrt.BlockCopy{}
		for range rapid.IntRange(0, 3).Draw(t, "regions") {
			c.Regions = append(c.Regions, ascendrt.BlockRegion{
				Dst: view("destination"), Src: view("source"), DstStride: number.Draw(t, "destination stride"),
				SrcStride: number.Draw(t, "source stride"), Bytes: number.Draw(t, "bytes"),
			})
		}
		block := rapid.OneOf(rapid.Int32Range(0, 6), rapid.SampledFrom([]int32{-1, 1<<31 - 1}))
		n := rapid.IntRange(0, 4).Draw(t, "pairs")
		c.Dst = rapid.SliceOfN(block, n, n).Draw(t, "destinations")
		c.Src = rapid.SliceOfN(block, n, n).Draw(t, "sources")
		var cmd ascendrt.Commands
		cmd.CopyBlocks(c)
		if cmd.Err() != nil {
			require.ErrorIs(t, cmd.Err(), ascendrt.ErrInvalid)
			return
		}
		accepted++
		written := map[ascendrt.Addr]bool{}
		for _, r := range c.Regions {
			for i := range c.Dst {
				from := int(c.Src[i]) * r.SrcStride
				require.True(t, from >= 0 && from+r.Bytes <= r.Src.Len, "%d bytes at %d of %d", r.Bytes, from, r.Src.Len)
				to := int(c.Dst[i]) * r.DstStride
				require.True(t, to >= 0 && to+r.Bytes <= r.Dst.Len, "%d bytes at %d of %d", r.Bytes, to, r.Dst.Len)
				for k := range r.Bytes {
					at := r.Dst.Addr + ascendrt.Addr(to+k)
					require.False(t, written[at], "%d is written twice", at)
					written[at] = true
				}
			}
		}
	})
	require.Positive(t, accepted)
}

// A backend without the command says so, and runs what is ahead of it.
func TestCopyBlocksUnsupported(t *testing.T) {
	d, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close(context.Background())) }()
	require.False(t, d.Caps().BlockCopy)
	s, err := d.NewStream(ascendrt.StreamOptions{Role: "test"})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	c.CopyBlocks(&ascendrt.BlockCopy{Regions: []ascendrt.BlockRegion{{Dst: x.Slice(0, 32), Src: x.Slice(32, 32), DstStride: 32, SrcStride: 32, Bytes: 32}}, Dst: []int32{0}, Src: []int32{0}})
	_, n, err := s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.Equal(t, 1, n)
}
