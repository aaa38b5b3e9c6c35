package pd

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// push computes a prompt of n tokens for a transfer, in blocks from first on: at once, or in
// two steps whose layers are done one by one, each when the ones before have gone out. Then
// it returns how often that was, 0 if the push has failed.
func (e *engine) push(slot uint32, n, first int, id string, layers bool) (parts int) {
	r := pRequest(slot, n, &Params{DoRemoteDecode: true, Mode: "push", Transfer: id})
	table := connector.Tables{blockRange(first, ceilDiv(n, testBlockSize))}
	e.s.Added(r)
	e.flush()
	if layers {
		before := e.w.Stats()
		half := n / 2 / testBlockSize * testBlockSize
		from, sent := 0, before.BytesPushed
		for step, to := range []int{half, n} {
			e.computing(uint64(step+1), r, table, from, to)
			for layer := range testLayers {
				e.w.LayerDone(uint64(step+1), layer)
				sent += uint64((to/testBlockSize - from/testBlockSize) * 2 * testBlockBytes)
				for e.w.Stats().BytesPushed < sent {
					if e.w.Stats().PushesFailed > before.PushesFailed {
						return 0
					}
					time.Sleep(time.Millisecond)
				}
				parts++
			}
			from = to
		}
		if n%testBlockSize > 0 {
			parts++ // the last block, of all layers, at the end
		}
	}
	e.s.Finished(r, table, connector.End{Reason: connector.EndLength, Computed: n, Output: 1})
	e.flush()
	return parts
}

// toDecoder is what D is told of a transfer of a process.
func (p *process) toDecoder(at *Params, id string) *Params {
	return throughJSON(p.t, &Params{DoRemotePrefill: true, Mode: "push", Transfer: id, EngineID: at.EngineID, Host: at.Host, Port: at.Port})
}

// Two processes with device memory: P names the blocks of what is ready once, D's device
// fetches them, whole or layer by layer, and none of it travels on the connections.
func TestPushBetweenDevices(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		at := p.prefill(99, 9, 60)
		want := twin(t)
		pushes := int64(0)
		for i, how := range []string{"push", "layers", "layers", "push"} {
			slot, n, id := uint32(i+1), 22+9*i, fmt.Sprint("x", i)
			d.load(remote(slot, n, p.toDecoder(at, id)), 30)
			var parts int64
			p.ask(fmt.Sprintf("%s %d %d %d %s", how, slot, n, 1+i, id), &parts)
			ev := d.next()
			require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
			require.Equal(t, ceilDiv(n, testBlockSize), ev.Payload.(Transfer).Blocks)
			for k := range d.regions {
				for b := range ceilDiv(n, testBlockSize) {
					require.Equal(t, want.block(k, blockRange(1+i, b+1)[b]), d.block(k, blockRange(30, b+1)[b]), "region %d, block %d", k, b)
				}
			}
			if how == "push" {
				parts = 1
			}
			require.Positive(t, parts)
			pushes += parts
			if form != byPieces {
				require.Equal(t, pushes, hook.units.Load(), "one copy for each layer or prompt that was ready")
			}
		}
		if form == byPieces {
			require.Zero(t, hook.units.Load())
		}
		s := d.transportStats()
		require.Positive(t, s.ServedWrites)
		require.Equal(t, s.ServedWrites, s.Fetched, "past the connections")
		require.Zero(t, s.Far)
		eventually(t, "all pushes are over", func() bool {
			s := p.stats()
			return s.PushesNow == 0 && s.LeasesNow == 1 && s.PushesFailed == 0 // the one is that of at
		})
	})
}

// D gives up while its device fetches, and P gives the blocks to somebody else: once D has
// said that the load failed its blocks are another request's, and nothing writes to them.
func TestDevicePushIsFenced(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		at := p.prefill(99, 9, 60)
		var once sync.Once
		answered, begun, fetched := make(chan struct{}), make(chan struct{}), make(chan struct{})
		hook.before = func() {
			once.Do(func() {
				close(begun)
				<-answered // it is asked again below
				eventually(t, "P has given up", func() bool { return p.stats().PushesNow == 0 })
				var done bool
				p.ask("overwrite", &done)
			})
		}
		hook.after = sync.OnceFunc(func() { close(fetched) })
		r := remote(1, 33, p.toDecoder(at, "x"))
		d.load(r, 30)
		var parts int
		p.ask("push 1 33 1 x", &parts)
		close(answered)
		<-begun
		d.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
		d.flush()
		require.Error(t, d.failedLoad(r.ID))
		select {
		case <-fetched:
		default:
			require.FailNow(t, "the load ended while the device was at its blocks")
		}
		d.overwrite()
		p.kill()
		require.NoError(t, d.dev.Health())
		for k := range d.regions {
			for _, b := range blockRange(30, 9) {
				for _, x := range d.block(k, b) {
					require.EqualValues(t, 0xee, x)
				}
			}
		}
	})
}

