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

// What a read of many scattered pieces past the connections costs beside the
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
	var segs []transport.Segment
	for i := range units {
		units[i] = int32(2 * i)
	}
	for k := range tensors {
		for i := range blocks {
			segs = append(segs, transport.Segment{Local: mx[k], Remote: my[k], LocalOffset: int64(2*(blocks-1-i)) * size, RemoteOffset: int64(2*i) * size, Length: size})
		}
	}
	c, err := y.Grant(transport.PeerReads, my, units)
	require.NoError(b, err)
	p, err := x.Connect(b.Context(), y.addr)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, p.Read(b.Context(), c, segs))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(segs)), "ns/piece")
}
