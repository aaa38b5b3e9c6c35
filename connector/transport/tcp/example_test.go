package tcp_test

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// A message to a peer: delivered when Notify returns.
func ExampleNew() {
	ctx := context.Background()
	p, err := tcp.New(tcp.Config{Notified: func(_ transport.Instance, msg []byte) { fmt.Printf("P hears %q\n", msg) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	d, err := tcp.New(tcp.Config{Conns: 1, Checksum: tcp.NoChecksum})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	peer, err := d.Connect(ctx, p.Address())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer peer.Close()
	if err := peer.Notify(ctx, []byte("blocks 1 and 2 are read")); err != nil {
		fmt.Println(err)
	}
	// Output:
	// P hears "blocks 1 and 2 are read"
}