// P is killed while D's device fetches what it pushes: the load fails, D lives, and what
// another P pushes arrives.
func TestDevicePushWhosePrefillerIsKilled(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		for _, when := range []string{"before the copy", "behind the copy"} {
			t.Run(when, func(t *testing.T) {
				p := startProcessOver(t, "p-1", 0, "device "+backend)
				hook := &nearHook{form: form}
				d := newOnDevice(t, backend, "d-1", Consumer, 2, hook, lease(200*time.Millisecond))
				usual := d.s.cfg.Load
				d.s.cfg.Load = 500 * time.Millisecond // which then decides
				at := p.prefill(99, 9, 60)
				answered := make(chan struct{})
				kill := func() { <-answered; p.kill() }
				if when == "before the copy" {
					hook.before = kill
				} else {
					hook.after = kill
				}
				r := remote(1, 33, p.toDecoder(at, "x"))
				d.load(r, 30)
				var parts int
				p.ask("push 1 33 1 x", &parts)
				close(answered)
				require.Error(t, d.failedLoad(r.ID))
				hook.before, hook.after = nil, nil
				d.s.cfg.Load = usual
				again := startProcessOver(t, "p-2", 0, "device "+backend)
				at = again.prefill(99, 9, 60)
				r = remote(2, 33, again.toDecoder(at, "y"))
				d.load(r, 30)
				again.ask("push 2 33 5 y", &parts)
				ev := d.next()
				require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
				require.Equal(t, twin(t).block(3, 6), d.block(3, 31))
				require.NoError(t, d.dev.Health())
				eventually(t, "nothing is left", func() bool { s := d.w.Stats(); return s.TrackedNow == 0 && s.LoadsNow == 0 })
				require.Equal(t, d.transportStats().ServedWrites, d.transportStats().Fetched)
			})
		}
	})
}

// P stays connected from one push to the next, so that what D has imported of it stays, and
// ends with P.
func TestPushesImportOnce(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		p := startProcessOver(t, "p-1", 0, "device "+backend)
		hook := &nearHook{form: form}
		d := newOnDevice(t, backend, "d-1", Consumer, 2, hook)
		before := d.dev.Live().Buffers
		at := p.prefill(99, 9, 60)
		const pushes = 10
		for i := range uint32(pushes) {
			id := fmt.Sprint("x", i)
			d.load(remote(i+1, 33, p.toDecoder(at, id)), 30)
			var parts int
			p.ask(fmt.Sprintf("push %d 33 %d %s", i+1, 1+i, id), &parts)
			ev := d.next()
			require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
			want := twin(t)
			for k := range d.regions {
				require.Equal(t, want.block(k, kvcache.BlockID(5+i)), d.block(k, 34), "region %d", k)
			}
			eventually(t, "the push is over", func() bool { return p.stats().PushesNow == 0 })
			require.Greater(t, d.dev.Live().Buffers, before)
		}
		require.Less(t, hook.meets.Load(), int64(pushes), "for each connection, of which a peer has four")
		p.kill()
		eventually(t, "what was imported is closed", func() bool { return d.dev.Live().Buffers == before })
	})
}

// Where the runtime refuses to import what P offers, a push goes through the host and is
// right.
func TestDevicePushWithoutImport(t *testing.T) {
	refuseImports(t)
	p := startProcessOver(t, "p-1", 0, "device cuda")
	d := newOnDevice(t, "cuda", "d-1", Consumer, 2, nil)
	at := p.prefill(99, 9, 60)
	r := remote(1, 33, p.toDecoder(at, "x"))
	d.load(r, 30)
	var parts int
	p.ask("layers 1 33 1 x", &parts)
	require.Equal(t, connector.Received, d.next().Kind)
	want := twin(t)
	for k := range d.regions {
		require.Equal(t, want.block(k, 4), d.block(k, 33))
	}
	s := d.transportStats()
	require.Positive(t, s.ServedWrites)
	require.Zero(t, s.Fetched)
	require.Positive(t, s.Far)
}
