package pd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

func TestPullMovesWhatIsMissingAndReleasesOnce(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	params := p.prefill(7, 18, 10) // blocks 10..14

	r := remote(3, 18, params)
	d.s.Added(r)
	d.flush()
	require.Equal(t, connector.Answer{Tokens: 10, Async: true, Timeout: 20 * time.Second}, d.s.Lookup(r, 8))
	require.Equal(t, 10, d.s.Lookup(r, 8).Tokens, "asking starts nothing")
	table := connector.Tables{blockRange(30, 5)}
	before := append([]byte(nil), d.block(0, 31)...)
	d.s.Allocated(r, table, 8, 10)
	require.Zero(t, d.s.Lookup(r, 8).Tokens, "one transfer per request")
	d.flush()

	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind)
	require.Equal(t, r.ID, ev.Request)
	tr := ev.Payload.(Transfer)
	require.Equal(t, 3, tr.Blocks)
	require.EqualValues(t, 3*2*testLayers*testBlockBytes, tr.Bytes)
	require.Equal(t, "p-1", tr.Peer)
	require.Equal(t, "p-7", tr.Request)
	for k := range d.regions {
		for i := 2; i < 5; i++ {
			require.Equal(t, p.block(k, params.Blocks[0][i]), d.block(k, table[0][i]), "region %d block %d", k, i)
		}
	}
	require.Equal(t, before, d.block(0, 31), "blocks of the local hit are not touched")

	sent := p.next()
	require.Equal(t, connector.Sent, sent.Kind)
	require.Equal(t, connector.NewRequestID(7, 1), sent.Request)
	d.s.Allocated(r, table, 18, 0) // the second admission
	require.Equal(t, connector.Hold{}, d.s.Finished(r, table, connector.End{Reason: connector.EndStop, Computed: 18}))
	d.flush()
	d.quiet(20 * time.Millisecond)
	p.quiet(20 * time.Millisecond)
	require.Zero(t, d.s.Live())
	require.Zero(t, p.s.Live())
	st := p.w.Stats()
	require.EqualValues(t, 1, st.Leases)
	require.EqualValues(t, 1, st.LeasesReleased)
	require.Zero(t, st.ReleasesUnknown)
	require.Zero(t, st.LeasesNow)
	eventually(t, "nothing is tracked", func() bool { return d.w.Stats().TrackedNow == 0 })
}

func TestFullLocalHitReleasesWithoutReading(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.s.Added(r)
	require.Zero(t, d.s.Lookup(r, 12).Tokens)
	require.Equal(t, 1, d.s.Lookup(r, 8).Tokens)
	// The scheduler computes the last token itself and loads nothing.
	d.s.Allocated(r, connector.Tables{blockRange(1, 3)}, 8, 0)
	d.flush()
	require.Equal(t, connector.Sent, p.next().Kind)
	d.quiet(20 * time.Millisecond)
	d.s.Finished(r, connector.Tables{blockRange(1, 3)}, connector.End{Reason: connector.EndStop})
	d.flush()
	p.quiet(20 * time.Millisecond)
	require.Zero(t, p.w.Stats().ReleasesUnknown, "released once")
	require.EqualValues(t, 1, d.s.Stats().Empty)
}

func TestEarlyReleaseOfRefusedAndAborted(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	t.Run("aborted in the queue", func(t *testing.T) {
		r := remote(1, 9, p.prefill(1, 9, 1))
		d.s.Added(r)
		d.s.Finished(r, nil, connector.End{Reason: connector.EndAbort})
		d.flush()
		require.Equal(t, connector.Sent, p.next().Kind)
	})
	t.Run("refused before the scheduler knew it", func(t *testing.T) {
		d.w.Discard(p.prefill(2, 9, 1))
		require.Equal(t, connector.Sent, p.next().Kind)
		d.w.Discard(nil)
		d.w.Discard(&Params{DoRemoteDecode: true})
	})
	require.Zero(t, d.s.Live())
	require.Zero(t, p.w.Stats().LeasesNow)
}

