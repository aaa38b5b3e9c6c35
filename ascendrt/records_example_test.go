package ascendrt_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// memory is the device memory of a runtime that can only copy and fill.
type memory struct {
	base  ascendrt.Addr
	bytes []byte
}

func (m memory) view() ascendrt.View {
	return ascendrt.View{Addr: m.base, Len: len(m.bytes), Max: len(m.bytes)}
}

func (m memory) at(addr, n uint64) []byte { return m.bytes[addr-uint64(m.base):][:n] }

// replay runs one submission and says how many commands it took.
func (m memory) replay(c *ascendrt.Commands) (int, error) {
	end, wrong := c.ErrorAt()
	for r := range ascendrt.Records(c.Words()) {
		switch {
		case wrong != nil && r.Index == end:
			return r.Index, wrong
		case r.Kind == ascendrt.KindCopy:
			copy(m.at(r.A[0], r.A[2]), m.at(r.A[1], r.A[2]))
		case r.Kind == ascendrt.KindFill:
			copy(m.at(r.A[0], r.A[1]), bytes.Repeat([]byte{byte(r.A[2])}, int(r.A[1])))
		default:
			return r.Index, &ascendrt.Error{Backend: "toy", Call: r.Kind.String(), Command: r.Index, Class: ascendrt.ErrUnsupported}
		}
	}
	return c.Len(), nil
}

// What a backend does with a submission: walk its records in order. A vendor's
// backend hands the words to C and does so there.
func ExampleRecords() {
	dev := memory{base: 0x1000, bytes: make([]byte, 8)}
	var c ascendrt.Commands
	c.Fill(dev.view().Slice(0, 4), 7)
	c.Copy(dev.view().Slice(6, 2), dev.view().Slice(0, 2))
	n, err := dev.replay(&c)
	fmt.Println(n, err, dev.bytes)

	c.Reset()
	c.Fill(dev.view().Slice(2, 1), 9)
	c.Fill(dev.view().Slice(6, 4), 9) // leaves the buffer
	n, err = dev.replay(&c)
	fmt.Println(n, errors.Is(err, ascendrt.ErrInvalid), dev.bytes)
	// Output:
	// 2 <nil> [7 7 7 7 0 0 7 7]
	// 1 true [7 7 9 7 0 0 7 7]
}
