package acl_test

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt/acl"
)

// What this machine has of CANN, what lacks, and what to do about it.
func ExampleBackend_Probe() {
	report, err := acl.Backend{}.Probe(context.Background())
	for _, l := range report.Libraries {
		fmt.Println(l.Name, l.Path, l.Version, l.Problem)
	}
	for _, m := range report.Missing {
		fmt.Println("missing:", m)
	}
	fmt.Println(len(report.Devices), "devices", report.Problem, err)
}
