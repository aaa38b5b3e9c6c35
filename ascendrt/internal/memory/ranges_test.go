package memory

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

func TestRanges(t *testing.T) {
	table, _ := newTable(ascendrt.OpenOptions{})
	b, err := table.Alloc(1000, ascendrt.PlaceDefault)
	require.NoError(t, err)
	at := uint64(b.Addr())
	var x Ranges
	for mode, noted := range []int{base.Submitting: 0, base.Capturing: 3} {
		x = Ranges{Table: table, Mode: base.Mode(mode)}
		a, err := x.Find(at, 1000)
		require.NoError(t, err)
		near, err := x.Near(a, at+10, 990)
		require.NoError(t, err)
		require.Same(t, a, near)
		to, from, err := x.Ends(nil, nil, at, at+500, 500)
		require.NoError(t, err)
		require.Same(t, a, to)
		require.Same(t, a, from)
		require.Len(t, x.Allocs, noted, "those that are known already are not noted again")
	}
	Hold(x.Allocs)
	require.ErrorIs(t, b.FreeAfter(ascendrt.Point{}), ascendrt.ErrInUse)
	Drop(x.Allocs)

	_, _, err = x.Ends(nil, nil, at, at+499, 500)
	require.ErrorContains(t, err, "overlap")
	_, _, err = x.Ends(nil, nil, at+501, at, 500)
	require.ErrorContains(t, err, "destination: ")
	_, _, err = x.Ends(nil, nil, at, at+501, 500)
	require.ErrorContains(t, err, "source: ")
}

// What an operation between ranks reads and writes depends on its kind.
func TestExchange(t *testing.T) {
	table, _ := newTable(ascendrt.OpenOptions{})
	one, err := table.Alloc(40, ascendrt.PlaceDefault) // 10 numbers
	require.NoError(t, err)
	three, err := table.Alloc(120, ascendrt.PlaceDefault)
	require.NoError(t, err)
	x := Ranges{Table: table}
	for _, c := range []struct {
		kind     ascendrt.Kind
		src, dst ascendrt.Buffer
		says     string
	}{
		{ascendrt.KindReduce, one, one, ""},
		{ascendrt.KindGatherAll, one, three, ""},
		{ascendrt.KindGatherAll, one, one, "destination: "},
		{ascendrt.KindAllToAll, three, three, ""},
		{ascendrt.KindAllToAll, one, three, "source: "},
		{ascendrt.KindAllToAll, three, one, "destination: "},
	} {
		r := ascendrt.Record{Kind: c.kind}
		r.A[1], r.A[2], r.A[3], r.A[4] = uint64(c.src.Addr()), uint64(c.dst.Addr()), 10, uint64(ascendrt.Float32)
		if err := x.Exchange(r, 3); c.says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.says)
		}
	}
}
