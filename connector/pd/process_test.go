package pd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/mooncake"
	"github.com/sluice-serving/sluice/connector/transport/mooncake/emulated"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/connector/transport/ucx"
)

// childEnv turns the test binary into a prefiller: its value is "<engine id>
// <port> <transport>". It answers lines "<slot> <tokens> <first block>" with the
// parameters of a finished prompt, "turn" and the same with those of a turn that it
// keeps, "push" and the same with a transfer's id, which it pushes when it is complete,
// "layers" likewise layer by layer, "stats" with its counters, "overwrite" once all its KV is another, and "quit"
// when it has closed. Behind "device <backend>" come "owner" for one that keeps turns
// and "short" for short leases.
const childEnv = "SLUICE_PD_TEST_CHILD"

// fatal is a TestingT for the child.
type fatal struct{}

func (fatal) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
func (fatal) FailNow()                          { os.Exit(1) }

func child() {
	var id, over string
	var port int
	fields := strings.SplitN(os.Getenv(childEnv), " ", 3)
	id, over = fields[0], fields[2]
	port, _ = strconv.Atoi(fields[1])
	listen := func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	var e *engine
	if d, ok := strings.CutPrefix(over, "device "); ok {
		d, short := strings.CutSuffix(d, " short")
		d, owner := strings.CutSuffix(d, " owner")
		role := Producer
		if owner {
			role = Consumer
		}
		e = startOnDevice(fatal{}, d, id, role, 1, nil, listen, func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
			s.Reverse.Enable = owner
			if short {
				w.Lease, w.MaxHold, s.Reverse.Keep = 300*time.Millisecond, 600*time.Millisecond, 600*time.Millisecond
			}
		})
	} else {
		e = startEngine(fatal{}, id, Producer, 1, listen, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) { w.Transport = transports[over] })
	}
	go func() {
		for ev := range e.w.Events() {
			_ = ev // the scheduler's side is used by the loop below alone
		}
	}()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if in.Text() == "stats" {
			json.NewEncoder(os.Stdout).Encode(e.w.Stats())
			continue
		}
		if in.Text() == "overwrite" {
			e.overwrite()
			json.NewEncoder(os.Stdout).Encode(true)
			continue
		}
		if in.Text() == "quit" {
			e.w.Close()
			json.NewEncoder(os.Stdout).Encode(true)
			return
		}
		var slot uint32
		var n, first int
		if _, err := fmt.Sscanf(in.Text(), "turn %d %d %d", &slot, &n, &first); err == nil {
			json.NewEncoder(os.Stdout).Encode(e.turn(slot, fmt.Sprint("s", slot), n, first).Params)
			continue
		}
		var how, id string
		if _, err := fmt.Sscanf(in.Text(), "%s %d %d %d %s", &how, &slot, &n, &first, &id); err == nil && (how == "push" || how == "layers") {
			json.NewEncoder(os.Stdout).Encode(e.push(slot, n, first, id, how == "layers"))
			continue
		}
		fmt.Sscan(in.Text(), &slot, &n, &first)
		json.NewEncoder(os.Stdout).Encode(e.prefill(slot, n, first))
	}
	e.w.Close()
}

// transports are those that processes meet over.
var transports = map[string]func(transport.Notified) (transport.Transport, error){
	"tcp":      nil, // the default
	"ucx":      func(n transport.Notified) (transport.Transport, error) { return ucx.New(tcp.Config{Notified: n}) },
	"mooncake": func(n transport.Notified) (transport.Transport, error) { return mooncake.New(tcp.Config{Notified: n}) },
}

// process is a prefiller in another process.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	end sync.Once
}

func startProcess(t *testing.T, id string, port int) *process {
	t.Helper()
	return startProcessOver(t, id, port, "tcp")
}

