//go:build cgo && linux

package cuda

import (
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// opState is a planned operation.
type opState struct {
	*opspec.Signature
	slots []ascendrt.SlotInfo
	ws    int
	emit  func(t *translator, ws ascendrt.View, a []ascendrt.Tensor) error
}

func (d *device) Plan(spec ascendrt.OpSpec) (ascendrt.Op, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	sig, err := opspec.Describe(spec)
	if err != nil {
		return nil, d.Wrap("plan "+string(spec.Kind), -1, err)
	}
	s := &opState{Signature: sig, slots: sig.Slots()}
	if err := d.plan(s); err != nil {
		return nil, err
	}
	return d.NewOp(s, s.Spec, s.ws, s.slots), nil
}

// op translates one operation into kernel launches.
func (t *translator) op(o *opState, ws ascendrt.View, args []ascendrt.Tensor) error {
	if err := memory.CheckOp(o.Signature, t.slots, ws, o.ws, args, t.Find); err != nil {
		return err
	}
	return o.emit(t, ws, args)
}

// at and stride are a tensor's place and row stride as kernel parameters.
func at(x *ascendrt.Tensor) uint64     { return uint64(x.Addr) }
func stride(x *ascendrt.Tensor) uint64 { return uint64(x.Stride()) }

func suffix(t ascendrt.DType) string {
	if t == ascendrt.BFloat16 {
		return "bf16"
	}
	return "f32"
}

// threads is a block size for rows of d elements.
func threads(d int) int { return min(256, max(32, (d+31)/32*32)) }

func bits(f float32) uint64 { return uint64(math.Float32bits(f)) }

// plan picks the kernels and says how a call becomes launches.
func (d *device) plan(s *opState) error {
	ty := suffix(s.Spec.Type)
	switch at := s.Spec.Attr.(type) {
	case ascendrt.EmbeddingAttr:
		return d.planRows(s, "rows_"+ty, at.Hidden, 0, 1)
	case ascendrt.GatherAttr:
		return d.planRows(s, "rows_"+ty, at.Dim, 1, 0)
	case ascendrt.NormAttr:
		return d.planNorm(s, at, ty)
	case ascendrt.AddAttr:
		return d.planAdd(s, at, ty)
	case ascendrt.MatmulAttr:
		return d.planMatmul(s, at, ty)
	case ascendrt.RopeAttr:
		return d.planRope(s, at, ty)
	case ascendrt.ScatterAttr:
		return d.planScatter(s, at, ty)
	case ascendrt.AttentionAttr:
		switch {
		case at.Order == ascendrt.SumFixed || !d.attends(s.Spec.Type, at):
			return d.planAttention(s, at, ty)
		case at.Order == ascendrt.SumPerRow:
			return d.planPerRowAttention(s, at)
		}
		return d.planFastAttention(s, at)
	case ascendrt.SwiGLUAttr:
		return d.planRow(s, "swiglu_"+ty, at.Dim)
	case ascendrt.ArgmaxAttr:
		return d.planArgmax(s, at, ty)
	case ascendrt.CastAttr:
		return d.planRow(s, "cast_"+suffix(at.From)+"_"+suffix(at.To), at.Dim)
	case ascendrt.LinearAttr:
		return d.planLinear(s, at)
	case ascendrt.RotateAttr:
		return d.planRotate(s, at)
	case ascendrt.FeedAttr:
		return d.planFeed(s, at)
	case ascendrt.PickAttr:
		return d.planPick(s, at)
	case ascendrt.NoiseAttr:
		return d.planNoise(s, at)
	}
	return invalid("plan "+string(s.Spec.Kind), "no kernel", ascendrt.ErrUnsupported)
}

func (d *device) planRows(s *opState, kernelName string, dim, ids, table int) error {
	k, err := d.kernels.get(d, kernelName)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		y := &a[2]
		return t.launch(k, [3]int{y.Rows(), 1, 1}, threads(dim), 0,
			at(&a[ids]), at(&a[table]), stride(&a[table]), uint64(a[table].Rows()), at(y), stride(y), uint64(dim))
	}
	return err
}

// planRow is for kernels of one input and one output.
func (d *device) planRow(s *opState, kernelName string, dim int) error {
	k, err := d.kernels.get(d, kernelName)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		return t.launch(k, [3]int{a[0].Rows(), 1, 1}, threads(dim), 0, at(&a[0]), stride(&a[0]), at(&a[1]), stride(&a[1]), uint64(dim))
	}
	return err
}

func (d *device) planNorm(s *opState, n ascendrt.NormAttr, ty string) error {
	kernelName := "rmsnorm_" + ty
	if s.Spec.Kind == ascendrt.OpAddRMSNorm {
		kernelName = "add_rmsnorm_" + ty
	}
	k, err := d.kernels.get(d, kernelName)
	if err != nil {
		return err
	}
	shared := 4 * n.Dim
	if err := d.allowShared(k, shared); err != nil {
		return err
	}
	dim, eps := uint64(n.Dim), bits(n.Eps)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		if s.Spec.Kind == ascendrt.OpAddRMSNorm {
			return t.launch(k, [3]int{a[0].Rows(), 1, 1}, threads(n.Dim), shared,
				at(&a[0]), stride(&a[0]), at(&a[1]), stride(&a[1]), at(&a[2]), at(&a[3]), stride(&a[3]), dim, eps)
		}
		return t.launch(k, [3]int{a[0].Rows(), n.Groups, 1}, threads(n.Dim), shared,
			at(&a[0]), stride(&a[0]), at(&a[1]), at(&a[2]), stride(&a[2]), dim, eps)
	}
	return nil
}

