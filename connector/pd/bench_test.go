package pd

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/connector/transport/ucx"
	"github.com/sluice-serving/sluice/kvcache"
)

// qwen is the KV shape of Qwen3-0.6B in bf16: 28 layers, 8 KV heads of 128, so
// 32 KiB per block of 16 tokens, tensor and layer.
const (
	qwenLayers = 28
	qwenBlock  = 16 * 8 * 128 * 2
)

func qwenLayout(blocks int) connector.Layout {
	return connector.Layout{
		Model: "qwen3-0.6b", DType: "bf16", BlockSize: 16, Blocks: blocks,
		Groups: []connector.LayoutGroup{{Kind: "full_attention", Layers: qwenLayers, BlockBytes: 2 * qwenLayers * qwenBlock}},
	}
}

// carrier is a transport that is measured.
type carrier struct {
	name string
	make func(tcp.Config) (transport.Transport, error)
	crc  tcp.Checksum
}

var carriers = []carrier{
	{"crc32c", overTCP, tcp.CRC32C}, {"none", overTCP, tcp.NoChecksum}, {"ucx-none", ucx.New, tcp.NoChecksum},
}

func overTCP(c tcp.Config) (transport.Transport, error) { return tcp.New(c) }

func benchEngine(b *testing.B, id string, role Role, blocks int, over carrier) *engine {
	w, err := NewWorker(WorkerConfig{EngineID: id, Transport: func(n transport.Notified) (transport.Transport, error) {
		return over.make(tcp.Config{Notified: n, Checksum: over.crc})
	}})
	if e := (*transport.UnavailableError)(nil); errors.As(err, &e) {
		b.Skip(e)
	}
	require.NoError(b, err)
	b.Cleanup(func() { w.Close() })
	s, err := NewScheduler(SchedulerConfig{Role: role, Self: w.Endpoint(), BlockSize: 16})
	require.NoError(b, err)
	e := &engine{t: b, w: w, s: s}
	for layer := range qwenLayers {
		for _, name := range []string{"k", "v"} {
			mem := make(hostRegion, blocks*qwenBlock)
			rand.NewChaCha8([32]byte{byte(layer)}).Read(mem)
			e.regions = append(e.regions, connector.Region{Layer: layer, Name: name, BlockBytes: qwenBlock, Memory: mem})
		}
	}
	require.NoError(b, w.Register(qwenLayout(blocks), e.regions))
	return e
}

// cpu is the processor time of this process, in which both ends run.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPull measures the pull of a prompt whose blocks are scattered,
// lease and confirmation included, against a contiguous read of the same bytes by
// the same transport, in turn.
func BenchmarkPull(b *testing.B) {
	for _, tokens := range []int{1024, 12288} {
		for _, over := range carriers {
			b.Run(benchName(tokens, over), func(b *testing.B) { benchPull(b, tokens, over) })
		}
	}
}

func benchName(tokens int, over carrier) string {
	name := "1k"
	if tokens > 1024 {
		name = "12k"
	}
	return name + "/" + over.name
}

func benchPull(b *testing.B, n int, over carrier) {
	blocks := n/16 + 1
	p, d := benchEngine(b, "p", Producer, blocks, over), benchEngine(b, "d", Consumer, blocks, over)
	perm := func(seed uint64) []kvcache.BlockID {
		out := make([]kvcache.BlockID, blocks-1)
		for i, x := range rand.New(rand.NewPCG(seed, 0)).Perm(blocks - 1) {
			out[i] = kvcache.BlockID(x + 1)
		}
		return out
	}
	from, to := perm(1), perm(2)
	total := int64(blocks-1) * 2 * qwenLayers * qwenBlock

	// The raw arm: the same tensors of the same engines, each in one piece.
	segs := make([]transport.Segment, len(d.w.id.Regions))
	ids := make([]transport.RegionID, len(segs))
	for i, r := range d.w.id.Regions {
		ids[i] = p.w.id.Regions[i].Memory.Region
		segs[i] = transport.Segment{
			Local: r.Memory.Region, Remote: ids[i], LocalOffset: qwenBlock, RemoteOffset: qwenBlock, Length: int64(blocks-1) * qwenBlock,
		}
	}
	c, err := p.w.transport.Grant(transport.PeerReads, ids, blockUnits(blocks))
	require.NoError(b, err)
	peer, err := d.w.transport.Connect(b.Context(), p.w.transport.Address())
	require.NoError(b, err)
	require.NoError(b, peer.Read(b.Context(), c, segs), "every page is there before the clock runs")

	var pull, raw, pullCPU, rawCPU time.Duration
	slot := uint32(0)
	b.SetBytes(total)
	for b.Loop() {
		slot++
		begin, used := time.Now(), cpu()
		require.NoError(b, peer.Read(b.Context(), c, segs))
		raw += time.Since(begin)
		rawCPU += cpu() - used
		begin, used = time.Now(), cpu()
		pr := &connector.Request{ID: connector.NewRequestID(slot, 1), Name: "p", Tokens: tokens(n + 1), Prompt: n, Params: &Params{DoRemoteDecode: true}}
		h := p.s.Finished(pr, connector.Tables{from}, connector.End{Reason: connector.EndLength, Computed: n})
		p.flush()
		r := remote(slot, n, h.Params.(*Params))
		d.s.Added(r)
		d.s.Allocated(r, connector.Tables{to}, 0, n)
		d.flush()
		ev := d.next()
		require.Equal(b, connector.Received, ev.Kind, "%v", ev.Err)
		pull += time.Since(begin)
		pullCPU += cpu() - used
		d.s.Finished(r, nil, connector.End{})
		require.Equal(b, connector.Sent, p.next().Kind)
	}
	mb := float64(total) * float64(b.N) / 1e6
	b.ReportMetric(mb/pull.Seconds(), "pull-MB/s")
	b.ReportMetric(mb/raw.Seconds(), "raw-MB/s")
	b.ReportMetric(100*raw.Seconds()/pull.Seconds(), "%-of-raw")
	b.ReportMetric(pullCPU.Seconds()*1e6/mb, "pull-cpu-ms/GB")
	b.ReportMetric(rawCPU.Seconds()*1e6/mb, "raw-cpu-ms/GB")
}

func blockUnits(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}
