package replay

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// Shape is the extent of a forward pass.
type Shape struct {
	Tokens int        // rows of tensors by token, padding included
	Reqs   int        // rows of tensors by request, padding included where a graph pads them
	Bound  int        // longest row that the pass must hold; 0 = Tokens
	Key    graphs.Key // zero for an eager pass
}

// Program is a model's forward pass.
type Program interface {
	// Prepare appends the static inputs of a dummy batch of that shape: zero ids
	// and positions, no KV written, the null block in every table. It is called
	// before each warm-up and again before each capture, since a pass may change
	// its inputs.
	Prepare(c *ascendrt.Commands, s Shape) error
	// Record writes one pass. Everything it names, but for commands within
	// Pass.Break, has the same address in every pass of one shape. The result
	// goes to the first rows of Pass.Result.
	Record(p *Pass) error
	// ResultRows is how many rows of the result a pass of that shape fills.
	ResultRows(s Shape) int
}

// Inputs is implemented by programs that can name the places of their inputs.
type Inputs interface {
	// Inputs gives the views that a pass of that shape reads, in an order that
	// does not change; Step.Views has the same order.
	Inputs(s Shape) []ascendrt.View
}

// Pass takes one forward pass. It is valid within Program.Record alone.
type Pass struct {
	set   *Set
	kind  passKind
	shape Shape
	cmd   *ascendrt.Commands

	lengths []int64 // per row, nil unless operations take them from the host
	starts  []int64 // first token of each row and the end; nil with lengths
	inBreak bool
	err     error

	// What a capture collects.
	segments []segment
	updates  []ascendrt.OpRef
}

type passKind uint8

const (
	passEager passKind = iota
	passFull
	passPieces
)

// segment is a captured graph, or work that runs between two of them.
type segment struct {
	graph ascendrt.Graph
	eager func(*Pass) error
}

// Shape is the extent of the pass.
func (p *Pass) Shape() Shape { return p.shape }

// Commands takes the work of the pass. It changes at every Break: take it
// again afterwards.
func (p *Pass) Commands() *ascendrt.Commands { return p.cmd }

// Result is where the pass leaves its result, as large as the largest pass
// needs.
func (p *Pass) Result() ascendrt.Tensor { return p.set.result }

// Workspace is scratch memory for one operation at a time, shared by all
// passes.
func (p *Pass) Workspace() ascendrt.View { return p.set.workspace }

// Break runs f outside of PIECEWISE graphs and inside everything else. While
// PIECEWISE graphs are captured f also runs once; at replay it runs with the
// rows of the step, whose number is not padded. A break within a break is an
// error.
func (p *Pass) Break(f func(*Pass) error) error {
	if p.err != nil {
		return p.err
	}
	if p.inBreak {
		return p.fail(fmt.Errorf("%w: a break within a break", ErrNested))
	}
	if p.kind == passPieces {
		if err := p.endSegment(); err != nil {
			return p.fail(err)
		}
		if err := p.set.runBreak(f, p.shape); err != nil {
			return p.fail(err)
		}
		p.segments = append(p.segments, segment{eager: f})
		return nil
	}
	return p.runBreak(f)
}

func (p *Pass) runBreak(f func(*Pass) error) error {
	p.inBreak = true
	err := f(p)
	p.inBreak = false
	if err != nil {
		return p.fail(err)
	}
	return nil
}

// Attention appends an operation whose slots 0 and 1 hold the KV lengths of the
// rows and their first tokens. Where the runtime takes them from the host they are
// given with the operation, and a FULL graph has them replaced before every launch.
func (p *Pass) Attention(o ascendrt.Op, args ...ascendrt.Tensor) ascendrt.OpRef {
	if p.kind == passPieces && p.lengths != nil {
		_ = p.fail(fmt.Errorf("%w: lengths of the host would be frozen in a PIECEWISE graph; put attention into a break", ErrShape))
	}
	if p.lengths != nil {
		p.cmd.SlotValues(0, p.lengths[:p.shape.Reqs]...)
		p.cmd.SlotValues(1, p.starts[:p.shape.Reqs+1]...)
	}
	ref := p.cmd.Op(o, p.Workspace(), args...)
	if p.lengths != nil && p.kind == passFull {
		p.updates = append(p.updates, ref)
	}
	return ref
}

func (p *Pass) fail(err error) error {
	if p.err == nil {
		p.err = err
	}
	return p.err
}

// endSegment captures what was recorded since the last break, if anything.
func (p *Pass) endSegment() error {
	if p.cmd.Len() == 0 && p.cmd.Err() == nil {
		return nil
	}
	g, err := p.set.dev.Capture(p.set.captures, p.cmd, ascendrt.CaptureOptions{
		Updatable: p.updates, Workspace: p.set.workspace, Upload: ascendrt.UploadNow,
	})
	if err != nil {
		return err
	}
	p.segments = append(p.segments, segment{graph: g})
	p.cmd.Reset()
	return nil
}

// closeSegments releases the graphs of the segments.
func closeSegments(segments []segment) error {
	var errs []error
	for _, s := range segments {
		if s.graph != nil {
			errs = append(errs, s.graph.Close())
		}
	}
	return errors.Join(errs...)
}
