package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
	"github.com/sluice-serving/sluice/kvcache"
)

// side is one end of a pull.
type side struct {
	w    *pd.Worker
	s    *pd.Scheduler
	near *clock
}

// clock is a Near that notes when the read of a pull was asked for, when its first
// copy began and when the last one ended.
type clock struct {
	*ipc.Near
	mu                 sync.Mutex
	asked, first, last time.Time
}

// reads is a transport that notes when a read is asked for.
type reads struct {
	*tcp.Transport
	c *clock
}

type readsFrom struct {
	transport.Peer
	c *clock
}

func (r reads) Connect(ctx context.Context, address string) (transport.Peer, error) {
	p, err := r.Transport.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	return readsFrom{p, r.c}, nil
}

func (r readsFrom) ReadBlocks(ctx context.Context, c transport.Capability, b transport.Blocks) error {
	r.c.ask()
	return transport.ReadBlocks(ctx, r.Peer, c, b)
}

func (r readsFrom) ReadTicket(ctx context.Context, ticket []byte, b transport.Blocks) error {
	r.c.ask()
	return r.Peer.(transport.TicketReader).ReadTicket(ctx, ticket, b)
}

func (c *clock) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = time.Now()
}

type clocked struct {
	tcp.StartNeighbour
	c *clock
}

func (c *clock) Meet(card []byte) (tcp.Neighbour, error) {
	n, err := c.Near.Meet(card)
	if err != nil {
		return nil, err
	}
	return clocked{n.(tcp.StartNeighbour), c}, nil
}

func (x clocked) Fetch(ranges []tcp.NearRange) error {
	defer x.c.note()()
	return x.StartNeighbour.Fetch(ranges)
}

func (x clocked) FetchBlocks(regions []tcp.NearRegion, local, remote []int32) error {
	defer x.c.note()()
	return x.StartNeighbour.FetchBlocks(regions, local, remote)
}

func (x clocked) StartBlocks(regions []tcp.NearRegion, local, remote []int32) (func() error, error) {
	end := x.c.note()
	wait, err := x.StartNeighbour.StartBlocks(regions, local, remote)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer end()
		return wait()
	}, nil
}

func (c *clock) note() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first.IsZero() {
		c.first = time.Now()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last = time.Now()
	}
}

// parts are where the time of a pull went, one behind the other.
type parts struct {
	lease  time.Duration // until the lease was known to stand and the read was asked for
	answer time.Duration // from there until the first copy began: where it is not begun ahead, behind the peer's answer
	copies time.Duration // from the begin of the first copy to the end of the last
	behind time.Duration // from there until the blocks were reported
}

// took is where the time of a pull went, and forgets it.
func (c *clock) took(begin time.Time, took time.Duration) parts {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := parts{c.asked.Sub(begin), c.first.Sub(c.asked), c.last.Sub(c.first), begin.Add(took).Sub(c.last)}
	c.first = time.Time{}
	return p
}

