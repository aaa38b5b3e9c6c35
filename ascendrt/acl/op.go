//go:build cgo && linux

package acl

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// opState is a planned operation.
type opState struct {
	*opspec.Signature
	slots []ascendrt.SlotInfo
	temp  int // bytes of our temporaries at MaxRows
	ws    int // with what the vendor's operators ask for, behind them
	mask  uint64
	emit  emitter
}

// rowsUnknown is what a plan without MaxRows makes room for.
const rowsUnknown = 1024

// Plan checks the spec, asks every operator of the translation for its
// workspace at the largest shape, and so finds out what this chip or this CANN
// version lacks.
func (d *device) Plan(spec ascendrt.OpSpec) (ascendrt.Op, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	s, err := d.plan(spec)
	if err != nil {
		return nil, d.Wrap("plan "+string(spec.Kind), -1, err)
	}
	return d.NewOp(s, s.Spec, s.ws, s.slots), nil
}

func (d *device) plan(spec ascendrt.OpSpec) (*opState, error) {
	sig, err := opspec.Describe(spec)
	if err != nil {
		return nil, err
	}
	s := &opState{Signature: sig, slots: sig.Slots()}
	if s.emit, err = s.emitter(); err != nil {
		return nil, err
	}
	if spec.Kind == ascendrt.OpAttention {
		if s.mask, err = d.attentionMask(); err != nil {
			return nil, err
		}
	}
	rows := spec.MaxRows
	if rows == 0 {
		rows = rowsUnknown
	}
	need := 0
	for _, reqs := range s.planRequests(rows) {
		e := emission{base: planAddr}
		args := s.planArgs(&e, rows, reqs)
		s.emit(&e, args)
		if e.err != nil {
			return nil, e.err
		}
		s.temp = max(s.temp, (e.used+511)/512*512)
		for at := 0; at < len(e.calls); at += 1 + int(e.calls[at]) {
			n, err := d.aclnnNeed(e.calls[at+1:][:e.calls[at]])
			if err != nil {
				return nil, err
			}
			need = max(need, n)
		}
	}
	s.ws = s.temp
	if need > 0 {
		s.ws += (need + 511) / 512 * 512
	}
	return s, nil
}

// planAddr stands for memory while a plan asks for workspaces: nothing is read or written.
const planAddr = 1 << 20

// planRequests lists numbers of requests to ask for: prefills of one request
// and decodes of as many as there are rows may need different workspaces.
func (s *opState) planRequests(rows int) []int {
	if s.Spec.Kind != ascendrt.OpAttention {
		return []int{1}
	}
	return []int{1, max(1, min(rows, 4096))}
}

// planTokens is the length of a sequence in the plan of attention.
const planTokens = 1 << 15

// planArgs makes arguments of the largest shape. Strided ones stand for the
// parts of wider rows, so that copies of them have room.
func (s *opState) planArgs(e *emission, rows, reqs int) []ascendrt.Tensor {
	args := make([]ascendrt.Tensor, len(s.Params))
	tokens := max(planTokens, rows)
	for i, p := range s.Params {
		dims := []int{rows}
		if p.Rank == 2 {
			dims = append(dims, p.Row)
		}
		switch a := s.Spec.Attr.(type) {
		case ascendrt.EmbeddingAttr:
			if i == 1 {
				dims[0] = a.Vocab
			}
		case ascendrt.NormAttr:
			if p.Rank == 1 {
				dims[0] = a.Dim
			}
		case ascendrt.MatmulAttr:
			if i == 1 {
				if dims[0] = a.Out; a.Weights == ascendrt.WeightsKM {
					dims[0] = a.In
				}
			}
		case ascendrt.RopeAttr:
			if i == 3 {
				dims[0] = a.MaxPosition
			}
		case ascendrt.ScatterAttr:
			if p.Rank == 4 {
				dims = []int{2, a.BlockSize, a.KVHeads, a.HeadDim}
			}
		case ascendrt.AttentionAttr:
			switch {
			case p.Rank == 4:
				dims = []int{tokens/a.BlockSize + 1, a.BlockSize, a.KVHeads, a.HeadDim}
			case p.Name == "table":
				dims = []int{reqs, tokens/a.BlockSize + 1}
			case p.Rank == 1:
				dims[0] = reqs
			}
		}
		t := ascendrt.NewTensor(ascendrt.View{Addr: planAddr, Len: 1 << 40, Max: 1 << 40}, p.Type, dims...)
		wide := s.Spec.Kind != ascendrt.OpEmbedding && s.Spec.Kind != ascendrt.OpGather && s.Spec.Kind != ascendrt.OpMatmul
		if wide && p.Rank == 2 && p.Use != opspec.Paged && p.Name != "table" {
			t.RowStride = dims[1] + 64
		}
		args[i] = t
	}
	if s.Spec.Kind == ascendrt.OpAttention {
		starts, lens := make([]int64, reqs+1), make([]int64, reqs)
		for r := range reqs {
			starts[r+1], lens[r] = int64(rows*(r+1)/reqs), int64(tokens)
		}
		e.values = [][]int64{lens, starts}
	}
	return args
}

// op translates one operation into calls of the vendor's operators.
func (t *translator) op(o *opState, ws ascendrt.View, args []ascendrt.Tensor) error {
	if err := memory.CheckOp(o.Signature, t.slots, ws, o.ws, args, t.Find); err != nil {
		return err
	}
	for i := range args {
		if args[i].Bytes() == 0 && args[i].Rows() == 0 {
			return nil // operations over zero rows do nothing
		}
	}
	e := &t.emission
	*e = emission{calls: e.calls[:0], base: uint64(ws.Addr), values: t.slots}
	o.emit(e, args)
	switch {
	case e.err != nil:
		return e.err
	case e.used > o.temp:
		return fmt.Errorf("a call of %d rows needs %d bytes of temporaries, the plan made room for %d: state MaxRows: %w", args[0].Rows(), e.used, o.temp, ascendrt.ErrInvalid)
	}
	for at := 0; at < len(e.calls); at += 1 + int(e.calls[at]) {
		t.aclnn(e.calls[at+1:][:e.calls[at]], uint64(ws.Addr)+uint64(o.temp), o.ws-o.temp, at+1 == e.group)
	}
	return nil
}
