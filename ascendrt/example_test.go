package ascendrt_test

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

// A graph reads its pinned input again at each launch.
func Example() {
	ctx := context.Background()
	d, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close(ctx)
	s, _ := d.NewStream(ascendrt.StreamOptions{})
	in, _ := d.AllocHost(4)
	out, _ := d.AllocHost(4)
	x, _ := d.Alloc(4, ascendrt.PlaceDefault)

	var c ascendrt.Commands
	c.Copy(x.View(), in.View())
	c.Copy(out.View(), x.View())
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range byte(2) {
		copy(in.Bytes(), []byte{i, i + 1, i + 2, i + 3})
		c.Reset()
		c.Graph(g)
		p, _, _ := s.Submit(&c)
		if err := p.Wait(ctx); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(out.Bytes())
	}
	_ = g.Close()
	_ = x.FreeAfter(ascendrt.Point{})
	_ = in.FreeAfter(ascendrt.Point{})
	_ = out.FreeAfter(ascendrt.Point{})
	_ = s.Close()
	fmt.Println("left:", d.Live().Buffers+d.Live().HostBuffers)
	// Output:
	// [0 1 2 3]
	// [1 2 3 4]
	// left: 0
}
