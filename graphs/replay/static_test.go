package replay

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
)

func f32(bits uint32) float32 { return math.Float32frombits(bits) }

func newTestStatic(t *testing.T, c StaticConfig) (*Static, ascendrt.Device, ascendrt.Stream) {
	t.Helper()
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	stream, err := dev.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	s, err := NewStatic(dev, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, stream.Close())
		require.Zero(t, dev.Live().Buffers+dev.Live().HostBuffers)
		require.NoError(t, dev.Close(context.Background()))
	})
	return s, dev, stream
}

// on reads a static input back from the device.
func on(t *testing.T, dev ascendrt.Device, stream ascendrt.Stream, x ascendrt.Tensor, n int) []int32 {
	t.Helper()
	data := make([]byte, 4*n)
	require.NoError(t, ascendrt.Download(context.Background(), dev, stream, data, x.View.Slice(0, 4*n)))
	return words(data)
}

func send(t *testing.T, stream ascendrt.Stream, g Staged) {
	t.Helper()
	var c ascendrt.Commands
	g.Upload(&c)
	p, _, err := stream.Submit(&c)
	require.NoError(t, err)
	g.Submitted(p)
	require.NoError(t, p.Wait(context.Background()))
}

// Tables of rows that get shorter and longer again, in images that are written in
// turn, are padded to their ends.
func TestPaddingOfTables(t *testing.T) {
	const rows, width = 4, 9
	s, dev, stream := newTestStatic(t, StaticConfig{MaxTokens: rows, MaxReqs: rows, TableWidth: width, InFlight: 3})
	rng := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		n := int32(1 + rng.IntN(rows))
		b := fullBatch(n)
		want := make([]int32, rows*width)
		for i := range b.Tables {
			b.Tables[i] = nil
			for range rng.IntN(width + 1) {
				b.Tables[i] = append(b.Tables[i], 1+rng.Int32N(100))
			}
			copy(want[i*width:], b.Tables[i])
		}
		g, err := s.Stage(b, graphs.Decision{Tokens: n, Reqs: n, PaddedTokens: rows, PaddedReqs: rows})
		require.NoError(t, err)
		send(t, stream, g)
		require.Equal(t, want, on(t, dev, stream, s.Table, rows*width), "step %d", step)
	}
}

func fullBatch(n int32) Batch {
	var b Batch
	for i := range n {
		b.IDs = append(b.IDs, 40+i)
		b.Positions = append(b.Positions, 10+i)
		b.Slots = append(b.Slots, 100+i)
		b.StateOut = append(b.StateOut, 7+i)
		b.StateIn = append(b.StateIn, 7+i)
		b.Query = append(b.Query, 1)
		b.Lens = append(b.Lens, 11+i)
		b.Tables = append(b.Tables, []int32{3 + i, 4 + i})
	}
	return b
}

// Every buffer of a replay has its padding behind the real part, also where a
// larger step stood before.
func TestPaddingValues(t *testing.T) {
	decision := func(n, t, r, width int32) graphs.Decision {
		return graphs.Decision{Mode: graphs.Full, Tokens: n, Reqs: n, PaddedTokens: t, PaddedReqs: r, Key: graphs.Key{Mode: graphs.Full, Tokens: t, Reqs: r, Uniform: width}}
	}
	for _, pad := range []Padding{PadZeroRows, PadDummyRows} {
		s, dev, stream := newTestStatic(t, StaticConfig{MaxTokens: 8, MaxReqs: 8, TableWidth: 3, Padding: pad})
		read := func(x ascendrt.Tensor, n int) []int32 { return on(t, dev, stream, x, n) }
		for range s.images { // a larger step stands in each of them
			g, err := s.Stage(fullBatch(8), decision(8, 8, 8, 1))
			require.NoError(t, err)
			send(t, stream, g)
		}
		g, err := s.Stage(fullBatch(2), decision(2, 4, 4, 1))
		require.NoError(t, err)
		send(t, stream, g)

		require.Equal(t, []int32{40, 41, PadID, PadID}, read(s.IDs, 4))
		require.Equal(t, []int32{10, 11, 0, 0}, read(s.Positions, 4))
		require.Equal(t, []int32{100, 101, -1, -1}, read(s.Slots, 4), "no KV is written for padding")
		require.Equal(t, []int32{7, 8, 0, 0}, read(s.StateIn, 4))
		require.Equal(t, []int32{7, 8, 0, 0}, read(s.StateOut, 4))
		require.Equal(t, []int32{0, 1, -1, -1}, read(s.Rows, 4))
		require.Equal(t, []int32{3, 4, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0}, read(s.Table, 12), "the null block behind the real ones and in padded rows")
		if pad == PadZeroRows {
			require.Equal(t, []int32{0, 1, 2, 2, 2}, read(s.Starts, 5), "padded rows are empty")
			require.Equal(t, []int32{11, 12, 0, 0}, read(s.Lens, 4))
			require.Equal(t, []int64{11, 12, 0, 0}, g.Lengths)
		} else {
			require.Equal(t, []int32{0, 1, 2, 3, 4}, read(s.Starts, 5), "the last row ends at the padded tokens")
			require.Equal(t, []int32{11, 12, 1, 1}, read(s.Lens, 4))
			require.Equal(t, []int64{0, 1, 2, 3, 4}, g.Starts)

			// A graph for any rows: the rest goes to the first padded row, which has no keys.
			mixed := decision(2, 7, 4, 0)
			g, err = s.Stage(fullBatch(2), mixed)
			require.NoError(t, err)
			require.Equal(t, []int64{0, 1, 2, 7, 7}, g.Starts)
			require.Equal(t, []int64{11, 12, 0, 0}, g.Lengths)
			// Without one the last row goes on behind its tokens; it samples where it did.
			mixed.PaddedReqs = 2
			g, err = s.Stage(fullBatch(2), mixed)
			require.NoError(t, err)
			send(t, stream, g)
			require.Equal(t, []int64{0, 1, 7}, g.Starts)
			require.Equal(t, []int64{11, 17}, g.Lengths)
			require.Equal(t, []int32{0, 1}, read(s.Rows, 2))
			require.Equal(t, []int32{100, 101, -1, -1, -1, -1, -1}, read(s.Slots, 7))
		}
	}
}