func newSide(p *pool, id string, role pd.Role, v pullVariant) (*side, error) {
	c := &clock{}
	w, err := pd.NewWorker(pd.WorkerConfig{EngineID: id, Transport: func(n transport.Notified) (transport.Transport, error) {
		var err error
		if c.Near, err = ipc.NewWith(p.dev, v.how); err != nil {
			return nil, err
		}
		t, err := tcp.New(tcp.Config{Notified: n, Near: c, Pieces: v.pieces, NoTickets: v.claims, NoAhead: v.answers, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			return nil, err
		}
		return reads{t, c}, nil
	}})
	if err != nil {
		return nil, err
	}
	if err := w.Register(p.layout(), p.connector()); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	s, err := pd.NewScheduler(pd.SchedulerConfig{Role: role, Self: w.Endpoint(), BlockSize: p.block})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &side{w, s, c}, nil
}

func pulls(ctx context.Context, dev ascendrt.Device, o options, s kvShape, out io.Writer) error {
	variants, err := parsePulls(o.pulls)
	if err != nil {
		return err
	}
	at, err := parseInflight(o.inflight)
	if err != nil {
		return err
	}
	peers, err := peerDevices(ctx, o)
	if err != nil {
		return err
	}
	p, err := newPool(dev, s)
	if err != nil {
		return err
	}
	for _, peer := range peers {
		if err := pullFrom(ctx, p, o, peer, variants, out); err != nil {
			return errors.Join(fmt.Errorf("from %s: %w", peer, err), p.close())
		}
	}
	if err := p.close(); err != nil || len(at) == 0 {
		return err
	}
	for _, peer := range peers {
		if err := seriesFrom(ctx, dev, o, s, peer, variants, at, out); err != nil {
			return fmt.Errorf("several at once from %s: %w", peer, err)
		}
	}
	return nil
}

// puller is one variant with what was measured.
type puller struct {
	pullVariant
	*side
	first  figures
	orders [2]struct{ speed, ahead, lease, answer, prepare, copies, behind figures }
}

// pullFrom measures one peer: in each repetition the plain copy, then by each variant
// prompts whose blocks lie one after the other, and scattered ones.
func pullFrom(ctx context.Context, p *pool, o options, peer string, variants []pullVariant, out io.Writer) (err error) {
	plain, err := newPlain(p, o.device, peer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.close(ctx)) }()
	child, err := startOther(peer, p.kvShape, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.end()) }()
	x := &pullRun{p: p, child: child, r: newRand()}
	var all []*puller
	for _, v := range variants {
		s, err := newSide(p, "d-"+v.name, pd.Consumer, v)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.w.Close()) }()
		d := &puller{pullVariant: v, side: s}
		if d.first, err = x.first(ctx, d); err != nil { // imports, connections
			return err
		}
		all = append(all, d)
	}
	var raw figures
	for i := range uint64(o.repeat) {
		t, err := plain.copy(ctx)
		if err != nil {
			return err
		}
		raw = append(raw, rate(p.total(), t))
		for _, d := range all {
			if err := errors.Join(x.one(ctx, d, 0, 0, 0), x.one(ctx, d, 1, 2*i+1, 2*i+2)); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
		}
	}
	line(out, "plain copy", fmt.Sprintf("%s from %s", o.device, peer), raw, nil, "GB/s")
	for _, d := range all {
		with := fmt.Sprintf("%s from %s by %s", o.device, peer, d.name)
		line(out, "first pull", with, d.first, raw, "GB/s")
		for k, name := range []string{"pull of a row", "pull of scattered blocks"} {
			f := &d.orders[k]
			line(out, name, with, f.speed, raw, "GB/s")
			line(out, name+": ahead of the first copy", with, f.ahead, nil, "ms")
			line(out, name+": of that for the lease", with, f.lease, nil, "ms")
			line(out, name+": of that for the answer", with, f.answer, nil, "ms")
			line(out, name+": preparation of copies", with, f.prepare, nil, "ms")
			line(out, name+": first to last copy", with, f.copies, nil, "ms")
			line(out, name+": behind the last copy", with, f.behind, nil, "ms")
		}
		st := d.w.Transport().(interface{ Stats() transport.Stats }).Stats()
		fmt.Fprintf(out, "# %s: %d of %d bytes past the connections\n", with, st.Fetched, st.ReadBytes)
	}
	return nil
}

// pullRun pulls from one child.
type pullRun struct {
	p     *pool
	child *other
	slot  uint32
	r     *rand.Rand
}

// pull pulls one prompt whose blocks lie in the orders of the two seeds.
func (x *pullRun) pull(ctx context.Context, d *puller, from, to uint64) (begin time.Time, took time.Duration, err error) {
	if err := x.p.fill(ctx, func(int, int) byte { return 0 }); err != nil {
		return begin, 0, err
	}
	params, err := x.child.prompt(from, 0)
	if err != nil {
		return begin, 0, err
	}
	x.slot++
	if begin, took, err = d.pull(x.slot, x.p.kvShape, params, order(x.p.blocks, to)); err != nil {
		return begin, 0, err
	}
	return begin, took, x.p.check(ctx, params.Blocks[0], order(x.p.blocks, to), x.r)
}

func (x *pullRun) first(ctx context.Context, d *puller) (figures, error) {
	begin, took, err := x.pull(ctx, d, 0, 0)
	d.near.took(begin, took)
	return figures{rate(x.p.total(), took)}, err
}

