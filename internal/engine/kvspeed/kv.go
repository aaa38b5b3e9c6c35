package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
)

// kvShape is a KV pool: a region for keys and one for values per layer.
type kvShape struct {
	layers, block int // block in tokens
	blocks        int // that a prompt fills; the pool has one more, the null block
	bytes         int // of a block in a region
}

func newShape(m model.Config, block, blocks int) kvShape {
	const size = 2 // bfloat16
	return kvShape{layers: m.Layers, block: block, blocks: blocks, bytes: block * m.KVWidth() * size}
}

func (s kvShape) regions() int { return 2 * s.layers }

// total is the bytes of a prompt.
func (s kvShape) total() int64 { return int64(s.blocks) * int64(s.regions()) * int64(s.bytes) }

func (s kvShape) layout() connector.Layout {
	return connector.Layout{
		Model: "kvspeed", DType: "bf16", BlockSize: s.block, Blocks: s.blocks + 1,
		Groups: []connector.LayoutGroup{{Kind: kvcache.FullAttention.String(), Layers: s.layers, BlockBytes: s.regions() * s.bytes}},
	}
}

// pool is KV on a device.
type pool struct {
	kvShape
	dev     ascendrt.Device
	stream  ascendrt.Stream
	buffers []ascendrt.Buffer
}

func newPool(dev ascendrt.Device, s kvShape) (*pool, error) {
	p := &pool{kvShape: s, dev: dev}
	var err error
	if p.stream, err = dev.NewStream(ascendrt.StreamOptions{Role: "kvspeed"}); err != nil {
		return nil, err
	}
	placement := ascendrt.PlaceDefault
	if dev.Caps().IPCMemory {
		placement = ascendrt.PlaceShareable
	}
	p.buffers, err = ascendrt.AllocRow(dev, s.regions(), (s.blocks+1)*s.bytes, placement) // as the engine's
	return p, err
}

func (p *pool) close() error {
	for _, b := range p.buffers {
		if err := b.FreeAfter(ascendrt.Point{}); err != nil {
			return err
		}
	}
	return p.stream.Close()
}

// memory is one region for connectors.
type memory struct {
	p   *pool
	buf ascendrt.Buffer
}

// DeviceBuffer is the memory itself.
func (m memory) DeviceBuffer() ascendrt.Buffer { return m.buf }

// ReadAt copies from the device.
func (m memory) ReadAt(b []byte, off int64) (int, error) {
	return len(b), ascendrt.Download(context.Background(), m.p.dev, m.p.stream, b, m.buf.Slice(int(off), len(b)))
}

// WriteAt copies to the device.
func (m memory) WriteAt(b []byte, off int64) (int, error) {
	return len(b), ascendrt.Upload(context.Background(), m.p.dev, m.p.stream, m.buf.Slice(int(off), len(b)), b)
}

func (p *pool) connector() []connector.Region {
	out := make([]connector.Region, len(p.buffers))
	for i, b := range p.buffers {
		out[i] = connector.Region{Layer: i / 2, Name: [...]string{"k", "v"}[i%2], BlockBytes: p.bytes, Memory: memory{p, b}}
	}
	return out
}

// mark is the byte that fills a block of P's region.
func mark(region, block int) byte { return byte(1 + (region*31+block*7)%251) }

// clear fills the pool with zeros, which are no mark.
func (p *pool) clear(ctx context.Context) error {
	var c ascendrt.Commands
	for _, b := range p.buffers {
		c.Fill(b.View(), 0)
	}
	at, _, err := p.stream.Submit(&c)
	if err != nil {
		return err
	}
	return at.Wait(ctx)
}

// fill gives every block its mark.
func (p *pool) fill(ctx context.Context, with func(region, block int) byte) error {
	var c ascendrt.Commands
	for r, b := range p.buffers {
		c.Reset()
		for i := range p.blocks + 1 {
			c.Fill(b.Slice(i*p.bytes, p.bytes), with(r, i))
		}
		at, _, err := p.stream.Submit(&c)
		if err != nil {
			return err
		}
		if err := at.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// check looks whether some blocks are those of P.
func (p *pool) check(ctx context.Context, from, to []kvcache.BlockID, r *rand.Rand) error {
	b := make([]byte, p.bytes)
	for range 64 {
		region, i := r.IntN(len(p.buffers)), r.IntN(len(to))
		if err := ascendrt.Download(ctx, p.dev, p.stream, b, p.buffers[region].Slice(int(to[i])*p.bytes, p.bytes)); err != nil {
			return err
		}
		want := mark(region, int(from[i]))
		for k, x := range b {
			if x != want {
				return fmt.Errorf("region %d, block %d, byte %d is %d, want %d of block %d of the other process", region, to[i], k, x, want, from[i])
			}
		}
	}
	return nil
}

// checkTier looks whether some blocks, in the tier and in the pool, have their marks.
func (p *pool) checkTier(ctx context.Context, host []byte, c offload.Copies) error {
	r, b := newRand(), make([]byte, p.bytes)
	for range 64 {
		i, part := r.IntN(len(c.Blocks)), c.Parts[r.IntN(len(c.Parts))]
		if err := ascendrt.Download(ctx, p.dev, p.stream, b, p.buffers[part.Region].Slice(int(c.Blocks[i])*p.bytes, p.bytes)); err != nil {
			return err
		}
		slot := host[int64(c.Slots[i])*c.SlotBytes+part.Offset:][:p.bytes]
		want := mark(part.Region, int(c.Blocks[i]))
		for k := range b {
			if b[k] != want || slot[k] != want {
				return fmt.Errorf("region %d, block %d, byte %d is %d here and %d in slot %d, want %d", part.Region, c.Blocks[i], k, b[k], slot[k], c.Slots[i], want)
			}
		}
	}
	return nil
}

// order gives the blocks of a prompt: one after the other, or scattered.
func order(n int, seed uint64) []kvcache.BlockID {
	out := make([]kvcache.BlockID, n)
	for i := range out {
		out[i] = kvcache.BlockID(i + 1)
	}
	if seed > 0 {
		r := rand.New(rand.NewPCG(seed, 1))
		r.Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out
}