// Many tokens are copied array by array, few as one block, with their tables where
// these are short: the device sees the same.
func TestUploadsAgree(t *testing.T) {
	var want [][]int32
	for _, x := range []struct{ tokens, width, copies int }{{64, 3, 1}, {64, wholeCopy / 32, 2}, {wholeCopy, 3, 9}} {
		s, dev, stream := newTestStatic(t, StaticConfig{MaxTokens: x.tokens, MaxReqs: 8, TableWidth: x.width})
		g, err := s.Stage(fullBatch(5), graphs.Decision{Mode: graphs.Full, Tokens: 5, Reqs: 5, PaddedTokens: 8, PaddedReqs: 8})
		require.NoError(t, err)
		var c ascendrt.Commands
		g.Upload(&c)
		require.Equal(t, x.copies, c.Len())
		send(t, stream, g)
		var got [][]int32
		for _, x := range []ascendrt.Tensor{s.IDs, s.Positions, s.Slots, s.StateOut, s.Rows, s.StateIn, s.Lens} {
			got = append(got, on(t, dev, stream, x, 8))
		}
		got = append(got, on(t, dev, stream, s.Starts, 9))
		for r := range 8 {
			row := ascendrt.NewTensor(s.Table.View.Slice(4*r*x.width, 12), ascendrt.Int32, 3)
			got = append(got, on(t, dev, stream, row, 3))
		}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
}

// A dummy batch of fewer rows than the graph has leaves no stale block id or
// slot behind, at the same addresses as real steps.
func TestDummyAfterRealStep(t *testing.T) {
	s, dev, stream := newTestStatic(t, StaticConfig{MaxTokens: 8, MaxReqs: 4, TableWidth: 2})
	g, err := s.Stage(fullBatch(4), graphs.Decision{Mode: graphs.Full, Tokens: 4, Reqs: 4, PaddedTokens: 4, PaddedReqs: 4})
	require.NoError(t, err)
	send(t, stream, g)
	at := s.Table.Addr

	b := Batch{IDs: []int32{0}, Positions: []int32{0}, Slots: []int32{PadSlot}, Query: []int32{1}, Lens: []int32{1}, Tables: make([][]int32, 1)}
	g, err = s.Stage(b, graphs.Decision{Mode: graphs.Full, Tokens: 1, Reqs: 1, PaddedTokens: 4, PaddedReqs: 4, Key: graphs.Key{Mode: graphs.Full, Tokens: 4, Reqs: 4, Uniform: 1}})
	require.NoError(t, err)
	send(t, stream, g)
	require.Equal(t, []int32{-1, -1, -1, -1}, on(t, dev, stream, s.Slots, 4))
	require.Equal(t, make([]int32, 8), on(t, dev, stream, s.Table, 8))
	require.Equal(t, at, s.Table.Addr)
}

func TestStageRefuses(t *testing.T) {
	s, _, stream := newTestStatic(t, StaticConfig{MaxTokens: 8, MaxReqs: 4, TableWidth: 2, InFlight: 1})
	ok := graphs.Decision{Tokens: 2, Reqs: 2, PaddedTokens: 2, PaddedReqs: 2}
	for name, f := range map[string]func(*Batch, *graphs.Decision){
		"other rows than decided":   func(_ *Batch, d *graphs.Decision) { d.Reqs = 3 },
		"other tokens than decided": func(_ *Batch, d *graphs.Decision) { d.Tokens = 3 },
		"padding below the batch":   func(_ *Batch, d *graphs.Decision) { d.PaddedTokens = 1 },
		"more tokens than room":     func(_ *Batch, d *graphs.Decision) { d.PaddedTokens = 9 },
		"more rows than room":       func(_ *Batch, d *graphs.Decision) { d.PaddedReqs = 5 },
		"missing slots":             func(b *Batch, _ *graphs.Decision) { b.Slots = b.Slots[:1] },
		"missing table":             func(b *Batch, _ *graphs.Decision) { b.Tables = b.Tables[:1] },
		"missing state":             func(b *Batch, _ *graphs.Decision) { b.StateIn = b.StateIn[:1] },
		"table too wide":            func(b *Batch, _ *graphs.Decision) { b.Tables[1] = []int32{1, 2, 3} },
	} {
		b, d := fullBatch(2), ok
		f(&b, &d)
		_, err := s.Stage(b, d)
		require.ErrorIs(t, err, ErrShape, name)
	}
	g, err := s.Stage(fullBatch(2), ok)
	require.NoError(t, err)
	stuck := &stuckStream{Stream: stream}
	g.Submitted(ascendrt.Point{Stream: stuck, Seq: 1})
	_, err = s.Stage(fullBatch(2), ok)
	require.ErrorIs(t, err, ErrBusy, "the image is still being read")
	stuck.done = true
	g, err = s.Stage(fullBatch(2), ok)
	require.NoError(t, err)
	g.Submitted(ascendrt.Point{})

	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	defer dev.Close(context.Background())
	_, err = NewStatic(dev, StaticConfig{})
	require.ErrorIs(t, err, ErrShape)
}
