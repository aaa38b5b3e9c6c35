package replay_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/replay"
)

// doubler is a model whose forward pass doubles a number per token.
type doubler struct {
	add ascendrt.Op
	in  ascendrt.Tensor // [MaxTokens,1]
}

// Prepare makes the inputs of a dummy batch.
func (m *doubler) Prepare(c *ascendrt.Commands, s replay.Shape) error {
	c.Fill(m.in.View, 0)
	return nil
}

// Record writes the pass. It is called for eager steps and for captures alike.
func (m *doubler) Record(p *replay.Pass) error {
	n := p.Shape().Tokens
	x := m.in.First(n)
	p.Commands().Op(m.add, p.Workspace(), x, x, p.Result().First(n))
	return nil
}

// ResultRows is one row for each token.
func (m *doubler) ResultRows(s replay.Shape) int { return s.Tokens }

// Three decodes replay the graph that was captured for four.
func Example() {
	ctx := context.Background()
	if err := run(ctx, host.Backend{}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// FULL t=4 r=4 uniform=1
	// [2 4 6]
}

func run(ctx context.Context, backend ascendrt.Backend) error {
	dev, err := backend.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		return err
	}
	defer dev.Close(ctx)
	stream, err := dev.NewStream(ascendrt.StreamOptions{})
	if err != nil {
		return err
	}
	d, err := graphs.New(graphs.Config{Ladder: graphs.LadderConfig{Sizes: []int{1, 2, 4}}, MaxNumSeqs: 4, MaxNumBatchedTokens: 8})
	if err != nil {
		return err
	}
	m := &doubler{}
	if m.add, err = dev.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 1}}); err != nil {
		return err
	}
	buf, err := dev.Alloc(8*4, ascendrt.PlaceDefault)
	if err != nil {
		return err
	}
	m.in = ascendrt.NewTensor(buf.View(), ascendrt.Float32, 8, 1)
	set, err := replay.New(dev, replay.Config{Dispatcher: d, Program: m, Stream: stream, ResultWidth: 1})
	if err != nil {
		return err
	}
	defer set.Close()
	if err := set.Capture(ctx); err != nil { // before serving: warm-up and capture of every key
		return err
	}

	rows := graphs.MakeRows([]graphs.Row{{Scheduled: 1, Computed: 9, Prefill: 5}, {Scheduled: 1, Computed: 7, Prefill: 7}, {Scheduled: 1, Computed: 12, Prefill: 3}})
	verdicts := make([]graphs.RowVerdict, 3)
	dec := d.Dispatch(rows, graphs.Step{}, verdicts)
	fmt.Println(dec.Key)
	numbers, err := binary.Append(nil, binary.LittleEndian, []float32{1, 2, 3})
	if err != nil {
		return err
	}
	if err := ascendrt.Upload(ctx, dev, stream, m.in.View, numbers); err != nil {
		return err
	}
	res, err := set.Launch(ctx, replay.Step{Decision: dec, Verdicts: verdicts})
	if err != nil {
		return err
	}
	y, err := res.Tensor()
	if err != nil {
		return err
	}
	if err := ascendrt.Download(ctx, dev, stream, numbers, y.View); err != nil { // same stream: behind the launch
		return err
	}
	doubled := make([]float32, 3)
	if _, err := binary.Decode(numbers, binary.LittleEndian, doubled); err != nil {
		return err
	}
	fmt.Println(doubled)
	return res.Release()
}
