package base

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func TestRecordsAndSlots(t *testing.T) {
	r := Records{Index: 7}
	r.Record(3, 2, 10, 11)
	require.Equal(t, []uint64{3 | 2<<32, 7, 10, 11, 0, 0, 0, 0}, r.Words)

	var s Slots
	require.NoError(t, s.Before(ascendrt.KindCopy))
	require.NoError(t, s.Set(ascendrt.Record{A: [ascendrt.HeaderWords - 1]uint64{1}, Payload: []uint64{5, ^uint64(0)}}))
	require.Equal(t, Slots{nil, {5, -1}}, s)
	require.NoError(t, s.Before(ascendrt.KindOp))
	require.ErrorIs(t, s.Before(ascendrt.KindCopy), ascendrt.ErrInvalid)
	require.ErrorContains(t, s.Set(ascendrt.Record{A: [ascendrt.HeaderWords - 1]uint64{32}}), "slot 32")
}

func TestHandleAndWrap(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	q := &queue{}
	ref := c.Refs.Add(q)
	got, err := Handle[*queue](c, uint64(ref), "stream")
	require.NoError(t, err)
	require.Same(t, q, got)
	_, err = Handle[*Core](c, uint64(ref), "event")
	require.ErrorContains(t, err, "the event was closed")

	wrapped := c.Wrap("copy", 3, err)
	var e *ascendrt.Error
	require.ErrorAs(t, wrapped, &e)
	require.Equal(t, 3, e.Command)
	require.Equal(t, ascendrt.ErrClosed, e.Class)
	require.Equal(t, wrapped, c.Wrap("again", 4, wrapped), "an error with a class stays")
	require.ErrorIs(t, c.Wrap("copy", 0, errors.New("odd")), ascendrt.ErrInvalid)
}

func TestEach(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	x := ascendrt.View{Addr: 1 << 20, Len: 64, Max: 64}
	var buffer ascendrt.Commands
	for v := range byte(3) {
		buffer.Fill(x, v)
	}
	var r Records
	refuse := -1
	f := func(x ascendrt.Record) error {
		r.Record(9, 0)
		if x.Index == refuse {
			return errors.New("odd")
		}
		return nil
	}
	n, err := r.Each(c, &buffer, f)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Len(t, r.Words, 3*HeaderWords)
	require.EqualValues(t, 2, r.Words[2*HeaderWords+1])

	r.Words, refuse = nil, 1
	n, err = r.Each(c, &buffer, f)
	var e *ascendrt.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Command)
	require.Equal(t, "fill", e.Call)
	require.Equal(t, 1, n)
	require.Len(t, r.Words, HeaderWords)

	r.Words, refuse = nil, -1
	buffer.Copy(x.Slice(0, 4), x.Slice(8, 8)) // wrong in itself
	buffer.Fill(x, 1)
	n, err = r.Each(c, &buffer, f)
	require.Error(t, err)
	require.Equal(t, 3, n)
	require.Len(t, r.Words, 3*HeaderWords)
}
