package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
)

func TestGathers(t *testing.T) {
	block := func(n, bytes int) (c Copies) {
		for r := range n {
			c.Parts = append(c.Parts, Part{Region: r, Bytes: bytes, Offset: int64(r * bytes)})
		}
		return c
	}
	apart := block(56, 4<<10)
	apart.Parts[7].Offset += 16
	for name, c := range map[string]struct {
		copies Copies
		want   bool
	}{
		"small pieces":        {block(56, 32<<10), true},
		"few pieces":          {block(3, 4<<10), false},
		"large pieces":        {block(8, 1<<20), false},
		"gaps within a block": {apart, false},
	} {
		require.Equal(t, c.want, gathers(c.copies, c.copies.bytes()), name)
	}
}

// moverBench is a device with random bytes in its regions, and what they are.
type moverBench struct {
	t      *testing.T
	dev    ascendrt.Device
	stream ascendrt.Stream
	bufs   []ascendrt.Buffer
	data   [][]byte
	r      *rand.Rand
}

const benchBlocks = 96

func newMoverBench(t *testing.T, pieces []int) *moverBench {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		if err := emulated.Use(); err != nil {
			t.Skip(err)
		}
	}
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if errors.Is(err, ascendrt.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close(context.Background())) })
	b := &moverBench{t: t, dev: dev, r: rand.New(rand.NewPCG(1, 2))}
	b.stream, err = dev.NewStream(ascendrt.StreamOptions{Role: "test"})
	require.NoError(t, err)
	for _, n := range pieces {
		x, err := dev.Alloc(benchBlocks*n, ascendrt.PlaceDefault)
		require.NoError(t, err)
		raw := make([]byte, benchBlocks*n)
		for i := range raw {
			raw[i] = byte(b.r.Uint32())
		}
		b.bufs, b.data = append(b.bufs, x), append(b.data, raw)
	}
	b.upload()
	return b
}

func (b *moverBench) upload() {
	for i, x := range b.bufs {
		require.NoError(b.t, ascendrt.Upload(context.Background(), b.dev, b.stream, x.View(), b.data[i]))
	}
}

// copies are of these blocks, into slots with room behind each.
func (b *moverBench) copies(pieces []int, behind int, blocks, slots []int) (c Copies) {
	for i, n := range pieces {
		c.Parts = append(c.Parts, Part{Region: i, Bytes: n, Offset: c.SlotBytes})
		c.SlotBytes += int64(n)
	}
	c.SlotBytes += int64(behind)
	for i := range blocks {
		c.Blocks, c.Slots = append(c.Blocks, int32(blocks[i])), append(c.Slots, int32(slots[i]))
	}
	return c
}

// check saves and loads, and compares every byte of both sides.
func (b *moverBench) check(m *DeviceMover, host []byte, c Copies) {
	ctx := context.Background()
	for i := range host {
		host[i] = 0x77
	}
	want := bytes.Clone(host)
	for v := range c.moves {
		copy(want[v.host:], b.data[v.region][v.offset:v.offset+int64(v.bytes)])
	}
	require.NoError(b.t, m.Save(ctx, c))
	require.True(b.t, bytes.Equal(want, host), "saved")
	for i := range host {
		host[i] ^= 0x5a
	}
	b.upload()
	for v := range c.moves {
		copy(b.data[v.region][v.offset:], host[v.host:v.host+int64(v.bytes)])
	}
	require.NoError(b.t, m.Load(ctx, c))
	for i, x := range b.bufs {
		got := make([]byte, len(b.data[i]))
		require.NoError(b.t, ascendrt.Download(ctx, b.dev, b.stream, got, x.View()))
		require.True(b.t, bytes.Equal(b.data[i], got), "restored to region %d", i)
	}
}

