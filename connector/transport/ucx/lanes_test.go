package ucx

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnesided(t *testing.T) {
	const (
		head   = "#\n# UCP endpoint\n#\n#               peer: <no debug data>\n#                 lane[0]: cm rdmacm\n"
		shared = head + "#                 lane[1]:  3:sysv/memory.0 md[2]           -> md[2]/sysv/sysdev[255] am am_bw#0 keepalive\n#                 lane[2]:  4:posix/memory.0 md[3]          -> md[3]/posix/sysdev[255]\n"
		tail   = "#\n#             stream_send: 0..<egr/short>..93..<egr/bcopy>..(inf)\n#                  rma_bw: mds #\n"
		device = head + "#                 lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[3]      -> md[3]/ib/sysdev[0] rma_bw#0 am am_bw#0\n"
	)
	for name, c := range map[string]struct {
		names []string
		print string
		want  bool
	}{
		"nothing":                             {nil, "", false},
		"shared memory":                       {nil, shared + tail, false},
		"shared memory, listed":               {[]string{"sysv", "posix"}, shared + tail, false},
		"a device":                            {nil, device + tail, true},
		"a device, listed":                    {[]string{"tcp", "rc_mlx5"}, device + tail, true},
		"print that the list contradicts":     {[]string{"tcp"}, device + tail, false},
		"a device for messages alone":         {[]string{"rc_mlx5"}, head + "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[3]  -> md[3]/ib/sysdev[0] am am_bw#0\n" + tail, false},
		"sockets that put":                    {nil, head + "#  lane[1]:  1:tcp/lo.0 md[1]  -> md[1]/tcp/sysdev[255] rma_bw#0 am\n" + tail, false},
		"the kernel":                          {nil, head + "#  lane[2]:  6:cma/memory md[5]  -> md[5]/cma/sysdev[255] rma_bw#0\n" + tail, true},
		"an empty list":                       {[]string{}, device, false},
		"print of another form":               {[]string{"rc_mlx5"}, "lanes: rc_mlx5 rma", false},
		"a device and memory with an rma key": {nil, shared + device + tail, true},
	} {
		require.Equal(t, c.want, onesided(c.names, c.print), name)
	}
}
