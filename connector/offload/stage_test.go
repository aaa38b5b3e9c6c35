package offload

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
)

func TestGathers(t *testing.T) {
	block := func(n, bytes, host int) (out []Move) {
		for r := range n {
			out = append(out, Move{Region: r, Bytes: bytes, Host: int64(host + r*bytes)})
		}
		return out
	}
	many := append(block(56, 32<<10, 0), block(56, 32<<10, 100<<20)...)
	apart := block(56, 4<<10, 0)
	for i := range apart {
		apart[i].Host = int64(i) << 20
	}
	for name, c := range map[string]struct {
		moves []Move
		want  bool
	}{
		"two blocks of small pieces": {many, true},
		"one piece":                  {block(1, 4<<10, 0), false},
		"large pieces":               {block(8, 1<<20, 0), false},
		"every piece by itself":      {apart, false},
		"larger than a stage":        {append(block(400, 4<<10, 0), Move{Bytes: stageBytes + 1, Host: 400 * 4 << 10}), false},
	} {
		require.Equal(t, c.want, gathers(c.moves), name)
	}
}

// Through the stage every byte gets to its place in both directions, over several
// fillings, and no other byte changes.
func TestStage(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		if err := emulated.Use(); err != nil {
			t.Skip(err)
		}
	}
	ctx := context.Background()
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if errors.Is(err, ascendrt.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(ctx)) }()
	const regions, blocks, piece = 16, 96, 16 << 10 // 24 MiB
	stream, err := dev.NewStream(ascendrt.StreamOptions{Role: "test"})
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	var bufs []ascendrt.Buffer
	var data [][]byte
	for range regions {
		b, err := dev.Alloc(blocks*piece, ascendrt.PlaceDefault)
		require.NoError(t, err)
		raw := make([]byte, blocks*piece)
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		require.NoError(t, ascendrt.Upload(ctx, dev, stream, b.View(), raw))
		bufs, data = append(bufs, b), append(data, raw)
	}
	m, err := NewDeviceMover(dev, bufs)
	require.NoError(t, err)
	require.NotNil(t, m.lanes[0].stage, "the device gathers")
	host, err := m.Alloc(blocks * regions * piece)
	require.NoError(t, err)
	var moves []Move
	slots := r.Perm(blocks)
	for b := range blocks - 7 {
		for g := range regions {
			moves = append(moves, Move{Region: g, Offset: int64(b) * piece, Host: int64(slots[b]*regions+g) * piece, Bytes: piece})
		}
	}
	require.True(t, gathers(moves))
	want := make([]byte, len(host))
	for _, v := range moves {
		copy(want[v.Host:], data[v.Region][v.Offset:v.Offset+piece])
	}
	require.NoError(t, m.Save(ctx, moves))
	require.Equal(t, want, host)

	for i, b := range bufs {
		clear(data[i][:(blocks-7)*piece]) // what is behind was not saved and stays
		require.NoError(t, ascendrt.Upload(ctx, dev, stream, b.View(), data[i]))
	}
	for i := range host {
		host[i] ^= 0x5a
	}
	require.NoError(t, m.Load(ctx, moves))
	for _, v := range moves {
		copy(data[v.Region][v.Offset:], host[v.Host:v.Host+piece])
	}
	for i, b := range bufs {
		got := make([]byte, len(data[i]))
		require.NoError(t, ascendrt.Download(ctx, dev, stream, got, b.View()))
		require.Equal(t, data[i], got, "region %d", i)
	}
	// A filling that cannot be: the ones before it have ended when Save returns.
	clear(host)
	wrong := append(moves[:len(moves):len(moves)], Move{Region: 0, Offset: blocks * piece, Host: 0, Bytes: piece})
	require.ErrorIs(t, m.Save(ctx, wrong), ascendrt.ErrInvalid)
	first := stageBytes / piece
	for _, v := range moves[:first] {
		require.Equal(t, data[v.Region][v.Offset:v.Offset+piece], host[v.Host:v.Host+piece])
	}
	require.NoError(t, m.Close())
}
