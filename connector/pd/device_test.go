package pd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl"
	aclemu "github.com/sluice-serving/sluice/ascendrt/acl/emulated"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	cudaemu "github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/faulty"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// noDevices says why there is neither a device nor an emulated one, by backend.
var noDevices map[string]error

// useDevices points this process and its children at the emulated runtimes where
// there is no device.
func useDevices() map[string]error {
	why := map[string]error{"ascend": aclemu.Use()}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil { // no driver
		why["cuda"] = cudaemu.Use()
	}
	return why
}

// openDevice opens the first device of a backend.
func openDevice(backend string) (ascendrt.Device, error) {
	if backend == "ascend" {
		return acl.Backend{}.Open(0, ascendrt.OpenOptions{})
	}
	return cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
}

// eachBackend runs a test on every backend that is here.
func eachBackend(t *testing.T, run func(t *testing.T, backend string)) {
	for _, backend := range []string{"cuda", "ascend"} {
		t.Run(backend, func(t *testing.T) {
			if err := noDevices[backend]; err != nil {
				t.Skip(err)
			}
			dev, err := openDevice(backend)
			if errors.Is(err, ascendrt.ErrUnavailable) {
				t.Skip(err)
			}
			require.NoError(t, err)
			require.NoError(t, dev.Close(t.Context()))
			run(t, backend)
		})
	}
}

// deviceRegion is KV in device memory.
type deviceRegion struct {
	dev    ascendrt.Device
	stream ascendrt.Stream
	mu     *sync.Mutex
	buf    ascendrt.Buffer
}

func (d deviceRegion) DeviceBuffer() ascendrt.Buffer { return d.buf }

func (d deviceRegion) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(p), ascendrt.Download(context.Background(), d.dev, d.stream, p, d.buf.Slice(int(off), len(p)))
}

func (d deviceRegion) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(p), ascendrt.Upload(context.Background(), d.dev, d.stream, d.buf.Slice(int(off), len(p)), p)
}

// nearHook lets a test act in the middle of a read by the device.
type nearHook struct {
	tcp.Near
	before, after func()
	form          form
	wrap          func(net.Conn) net.Conn // of the connections; nil: as they are
	units, meets  atomic.Int64
}

// form is how a device reads.
type form string

const (
	byUnits  form = "units"
	byPieces form = "pieces" // piece by piece alone
	ahead    form = "ahead"  // by units, ahead of the answer where that can be
)

type neighbourHook struct {
	tcp.BlockNeighbour
	h *nearHook
}

func (h *nearHook) Meet(card []byte) (tcp.Neighbour, error) {
	n, err := h.Near.Meet(card)
	if err != nil {
		return nil, err
	}
	h.meets.Add(1)
	hook := neighbourHook{n.(tcp.BlockNeighbour), h}
	switch h.form {
	case byPieces:
		return struct{ tcp.Neighbour }{hook}, nil
	case ahead:
		return aheadHook{hook, n.(tcp.StartNeighbour)}, nil
	}
	return hook, nil
}

// aheadHook is a neighbourHook that lets its caller do something else.
type aheadHook struct {
	neighbourHook
	start tcp.StartNeighbour
}

func (n aheadHook) StartBlocks(regions []tcp.NearRegion, local, remote []int32) (func() error, error) {
	n.h.units.Add(1)
	if n.h.before != nil {
		n.h.before()
	}
	wait, err := n.start.StartBlocks(regions, local, remote)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := wait()
		if n.h.after != nil {
			n.h.after()
		}
		return err
	}, nil
}

func (n neighbourHook) Fetch(ranges []tcp.NearRange) error {
	return n.h.between(func() error { return n.BlockNeighbour.Fetch(ranges) })
}

func (n neighbourHook) FetchBlocks(regions []tcp.NearRegion, local, remote []int32) error {
	n.h.units.Add(1)
	return n.h.between(func() error { return n.BlockNeighbour.FetchBlocks(regions, local, remote) })
}

func (h *nearHook) between(fetch func() error) error {
	if h.before != nil {
		h.before()
	}
	err := fetch()
	if h.after != nil {
		h.after()
	}
	return err
}

// eachForm runs a test on every backend, with each form of reads.
func eachForm(t *testing.T, run func(t *testing.T, backend string, form form)) {
	eachBackend(t, func(t *testing.T, backend string) {
		for _, f := range []form{byUnits, byPieces, ahead} {
			t.Run(string(f), func(t *testing.T) { run(t, backend, f) })
		}
	})
}