func (x *pullRun) one(ctx context.Context, d *puller, k int, from, to uint64) error {
	ready := d.near.Prepared()
	begin, took, err := x.pull(ctx, d, from, to)
	if err != nil {
		return err
	}
	f := &d.orders[k]
	t := d.near.took(begin, took)
	f.speed = append(f.speed, rate(x.p.total(), took))
	f.ahead, f.copies = append(f.ahead, milliseconds(t.lease+t.answer)), append(f.copies, milliseconds(t.copies))
	f.lease, f.answer = append(f.lease, milliseconds(t.lease)), append(f.answer, milliseconds(t.answer))
	f.behind = append(f.behind, milliseconds(t.behind))
	f.prepare = append(f.prepare, milliseconds(d.near.Prepared()-ready))
	return nil
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// start begins to load a prompt.
func (d *side) start(slot uint32, s kvShape, params *pd.Params, to []kvcache.BlockID) (*connector.Request, time.Time, error) {
	n := s.blocks * s.block
	r := &connector.Request{
		ID: connector.NewRequestID(slot, 1), Name: "d", Tokens: make([]kvcache.Token, n), Prompt: n, Params: params, Route: connector.RemotePrefill,
	}
	d.s.Added(r)
	if err := d.w.Submit(d.s.Ops(uint64(2*slot), nil)...); err != nil {
		return nil, time.Time{}, err
	}
	d.s.Allocated(r, connector.Tables{to}, 0, n)
	ops := d.s.Ops(uint64(2*slot+1), nil)
	begin := time.Now()
	return r, begin, d.w.Submit(ops...)
}

// pull loads a prompt and returns when it began and how long it took.
func (d *side) pull(slot uint32, s kvShape, params *pd.Params, to []kvcache.BlockID) (begin time.Time, took time.Duration, err error) {
	r, begin, err := d.start(slot, s, params, to)
	if err != nil {
		return begin, 0, err
	}
	for {
		ev := <-d.w.Events()
		took = time.Since(begin)
		d.s.Completed(ev)
		switch ev.Kind {
		case connector.Failed:
			return begin, 0, ev.Err
		case connector.Received:
			d.s.Finished(r, nil, connector.End{})
			return begin, took, nil
		}
	}
}

// plain is one large copy between the two devices, both open in this process.
type plain struct {
	p        *pool
	peer     ascendrt.Device // nil: the pool's own
	src, dst ascendrt.Buffer
}

func newPlain(p *pool, device, peer string) (*plain, error) {
	x := &plain{p: p}
	from := p.dev
	var err error
	if peer != device {
		if x.peer, err = open(peer); err != nil {
			return nil, err
		}
		from = x.peer
		if err := p.dev.EnablePeer(from); err != nil {
			return nil, err
		}
	}
	if x.src, err = from.Alloc(int(p.total()), ascendrt.PlaceDefault); err != nil {
		return nil, err
	}
	x.dst, err = p.dev.Alloc(int(p.total()), ascendrt.PlaceDefault)
	return x, err
}

func (x *plain) copy(ctx context.Context) (time.Duration, error) { return x.copies(ctx, 1) }

// copies makes it so many times, one behind the other.
func (x *plain) copies(ctx context.Context, n int) (time.Duration, error) {
	return timed(ctx, x.p.stream, x.dst.View(), x.src.View(), n)
}

// timed copies so many times and waits.
func timed(ctx context.Context, s ascendrt.Stream, dst, src ascendrt.View, n int) (time.Duration, error) {
	var c ascendrt.Commands
	for range n {
		c.Copy(dst, src)
	}
	begin := time.Now()
	at, _, err := s.Submit(&c)
	if err == nil {
		err = at.Wait(ctx)
	}
	return time.Since(begin), err
}

func (x *plain) close(ctx context.Context) error {
	err := errors.Join(x.src.FreeAfter(ascendrt.Point{}), x.dst.FreeAfter(ascendrt.Point{}))
	if x.peer != nil {
		err = errors.Join(err, x.peer.Close(ctx))
	}
	return err
}