// By every way every byte gets to its place in both directions, over several fillings,
// and no other byte changes: blocks of several sizes, odd ones, slots with room behind
// them, one block, all of them, in a row and scattered.
func TestWays(t *testing.T) {
	for name, pieces := range map[string][]int{
		"equal":  slices.Repeat([]int{4 << 10}, 8),
		"mixed":  {4 << 10, 1 << 10, 4 << 10, 1 << 10, 512, 48},
		"odd":    {1000, 13, 999, 4096, 7},
		"single": {16 << 10},
	} {
		b := newMoverBench(t, pieces)
		for way := range Way(len(ways)) {
			t.Run(fmt.Sprintf("%s/%v", name, way), func(t *testing.T) {
				b.t = t
				m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: way, Stage: 200 << 10})
				require.NoError(t, err)
				require.Equal(t, way == Auto || way == Staged || way == Pieces, len(m.lanes[0].stages) == 3)
				require.Equal(t, [2]int{2, 1}, [2]int{len(m.lanes[0].bus), len(m.lanes[1].bus)})
				host, err := m.Alloc(benchBlocks * 40 << 10)
				require.NoError(t, err)
				row := make([]int, benchBlocks)
				for i := range row {
					row[i] = i
				}
				for _, behind := range []int{0, 64} {
					for _, c := range []Copies{
						b.copies(pieces, behind, row, row),
						b.copies(pieces, behind, b.r.Perm(benchBlocks), b.r.Perm(benchBlocks)),
						b.copies(pieces, behind, b.r.Perm(benchBlocks)[:41], b.r.Perm(benchBlocks)[:41]),
						b.copies(pieces, behind, []int{benchBlocks - 1}, []int{5}),
						b.copies(pieces, behind, nil, nil),
					} {
						b.check(m, host, c)
					}
				}
				require.NoError(t, m.Close())
			})
		}
	}
}

// However many stages and streams take turns, and wherever runs are cut, a stage is
// filled again only when what it held has crossed.
func TestStages(t *testing.T) {
	pieces := slices.Repeat([]int{4 << 10}, 6)
	b := newMoverBench(t, pieces)
	for _, o := range []DeviceOptions{
		{Stages: 1, Streams: 1},
		{Stages: 1, Streams: 3, Run: 1000},
		{Stages: 2, Streams: 1, Run: 8 << 10},
		{Stages: 5, Streams: 2, Width: 1, Run: 24<<10 - 1, Stage: 60 << 10}, // two blocks, and room
	} {
		for _, way := range []Way{Staged, Pieces} {
			o.Way, o.Stage = way, max(o.Stage, 30<<10)
			m, err := NewDeviceMover(b.dev, b.bufs, o)
			require.NoError(t, err)
			for i := range m.lanes {
				require.Len(t, m.lanes[i].stages, o.Stages)
				require.Len(t, m.lanes[i].bus, o.Streams)
			}
			host, err := m.Alloc(benchBlocks * 24 << 10)
			require.NoError(t, err)
			b.check(m, host, b.copies(pieces, 0, b.r.Perm(benchBlocks), b.r.Perm(benchBlocks)))
			row := make([]int, 40)
			for i := range row {
				row[i] = i
			}
			b.check(m, host, b.copies(pieces, 0, row, row))
			require.NoError(t, m.Close())
		}
	}
	live := b.dev.Live()
	require.Equal(t, 1, live.Streams, "the bench's")
	require.Zero(t, live.Events)
	require.Equal(t, len(b.bufs), live.Buffers)
}

// Auto leaves pieces to the copy engines while steps run; a way that is named stays.
func TestAuto(t *testing.T) {
	for _, way := range []Way{Auto, Staged, Direct, Engine, Pieces} {
		idle, busy := way, way
		if way == Auto {
			idle, busy = Staged, Engine
		}
		require.Equal(t, idle, DeviceOptions{Way: way}.way())
		for runs, want := range map[bool]Way{false: idle, true: busy} {
			require.Equal(t, want, DeviceOptions{Way: way, Busy: func() bool { return runs }}.way(), "%v, busy %v", way, runs)
		}
	}
}

