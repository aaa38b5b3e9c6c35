package pd

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

// readTurn has the engine read what its request shares with a turn of the old owner:
// tokens from have on, into blocks from first on.
func (e *engine) readTurn(r *connector.Request, have, first int) (tokens int) {
	e.s.Added(r)
	tokens = e.s.Lookup(r, have).Tokens
	e.s.Allocated(r, connector.Tables{blockRange(first, ceilDiv(r.Prompt, testBlockSize))}, have, tokens)
	e.flush()
	return tokens
}

// nextTurn is a request of the next turn: at P, or at a Decoder that owns the session from now on.
func nextTurn(slot uint32, prompt int, turn *Params, role Role) *connector.Request {
	r := remote(slot, prompt, turn)
	if role == Producer {
		r.Route = connector.Local
		return r
	}
	turn.DoRemotePrefill, turn.DoRemoteDecode = true, false
	return r
}

// Prefillers and new owners in another process read a turn from the old owner's device,
// by the device.
func TestReverseBetweenDevices(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		owner := startProcessOver(t, "d-old", 0, "device "+backend+" owner")
		want := twin(t)
		for name, role := range map[string]Role{"prefiller": Producer, "new owner": Consumer} {
			hook := &nearHook{form: form}
			e := newOnDevice(t, backend, name, role, 2, hook, reverse(nil))
			const n, first = 37, 7
			turn := owner.turn(uint32(role)+1, n, first)
			require.True(t, turn.DoRemoteDecode, "for whoever computes the next turn")
			r := nextTurn(3, 52, turn, role)
			require.Equal(t, n-8, e.readTurn(r, 8, 30), name)
			ev := e.next()
			require.Equal(t, connector.Received, ev.Kind, "%s: %v", name, ev.Err)
			require.Equal(t, 8, ev.Payload.(Transfer).Blocks)
			for k := range e.regions {
				for i := 2; i < 10; i++ { // the first two were here
					require.Equal(t, want.block(k, blockRange(first, 10)[i]), e.block(k, blockRange(30, 10)[i]), "%s: region %d, block %d", name, k, i)
				}
				require.NotEqual(t, want.block(k, first), e.block(k, 30), "not what was here")
			}
			s := e.transportStats()
			require.Positive(t, s.ReadBytes)
			require.Equal(t, s.ReadBytes, s.Fetched, "past the connections")
			require.Equal(t, form != byPieces, hook.units.Load() == 1)
		}
		eventually(t, "both turns are released", func() bool { s := owner.stats(); return s.LeasesNow == 0 && s.LeasesReleased == 2 })
	})
}

// The old owner is killed while the device reads its turn: the load fails as a whole,
// the reader lives, and another owner at the same place is read.
func TestReverseReadWhoseOwnerIsKilled(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		for _, when := range []string{"before the copy", "behind the copy"} {
			t.Run(when, func(t *testing.T) {
				owner := startProcessOver(t, "d-old", 0, "device "+backend+" owner")
				hook := &nearHook{form: form}
				p := newOnDevice(t, backend, "p-1", Producer, 2, hook, reverse(nil), lease(200*time.Millisecond))
				turn, stale := owner.turn(1, 100, 1), owner.turn(2, 37, 30)
				if when == "before the copy" {
					hook.before = owner.kill
				} else {
					hook.after = owner.kill
				}
				r := nextTurn(1, 120, turn, Producer)
				require.Equal(t, 100, p.readTurn(r, 0, 1))
				err := p.failedLoad(r.ID)
				require.True(t, errors.Is(err, ErrLeaseBroken) || errors.Is(err, transport.ErrUnreachable), "%v", err)
				hook.before, hook.after = nil, nil
				again := startProcessOver(t, "d-again", turn.Port, "device "+backend+" owner")
				next := again.turn(1, 37, 5)
				r = nextTurn(2, 40, stale, Producer)
				require.Equal(t, 37, p.readTurn(r, 0, 20))
				require.ErrorIs(t, p.failedLoad(r.ID), ErrRestarted)
				r = nextTurn(3, 40, next, Producer)
				require.Equal(t, 37, p.readTurn(r, 0, 40))
				ev := p.next()
				require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
				require.Equal(t, twin(t).block(1, 6), p.block(1, 41))
				require.NoError(t, p.dev.Health())
				require.Equal(t, p.transportStats().ReadBytes, p.transportStats().Fetched)
				eventually(t, "nothing is left", func() bool { s := p.w.Stats(); return s.TrackedNow == 0 && s.LoadsNow == 0 })
				eventually(t, "nor there", func() bool { return again.stats().LeasesNow == 0 })
			})
		}
	})
}

// The turn is given up while the device reads it, and its blocks are somebody else's: the
// reader takes nothing of it for KV.
func TestReverseReadWhoseLeaseRunsOut(t *testing.T) {
	eachForm(t, func(t *testing.T, backend string, form form) {
		owner := startProcessOver(t, "d-old", 0, "device "+backend+" owner short")
		hook := &nearHook{form: form}
		p := newOnDevice(t, backend, "p-1", Producer, 2, hook, reverse(nil))
		turn := owner.turn(1, 37, 1)
		var once sync.Once
		hook.before = func() {
			once.Do(func() {
				eventually(t, "the lease runs out", func() bool { return owner.stats().LeasesExpired == 1 })
				var done bool
				owner.ask("overwrite", &done)
			})
		}
		r := nextTurn(1, 60, turn, Producer)
		require.Equal(t, 37, p.readTurn(r, 0, 1))
		err := p.failedLoad(r.ID)
		require.True(t, errors.Is(err, ErrLeaseBroken) || errors.Is(err, transport.ErrDenied) || errors.Is(err, transport.ErrUnreachable), "%v", err)
		eventually(t, "nothing is left", func() bool { s := p.w.Stats(); return s.TrackedNow == 0 && s.LoadsNow == 0 })
	})
}
