package selftest_test

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/ascendrt/selftest"
)

// What works on a device, check by check.
func ExampleRun() {
	for _, c := range selftest.Run(context.Background(), host.Backend{}, 0) {
		if c.Err != nil {
			fmt.Println(c.Name, c.Err, c.Advice)
			continue
		}
		fmt.Println(c.Name, "works")
	}
}
