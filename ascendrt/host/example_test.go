package host_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

// A product of a row with a matrix of two outputs, on the CPU.
func Example() {
	ctx := context.Background()
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close(ctx)
	y, err := product(ctx, dev, []float32{1, 2, 3}, []float32{1, 0, 0, 1, 1, 1})
	fmt.Println(y, err)
	// Output:
	// [1 6] <nil>
}

// product gives x·Wᵀ for one row x and the rows w of W.
func product(ctx context.Context, dev ascendrt.Device, x, w []float32) ([]float32, error) {
	in, out := len(x), len(w)/len(x)
	op, err := dev.Plan(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.Float32, Attr: ascendrt.MatmulAttr{In: in, Out: out}})
	if err != nil {
		return nil, err
	}
	defer op.Close()
	s, err := dev.NewStream(ascendrt.StreamOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var last ascendrt.Point
	at := func(dims ...int) (ascendrt.Tensor, error) {
		n := 4
		for _, d := range dims {
			n *= d
		}
		b, err := dev.Alloc(n, ascendrt.PlaceDefault) // Close of the device frees it
		if err != nil {
			return ascendrt.Tensor{}, err
		}
		return ascendrt.NewTensor(b.View(), ascendrt.Float32, dims...), nil
	}
	tx, err := at(1, in)
	if err != nil {
		return nil, err
	}
	tw, err := at(out, in)
	if err != nil {
		return nil, err
	}
	ty, err := at(1, out)
	if err != nil {
		return nil, err
	}
	for t, v := range map[*ascendrt.Tensor][]float32{&tx: x, &tw: w} {
		data, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil {
			return nil, err
		}
		if err := ascendrt.Upload(ctx, dev, s, t.View, data); err != nil {
			return nil, err
		}
	}
	var c ascendrt.Commands
	c.Op(op, ascendrt.View{}, tx, tw, ty)
	if last, _, err = s.Submit(&c); err != nil {
		return nil, err
	}
	if err := last.Wait(ctx); err != nil {
		return nil, err
	}
	data, y := make([]byte, 4*out), make([]float32, out)
	if err := ascendrt.Download(ctx, dev, s, data, ty.View); err != nil {
		return nil, err
	}
	_, err = binary.Decode(data, binary.LittleEndian, y)
	return y, err
}
