//go:build cgo && linux

package cuda

import (
	"embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

//go:embed fused/*.cu
var fusedFiles embed.FS

// fusedSource is one program of all files, which use what stands before them;
// entries.cu makes the kernels of a group.
var fusedSource = sync.OnceValue(func() []byte {
	var all []byte
	for _, name := range []string{"common", "linear", "product", "rows", "attention", "pick", "entries"} {
		part, err := fusedFiles.ReadFile("fused/" + name + ".cu")
		if err != nil {
			panic(err) // the name is one of the embedded files
		}
		all = append(all, part...)
	}
	return all
})

// fusedOptions are more options of their compilation, which tests set.
var fusedOptions []string

// fused are the modules of the fused kernels: one per group, compiled when an
// operation needs it.
type fused struct {
	mu     sync.Mutex
	groups map[string]*kernels
}

func (f *fused) close(d *device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.groups {
		k.close(d)
	}
	f.groups = nil
}

// fast gives a kernel of a group, which is what the compiler defines: LINEAR, or
// HEAD and GROUP for the head width and query heads per kv head of attention.
func (d *device) fast(fn string, group ...string) (*kernel, error) {
	if d.desc.cc < 90 || slices.Contains(use(libCUDA).Absent, "cuLaunchKernelEx") {
		return nil, invalid("plan "+fn, "fused operations need compute capability 9.0 and cuLaunchKernelEx", ascendrt.ErrUnsupported)
	}
	options := append([]string{"--std=c++17"}, fusedOptions...)
	for _, g := range group {
		options = append(options, "-D"+g)
	}
	key := strings.Join(group, " ")
	d.fused.mu.Lock()
	if d.fused.groups == nil {
		d.fused.groups = map[string]*kernels{}
	}
	m := d.fused.groups[key]
	if m == nil {
		m = &kernels{}
		d.fused.groups[key] = m
	}
	d.fused.mu.Unlock()
	return m.load(d, ascendrt.Program{Kind: "cuda-c", Name: "fused.cu", Data: fusedSource(), Options: options}, fn)
}

// linearKernel is a kernel that reads each weight once for all tokens. Above the
// last one's tokens cuBLASLt multiplies.
type linearKernel struct {
	k       *kernel
	tokens  int // most that it takes
	blocks  int // in all
	threads int // of a block
	shared  int // bytes
	stages  int // of the ring
}

// What a stage of OpLinear's ring holds.
const (
	stageK     = 512           // of K
	stagePitch = stageK*2 + 64 // bytes of a row, so that rows lie in different banks
	mostStages = 8
	mostShared = 8 << 20 // weights above which cuBLASLt is faster for more than 16 tokens
)

// fewTokens are the kernels of an OpLinear by their most tokens; above, cuBLASLt
// multiplies.
func (d *device) fewTokens(l ascendrt.LinearAttr) ([]linearKernel, error) {
	name := [...]string{"store", "add", "swiglu", "float"}[l.Epilogue]
	if l.Norm {
		name = "norm_" + name
	}
	switch {
	case l.In%stageK != 0, l.Out%8 != 0, l.Norm && l.Epilogue == ascendrt.EpilogueAdd, !l.Norm && l.Epilogue >= ascendrt.EpilogueSwiGLU:
		return nil, nil
	}
	sms := d.info.ComputeUnits
	var out []linearKernel
	for _, tokens := range []int{8, 16, 32} {
		// Few outputs are spread over all multiprocessors, many over tiles of 32.
		tiles, cluster, resident := 4, 1, 2
		switch {
		case l.Epilogue == ascendrt.EpilogueSwiGLU && l.Out%24 == 0 && l.Out/24 <= sms:
			tiles = 6
		case l.Epilogue < ascendrt.EpilogueSwiGLU && 2*l.Out/8 <= 3*sms:
			tiles = 1
			if tokens == 32 && !l.Norm && l.In%(2*stageK) == 0 {
				tiles, cluster = 2, 2 // x is read by fewer blocks
			}
		}
		if tokens == 32 && l.In*l.Out > mostShared {
			break
		}
		k, err := d.fast(fmt.Sprintf("linear_%d_%s%d", tokens, name, tiles), "LINEAR")
		if err != nil {
			return nil, err
		}
		per := 8 * tiles
		if l.Epilogue == ascendrt.EpilogueSwiGLU {
			per /= 2
		}
		all := (l.Out + per - 1) / per
		blocks := all * cluster
		stages := min(l.In/cluster/stageK, mostStages)
		stage := 8 * tiles * stagePitch
		if cluster == 1 {
			rounds := (all + resident*sms - 1) / (resident * sms)
			blocks = (all + rounds - 1) / rounds
			if rounds > 1 {
				stages = mostStages
			}
		}
		stages = max(1, min(stages, 110<<10/stage))
		shared := stages*stage + 4*8*tokens*(8*tiles+1)
		if err := d.allowShared(k, shared+16<<10); err != nil { // and what it has beside
			return nil, err
		}
		out = append(out, linearKernel{k, tokens, blocks, 288, shared, stages})
	}
	return out, nil
}

// products are the kernels of a product per row, by their rows and outputs. All give
// an output the same bits.
type products [3]struct {
	k              *kernel
	rows, outs     int // of a block
	threads, bytes int // of a block, and its shared memory
	most           int // rows for which it is the fastest
}

func (d *device) planProducts(e ascendrt.Epilogue) (*products, error) {
	name := map[ascendrt.Epilogue]string{ascendrt.EpilogueAdd: "add", ascendrt.EpilogueFloat: "float"}[e]
	if name == "" {
		name = "store" // gate and up, too
	}
	const halves = 2 * 64 // bytes of a row in a stage
	p := &products{
		{nil, 16, 32, 64, 8 * (16 + 32) * halves, 16},
		{nil, 64, 64, 128, 4 * (64 + 64) * halves, 256},
		{nil, 128, 128, 256, 3 * (128 + 128) * halves, math.MaxInt},
	}
	for i := range p {
		x := &p[i]
		k, err := d.fast(fmt.Sprintf("product_%d_%s", x.rows, name), "PRODUCT")
		if err == nil {
			err = d.allowShared(k, x.bytes)
		}
		if err != nil {
			return nil, err
		}
		x.k = k
	}
	return p, nil
}

func (p *products) multiply(t *translator, s blasShape, x, w, y uint64) error {
	for i := range p {
		if c := &p[i]; s.rows <= c.most {
			return t.overlap(c.k, [3]int{(s.rows + c.rows - 1) / c.rows, (s.m + c.outs - 1) / c.outs, 1}, c.threads, c.bytes,
				x, uint64(s.xs), w, uint64(s.ws), y, uint64(s.ys), uint64(s.rows), uint64(s.in), uint64(s.m))
		}
	}
	panic("unreachable: the last one takes any number of rows")
}

func (d *device) planLinear(s *opState, l ascendrt.LinearAttr) error {
	var few []linearKernel // none per row
	var own *products
	var err error
	scratch := 0
	if l.PerRow {
		own, err = d.planProducts(l.Epilogue)
	} else {
		scratch = blasWorkspace
		if few, err = d.fewTokens(l); err == nil {
			_, err = d.blas.get(d)
		}
	}
	if err != nil {
		return err
	}
	multiply := func(t *translator, k blasShape, x, w, y, ws uint64) error {
		if own != nil {
			return own.multiply(t, k, x, w, y)
		}
		return t.multiply(k, x, w, y, ws)
	}
	norm, err := d.fast("norm_rows_fast", "LINEAR")
	if err != nil {
		return err
	}
	gate, err := d.fast("gate_rows_fast", "LINEAR")
	if err != nil {
		return err
	}
	rows, err := d.fast("take_rows_fast", "LINEAR")
	if err != nil {
		return err
	}
	near, err := d.fast("near_rows_fast", "LINEAR")
	if err != nil {
		return err
	}
	if l.In%8 != 0 || l.Out%8 != 0 {
		return invalid("plan linear", fmt.Sprintf("%d inputs, %d outputs: multiples of 8 are computed", l.In, l.Out), ascendrt.ErrUnsupported)
	}
	n := max(s.Spec.MaxRows, 1)
	normed, gated := upTo256(2*n*l.In), 0
	if l.Epilogue == ascendrt.EpilogueSwiGLU {
		gated = upTo256(4 * n * l.Out)
	}
	s.ws = scratch + normed + gated
	s.emit = func(t *translator, ws ascendrt.View, a []ascendrt.Tensor) error {
		x, y := &a[0], &a[len(a)-1]
		rounded, to := x, y // what kernels for few tokens read and write, beside a stream
		i, eps := 1, bits(l.Eps)
		var gain, pick, sum, sums uint64
		if l.Norm {
			rounded, gain, i = &a[1], at(&a[2]), 3
		}
		w := &a[i]
		if l.Rows {
			pick = at(&a[i+1])
		}
		if l.Epilogue == ascendrt.EpilogueAdd {
			y = &a[i+1]
			sum, sums = at(y), stride(y)
		}
		n := y.Rows()
		if n == 0 {
			return nil
		}
		space := uint64(ws.Addr) + uint64(scratch)
		tight := min(256, (l.In/8+31)/32*32)
		if w.Stride() == l.In && aligned(rounded, w, to) {
			for _, f := range few {
				if n > f.tokens {
					continue
				}
				from, xs := at(rounded), stride(rounded)
				if l.Norm && x.Rows() > ascendrt.NearRows { // some rows of many
					if err := t.overlap(near, [3]int{n, 1, 1}, tight, 0, at(x), stride(x), pick, space, uint64(l.In), uint64(l.In)); err != nil {
						return err
					}
					from, xs, pick = space, uint64(l.In), 0
				}
				return t.overlap(f.k, [3]int{f.blocks, 1, 1}, f.threads, f.shared, from, xs, gain, at(w), pick, at(to), stride(to), sum, sums,
					uint64(n), uint64(l.In), uint64(l.Out), eps, uint64(f.stages))
			}
		}
		if s.Spec.MaxRows == 0 && n > 1 {
			return fmt.Errorf("%d rows, planned without MaxRows: %w", n, ascendrt.ErrInvalid)
		}
		if own != nil {
			if err := needAligned(x, w, y); err != nil {
				return err
			}
		}
		from, xs := at(x), x.Stride()
		switch {
		case l.Norm:
			if err := t.overlap(norm, [3]int{n, 1, 1}, tight, 0, from, uint64(xs), gain, pick, space, uint64(l.In), uint64(l.In), eps); err != nil {
				return err
			}
			from, xs = space, l.In
		case l.Rows:
			if err := t.overlap(rows, [3]int{n, 1, 1}, tight, 0, from, uint64(xs), pick, space, uint64(l.In), uint64(l.In)); err != nil {
				return err
			}
			from, xs = space, l.In
		}
		k := blasShape{typ: ascendrt.BFloat16, out: y.Type, rows: n, in: l.In, m: l.Out, add: l.Epilogue == ascendrt.EpilogueAdd, xs: xs, ws: w.Stride(), ys: y.Stride()}
		if l.Epilogue != ascendrt.EpilogueSwiGLU {
			err := multiply(t, k, from, at(w), at(y), uint64(ws.Addr))
			if err != nil || !k.add || n > ascendrt.NearRows {
				return err
			}
			return t.overlap(near, [3]int{n, 1, 1}, min(256, (l.Out/8+31)/32*32), 0, at(y), stride(y), 0, at(to), stride(to), uint64(l.Out))
		}
		both := space + uint64(normed)
		k.m, k.ys = 2*l.Out, 2*l.Out
		if err := multiply(t, k, from, at(w), both, uint64(ws.Addr)); err != nil {
			return err
		}
		return t.overlap(gate, [3]int{(l.Out/8 + 255) / 256, n, 1}, 256, 0, both, uint64(2*l.Out), at(y), stride(y), uint64(l.Out))
	}
	return nil
}

// aligned reports whether rows start at multiples of 16 bytes.
func aligned(x ...*ascendrt.Tensor) bool {
	for _, t := range x {
		if uint64(t.Addr)%16 != 0 || t.Stride()*t.Type.Size()%16 != 0 {
			return false
		}
	}
	return true
}

func needAligned(x ...*ascendrt.Tensor) error {
	if !aligned(x...) {
		return fmt.Errorf("rows do not start at multiples of 16 bytes: %w", ascendrt.ErrInvalid)
	}
	return nil
}

func upTo256(n int) int { return (n + 255) &^ 255 }

func (d *device) planRotate(s *opState, r ascendrt.RotateAttr) error {
	k, err := d.fast("rotate_write_fast", "LINEAR")
	if err != nil {
		return err
	}
	if r.HeadDim%4 != 0 || r.HeadDim > 512 {
		return invalid("plan rotate_write", fmt.Sprintf("a head of %d elements: multiples of 4 up to 512 are computed", r.HeadDim), ascendrt.ErrUnsupported)
	}
	const warps = 8
	heads := r.Heads + 2*r.KVHeads
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		i := 1
		var qg, kg uint64
		if r.Norm {
			qg, kg, i = at(&a[1]), at(&a[2]), 3
		}
		qkv, pos, tab, slots, kc, vc := &a[0], &a[i], &a[i+1], &a[i+2], &a[i+3], &a[i+4]
		if tab.Stride() != r.HeadDim {
			return fmt.Errorf("the table is not contiguous: %w", ascendrt.ErrInvalid)
		}
		if err := needAligned(qkv, kc, vc); err != nil {
			return err
		}
		return t.overlap(k, [3]int{qkv.Rows(), (heads + warps - 1) / warps, 1}, 32*warps, 0, at(qkv), stride(qkv), qg, kg, at(pos), at(tab), uint64(tab.Rows()),
			at(slots), at(kc), stride(kc), at(vc), stride(vc), uint64(kc.Rows()), uint64(r.Heads), uint64(r.KVHeads), uint64(r.HeadDim), uint64(r.BlockSize), bits(r.Eps))
	}
	return nil
}