func (d *device) planAdd(s *opState, n ascendrt.AddAttr, ty string) error {
	k, err := d.kernels.get(d, "add_"+ty)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		return t.launch(k, [3]int{a[0].Rows(), 1, 1}, threads(n.Dim), 0,
			at(&a[0]), stride(&a[0]), at(&a[1]), stride(&a[1]), at(&a[2]), stride(&a[2]), uint64(n.Dim))
	}
	return err
}

// fewRows is up to how many rows a matmul uses one thread per output.
const fewRows = 16

func (d *device) planMatmul(s *opState, m ascendrt.MatmulAttr, ty string) error {
	if m.Order == ascendrt.SumFree {
		return d.planFreeMatmul(s, m)
	}
	out := "same"
	if m.OutType != s.Spec.Type {
		out = "f32"
	}
	tail := m.Weights.String() + "_" + ty + "_" + out
	tile, err := d.kernels.get(d, "matmul_tile_"+tail)
	if err != nil {
		return err
	}
	row, err := d.kernels.get(d, "matmul_row_"+tail)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		n, cols := a[0].Rows(), (m.Out+63)/64
		params := []uint64{at(&a[0]), stride(&a[0]), at(&a[1]), stride(&a[1]), at(&a[2]), stride(&a[2]), uint64(n), uint64(m.In), uint64(m.Out)}
		if n <= fewRows {
			return t.launch(row, [3]int{cols, n, 1}, 64, 0, params...)
		}
		return t.launch(tile, [3]int{cols, (n + 63) / 64, 1}, 256, 0, params...)
	}
	return err
}

func (d *device) planRope(s *opState, r ascendrt.RopeAttr, ty string) error {
	k, err := d.kernels.get(d, "rope_"+ty)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		q, kk, pos, tab := &a[0], &a[1], &a[2], &a[3]
		return t.launch(k, [3]int{q.Rows(), 1, 1}, threads(r.Heads*r.HeadDim/2), 0, at(q), stride(q), at(kk), stride(kk), at(pos),
			at(tab), stride(tab), uint64(tab.Rows()), uint64(r.Heads), uint64(r.KVHeads), uint64(r.HeadDim))
	}
	return err
}

func (d *device) planScatter(s *opState, r ascendrt.ScatterAttr, ty string) error {
	k, err := d.kernels.get(d, "scatter_"+ty)
	dim := r.KVHeads * r.HeadDim
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		return t.launch(k, [3]int{a[0].Rows(), 1, 1}, threads(dim), 0, at(&a[0]), stride(&a[0]), at(&a[1]), stride(&a[1]), at(&a[2]),
			at(&a[3]), stride(&a[3]), at(&a[4]), stride(&a[4]), uint64(a[3].Rows()), uint64(r.BlockSize), uint64(dim))
	}
	return err
}

const attentionThreads = 128

func (d *device) planAttention(s *opState, n ascendrt.AttentionAttr, ty string) error {
	k, err := d.kernels.get(d, "attention_"+ty)
	if err != nil {
		return err
	}
	if err := d.allowShared(k, d.desc.sharedOptin-1024); err != nil {
		return err
	}
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		q, kc, vc, table, y := &a[0], &a[1], &a[2], &a[3], &a[6]
		tokens := table.RowLen() * n.BlockSize
		if n.Window > 0 {
			tokens = min(tokens, n.Window)
		}
		shared := 4 * (2*n.HeadDim + attentionThreads + tokens)
		if limit := d.desc.sharedOptin - 1024; shared > limit {
			return fmt.Errorf("a row sees up to %d tokens; this device holds the scores of %d: %w", tokens, limit/4-2*n.HeadDim-attentionThreads, ascendrt.ErrUnsupported)
		}
		return t.launch(k, [3]int{q.Rows(), n.Heads, 1}, attentionThreads, shared,
			at(q), stride(q), at(kc), stride(kc), at(vc), stride(vc), uint64(kc.Rows()), at(table), stride(table), uint64(table.RowLen()),
			at(&a[4]), at(&a[5]), uint64(table.Rows()), at(y), stride(y), uint64(q.Rows()),
			uint64(n.Heads), uint64(n.KVHeads), uint64(n.HeadDim), uint64(n.BlockSize), bits(n.Scale), uint64(n.Window))
	}
	return nil
}

func (d *device) planArgmax(s *opState, n ascendrt.ArgmaxAttr, ty string) error {
	k, err := d.kernels.get(d, "argmax_"+ty)
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		if a[1].Stride() != 1 {
			return fmt.Errorf("y is not contiguous: %w", ascendrt.ErrInvalid)
		}
		return t.launch(k, [3]int{a[0].Rows(), 1, 1}, 256, 0, at(&a[0]), stride(&a[0]), at(&a[1]), uint64(n.Dim))
	}
	return err
}

// allowShared lets a kernel take more than the 48 KiB of dynamic shared memory
// that every launch may.
func (d *device) allowShared(k *kernel, n int) error {
	if n > d.desc.sharedOptin-1024 {
		return invalid("plan", fmt.Sprintf("kernel %s needs %d bytes of shared memory; the device has %d", k.name, n, d.desc.sharedOptin), ascendrt.ErrUnsupported)
	}
	return k.allow(n)
}
