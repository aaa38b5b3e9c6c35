package offload

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

// The ranks of one process share its memory: a tier of which one would fit and
// all together do not is refused at the start.
func TestTiersOfAllRanksMustFit(t *testing.T) {
	free, ok := availableMemory()
	if !ok {
		t.Skip("this system does not tell how much memory is free")
	}
	l := connector.Layout{Model: "m", DType: "fp32", BlockSize: 4, Blocks: 8, Groups: []connector.LayoutGroup{{Kind: "full_attention", Layers: 1, BlockBytes: 1 << 20}}}
	w, err := NewWorker(WorkerConfig{Slots: 1, Ranks: int(free>>20) + 1})
	require.NoError(t, err)
	var e *MemoryError
	err = w.Register(l, []connector.Region{{Name: "kv", BlockBytes: 1 << 20}})
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, "lower cpu_bytes_to_use")
	require.NoError(t, w.Close())
}

// A disk that is full costs the runs that were not written, and nothing else:
// no half file stays, what was written before is read.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	f, err := openFiles(FileConfig{Dir: dir, Bytes: 1 << 20, FullEvery: 2}, [32]byte{1})
	require.NoError(t, err)
	key := func(i byte) Key { return Key{Hash: [32]byte{i}} }
	data := [][]byte{{1, 2, 3, 4}, {5, 6, 7, 8}}
	_, _, err = f.put([]Key{key(1), key(2)}, data)
	require.NoError(t, err)
	_, _, err = f.put([]Key{key(3), key(4)}, data)
	require.ErrorContains(t, err, "no space left on device")
	require.Len(t, f.keys(), 2)
	again, err := openFiles(FileConfig{Dir: dir, Bytes: 1 << 20}, [32]byte{1})
	require.NoError(t, err)
	require.ElementsMatch(t, []Key{key(1), key(2)}, again.keys())
	got := make([]byte, 4)
	_, err = again.get(key(2), got)
	require.NoError(t, err)
	require.Equal(t, data[1], got)
}

// urgency records what was urgent.
type urgency struct {
	memoryMover
	mu           sync.Mutex
	saves, loads []bool
}

func (u *urgency) Save(ctx context.Context, c Copies) error {
	u.mu.Lock()
	u.saves = append(u.saves, c.Urgent)
	u.mu.Unlock()
	return u.memoryMover.Save(ctx, c)
}

func (u *urgency) Load(ctx context.Context, c Copies) error {
	u.mu.Lock()
	u.loads = append(u.loads, c.Urgent)
	u.mu.Unlock()
	return u.memoryMover.Load(ctx, c)
}

// The step waits for the save of a preemption, and for nothing else.
func TestPreemptionsAreUrgent(t *testing.T) {
	u := &urgency{}
	e := newEngine(t, 8, func(c *Config, w *WorkerConfig) { w.Mover, c.Sharing = u, Turns })
	u.regions = e.regions
	e.s.Finished(request(1, tokens(50, 8), 8), table(4, 2), connector.End{Reason: connector.EndStop, Computed: 8})
	e.flush()
	require.Equal(t, connector.Saved, e.next().Kind)
	require.Equal(t, connector.Sent, e.next().Kind)
	r := request(2, tokens(0, 8), 8)
	require.True(t, e.s.Preempting(r, table(1, 2), 8))
	e.flush()
	require.Equal(t, connector.Saved, e.next().Kind)
	e.s.Allocated(r, table(8, 2), 0, 8)
	e.flush()
	require.Equal(t, connector.Received, e.next().Kind)
	require.Equal(t, []bool{false, true}, u.saves)
	require.Equal(t, []bool{false}, u.loads)
}