func (d *device) planFeed(s *opState, f ascendrt.FeedAttr) error {
	k, err := d.fast("embed_fast", "LINEAR")
	if err == nil && f.Hidden%8 != 0 {
		err = invalid("plan feed_embedding", fmt.Sprintf("%d elements: multiples of 8 are computed", f.Hidden), ascendrt.ErrUnsupported)
	}
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		table, y, near := &a[3], &a[4], &a[5]
		if table.Stride() != f.Hidden {
			return fmt.Errorf("the table is not contiguous: %w", ascendrt.ErrInvalid)
		}
		if err := needAligned(table, y, near); err != nil {
			return err
		}
		rounded := at(near)
		if y.Rows() > ascendrt.NearRows {
			rounded = 0
		}
		return t.overlap(k, [3]int{y.Rows(), 1, 1}, min(256, (f.Hidden/8+31)/32*32), 0, at(&a[0]), at(&a[1]), at(&a[2]), at(table), uint64(f.Vocab), at(y), stride(y), rounded, stride(near), uint64(f.Hidden))
	}
	return err
}

func (d *device) planPick(s *opState, p ascendrt.PickAttr) error {
	k, err := d.fast("pick_fast", "LINEAR")
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		return t.overlap(k, [3]int{8, a[0].Rows(), 1}, 1024, 0, at(&a[0]), stride(&a[0]), uint64(p.Dim), at(&a[3]), at(&a[1]), at(&a[2]))
	}
	return err
}

func (d *device) planNoise(s *opState, n ascendrt.NoiseAttr) error {
	k, err := d.fast("noise_fast", "LINEAR")
	s.emit = func(t *translator, _ ascendrt.View, a []ascendrt.Tensor) error {
		if a[0].Stride() != n.Dim {
			return fmt.Errorf("y is not contiguous: %w", ascendrt.ErrInvalid)
		}
		return t.launch(k, [3]int{8 * d.info.ComputeUnits, 1, 1}, 256, 0, at(&a[0]), uint64(a[0].Rows()*n.Dim), n.Seed, bits(n.Factor))
	}
	return err
}