// startOnDevice starts an engine whose KV is on a device of its own.
func startOnDevice(t require.TestingT, backend, id string, role Role, seed uint64, hook *nearHook, opts ...option) *engine {
	dev, err := openDevice(backend)
	require.NoError(t, err)
	stream, err := dev.NewStream(ascendrt.StreamOptions{Role: "test"})
	require.NoError(t, err)
	mu := &sync.Mutex{}
	place := func(b []byte) connector.Memory {
		buf, err := dev.Alloc(len(b), ascendrt.PlaceShareable)
		require.NoError(t, err)
		r := deviceRegion{dev, stream, mu, buf}
		_, err = r.WriteAt(b, 0)
		require.NoError(t, err)
		return r
	}
	near := func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Transport = func(n transport.Notified) (transport.Transport, error) {
			made, err := ipc.New(dev)
			if err != nil {
				return nil, err
			}
			var near tcp.Near = made
			if hook != nil {
				hook.Near = made
				near = hook
			}
			cfg := tcp.Config{Notified: n, Near: near}
			if hook != nil {
				cfg.WrapConn = hook.wrap
			}
			return tcp.New(cfg)
		}
	}
	e := startEngineIn(t, place, id, role, seed, append([]option{near}, opts...)...)
	e.dev = dev
	return e
}

func newOnDevice(t *testing.T, backend, id string, role Role, seed uint64, hook *nearHook, opts ...option) *engine {
	t.Helper()
	e := startOnDevice(t, backend, id, role, seed, hook, opts...)
	t.Cleanup(func() {
		require.NoError(t, e.w.Close())
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, e.dev.Close(ctx))
	})
	return e
}

// overwrite gives all blocks to somebody else.
func (e *engine) overwrite() {
	for _, r := range e.regions {
		b := make([]byte, testBlocks*testBlockBytes)
		for i := range b {
			b[i] = 0xee
		}
		_, err := r.Memory.WriteAt(b, 0)
		require.NoError(e.t, err)
	}
}

func (e *engine) transportStats() transport.Stats {
	return e.w.Transport().(interface{ Stats() transport.Stats }).Stats()
}

// pullAll loads a prompt and compares what arrived with what P holds.
func pullAll(t *testing.T, d *engine, slot uint32, n, first int, params *Params) {
	t.Helper()
	d.load(remote(slot, n, params), first)
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	want := twin(t)
	for k := range d.regions {
		for i, b := range params.Blocks[0] {
			require.Equal(t, want.block(k, b), d.block(k, blockRange(first, len(params.Blocks[0]))[i]), "region %d, block %d", k, b)
		}
	}
}

// Two processes with device memory: KV moves by the device, and none of it on
// the connections.
func TestDevicesOfTwoProcesses(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		for i := range uint32(5) {
			n := 9 + 4*int(i)
			pullAll(t, d, i+1, n, 20, p.prefill(i+1, n, 1+10*int(i)))
		}
		s := d.transportStats()
		require.Positive(t, s.ReadBytes)
		require.Equal(t, s.ReadBytes, s.Fetched, "past the connections")
		require.Zero(t, s.Far)
		require.Equal(t, form != byPieces, hook.units.Load() == 5, "one copy for each prompt")
		eventually(t, "all released, once", func() bool {
			s := p.stats()
			return s.LeasesNow == 0 && s.LeasesReleased == 5 && s.ReleasesUnknown == 0 && s.LeasesExpired == 0
		})
	})
}

