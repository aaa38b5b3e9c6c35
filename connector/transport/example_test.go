package transport_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// One side grants a unit of its memory, the other reads it; after Revoke
// nobody does.
func Example() {
	if err := fetch(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ....bbbb
	// denied after the revocation: true
}

func fetch(ctx context.Context) error {
	p, err := tcp.New(tcp.Config{}) // a free loopback port
	if err != nil {
		return err
	}
	defer p.Close()
	d, err := tcp.New(tcp.Config{})
	if err != nil {
		return err
	}
	defer d.Close()
	const unit = 4 // bytes that are granted together: a KV block
	from, err := p.Register(transport.Host("aaaabbbb"), unit)
	if err != nil {
		return err
	}
	memory := transport.Host("........")
	to, err := d.Register(memory, unit)
	if err != nil {
		return err
	}
	second, err := p.Grant(transport.PeerReads, []transport.RegionID{from.Region}, []int32{1})
	if err != nil {
		return err
	}
	peer, err := d.Connect(ctx, p.Address())
	if err != nil {
		return err
	}
	defer peer.Close()
	segment := []transport.Segment{{Local: to.Region, Remote: from.Region, LocalOffset: 4, RemoteOffset: 4, Length: 4}}
	if err := peer.Read(ctx, second, segment); err != nil {
		return err
	}
	fmt.Println(string(memory))
	p.Revoke(second) // returns when no access can still touch the memory
	err = peer.Read(ctx, second, segment)
	fmt.Println("denied after the revocation:", errors.Is(err, transport.ErrDenied))
	return nil
}
