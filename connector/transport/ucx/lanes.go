package ucx

import (
	"slices"
	"strings"
)

// readers are the transports of UCX by which the kernel or a device reads a
// peer's memory; by all others UCX sends messages that the peer answers.
var readers = []string{"rc_verbs", "rc_mlx5", "dc_mlx5", "gga_mlx5", "srd", "ugni_rdma", "cma", "knem", "xpmem"}

// onesided tells whether reads over an endpoint are done past the peer. names are
// the endpoint's transports, nil where libucp cannot list them (before 1.14). A
// transport that could read may still be there for other things, and what each
// lane is for, libucp says in print alone: a line such as
//
//	lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[3]  -> md[3]/ib/sysdev[0] rma_bw#0 am am_bw#0
func onesided(names []string, print string) bool {
	if names != nil && !slices.ContainsFunc(names, reads) {
		return false
	}
	for line := range strings.Lines(print) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if len(fields) < 3 || !strings.HasPrefix(fields[0], "lane[") {
			continue
		}
		_, resource, _ := strings.Cut(fields[1], ":")
		transport, _, _ := strings.Cut(resource, "/")
		if reads(transport) && slices.ContainsFunc(fields[2:], func(use string) bool { return strings.HasPrefix(use, "rma") }) {
			return true
		}
	}
	return false
}

func reads(transport string) bool { return slices.Contains(readers, transport) }
