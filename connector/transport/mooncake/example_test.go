package mooncake_test

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/mooncake"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// Where the library is missing, TCP does.
func Example() {
	cfg := tcp.Config{Checksum: tcp.NoChecksum}
	t, err := mooncake.New(cfg)
	if missing := (*transport.UnavailableError)(nil); errors.As(err, &missing) {
		fmt.Println(missing)
		t, err = tcp.New(cfg)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Name(), "at", t.Address())
}
