package mooncake_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector/transport/mooncake"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// Peers reach the memory itself: accesses are not checked, so the network must
// be one of its own. Where the library is missing the error says so.
func ExampleNew() {
	t, err := mooncake.New(tcp.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Name(), "checks accesses:", t.Guarded())
}
