package abi

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHandles(t *testing.T) {
	h := newHandles()
	require.Nil(t, h.get(0))
	require.Nil(t, h.get(^handle(0)))
	a, b := &object{}, &object{}
	x, y := h.put(schedulerKind, a), h.put(graphsKind, b)
	require.NotEqual(t, x, y)
	require.Same(t, a, h.get(x))
	require.Same(t, b, h.get(y))
	require.Equal(t, schedulerKind, a.kind())
	require.Nil(t, h.get(x^1<<56), "the kind is part of it")
	require.Nil(t, h.get(x+1<<slotBits), "so is the generation")
	h.drop(a)
	require.Nil(t, h.get(x))
	c := &object{}
	z := h.put(schedulerKind, c)
	require.Equal(t, x&(1<<slotBits-1), z&(1<<slotBits-1), "the slot is used again")
	require.Nil(t, h.get(x))
	require.Same(t, c, h.get(z))
	require.NotEqual(t, newHandles().generation, newHandles().generation, "processes differ")
}

// TestHandlesFromManyThreads: finding needs no lock while others come and go.
func TestHandlesFromManyThreads(t *testing.T) {
	h := newHandles()
	keep := &object{}
	x := h.put(schedulerKind, keep)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				o := &object{}
				y := h.put(graphsKind, o)
				if h.get(y) != o || h.get(x) != keep {
					t.Error("found another")
				}
				h.drop(o)
				if h.get(y) != nil {
					t.Error("found what was dropped")
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, len(*h.slots.Load()), 9)
}
