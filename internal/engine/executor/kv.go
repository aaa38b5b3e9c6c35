package executor

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// layerKV is the paged cache of one layer: keys and values, each of shape
// [blocks, block size, kv heads, head width].
type layerKV struct {
	k, v   ascendrt.Tensor
	kb, vb ascendrt.Buffer
}

func (e *Executor) allocKV(ctx context.Context) ([]layerKV, error) {
	c := e.c.Model
	bytes := e.c.Blocks * e.regionBytes()
	kv := make([]layerKV, c.Layers)
	bufs, err := e.allocRow(2*c.Layers, bytes, e.c.KV)
	if err != nil {
		return nil, fmt.Errorf("kv cache of %d layers: %w", c.Layers, err)
	}
	var cmd ascendrt.Commands
	for l := range kv {
		for i, t := range []struct {
			tensor *ascendrt.Tensor
			buf    *ascendrt.Buffer
		}{{&kv[l].k, &kv[l].kb}, {&kv[l].v, &kv[l].vb}} {
			buf := bufs[2*l+i]
			cmd.Fill(buf.View(), 0)
			*t.buf = buf
			*t.tensor = ascendrt.NewTensor(buf.View(), e.c.Type, e.c.Blocks, e.c.BlockSize, c.KVHeads, c.HeadDim)
		}
	}
	p, _, err := e.stream.Submit(&cmd)
	if err != nil {
		return nil, err
	}
	return kv, p.Wait(ctx)
}

// regionBytes is the size of one block in one region.
func (e *Executor) regionBytes() int { return e.c.regionBytes() }

// Layout describes the cache to a connector.
func (e *Executor) Layout(fingerprint string) connector.Layout {
	dtype := "fp32"
	if e.c.Type == ascendrt.BFloat16 {
		dtype = "bf16"
	}
	return connector.Layout{
		Model: fingerprint, DType: dtype, BlockSize: e.c.BlockSize, Blocks: e.c.Blocks,
		Groups: []connector.LayoutGroup{{Kind: kvcache.FullAttention.String(), Layers: e.c.Model.Layers, BlockBytes: e.c.BlockBytes()}},
	}
}

// Regions gives the cache's memory to a connector: a "k" and a "v" region per
// layer, valid until Close. Where the CPU does not address the device's memory
// they copy through pinned memory, on a stream of their own.
func (e *Executor) Regions() ([]connector.Region, error) {
	m, mapped := e.dev.(ascendrt.Mapper)
	if !mapped && e.copier == nil {
		var err error
		if e.copier, err = newCopier(e.dev); err != nil {
			return nil, fmt.Errorf("kv regions of %s memory: %w", e.dev.Caps().Backend, err)
		}
	}
	var out []connector.Region
	for l, kv := range e.kv {
		for _, r := range []struct {
			name string
			buf  ascendrt.Buffer
		}{{"k", kv.kb}, {"v", kv.vb}} {
			region := connector.Region{Layer: l, Name: r.name, BlockBytes: e.regionBytes(), Memory: deviceMemory{e.copier, r.buf}}
			if mapped {
				b, err := m.Map(r.buf.View())
				if err != nil {
					return nil, fmt.Errorf("map kv region %s of layer %d: %w", r.name, l, err)
				}
				region.Memory = hostMemory(b)
			}
			out = append(out, region)
		}
	}
	return out, nil
}

// Buffers are the regions' device memory, in the order of Regions.
func (e *Executor) Buffers() []ascendrt.Buffer {
	var out []ascendrt.Buffer
	for _, kv := range e.kv {
		out = append(out, kv.kb, kv.vb)
	}
	return out
}

// Noise overwrites one block in every layer with values of the size that real
// keys and values have, drawn from seed. Tests of token identity do it once to
// show that they would notice wrong KV. It runs in the order of the steps.
func (e *Executor) Noise(ctx context.Context, block kvcache.BlockID, seed uint64) error {
	if block <= kvcache.NullBlock || int(block) >= e.c.Blocks {
		return fmt.Errorf("executor: block %d is not in 1..%d", block, e.c.Blocks-1)
	}
	data := make([]float32, e.regionBytes()/e.c.Type.Size())
	for _, kv := range e.kv {
		for _, buf := range []ascendrt.Buffer{kv.kb, kv.vb} {
			for i := range data {
				seed = seed*6364136223846793005 + 1442695040888963407
				data[i] = float32(int32(seed>>32)) * (4.0 / (1 << 31))
			}
			at := buf.Slice(int(block)*e.regionBytes(), e.regionBytes())
			if err := ascendrt.Upload(ctx, e.dev, e.stream, at, e.stored(data)); err != nil {
				return fmt.Errorf("write noise: %w", err)
			}
		}
	}
	return nil
}
