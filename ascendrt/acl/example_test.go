package acl_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl"
)

// A machine without the device says what is missing and what to do.
func Example() {
	ctx := context.Background()
	dev, err := acl.Backend{}.Open(0, ascendrt.OpenOptions{})
	if errors.Is(err, ascendrt.ErrUnavailable) {
		report, err := acl.Backend{}.Probe(ctx)
		fmt.Println(report.Problem, report.Missing, err)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close(ctx)
	free, total, err := dev.MemInfo()
	fmt.Println(dev.Info().Name, free, total, err)
}
