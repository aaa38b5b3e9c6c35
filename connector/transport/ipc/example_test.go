package ipc_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// The transport is an ordinary one; what it moves between two processes of a
// host it moves by their devices where it can.
func ExampleNew() {
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		fmt.Println(err) // names what is missing
		return
	}
	defer dev.Close(context.Background())
	var cfg tcp.Config
	near, err := ipc.New(dev)
	var lacks *transport.UnavailableError
	switch {
	case errors.As(err, &lacks):
		fmt.Println("through the host:", lacks.Reason)
	case err != nil:
		fmt.Println(err)
		return
	default:
		cfg.Near = near // the transport closes it
	}
	t, err := tcp.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Name(), "checks all accesses:", t.Guarded())
}
