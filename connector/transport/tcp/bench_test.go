package tcp

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// cpu is the processor time of this process so far. Both ends of a transfer
// run in it, so its growth is the cost of a transfer, also on a busy machine.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRead reads 64 MiB in pieces of one size, scattered on both sides,
// or in one piece.
func BenchmarkRead(b *testing.B) {
	const total = 64 << 20
	for _, crc := range []Checksum{CRC32C, NoChecksum} {
		for _, piece := range []int64{total, 32 << 10, 8 << 10, 2 << 10} {
			b.Run(fmt.Sprintf("%v/%dk", crc, piece>>10), func(b *testing.B) {
				x, err := New(Config{Checksum: crc})
				require.NoError(b, err)
				defer x.Close()
				y, err := New(Config{Checksum: crc})
				require.NoError(b, err)
				defer y.Close()
				dx, err := x.Register(make(transport.Host, total), piece)
				require.NoError(b, err)
				dy, err := y.Register(make(transport.Host, total), piece)
				require.NoError(b, err)
				n := int64(total) / piece
				segs, units := make([]transport.Segment, n), make([]int32, n)
				for i := range n {
					units[i] = int32(i)
					segs[i] = transport.Segment{
						Local: dx.Region, Remote: dy.Region, LocalOffset: (i * 7919 % n) * piece, RemoteOffset: (i * 104729 % n) * piece, Length: piece,
					}
				}
				c, err := y.Grant(transport.PeerReads, []transport.RegionID{dy.Region}, units)
				require.NoError(b, err)
				p, err := x.Connect(b.Context(), y.Address())
				require.NoError(b, err)
				require.NoError(b, p.Read(b.Context(), c, segs))
				b.SetBytes(total)
				begin := cpu()
				for b.Loop() {
					require.NoError(b, p.Read(b.Context(), c, segs))
				}
				b.ReportMetric(float64((cpu()-begin).Milliseconds())/(float64(b.N)*total/1e9), "cpu-ms/GB")
			})
		}
	}
}