// What is no block, slot or region is refused; the fillings before it have ended when
// Save returns.
func TestWaysRefuse(t *testing.T) {
	pieces := slices.Repeat([]int{4 << 10}, 8)
	b := newMoverBench(t, pieces)
	for way := range Way(len(ways)) {
		m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: way, Stage: 128 << 10}) // four blocks
		require.NoError(t, err)
		host, err := m.Alloc(benchBlocks * 32 << 10)
		require.NoError(t, err)
		good := func() Copies { return b.copies(pieces, 0, b.r.Perm(20), b.r.Perm(20)) }
		for name, spoil := range map[string]func(c *Copies){
			"a block that is not":     func(c *Copies) { c.Blocks[17] = benchBlocks },
			"a block far out":         func(c *Copies) { c.Blocks[17] = 1<<31 - 1 },
			"a negative block":        func(c *Copies) { c.Blocks[17] = -1 },
			"a slot that is not":      func(c *Copies) { c.Slots[17] = benchBlocks },
			"a negative slot":         func(c *Copies) { c.Slots[17] = -1 },
			"more blocks":             func(c *Copies) { c.Blocks = append(c.Blocks, 1) },
			"no such region":          func(c *Copies) { c.Parts[7].Region = 8 },
			"a negative region":       func(c *Copies) { c.Parts[7].Region = -1 },
			"a block twice, restored": func(c *Copies) { c.Blocks[1] = c.Blocks[0] },
		} {
			c := good()
			spoil(&c)
			if name != "a block twice, restored" {
				require.Error(t, m.Save(t.Context(), c), "%v: %s", way, name)
			} else if way != Pieces {
				require.ErrorIs(t, m.Load(t.Context(), c), ascendrt.ErrInvalid, "%v: %s", way, name)
			}
		}
		clear(host)
		c := good()
		c.Blocks[17] = benchBlocks
		require.Error(t, m.Save(t.Context(), c))
		first := c.sub(0, 16)
		for v := range first.moves {
			require.True(t, bytes.Equal(b.data[v.region][v.offset:v.offset+int64(v.bytes)], host[v.host:v.host+int64(v.bytes)]), "%v", way)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, m.Save(ctx, good()), context.Canceled)
		b.check(m, host, good())
		require.NoError(t, m.Close())
	}
	_, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: 9})
	require.ErrorContains(t, err, "Way(9)")
	require.Zero(t, b.dev.Live().HostBuffers)
}

// A device whose steps come and go is asked before each filling: the ways change within
// one call, and what they bring is the same.
func TestAutoWhileStepsComeAndGo(t *testing.T) {
	pieces := slices.Repeat([]int{2 << 10}, 6)
	b := newMoverBench(t, pieces)
	asked := 0
	m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Stage: 24 << 10, Busy: func() bool { asked++; return asked%3 != 0 }})
	require.NoError(t, err)
	host, err := m.Alloc(benchBlocks * 12 << 10)
	require.NoError(t, err)
	for range 3 {
		before := asked
		b.check(m, host, b.copies(pieces, 0, b.r.Perm(benchBlocks), b.r.Perm(benchBlocks)))
		require.Equal(t, 2*benchBlocks/2, asked-before, "a filling of two blocks each, both ways")
	}
	require.NoError(t, m.Close())
}

