package pd

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/kvcache"
)

// heapNear is a Near within this process: memory is found by its key.
type heapNear struct {
	fetches atomic.Int64
	before  atomic.Pointer[func()] // ahead of a copy
}

var (
	heapKeys   atomic.Uint64
	heapMemory sync.Map // key → transport.Memory
)

func (n *heapNear) Card() []byte { return []byte("heap") }

func (n *heapNear) Meet([]byte) (tcp.Neighbour, error) { return heapNeighbour{n}, nil }

func (n *heapNear) Expose(m transport.Memory) (tcp.Exposed, error) {
	k := heapKey(binary.BigEndian.AppendUint64(nil, heapKeys.Add(1)))
	heapMemory.Store(string(k), m)
	return k, nil
}

func (n *heapNear) Close() error { return nil }

type heapKey []byte

func (k heapKey) Key() []byte  { return k }
func (k heapKey) Close() error { heapMemory.Delete(string(k)); return nil }

type heapNeighbour struct{ n *heapNear }

func (heapNeighbour) Close() {}

func (heapNeighbour) Fetch([]tcp.NearRange) error { return errors.New("only by units") }

func (x heapNeighbour) FetchBlocks(regions []tcp.NearRegion, local, remote []int32) error {
	if f := x.n.before.Load(); f != nil {
		(*f)()
	}
	x.n.fetches.Add(1)
	for _, r := range regions {
		from, ok := heapMemory.Load(string(r.Key))
		if !ok {
			return errors.New("nothing is there")
		}
		b := make([]byte, r.Bytes)
		for i := range local {
			_, err := from.(transport.Memory).ReadAt(b, r.From+int64(remote[i])*r.Bytes)
			if err == nil {
				_, err = r.Memory.WriteAt(b, int64(local[i])*r.Bytes)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ticketSpy counts what a transport asks about tickets.
type ticketSpy struct {
	*tcp.Transport
	by            transport.Tickets
	opens, stands atomic.Int64
}

func (s *ticketSpy) ServeTickets(by transport.Tickets) {
	s.by = by
	s.Transport.ServeTickets(s)
}

func (s *ticketSpy) Open(t []byte) (transport.Capability, error) {
	s.opens.Add(1)
	return s.by.Open(t)
}

func (s *ticketSpy) Stands(t []byte) error {
	s.stands.Add(1)
	return s.by.Stands(t)
}

// nearEngine has KV that neighbours read past the connections.
func nearEngine(t *testing.T, id string, role Role, seed uint64, noTickets bool, opts ...option) (*engine, *heapNear, *ticketSpy) {
	t.Helper()
	near, spy := &heapNear{}, &ticketSpy{}
	over := func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.Transport = func(n transport.Notified) (transport.Transport, error) {
			made, err := tcp.New(tcp.Config{Notified: n, Near: near, NoTickets: noTickets, Grace: 10 * time.Millisecond})
			spy.Transport = made
			return spy, err
		}
	}
	place := func(b []byte) connector.Memory { return struct{ connector.Memory }{hostRegion(b)} }
	e := startEngineIn(t, place, id, role, seed, append([]option{over}, opts...)...)
	t.Cleanup(func() { require.NoError(t, e.w.Close()) })
	return e, near, spy
}

func twoGroups(_ *WorkerConfig, _ *SchedulerConfig, l *connector.Layout) { *l = testLayout(2) }

// A pull by tickets opens and confirms the lease once a KV group, in the exchange that
// reads; with a side as before it is claimed and confirmed as before.
func TestPullByTickets(t *testing.T) {
	for _, c := range []struct {
		name   string
		p, d   bool // as before
		groups int
		asks   int64
	}{
		{name: "both", groups: 1, asks: 1},
		{name: "two groups", groups: 2, asks: 2},
		{name: "P as before", p: true, groups: 1},
		{name: "D as before", d: true, groups: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			layout := func(_ *WorkerConfig, _ *SchedulerConfig, l *connector.Layout) { *l = testLayout(c.groups) }
			p, _, spy := nearEngine(t, "p-1", Producer, 1, c.p, layout)
			d, near, _ := nearEngine(t, "d-1", Consumer, 2, c.d, layout)
			for slot := range uint32(4) {
				pr := remote(slot+1, 33, nil)
				pr.Params = &Params{DoRemoteDecode: true}
				var theirs, ours connector.Tables
				for g := range c.groups {
					theirs, ours = append(theirs, blockRange(1+9*g, 9)), append(ours, blockRange(30+9*g, 9))
				}
				hold := p.s.Finished(pr, theirs, connector.End{Reason: connector.EndLength, Computed: 33})
				p.flush()
				r := remote(slot+1, 33, hold.Params.(*Params))
				d.s.Added(r)
				d.s.Allocated(r, ours, 0, 33)
				d.flush()
				ev := d.next()
				require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
				moved := ev.Payload.(Transfer)
				require.Equal(t, 9*c.groups, moved.Blocks)
				require.EqualValues(t, 9*c.groups*2*testLayers*testBlockBytes, moved.Bytes)
				for k, region := range d.regions {
					for i, b := range theirs[region.Group] {
						require.Equal(t, p.block(k, b), d.block(k, ours[region.Group][i]))
					}
				}
				require.Equal(t, connector.Sent, p.next().Kind)
			}
			require.EqualValues(t, 4*c.groups, near.fetches.Load())
			require.Equal(t, 4*c.asks, spy.opens.Load())
			require.Equal(t, 4*c.asks, spy.stands.Load())
			s := p.w.Stats()
			require.EqualValues(t, 4, s.LeasesReleased)
			require.Zero(t, s.ReleasesUnknown)
			require.Zero(t, s.LeasesNow)
		})
	}
}

// All KV groups of a prompt are read at once.
func TestGroupsAreReadAtOnce(t *testing.T) {
	p, _, _ := nearEngine(t, "p-1", Producer, 1, false, twoGroups)
	d, near, _ := nearEngine(t, "d-1", Consumer, 2, false, twoGroups)
	var both sync.WaitGroup
	both.Add(2)
	meet := func() { // none goes on before the other has begun
		both.Done()
		both.Wait()
	}
	near.before.Store(&meet)
	pr := remote(1, 33, nil)
	pr.Params = &Params{DoRemoteDecode: true}
	hold := p.s.Finished(pr, connector.Tables{blockRange(1, 9), blockRange(10, 9)}, connector.End{Reason: connector.EndLength, Computed: 33})
	p.flush()
	r := remote(1, 33, hold.Params.(*Params))
	d.s.Added(r)
	d.s.Allocated(r, connector.Tables{blockRange(30, 9), blockRange(39, 9)}, 0, 33)
	d.flush()
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	for k, region := range d.regions {
		require.Equal(t, p.block(k, kvcache.BlockID(1+9*region.Group)), d.block(k, kvcache.BlockID(30+9*region.Group)))
	}
	require.Equal(t, connector.Sent, p.next().Kind)
}

// Between the ops and the blocks nothing waits for the control channel.
func TestTicketNeedsNoControlChannel(t *testing.T) {
	p, _, _ := nearEngine(t, "p-1", Producer, 1, false)
	d, _, _ := nearEngine(t, "d-1", Consumer, 2, false)
	pullAll := func(slot uint32) {
		d.load(remote(slot, 33, p.prefill(slot, 33, 1)), 20)
		ev := d.next()
		require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
		require.Equal(t, p.block(3, 2), d.block(3, 21))
	}
	pullAll(1)
	require.Equal(t, connector.Sent, p.next().Kind)
	d.w.mu.Lock()
	to := d.w.peers[p.w.Endpoint()]
	d.w.mu.Unlock()
	to.turn <- struct{}{} // nobody else gets a word in
	pullAll(2)
	require.Equal(t, 1, p.w.Stats().LeasesNow, "the release waits")
	to.yield()
	require.Equal(t, connector.Sent, p.next().Kind)
}

// The lease ends while D copies: by its clock, which revokes the grant, and an instant
// ahead of that, when the grant still stands.
func TestTicketWhoseLeaseEndsInMidRead(t *testing.T) {
	for _, when := range []string{"revoked", "overdue"} {
		t.Run(when, func(t *testing.T) {
			p, _, _ := nearEngine(t, "p-1", Producer, 1, false)
			d, near, spy := nearEngine(t, "d-1", Consumer, 2, false, lease(time.Hour))
			params := p.prefill(1, 33, 1)
			id := connector.NewRequestID(params.Lease.Slot, params.Lease.Generation)
			var once sync.Once
			end := func() {
				once.Do(func() {
					p.w.leases.mu.Lock()
					h := p.w.leases.m[id]
					p.w.leases.byTime.Delete(h)
					h.deadline = time.Now().Add(-time.Second)
					p.w.leases.byTime.ReplaceOrInsert(h)
					p.w.leases.mu.Unlock()
					if when == "revoked" {
						poke(p.w.leases.wake)
						require.Equal(t, connector.Sent, p.next().Kind) // although D still copies
						p.overwrite()
					}
				})
			}
			near.before.Store(&end)
			r := remote(1, 33, params)
			d.load(r, 20)
			require.ErrorIs(t, d.failedLoad(r.ID), ErrLeaseBroken)
			require.EqualValues(t, 1, d.w.Stats().Broken)
			require.Zero(t, spy.opens.Load(), "D is not asked")
			eventually(t, "the release was answered", func() bool { return d.w.Stats().TrackedNow == 0 })
		})
	}
}

// A ticket opens its own group of its own lease while that lives, and prolongs it as a
// claim does.
func TestTicketsOpen(t *testing.T) {
	p, _, _ := nearEngine(t, "p-1", Producer, 1, false, twoGroups)
	pr := remote(7, 9, nil)
	pr.Name, pr.Params = "p-7", &Params{DoRemoteDecode: true}
	hold := p.s.Finished(pr, connector.Tables{blockRange(1, 3), blockRange(4, 3)}, connector.End{Reason: connector.EndLength, Computed: 9})
	p.flush()
	at, x := refOf(hold.Params.(*Params)), tickets{p.w}
	h := p.w.leases.m[connector.NewRequestID(7, 1)]
	for g := range 2 {
		c, err := x.Open(ticketOf(at, g).encode())
		require.NoError(t, err)
		require.Equal(t, h.open[g], c)
		require.NoError(t, x.Stands(ticketOf(at, g).encode()))
	}
	good := ticketOf(at, 1)
	require.NotEqual(t, at.lease.Secret, good.Secret)
	require.NotEqual(t, ticketOf(at, 0).Secret, good.Secret)
	for name, spoil := range map[string]func(*ticket){
		"another group":       func(k *ticket) { k.Group = 0 },
		"a group too many":    func(k *ticket) { *k = ticketOf(at, 2) },
		"a group below":       func(k *ticket) { *k = ticketOf(at, -1) },
		"another name":        func(k *ticket) { k.Request = "p-8" },
		"another slot":        func(k *ticket) { k.Slot++ },
		"another generation":  func(k *ticket) { k.Generation++ },
		"another secret":      func(k *ticket) { k.Secret[3] ^= 1 },
		"the lease's secret":  func(k *ticket) { k.Secret = at.lease.Secret },
		"no secret":           func(k *ticket) { k.Secret = Secret{} },
		"no generation":       func(k *ticket) { k.Lease = Lease{} },
		"a generation too ol": func(k *ticket) { k.Generation = 0 },
	} {
		k := good
		spoil(&k)
		_, err := x.Open(k.encode())
		require.ErrorIs(t, err, errNoLease, name)
	}
	for _, raw := range []string{"", "{", "null", "[]", `"x"`, `{"group":1e99}`, `{"secret":"zz"}`, strings.Repeat("[", 1000)} {
		_, err := x.Open([]byte(raw))
		require.Error(t, err, raw)
		require.Error(t, x.Stands([]byte(raw)), raw)
	}
	age := func(by time.Duration) {
		p.w.leases.mu.Lock()
		defer p.w.leases.mu.Unlock()
		p.w.leases.byTime.Delete(h)
		h.deadline = time.Now().Add(by)
		p.w.leases.byTime.ReplaceOrInsert(h)
	}
	age(time.Second)
	_, err := x.Open(good.encode())
	require.NoError(t, err)
	require.Greater(t, time.Until(h.deadline), 2*time.Second, "prolonged")
	age(-time.Second)
	_, err = x.Open(good.encode())
	require.ErrorIs(t, err, errNoLease, "overdue")
	require.ErrorIs(t, x.Stands(good.encode()), errNoLease)
	require.NotNil(t, p.w.leases.own(connector.NewRequestID(7, 1)))
	require.ErrorIs(t, x.Stands(good.encode()), errNoLease, "over")
	require.Nil(t, ticketOf(ref{name: strings.Repeat("n", transport.MaxTicket)}, 0).encode(), "no ticket, so it is claimed")
}
