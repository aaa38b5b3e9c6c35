//go:build ucx && cgo && linux

package ucx

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

func TestConformance(t *testing.T) {
	messagesToo.Store(os.Getenv("SLUICE_UCX_GETS") != "")
	conformance.Run(t, func(t *testing.T, notified transport.Notified) transport.Transport {
		made, err := New(tcp.Config{Notified: notified, ChunkBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, "ucx", made.Name())
		return made
	})
}

// The same over sockets alone; and with gets of mapped memory, which this machine
// has no device for: UCX does them by messages, whose peers must not go away.
func TestConformanceInOtherWays(t *testing.T) {
	for _, way := range []struct {
		env, cases string
		count      int
	}{
		{"UCX_TLS=tcp,self", "read|write|many|blocks|revoke|cancel|peer", 9},
		{"SLUICE_UCX_GETS=1", "read|write|many|blocks|memory|segments|grants|notify", 8},
	} {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestConformance$/^("+way.cases+")", "-test.v")
		c.Env = append(os.Environ(), way.env)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, way.count, strings.Count(string(out), "    --- PASS"), "%s", out)
	}
}

const units, unit = 512, 16 << 10

// side is a transport with granted memory of one byte value.
func side(t testing.TB, value byte) (*tcp.Transport, transport.Host, transport.RegionID, transport.Capability) {
	made, err := New(tcp.Config{StallTimeout: 5 * time.Second, DialTimeout: time.Second})
	require.NoError(t, err)
	mem := make(transport.Host, units*unit)
	for i := range mem {
		mem[i] = value
	}
	d, err := made.Register(mem, unit)
	require.NoError(t, err)
	all := make([]int32, units)
	for i := range all {
		all[i] = int32(i)
	}
	c, err := made.Grant(transport.PeerReads, []transport.RegionID{d.Region}, all)
	require.NoError(t, err)
	return made.(*tcp.Transport), mem, d.Region, c
}

func segments(local, remote transport.RegionID) (segs []transport.Segment) {
	for i := range int64(units) {
		segs = append(segs, transport.Segment{Local: local, Remote: remote, LocalOffset: (units - 1 - i) * unit, RemoteOffset: i * unit, Length: unit})
	}
	return segs
}

// Mapped memory is got by its remote key; nothing of it travels on the streams.
func TestBytesAreGot(t *testing.T) {
	messagesToo.Store(true)
	defer messagesToo.Store(false)
	x, into, local, _ := side(t, 1)
	y, from, remote, c := side(t, 2)
	defer func() {
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
	}()
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segments(local, remote)))
	require.Equal(t, []byte(from), []byte(into))
	require.EqualValues(t, len(from), x.Stats().Fetched)
	require.NoError(t, y.Deregister(remote))
	require.ErrorIs(t, p.Read(t.Context(), c, segments(local, remote)), transport.ErrRegion)
	require.NoError(t, p.Close())
}

// TestServer is what the child process of TestDeadPeer does.
func TestServer(t *testing.T) {
	if os.Getenv("SLUICE_UCX_SERVER") == "" {
		t.Skip("for TestDeadPeer")
	}
	y, _, remote, c := side(t, 2)
	secret, err := c.MarshalText()
	require.NoError(t, err)
	fmt.Printf("serving %s %d %s\n", y.Address(), remote, secret)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	require.NoError(t, y.Close())
}

// A peer that is killed in the middle of gets is an error that names it, soon,
// and the memory is left alone from then on.
func TestDeadPeer(t *testing.T) {
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestServer$", "-test.v")
	child.Env = append(os.Environ(), "SLUICE_UCX_SERVER=1")
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var address, secret string
	var remote transport.RegionID
	lines := bufio.NewScanner(stdout)
	for address == "" && lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "serving %s %d %s", &address, &remote, &secret)
	}
	require.NotEmpty(t, address)
	var c transport.Capability
	require.NoError(t, c.UnmarshalText([]byte(secret)))

	x, into, local, _ := side(t, 1)
	p, err := x.Connect(t.Context(), address)
	require.NoError(t, err)
	segs := segments(local, remote)
	require.NoError(t, p.Read(t.Context(), c, segs))
	require.EqualValues(t, 2, into[0])
	done := make(chan error, 1)
	go func() {
		for {
			if err := p.Read(t.Context(), c, segs); err != nil {
				done <- err
				return
			}
		}
	}()
	time.Sleep(30 * time.Millisecond)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	select {
	case err = <-done:
	case <-time.After(time.Minute):
		require.FailNow(t, "the read does not end")
	}
	require.ErrorContains(t, err, address)
	require.NotEmpty(t, transport.FailedSegments(err, len(segs)))
	clear(into)
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, make([]byte, len(into)), []byte(into))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = x.Connect(ctx, address)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.NoError(t, p.Close())
	require.NoError(t, x.Close())
}

func TestRefused(t *testing.T) {
	_, err := New(tcp.Config{ServerTLS: &tls.Config{}, ClientTLS: &tls.Config{}})
	var e *transport.UnavailableError
	require.ErrorAs(t, err, &e)
	_, err = New(tcp.Config{Listen: "192.0.2.1:0"})
	require.ErrorContains(t, err, "ucx transport")
	_, err = New(tcp.Config{Listen: "nowhere"})
	require.Error(t, err)
}