// Several prompts are pulled at once, each with its own lease and blocks, over connections
// that hold or break: what arrives is the prompt's, and every lease ends by its release.
func TestSeveralPullsOfDevices(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		for name, script := range map[string]string{"calm": "", "connections break": "conn%3 cut 2500"} {
			t.Run(name, func(t *testing.T) {
				p := startProcessOver(t, "p-1", 0, "device "+backend)
				hook := &nearHook{form: form}
				if script != "" {
					s, err := faulty.Parse(script, 1)
					require.NoError(t, err)
					hook.wrap = s.WrapConn
				}
				d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
				want := twin(t)
				const rounds, prompts, n, blocks = 5, 8, 25, 7
				arrived := 0
				for round := range rounds {
					at, from, failed := map[connector.RequestID]int{}, map[connector.RequestID]*Params{}, map[connector.RequestID]bool{}
					for i := range prompts {
						slot := uint32(round*prompts + i + 1)
						r := remote(slot, n, p.prefill(slot, n, 1+(9*i+5*round)%(testBlocks-blocks-1)))
						at[r.ID], from[r.ID] = 1+blocks*i, r.Params.(*Params)
						d.load(r, at[r.ID])
					}
					for len(at) > 0 {
						ev := d.next()
						if ev.Kind == connector.Failed {
							require.NotEmpty(t, script, "%v", ev.Err)
							failed[ev.Request] = true
							continue
						}
						require.Equal(t, connector.Received, ev.Kind)
						first := at[ev.Request]
						require.NotZero(t, first, "once")
						delete(at, ev.Request)
						if failed[ev.Request] {
							continue
						}
						arrived++
						for k := range d.regions {
							for i, b := range from[ev.Request].Blocks[0] {
								require.Equal(t, want.block(k, b), d.block(k, blockRange(first, blocks)[i]), "region %d, block %d", k, b)
							}
						}
					}
				}
				require.Positive(t, arrived)
				s := d.transportStats()
				require.Equal(t, s.ReadBytes, s.Fetched)
				eventually(t, "all released, once", func() bool {
					s := p.stats()
					return s.LeasesNow == 0 && s.LeasesReleased == rounds*prompts && s.ReleasesUnknown == 0 && s.LeasesExpired == 0
				})
			})
		}
	})
}

// refuseImports has the runtime refuse to import.
func refuseImports(t *testing.T) {
	t.Helper()
	if err := noDevices["cuda"]; err != nil {
		t.Skip(err)
	}
	if os.Getenv(cudaemu.Driver) == "" {
		t.Skip("a real driver refuses nothing on request")
	}
	t.Setenv("SLUICE_CUDA_EMU_NO_IPC", "1")
}

// Where the runtime refuses to import, KV moves through the host and is right.
func TestDevicesWithoutImport(t *testing.T) {
	refuseImports(t)
	p := startProcessOver(t, "p-1", 0, "device cuda")
	d := newOnDevice(t, "cuda", "d-1", Consumer, 2, nil)
	pullAll(t, d, 1, 33, 20, p.prefill(1, 33, 1))
	s := d.transportStats()
	require.Positive(t, s.ReadBytes)
	require.Zero(t, s.Fetched)
	require.Positive(t, s.Far)
}

// P is killed while D's device reads: the load fails, D lives, and what a new P
// at the same place holds arrives.
func TestDeviceReadWhosePeerIsKilled(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		for _, when := range []string{"before the copy", "behind the copy"} {
			t.Run(when, func(t *testing.T) {
				p := startProcessOver(t, "p-1", 0, "device "+backend)
				hook := &nearHook{form: form}
				d := newOnDevice(t, backend, "d-1", Consumer, 2, hook, lease(200*time.Millisecond))
				pullAll(t, d, 1, 9, 1, p.prefill(1, 9, 1))
				params, stale := p.prefill(2, 100, 1), p.prefill(3, 9, 1)
				if when == "before the copy" {
					hook.before = p.kill
				} else {
					hook.after = p.kill
				}
				r := remote(2, 100, params)
				d.load(r, 1)
				err := d.failedLoad(r.ID)
				require.True(t, errors.Is(err, ErrLeaseBroken) || errors.Is(err, transport.ErrUnreachable), "%v", err)
				hook.before, hook.after = nil, nil
				again := startProcessOver(t, "p-2", params.Port, "device "+backend)
				next := again.prefill(1, 9, 5)
				r = remote(3, 9, stale)
				d.load(r, 20)
				require.ErrorIs(t, d.failedLoad(r.ID), ErrRestarted)
				pullAll(t, d, 4, 9, 30, next)
				require.Equal(t, d.transportStats().ReadBytes, d.transportStats().Fetched)
				require.NoError(t, d.dev.Health())
				eventually(t, "nothing is left", func() bool { s := d.w.Stats(); return s.TrackedNow == 0 && s.LoadsNow == 0 })
			})
		}
	})
}

// The lease runs out while D's device reads, and P gives the blocks to somebody
// else: D takes nothing of it for KV.
func TestDeviceReadWhoseLeaseRunsOut(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend+" short")
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		if form == ahead { // it knows where P's memory lies
			pullAll(t, d, 2, 9, 50, p.prefill(2, 9, 40))
		}
		params := p.prefill(1, 33, 1)
		var once sync.Once
		hook.before = func() {
			once.Do(func() {
				eventually(t, "the lease runs out", func() bool { return p.stats().LeasesExpired == 1 })
				var done bool
				p.ask("overwrite", &done)
			})
		}
		r := remote(1, 33, params)
		d.load(r, 1)
		err := d.failedLoad(r.ID)
		require.True(t, errors.Is(err, ErrLeaseBroken) || errors.Is(err, transport.ErrDenied) || errors.Is(err, transport.ErrUnreachable), "%v", err)
	})
}

