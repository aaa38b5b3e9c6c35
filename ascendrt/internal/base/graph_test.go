package base

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func TestSlots(t *testing.T) {
	infos := []ascendrt.SlotInfo{{Name: "lens", Kind: ascendrt.SlotInts}, {Name: "x", Kind: ascendrt.SlotAddr}}
	args := []ascendrt.Tensor{ascendrt.NewTensor(ascendrt.View{Addr: 64, Len: 16, Max: 16}, ascendrt.Float32, 1, 4)}
	var ints [][]int64
	require.NoError(t, SetSlot(infos, args, &ints, ascendrt.Slot{Slot: 0, I64: []int64{3}}))
	require.Equal(t, [][]int64{{3}}, ints)
	require.ErrorContains(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 0, I64: []int64{3}}), "slot lens: this device reads its tensor")
	to := ascendrt.View{Addr: 128, Len: 16, Max: 16}
	require.NoError(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 1, Addr: to}))
	require.Equal(t, to, args[0].View)
	to.Len = 8
	require.ErrorContains(t, SetSlot(infos, args, nil, ascendrt.Slot{Slot: 1, Addr: to}), "slot x: the new place is shorter")
	for _, slot := range []int{-1, 2} {
		require.ErrorContains(t, SetSlot(infos, args, &ints, ascendrt.Slot{Slot: slot}), "does not exist")
	}

	record := make([]uint64, HeaderWords+2)
	require.NoError(t, SetWord(record, ascendrt.Slot{Slot: 1, I64: []int64{-1}}))
	require.Equal(t, ^uint64(0), record[HeaderWords+1])
	for _, s := range []ascendrt.Slot{{Slot: 2, I64: []int64{1}}, {Slot: -1, I64: []int64{1}}, {Slot: 0}} {
		require.ErrorContains(t, SetWord(record, s), "2 argument words")
	}
}

type noted struct {
	Graph
	ran []string
}

func (g *noted) Update(u []ascendrt.Slot) error {
	if len(u) == 0 {
		return errors.New("nothing")
	}
	g.ran = append(g.ran, "update")
	return nil
}
func (g *noted) Drop() { g.ran = append(g.ran, "drop") }
func (g *noted) Free() { g.ran = append(g.ran, "free") }

func TestGraphClosesOnce(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	s, err := Make(c, Graphs, func() (*noted, error) { return &noted{}, nil })
	require.NoError(t, err)
	s.Info = ascendrt.GraphInfo{Nodes: 3, Streams: 2}
	g := NewGraph(c, s)
	require.Equal(t, s.Info, g.Info())
	own, err := Handle[*noted](c, uint64(g.Ref()), "graph")
	require.NoError(t, err)
	require.Same(t, s, own)
	q := &queue{done: 1}
	s.Launched(ascendrt.Point{Stream: q, Seq: 1})
	s.Launched(ascendrt.Point{Stream: q, Seq: 2})
	require.NoError(t, g.Update([]ascendrt.Slot{{}}))
	require.ErrorContains(t, g.Update(nil), "nothing")
	for range 2 {
		require.NoError(t, g.Close())
	}
	require.ErrorIs(t, g.Update([]ascendrt.Slot{{}}), ascendrt.ErrClosed)
	require.Equal(t, []string{"update", "drop"}, s.ran, "it may still run")
	q.done = 2
	c.Reap()
	require.Equal(t, []string{"update", "drop", "free"}, s.ran)
	var live ascendrt.Live
	c.FillLive(&live)
	require.Zero(t, live)
	_, err = Handle[*noted](c, uint64(g.Ref()), "graph")
	require.ErrorIs(t, err, ascendrt.ErrClosed)
}

func TestChanged(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	captured := map[ascendrt.OpRef]int{4: 40, 7: 70}
	copied := func(ref ascendrt.OpRef) (*int, bool) {
		v, ok := captured[ref]
		return &v, ok
	}
	set := func(x *int, v ascendrt.Slot) error {
		if v.Slot > 9 {
			return errors.New("no such slot")
		}
		*x += v.Slot
		return nil
	}
	refs, next, err := Changed(c, []ascendrt.Slot{{Op: 7, Slot: 1}, {Op: 4, Slot: 2}, {Op: 7, Slot: 3}}, copied, set)
	require.NoError(t, err)
	require.Equal(t, []ascendrt.OpRef{7, 4}, refs)
	require.Equal(t, []int{74, 42}, []int{*next[0], *next[1]})
	require.Equal(t, map[ascendrt.OpRef]int{4: 40, 7: 70}, captured)
	for says, u := range map[string]ascendrt.Slot{"command 5 was not captured as updatable": {Op: 5}, "command 4: no such slot": {Op: 4, Slot: 10}} {
		_, _, err = Changed(c, []ascendrt.Slot{{Op: 7}, u}, copied, set)
		require.ErrorIs(t, err, ascendrt.ErrGraphUpdate)
		require.ErrorContains(t, err, says)
	}
}

func TestUncaptured(t *testing.T) {
	c := newCore(ascendrt.OpenOptions{})
	require.ErrorIs(t, Uncaptured(c.Invalid("capture", "odd", ascendrt.ErrInvalid)), ascendrt.ErrCapture)
	require.ErrorIs(t, Uncaptured(c.Invalid("capture", "full", ascendrt.ErrResourceLimit)), ascendrt.ErrResourceLimit)
}
