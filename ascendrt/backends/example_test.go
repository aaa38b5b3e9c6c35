package backends_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
)

// A device by the name that the commands take.
func ExampleFind() {
	backend, ordinal, err := backends.Find("host")
	if err != nil {
		fmt.Println(err)
		return
	}
	dev, err := backend.Open(ordinal, ascendrt.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(dev.Info().Name, "captures graphs:", dev.Caps().Graphs)
	if err := dev.Close(context.Background()); err != nil {
		fmt.Println(err)
	}

	_, _, err = backends.Find("tpu:0")
	fmt.Println(err, errors.Is(err, ascendrt.ErrInvalid))
	// Output:
	// host captures graphs: true
	// device "tpu:0": there are host, cuda, ascend: device: invalid argument true
}