// A pull that is cancelled while D's device copies reports its end when the copy has ended:
// until then the blocks are its own.
func TestCancelledDeviceReadOutlastsItsCopy(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		pullAll(t, d, 1, 9, 50, p.prefill(1, 9, 40)) // where P's memory lies is known
		copying, over := make(chan struct{}), make(chan struct{})
		end := sync.OnceFunc(func() { close(over) })
		t.Cleanup(end)
		hook.after = func() { close(copying); <-over } // it takes its time
		others := d.s.Live()
		r := remote(2, 33, p.prefill(2, 33, 1))
		d.load(r, 1)
		<-copying
		d.s.Finished(r, connector.Tables{blockRange(1, 9)}, connector.End{Reason: connector.EndAbort})
		d.flush()
		d.quiet(150 * time.Millisecond) // longer than a connection is waited for
		require.Equal(t, others+1, d.s.Live())
		hook.after = nil
		end()
		for ev := d.next(); ev.Kind != connector.Received; ev = d.next() {
			require.Equal(t, connector.Failed, ev.Kind)
		}
		require.Equal(t, others, d.s.Live())
		d.overwrite()
		pullAll(t, d, 3, 9, 20, p.prefill(3, 9, 10))
		for k := range d.regions {
			for _, b := range blockRange(1, 9) {
				require.Equal(t, bytes.Repeat([]byte{0xee}, testBlockBytes), d.block(k, b), "nothing came behind the end")
			}
		}
		eventually(t, "all released", func() bool { return p.stats().LeasesNow == 0 })
	})
}

// One prompt is pulled twice at once, by one lease: the first to end releases it, and the
// other one has all of the prompt or fails.
func TestTwoPullsOfOnePrompt(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		d := newOnDevice(t, backend, "d-1", Consumer, 2, &nearHook{form: form})
		want := twin(t)
		const rounds, n, blocks = 6, 33, 9
		for round := range uint32(rounds) {
			params := p.prefill(round+1, n, 1+int(round))
			at, failed := map[connector.RequestID]int{}, map[connector.RequestID]bool{}
			for i := range 2 {
				r := remote(2*round+uint32(i)+1, n, params)
				at[r.ID] = 1 + 20*i
				d.load(r, at[r.ID])
			}
			for len(at) > 0 {
				ev := d.next()
				if ev.Kind == connector.Failed {
					require.True(t, errors.Is(ev.Err, ErrLeaseBroken) || errors.Is(ev.Err, transport.ErrDenied), "%v", ev.Err)
					failed[ev.Request] = true
					continue
				}
				first := at[ev.Request]
				delete(at, ev.Request)
				if failed[ev.Request] {
					continue
				}
				for k := range d.regions {
					for i, b := range params.Blocks[0] {
						require.Equal(t, want.block(k, b), d.block(k, blockRange(first, blocks)[i]), "region %d, block %d", k, b)
					}
				}
			}
			require.Less(t, len(failed), 2, "one of them has it")
		}
		eventually(t, "each released once", func() bool {
			s := p.stats()
			return s.LeasesNow == 0 && s.LeasesReleased == rounds && s.ReleasesUnknown == rounds && s.LeasesExpired == 0
		})
	})
}

// A peer that ends in order and comes back: what was imported of the first is
// closed, and the second is read.
func TestDevicePeerEndsAndReturns(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := newOnDevice(t, backend, "d-1", Consumer, 2, nil)
		before := d.dev.Live().Buffers
		port := 0
		for i := range 3 {
			p := startProcessOver(t, fmt.Sprintf("p-%d", i), port, "device "+backend)
			params := p.prefill(1, 33, 1+i)
			port = params.Port
			pullAll(t, d, uint32(i+1), 33, 20, params)
			require.Greater(t, d.dev.Live().Buffers, before)
			eventually(t, "released", func() bool { return p.stats().LeasesNow == 0 })
			var done bool
			p.ask("quit", &done)
			_ = p.cmd.Wait()
		}
		require.Equal(t, d.transportStats().ReadBytes, d.transportStats().Fetched)
		eventually(t, "what was imported is closed", func() bool { return d.dev.Live().Buffers == before })
	})
}
