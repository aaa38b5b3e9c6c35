package scheduler_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

// arena hands out memory that the Go heap does not look into, and keeps
// account of it.
type arena struct {
	t    *testing.T
	live map[*byte]int
}

func (a *arena) Alloc(size int) []byte {
	words := make([]uint64, (size+7)/8+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
	a.live[&b[0]] = size
	return b
}

func (a *arena) Free(b []byte) {
	size, ok := a.live[&b[0]]
	require.True(a.t, ok, "memory of somebody else")
	require.Len(a.t, b, size)
	clear(b)
	delete(a.live, &b[0])
}

func (a *arena) has(b unsafe.Pointer) bool {
	_, ok := a.live[(*byte)(b)]
	return ok
}

func TestPlansLieInTheAllocatorsMemory(t *testing.T) {
	a := &arena{t: t, live: map[*byte]int{}}
	c := rigConfig{blocks: 24, blockSize: 4, connector: true, graphs: true}
	c.MaxModelLen, c.MaxNumSeqs, c.MaxBatchedTokens, c.Scheduling, c.Append.Enable = 60, 4, 16, scheduler.Async, true
	c.opts = []scheduler.Option{scheduler.WithAllocator(a)}
	r, err := newRig(c)
	require.NoError(t, err)
	for i := range 8 {
		req := scheduler.Request{ID: string(rune('a' + i)), Prompt: parseInts(10*i+1, 10*i+9+i), MaxTokens: 8}
		kv := remote{}
		switch i {
		case 3:
			req.Route = scheduler.AppendPrefill
		case 4:
			kv.tokens = 8
		case 5:
			kv.pending = 1
		case 6:
			req.Grammar = scheduler.GrammarReady
		}
		require.NoError(t, r.add(req, kv))
	}
	p, err := r.plan(false)
	require.NoError(t, err)
	for name, at := range map[string]unsafe.Pointer{
		"Requests": unsafe.Pointer(unsafe.SliceData(p.Requests)), "Inputs": unsafe.Pointer(unsafe.SliceData(p.Inputs)),
		"Blocks": unsafe.Pointer(unsafe.SliceData(p.Blocks)), "Kinds": unsafe.Pointer(unsafe.SliceData(p.Kinds)),
		"Verdicts": unsafe.Pointer(unsafe.SliceData(p.Verdicts)),
	} {
		require.True(t, a.has(at), name)
	}
	require.NoError(t, r.quiesce(200))
	for _, name := range r.order {
		require.NoError(t, r.verify(name))
	}
	require.NotEmpty(t, a.live)
	r.s.Close()
	require.Empty(t, a.live, "all of it is given back")
	r.s.Close()
}