func startProcessOver(t *testing.T, id string, port int, over string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", childEnv, id, port, over))
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// kill ends the process as the kernel would.
func (p *process) kill() {
	p.end.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

func (p *process) ask(line string, answer any) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(p.t, err)
	raw, err := p.out.ReadBytes('\n')
	require.NoError(p.t, err)
	require.NoError(p.t, json.Unmarshal(raw, answer))
}

func (p *process) prefill(slot uint32, n, first int) *Params {
	var params Params
	p.ask(fmt.Sprintf("%d %d %d", slot, n, first), &params)
	return &params
}

// turn ends a turn of n tokens, whose KV is in blocks from first on.
func (p *process) turn(slot uint32, n, first int) *Params {
	var raw json.RawMessage
	p.ask(fmt.Sprintf("turn %d %d %d", slot, n, first), &raw)
	params, err := ParseParams(raw)
	require.NoError(p.t, err, "%s", raw)
	return params
}

func (p *process) stats() (s WorkerStats) {
	p.ask("stats", &s)
	return s
}

// twin has the memory that the child has.
func twin(t *testing.T) *engine { return newEngine(t, "twin", Both, 1) }

func TestTwoProcesses(t *testing.T) {
	lib, err := emulated.Build()
	if err != nil {
		t.Logf("without the emulated Transfer Engine: %v", err)
	}
	t.Setenv(emulated.Variable, lib)
	for name, over := range transports {
		t.Run(name, func(t *testing.T) {
			if over != nil {
				made, err := over(nil)
				if e := (*transport.UnavailableError)(nil); errors.As(err, &e) {
					t.Skip(e)
				}
				require.NoError(t, err)
				require.NoError(t, made.Close())
			}
			twoProcesses(t, name)
		})
	}
}

func twoProcesses(t *testing.T, over string) {
	p := startProcessOver(t, "p-1", 0, over)
	d := newEngine(t, "d-1", Consumer, 2, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) { w.Transport = transports[over] })
	want := twin(t)
	for i := range uint32(5) {
		n := 9 + 4*int(i)
		params := p.prefill(i+1, n, 1+10*int(i))
		r := remote(i+1, n, params)
		d.load(r, 1+10*int(i))
		ev := d.next()
		require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
		for k := range d.regions {
			for _, b := range params.Blocks[0] {
				require.Equal(t, want.block(k, b), d.block(k, b))
			}
		}
	}
	eventually(t, "all released, once", func() bool {
		s := p.stats()
		return s.LeasesNow == 0 && s.LeasesReleased == 5 && s.ReleasesUnknown == 0 && s.LeasesExpired == 0
	})
	r := remote(9, 33, p.prefill(9, 33, 1))
	p.kill()
	d.load(r, 1)
	require.Error(t, d.failedLoad(r.ID), "the prefiller was killed")
}

// tripwire calls a function once so many bytes have been read.
type tripwire struct {
	net.Conn
	left *atomic.Int64
	trip func()
}

func (c tripwire) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 4096)])
	if c.left.Add(-int64(n)) < 0 {
		c.trip()
	}
	return n, err
}

func TestKilledProcess(t *testing.T) {
	p := startProcess(t, "p-1", 0)
	var left atomic.Int64
	left.Store(1 << 60)
	var once sync.Once
	d := newEngine(t, "d-1", Consumer, 2, lease(200*time.Millisecond), func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Transport = func(n transport.Notified) (transport.Transport, error) {
			return tcp.New(tcp.Config{Notified: n, Conns: 1, WrapConn: func(c net.Conn) net.Conn {
				return tripwire{c, &left, func() { once.Do(p.kill) }}
			}})
		}
	})
	ok := remote(1, 9, p.prefill(1, 9, 1))
	d.load(ok, 1)
	require.Equal(t, connector.Received, d.next().Kind)
	params, stale := p.prefill(2, 200, 1), p.prefill(3, 9, 1)
	left.Store(20_000) // of 50 blocks of 3072 bytes
	r := remote(2, 200, params)
	d.load(r, 1)
	err := d.failedLoad(r.ID)
	require.True(t, errors.Is(err, ErrLeaseBroken) || errors.Is(err, transport.ErrUnreachable), "%v", err)
	// Another process takes its place.
	again := startProcess(t, "p-2", params.Port)
	next := remote(4, 9, again.prefill(1, 9, 5))
	r = remote(3, 9, stale)
	d.load(r, 20)
	require.ErrorIs(t, d.failedLoad(r.ID), ErrRestarted)
	d.load(next, 30)
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, twin(t).block(3, 6), d.block(3, 31))
	eventually(t, "nothing is left", func() bool { s := d.w.Stats(); return s.TrackedNow == 0 && s.LoadsNow == 0 })
	eventually(t, "nor there", func() bool { return again.stats().LeasesNow == 0 })
	require.Zero(t, again.stats().ReleasesUnknown, "the old engine's leases are not asked of the new one")
}