// Several calls at a time, in both directions, on blocks that do not overlap.
func TestWaysAtOnce(t *testing.T) {
	pieces := slices.Repeat([]int{2 << 10}, 6)
	b := newMoverBench(t, pieces)
	for way := range Way(len(ways)) {
		m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: way, Stage: 24 << 10})
		require.NoError(t, err)
		host, err := m.Alloc(benchBlocks * 12 << 10)
		require.NoError(t, err)
		blocks, slots := b.r.Perm(benchBlocks), b.r.Perm(benchBlocks)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for k := range errs {
			wg.Go(func() {
				c := b.copies(pieces, 0, blocks[12*k:12*k+12], slots[12*k:12*k+12])
				for range 4 {
					errs[k] = errors.Join(errs[k], m.Save(t.Context(), c), m.Load(t.Context(), c))
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		all := b.copies(pieces, 0, blocks, slots)
		for v := range all.moves {
			require.True(t, bytes.Equal(b.data[v.region][v.offset:v.offset+int64(v.bytes)], host[v.host:v.host+int64(v.bytes)]), "%v", way)
		}
		require.NoError(t, m.Close())
	}
}

// What a step waits for goes ahead of all that is under way: the other call goes on
// when the urgent one has ended.
func TestUrgentCopies(t *testing.T) {
	pieces := slices.Repeat([]int{2 << 10}, 6)
	b := newMoverBench(t, pieces)
	m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Stage: 24 << 10})
	require.NoError(t, err)
	host, err := m.Alloc(benchBlocks * 12 << 10)
	require.NoError(t, err)
	m.lanes[0].hurry(1) // another urgent one
	slow, fast := b.copies(pieces, 0, b.r.Perm(40), b.r.Perm(40)), b.copies(pieces, 0, []int{50, 60, 70}, []int{50, 60, 70})
	fast.Urgent = true
	done := make(chan error, 1)
	go func() { done <- m.Save(context.Background(), slow) }()
	require.NoError(t, m.Save(t.Context(), fast))
	select {
	case <-done:
		t.Error("it did not wait")
	default:
	}
	require.Equal(t, make([]byte, 40*12<<10), host[:40*12<<10])
	for v := range fast.moves {
		require.True(t, bytes.Equal(b.data[v.region][v.offset:v.offset+int64(v.bytes)], host[v.host:v.host+int64(v.bytes)]))
	}
	m.lanes[0].hurry(-1)
	require.NoError(t, <-done)
	for v := range slow.moves {
		require.True(t, bytes.Equal(b.data[v.region][v.offset:v.offset+int64(v.bytes)], host[v.host:v.host+int64(v.bytes)]))
	}
	require.Zero(t, m.lanes[0].urgent)
	require.NoError(t, m.Close())
}

// halfway is a stream whose driver fails in the middle of a submission's only command.
type halfway struct {
	ascendrt.Stream
	last *ascendrt.Point
}

var errHalfway = errors.New("the driver fails")

func (s halfway) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	p, _, err := s.Stream.Submit(c)
	*s.last = p
	return p, 0, errors.Join(err, errHalfway)
}

// A copy that fails when part of it was handed over has ended when its caller learns of it.
func TestFailedCopiesHaveEnded(t *testing.T) {
	pieces := slices.Repeat([]int{4096}, 8)
	b := newMoverBench(t, pieces)
	m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: Direct})
	require.NoError(t, err)
	_, err = m.Alloc(benchBlocks * 32 << 10)
	require.NoError(t, err)
	large, err := b.dev.Alloc(16<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var last ascendrt.Point
	bus := m.lanes[0].bus
	m.lanes[0].bus = []ascendrt.Stream{halfway{bus[0], &last}}
	var busy ascendrt.Commands
	for range 20 {
		busy.Fill(large.View(), 1)
	}
	_, _, err = bus[0].Submit(&busy)
	require.NoError(t, err)
	require.ErrorIs(t, m.Save(t.Context(), b.copies(pieces, 0, b.r.Perm(benchBlocks), b.r.Perm(benchBlocks))), errHalfway)
	require.NotZero(t, last.Seq)
	require.True(t, last.Done())
	m.lanes[0].bus = bus
	require.NoError(t, m.Close())
}

// A filling of many blocks allocates nothing for each of them. (Under the race detector
// the device's pools forget on purpose.)
func TestWaysAllocations(t *testing.T) {
	pieces := slices.Repeat([]int{256}, 48)
	b := newMoverBench(t, pieces)
	for _, way := range []Way{Staged, Direct, Engine} {
		m, err := NewDeviceMover(b.dev, b.bufs, DeviceOptions{Way: way})
		require.NoError(t, err)
		_, err = m.Alloc(benchBlocks * 12 << 10)
		require.NoError(t, err)
		allocs := func(n int) float64 {
			c := b.copies(pieces, 0, b.r.Perm(benchBlocks)[:n], b.r.Perm(benchBlocks)[:n])
			l := &m.lanes[0]
			return testing.AllocsPerRun(10, func() {
				if _, err := m.submit(l, c, c.bytes()); err != nil {
					t.Error(err)
				}
			})
		}
		allocs(benchBlocks)
		require.Less(t, allocs(benchBlocks)-allocs(1), float64(benchBlocks/4), "%v", way)
		require.NoError(t, m.Close())
	}
}
