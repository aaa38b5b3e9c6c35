package ascendrt

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type eventWord struct {
	Event
	ref Ref
}

func (e eventWord) Ref() Ref { return e.ref }

type streamWord struct {
	Stream
	ref Ref
}

func (s streamWord) Ref() Ref { return s.ref }

type opWord struct {
	Op
	ref Ref
}

func (o opWord) Ref() Ref { return o.ref }

func TestRecordsGiveBackWhatWasRecorded(t *testing.T) {
	var c Commands
	v := View{Addr: 1 << 40, Len: 64, Max: 128}
	x := NewTensor(v, Float32, 2, 4)
	x.RowStride = 5
	c.Copy(v, v.Slice(8, 16))
	c.SlotValues(3, 7, -8)
	ref := c.Op(opWord{ref: 9}, v.Slice(0, 4), x, x.First(1))
	c.CopyBatch([]View{v, v}, []View{v, v.Slice(1, 2)})
	require.NoError(t, c.Err())
	require.Equal(t, OpRef(2), ref)
	require.Equal(t, 4, c.Len())
	var got []Record
	for r := range Records(c.Words()) {
		got = append(got, r)
	}
	require.Len(t, got, 4)
	require.Equal(t, [6]uint64{1 << 40, 1<<40 + 8, 16, 128, 0, 0}, got[0].A)
	require.Equal(t, []uint64{7, ^uint64(7)}, got[1].Payload)
	require.Equal(t, KindOp, got[2].Kind)
	y := DecodeTensor(got[2].Payload)
	y.Max = x.Max
	require.Equal(t, x, y)
	require.Equal(t, uint64(2), got[3].A[0])
	require.Len(t, got[3].Payload, 8)
	for range Records(c.Words()[:len(c.Words())-1]) { // a cut buffer ends early, it does not read on
	}
	require.Zero(t, testing.AllocsPerRun(10, func() {
		c.Reset()
		c.Copy(v, v)
		c.Fill(v, 1)
	}))
}

func TestFirstWrongArgumentIsKept(t *testing.T) {
	var c Commands
	v := View{Addr: 64, Len: 10, Max: 10}
	c.Fill(v, 1)
	c.CopyBatch([]View{v, v.Slice(0, 1)}, []View{v, v})
	c.Fill(v.Slice(5, 6), 1)
	at, err := c.ErrorAt()
	require.Equal(t, 1, at)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "10 bytes do not fit into 1")
	c.Reset()
	require.NoError(t, c.Err())
}

func TestTensorSizes(t *testing.T) {
	v := View{Len: 1 << 20, Max: 1 << 20}
	for _, c := range []struct {
		x    Tensor
		want int
	}{
		{NewTensor(v, Float32, 3, 5), 60},
		{NewTensor(v, BFloat16, 3, 5), 30},
		{NewTensor(v, Float32), 4},
		{NewTensor(v, Float32, 0, 5), 0},
		{NewTensor(v, Float32, 3, -5), -1},
		{NewTensor(v, 0, 3), -1},
		{NewTensor(v, Float32, 1<<40, 1<<40), -1},
		{NewTensor(v, Float32, 1, 2, 3, 4, 5), -1},
		{NewTensor(v, Float32, 3, 10).Columns(4, 2), 4 * (2*10 + 2)},
		{NewTensor(v, Float32, 3, 10).Columns(9, 2), -1},
		{NewTensor(v, Float32, 3, 10).First(2), 80},
		{NewTensor(v, Float32, 3, 10).First(4), -1},
	} {
		require.Equal(t, c.want, c.x.Bytes(), "%+v", c.x)
	}
	require.False(t, v.Slice(1<<20, 1).Valid())
	require.True(t, v.Slice(1<<20, 0).Valid())
	require.False(t, v.Slice(-1, 1).Slice(0, 0).Valid())
}

func TestCheckCapture(t *testing.T) {
	origin, other, third := streamWord{ref: 1}, streamWord{ref: 2}, streamWord{ref: 3}
	e, f, ext := eventWord{ref: 10}, eventWord{ref: 11}, eventWord{ref: 12}
	external := func(r Ref) bool { return r == 12 }
	v := View{Addr: 64, Len: 8, Max: 8}
	fork := func(c *Commands, s streamWord, e eventWord) { c.Record(e); c.OnStream(s); c.WaitEvent(e) }
	join := func(c *Commands, s streamWord, e eventWord) { c.Record(e); c.OnStream(s); c.WaitEvent(e) }
	for _, c := range []struct {
		name string
		ok   bool
		rec  func(c *Commands)
	}{
		{"plain", true, func(c *Commands) { c.Fill(v, 1) }},
		{"fork and join", true, func(c *Commands) { fork(c, other, e); c.Fill(v, 1); join(c, origin, f) }},
		{"a branch that another branch joins", true, func(c *Commands) {
			fork(c, other, e)
			fork(c, third, f)
			join(c, other, e)
			join(c, origin, f)
		}},
		{"the middle branch is left", false, func(c *Commands) {
			fork(c, other, e)
			fork(c, third, f)
			join(c, other, e)
			c.OnStream(origin)
		}},
		{"fork alone must join too", false, func(c *Commands) { fork(c, other, e) }},
		{"work behind the join", false, func(c *Commands) {
			fork(c, other, e)
			join(c, origin, f)
			c.OnStream(other)
			c.Fill(v, 1)
		}},
		{"external wait and record", true, func(c *Commands) { c.WaitEvent(ext); c.Fill(v, 1); c.Record(ext) }},
		{"external event cannot fork", false, func(c *Commands) { c.OnStream(other); c.WaitEvent(ext) }},
		{"record on a stream outside", false, func(c *Commands) { c.OnStream(other); c.Record(e) }},
	} {
		var rec Commands
		c.rec(&rec)
		err := CheckCapture(&rec, "test", origin.ref, external)
		if c.ok {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorIs(t, err, ErrCapture, c.name)
		}
	}
}
