package offload

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

func TestDeviceMover(t *testing.T) {
	ctx := context.Background()
	dev, err := (host.Backend{}).Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close(ctx)) }()
	var bufs []ascendrt.Buffer
	var regions []connector.Region
	stream, err := dev.NewStream(ascendrt.StreamOptions{Role: "test"})
	require.NoError(t, err)
	for _, name := range []string{"k", "v"} {
		b, err := dev.Alloc(blocks*2*blockBytes, ascendrt.PlaceDefault)
		require.NoError(t, err)
		bufs = append(bufs, b)
		regions = append(regions, connector.Region{Name: name, BlockBytes: 2 * blockBytes, Memory: hostRegion(nil)})
		data := make([]byte, blocks*2*blockBytes)
		for i := range data {
			data[i] = byte(i/(2*blockBytes)) ^ name[0]
		}
		require.NoError(t, ascendrt.Upload(ctx, dev, stream, b.View(), data))
	}
	m, err := NewDeviceMover(dev, bufs, DeviceOptions{})
	require.NoError(t, err)
	w, err := NewWorker(WorkerConfig{Slots: 4, Mover: m})
	require.NoError(t, err)
	require.NoError(t, w.Register(testLayout(), regions))
	s, err := NewScheduler(Config{BlockSize: bs, Slots: 4})
	require.NoError(t, err)
	pass := func() connector.Event {
		require.NoError(t, w.Submit(s.Ops(1, nil)...))
		select {
		case ev := <-w.Events():
			s.Completed(ev)
			require.NoError(t, ev.Err)
			return ev
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
			return connector.Event{}
		}
	}
	r := request(1, tokens(0, 12), 12)
	require.True(t, s.Preempting(r, connector.Tables{{3, 9, 4}}, 12))
	require.Equal(t, connector.Saved, pass().Kind)
	s.Allocated(r, connector.Tables{{20, 21, 22}}, 0, 12)
	require.Equal(t, connector.Received, pass().Kind)
	for i, name := range []string{"k", "v"} {
		got := make([]byte, 2*blockBytes)
		for at, from := range map[kvcache.BlockID]byte{20: 3, 21: 9, 22: 4} {
			require.NoError(t, ascendrt.Download(ctx, dev, stream, got, bufs[i].Slice(int(at)*2*blockBytes, 2*blockBytes)))
			for _, b := range got {
				require.Equal(t, from^name[0], b)
			}
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, stream.Close())
	for _, b := range bufs {
		require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	}
	require.Zero(t, dev.Live().HostBuffers)
	require.Zero(t, dev.Live().Streams)
}
