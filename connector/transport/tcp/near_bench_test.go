package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// fetchNothing is a neighbour without copies: what is left is the transport's.
type fetchNothing struct{ *beside }

func (f fetchNothing) Meet(card []byte) (Neighbour, error) {
	n, err := f.beside.Meet(card)
	if err != nil {
		return nil, err
	}
	return fetched{n}, nil
}

type fetched struct{ Neighbour }

func (fetched) Fetch([]NearRange) error { return nil }

func (fetched) FetchBlocks([]NearRegion, []int32, []int32) error { return nil }

// What a read or a write of many scattered pieces past the connections costs beside the
// copies: 12,288 tokens in blocks of 16, two tensors in each of 28 layers.
func BenchmarkNearScattered(b *testing.B) {
	const blocks, tensors, size = 768, 56, 64
	side := func() *Transport {
		t, err := New(Config{Near: fetchNothing{newBeside()}})
		require.NoError(b, err)
		b.Cleanup(func() { t.Close() })
		return t
	}
	x, y := side(), side()
	memory := func(t *Transport) (out []transport.RegionID) {
		for range tensors {
			d, err := t.Register(struct{ transport.Memory }{make(transport.Host, 2*blocks*size)}, size)
			require.NoError(b, err)
			out = append(out, d.Region)
		}
		return out
	}
	mx, my := memory(x), memory(y)
	units := make([]int32, blocks)
	for i := range units {
		units[i] = int32(2 * i)
	}
	list := transport.Blocks{}
	for i := range units {
		list.Local = append(list.Local, int32(2*(blocks-1-i)))
	}
	list.Remote = units
	for k := range tensors {
		list.Regions = append(list.Regions, transport.RegionPair{Local: mx[k], Remote: my[k], Bytes: size})
	}
	c, err := y.Grant(transport.PeerReads, my, units)
	require.NoError(b, err)
	w, err := y.Grant(transport.PeerWrites, my, units)
	require.NoError(b, err)
	p, err := x.Connect(b.Context(), y.addr)
	require.NoError(b, err)
	for _, arm := range []struct {
		name string
		move func() error
	}{
		{"pieces", func() error { return transport.ReadPieces(b.Context(), p, c, list) }},
		{"units", func() error { return transport.ReadBlocks(b.Context(), p, c, list) }},
		{"written/pieces", func() error { return transport.WritePieces(b.Context(), p, w, list) }},
		{"written/units", func() error { return transport.WriteBlocks(b.Context(), p, w, list) }},
	} {
		b.Run(arm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, arm.move())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*blocks*tensors), "ns/piece")
		})
	}
}
