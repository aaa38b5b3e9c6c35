package basetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// BenchmarkSubmit measures submissions of a step as small as a decode's: a copy
// up, a fill, an operation and a copy down, without a wait but for every 64th.
func BenchmarkSubmit(b *testing.B, d ascendrt.Device) {
	b.Helper()
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(b, err)
	x, err := d.Alloc(4096, ascendrt.PlaceDefault)
	require.NoError(b, err)
	h, err := d.AllocHost(4096)
	require.NoError(b, err)
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 8}})
	require.NoError(b, err)
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 8)
	var c ascendrt.Commands
	c.Copy(x.Slice(0, 1024), h.Slice(0, 1024))
	c.Fill(x.Slice(2048, 1024), 1)
	c.Op(op, ascendrt.View{}, row, row, row)
	c.Copy(h.Slice(1024, 1024), x.Slice(2048, 1024))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		p, _, err := s.Submit(&c)
		if n++; err == nil && n%64 == 0 {
			err = p.Wait(context.Background())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	require.NoError(b, d.Close(context.Background()))
}
