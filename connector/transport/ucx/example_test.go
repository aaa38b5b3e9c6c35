package ucx_test

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/connector/transport/ucx"
)

// A binary that was built without the tag falls back to TCP.
func Example() {
	cfg := tcp.Config{Checksum: tcp.NoChecksum}
	t, err := ucx.New(cfg)
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