func TestLeaseRunsOutWithoutDecoder(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1, lease(60*time.Millisecond))
	begin := time.Now()
	p.prefill(1, 9, 1)
	require.Equal(t, connector.Sent, p.next().Kind)
	require.GreaterOrEqual(t, time.Since(begin), 60*time.Millisecond)
	require.EqualValues(t, 1, p.w.Stats().LeasesExpired)
	p.quiet(100 * time.Millisecond)
}

func lease(d time.Duration) option {
	return func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) { w.Lease, s.Lease = d, d }
}

func TestQueueRenewsTheLease(t *testing.T) {
	const life = 1500 * time.Millisecond // patient: a loaded machine renews late
	p := newEngine(t, "p-1", Producer, 1, lease(life))
	d := newEngine(t, "d-1", Consumer, 2, lease(life))
	var rs []*connector.Request
	for i := range uint32(5) {
		r := remote(i, 9, p.prefill(i, 9, 1+3*int(i)))
		d.s.Added(r)
		rs = append(rs, r)
	}
	d.flush()
	time.Sleep(2 * life)
	require.Equal(t, 5, p.w.Stats().LeasesNow, "the queue keeps them")
	n := d.w.Stats().Renewals
	require.LessOrEqual(t, n, uint64(40), "one message per interval, not per lease")
	for i, r := range rs {
		table := connector.Tables{blockRange(1+3*i, 3)}
		d.s.Allocated(r, table, 0, 9)
		d.flush()
		ev := d.next()
		require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
		require.Equal(t, p.block(2, r.Params.(*Params).Blocks[0][1]), d.block(2, table[0][1]))
		require.Equal(t, connector.Sent, p.next().Kind)
	}
}

func TestGreatestHoldEndsRenewal(t *testing.T) {
	const life = 800 * time.Millisecond
	hold := func(w *WorkerConfig, s *SchedulerConfig, _ *connector.Layout) {
		w.MaxHold, s.MaxHold = 2*life, 2*life
	}
	p := newEngine(t, "p-1", Producer, 1, lease(life), hold)
	d := newEngine(t, "d-1", Consumer, 2, lease(life))
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.s.Added(r)
	d.flush()
	begin := time.Now()
	require.Equal(t, connector.Sent, p.next().Kind)
	require.Greater(t, time.Since(begin), life+life/2, "it was renewed")
	d.s.Allocated(r, connector.Tables{blockRange(1, 3)}, 0, 9)
	d.flush()
	ev := d.next()
	require.Equal(t, connector.Failed, ev.Kind)
	require.ErrorIs(t, ev.Err, ErrLeaseBroken)
	require.Empty(t, ev.Blocks, "all of the load")
	require.Equal(t, connector.Received, d.next().Kind)
}

func TestDuplicateAndUnknownCompletionsAreCounted(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	r := remote(1, 9, p.prefill(1, 9, 1))
	d.s.Added(r)
	d.s.Completed(connector.Event{Kind: connector.Received, Request: r.ID}) // nothing was staged
	d.s.Allocated(r, connector.Tables{blockRange(1, 3)}, 0, 9)
	d.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind)
	d.s.Completed(ev)
	ev.Request = connector.NewRequestID(1, 2) // another request in the same slot
	d.s.Completed(ev)
	require.EqualValues(t, 1, d.s.Stats().Duplicate)
	require.EqualValues(t, 2, d.s.Stats().Unknown)
	sent := p.next()
	p.s.Completed(sent)
	require.EqualValues(t, 1, p.s.Stats().Unknown)
	// A cancel that comes late.
	require.NoError(t, d.w.Submit(connector.Op{Kind: connector.OpCancel, Request: r.ID}))
	require.EqualValues(t, 1, d.w.Stats().CancelsUnknown)
}
