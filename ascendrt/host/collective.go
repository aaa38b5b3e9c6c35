package host

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

const idBytes = 32

// groups are those that have not all their ranks yet, by the id that their
// ranks know. Devices of one process find each other here.
var groups = struct {
	sync.Mutex
	byID map[string]*group
}{byID: map[string]*group{}}

// group is the meeting place of the ranks of one communicator. Its operations
// run one after the other: a rank begins the next one only after every rank has
// read what it needs of this one.
type group struct {
	mu      sync.Mutex
	members []*communicator // by rank; nil: has not joined
	here    int             // ranks that have joined
	joined  chan struct{}   // closed when all have
	ended   chan struct{}   // closed when no operation runs any more
	err     error           // why; nil before
	meeting *meeting        // the operation that runs or comes next
}

// meeting is one operation.
type meeting struct {
	calls []*call       // by rank; nil: has not come
	came  int           // ranks that have come
	read  int           // ranks that need nothing of the others any more
	full  chan struct{} // closed when all have come
	free  chan struct{} // closed when all have read
}

// call is one rank's part of an operation.
type call struct {
	kind     ascendrt.Kind
	typ      ascendrt.DType
	n        int // elements per rank
	reduce   ascendrt.Reduce
	src, dst []byte
}

// communicator is one rank's membership.
type communicator struct {
	d    *device
	g    *group
	rank int
	ref  ascendrt.Ref

	// Under the group's lock.
	submitted int  // operations that a stream has or had
	done      int  // of them, those that are over
	left      bool // no more are submitted
}

var (
	_ ascendrt.Collectives  = (*device)(nil)
	_ ascendrt.Communicator = (*communicator)(nil)
)

func newMeeting(size int) *meeting {
	return &meeting{calls: make([]*call, size), full: make(chan struct{}), free: make(chan struct{})}
}

// UniqueID names a group of devices of this process.
func (d *device) UniqueID() ([]byte, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	id := make([]byte, idBytes)
	rand.Read(id) // never fails
	groups.Lock()
	groups.byID[string(id)] = &group{joined: make(chan struct{}), ended: make(chan struct{})}
	groups.Unlock()
	d.mem.Lock()
	d.ids = append(d.ids, string(id))
	d.mem.Unlock()
	return id, nil
}

// NewCommunicator waits for the other ranks until they have come, one of them
// has given up, or this device is lost or closed.
func (d *device) NewCommunicator(id []byte, rank, size int) (ascendrt.Communicator, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := d.CheckRank(id, idBytes, rank, size); err != nil {
		return nil, err
	}
	c, err := d.join(id, rank, size)
	if err != nil {
		return nil, invalid("communicator", err.Error(), ascendrt.ErrInvalid)
	}
	g := c.g
	select {
	case <-g.joined:
	case <-g.ended:
		return nil, invalid("communicator", g.reason().Error(), ascendrt.ErrClosed)
	case <-d.Lost():
		g.end(c.gone("has lost its device: " + d.LostError().Error()))
		return nil, d.LostError()
	case <-d.closing:
		g.end(c.gone("has closed its device before all ranks had joined"))
		return nil, invalid("communicator", "the device was closed before all ranks had joined", ascendrt.ErrClosed)
	}
	d.mem.Lock()
	defer d.mem.Unlock()
	select {
	case <-d.closing:
		g.end(c.gone("has closed its device"))
		return nil, invalid("communicator", "closed", ascendrt.ErrClosed)
	default:
	}
	d.members.Go(c.watch)
	d.Add(base.Communicators)
	c.ref = d.Refs.Add(c)
	return c, nil
}

func (d *device) join(id []byte, rank, size int) (*communicator, error) {
	groups.Lock()
	defer groups.Unlock()
	g := groups.byID[string(id)]
	if g == nil {
		return nil, errors.New("no group waits for a rank under this id")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		g.members, g.meeting = make([]*communicator, size), newMeeting(size)
	}
	switch {
	case g.err != nil:
		return nil, g.err
	case len(g.members) != size:
		return nil, fmt.Errorf("%d ranks; others have joined a group of %d", size, len(g.members))
	case g.members[rank] != nil:
		return nil, fmt.Errorf("rank %d has joined already", rank)
	}
	c := &communicator{d: d, g: g, rank: rank}
	g.members[rank] = c
	if g.here++; g.here == size {
		delete(groups.byID, string(id))
		close(g.joined)
	}
	return c, nil
}

// endGroups ends the groups of this device's ids that are not complete.
func (d *device) endGroups() {
	d.mem.Lock()
	ids := d.ids
	d.ids = nil
	d.mem.Unlock()
	groups.Lock()
	defer groups.Unlock()
	for _, id := range ids {
		if g := groups.byID[id]; g != nil {
			delete(groups.byID, id)
			g.end(errors.New("the device that made the id was closed before all ranks had joined"))
		}
	}
}

func (c *communicator) Rank() int         { return c.rank }
func (c *communicator) Size() int         { return len(c.g.members) }
func (c *communicator) Ref() ascendrt.Ref { return c.ref }

// Close leaves the group: what this rank has submitted still runs, and what the
// others submit beyond that fails.
func (c *communicator) Close() error {
	if c.d.Closed() || !c.d.Refs.Remove(c.ref) {
		return nil
	}
	c.d.Give(base.Communicators)
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.left = true
	c.g.endBehind(c)
	return nil
}

// watch ends the group when this rank's device can run nothing any more.
func (c *communicator) watch() {
	select {
	case <-c.g.ended:
	case <-c.d.Lost():
		c.g.end(c.gone("has lost its device: " + c.d.LostError().Error()))
	case <-c.d.abandoned:
		c.g.end(c.gone("has closed its device"))
	}
}

// gone is the reason of a group that a rank has ended.
func (c *communicator) gone(what string) error {
	return fmt.Errorf("rank %d of the group %s", c.rank, what)
}

// Missing are the ranks for which the others of c's group wait in an operation;
// none if no operation has begun. It is for tests and diagnostics.
func Missing(c ascendrt.Communicator) []int {
	own, ok := c.(*communicator)
	if !ok {
		return nil
	}
	own.g.mu.Lock()
	defer own.g.mu.Unlock()
	return own.g.missing()
}

func (g *group) missing() []int {
	var out []int
	for rank, x := range g.meeting.calls {
		if x == nil && g.meeting.came > 0 {
			out = append(out, rank)
		}
	}
	return out
}

func (g *group) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *group) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endLocked(err)
}

func (g *group) endLocked(err error) {
	if g.err == nil {
		g.err = err
		close(g.ended)
	}
}

// endBehind ends the group if c has left and all that it submitted is over.
func (g *group) endBehind(c *communicator) {
	if c.left && c.done == c.submitted {
		g.endLocked(c.gone("has left"))
	}
}

// submit counts an operation that a stream takes.
func (c *communicator) submit() {
	c.g.mu.Lock()
	c.submitted++
	c.g.mu.Unlock()
}

// run is one rank's part of an operation, on its stream's goroutine.
func (c *communicator) run(x *call, sc *scratch) error {
	g := c.g
	r, err := g.come(c, x)
	if err != nil {
		return err
	}
	if err := c.hold(r.full); err != nil {
		return err
	}
	after := x.take(c.rank, r.calls, sc)
	g.mu.Lock()
	if r.read++; r.read == len(r.calls) {
		g.meeting = newMeeting(len(r.calls))
		close(r.free)
		for _, m := range g.members {
			m.done++
			g.endBehind(m)
		}
	}
	g.mu.Unlock()
	if err := c.hold(r.free); err != nil {
		return err
	}
	after()
	return nil
}

// come adds a rank to the operation that is next.
func (g *group) come(c *communicator, x *call) (*meeting, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.meeting
	if g.err == nil && r.calls[c.rank] != nil {
		g.endLocked(c.gone("began an operation within another one"))
	}
	for rank, other := range r.calls {
		if other != nil && g.err == nil && !x.matches(other) {
			g.endLocked(fmt.Errorf("the ranks disagree: rank %d is at %v, rank %d at %v", rank, other, c.rank, x))
		}
	}
	if g.err != nil {
		return nil, g.err
	}
	r.calls[c.rank] = x
	if r.came++; r.came == len(r.calls) {
		close(r.full)
	}
	return r, nil
}

// hold waits for a channel of a meeting. What has come about counts before the
// end of the group.
func (c *communicator) hold(ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-c.g.ended:
	case <-c.d.Lost():
	case <-c.d.abandoned:
	}
	select {
	case <-ch:
		return nil
	default:
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if c.g.err != nil {
		return c.g.err
	}
	return fmt.Errorf("the device ends while ranks %v have not come", c.g.missing())
}

func (x *call) matches(o *call) bool {
	return x.kind == o.kind && x.typ == o.typ && x.n == o.n && x.reduce == o.reduce
}

// String names the operation for errors.
func (x *call) String() string {
	return fmt.Sprintf("%v of %d elements of type %v", x.kind, x.n, x.typ)
}

// take reads what this rank needs of the others. What it gives runs when no
// rank reads any more: a reduction may be in place.
func (x *call) take(rank int, calls []*call, sc *scratch) (after func()) {
	size := x.n * x.typ.Size()
	switch x.kind {
	case ascendrt.KindGatherAll:
		for i, o := range calls {
			move(x.dst[i*size:][:size], o.src)
		}
	case ascendrt.KindAllToAll:
		for i, o := range calls {
			move(x.dst[i*size:][:size], o.src[rank*size:][:size])
		}
	default:
		return x.combine(calls, sc)
	}
	return func() {}
}

// move copies what another rank has; a rank's own part may lie in its place.
func move(dst, src []byte) {
	if len(dst) == 0 || unsafe.SliceData(dst) == unsafe.SliceData(src) {
		return
	}
	raceRead(src)
	raceWrite(dst)
	copy(dst, src)
}

// combine reduces in the order of ranks.
func (x *call) combine(calls []*call, sc *scratch) (after func()) {
	if x.typ == ascendrt.Int32 {
		sum := bytes.Clone(calls[0].src)
		reduce(typed[int32](sum), calls[1:], x.reduce, func(o *call) []int32 { return typed[int32](o.src) })
		return func() { copy(x.dst, sum) }
	}
	widened := func(o *call, buf []float32) []float32 {
		raceRead(o.src)
		if x.typ == ascendrt.Float32 {
			return typed[float32](o.src)
		}
		arith.FromBF16(buf, typed[uint16](o.src))
		return buf
	}
	sum, buf := sc.f(0, x.n), sc.f(1, x.n)
	copy(sum, widened(calls[0], sum))
	reduce(sum, calls[1:], x.reduce, func(o *call) []float32 { return widened(o, buf) })
	return func() {
		raceWrite(x.dst)
		if x.typ == ascendrt.Float32 {
			copy(typed[float32](x.dst), sum)
		} else {
			arith.ToBF16(typed[uint16](x.dst), sum)
		}
	}
}

func reduce[T int32 | float32](sum []T, calls []*call, how ascendrt.Reduce, values func(*call) []T) {
	for _, o := range calls {
		for i, v := range values(o) {
			switch how {
			case ascendrt.ReduceMax:
				sum[i] = max(sum[i], v)
			case ascendrt.ReduceMin:
				sum[i] = min(sum[i], v)
			default:
				sum[i] += v
			}
		}
	}
}

// collective prepares the run of an operation between ranks.
func (d *device) collective(x *node, r ascendrt.Record) error {
	c, err := base.Handle[*communicator](&d.Core, r.A[0], "communicator")
	if err != nil {
		return err
	}
	o := &call{kind: r.Kind, typ: ascendrt.DType(r.A[4]), n: int(r.A[3]), reduce: ascendrt.Reduce(r.A[5])}
	if o.kind == ascendrt.KindReduce && o.typ != ascendrt.Float32 && o.typ != ascendrt.BFloat16 && o.typ != ascendrt.Int32 {
		return fmt.Errorf("type %v: %w", o.typ, ascendrt.ErrUnsupported)
	}
	src, dst := o.n*o.typ.Size(), o.n*o.typ.Size()
	switch o.kind {
	case ascendrt.KindGatherAll:
		dst *= c.Size()
	case ascendrt.KindAllToAll:
		src, dst = src*c.Size(), dst*c.Size()
	}
	for _, m := range []struct {
		what string
		addr uint64
		n    int
		b    *[]byte
	}{{"source", r.A[1], src, &o.src}, {"destination", r.A[2], dst, &o.dst}} {
		b, a, err := d.resolve(ascendrt.Addr(m.addr), m.n)
		if err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
		x.name(a)
		*m.b = b
	}
	x.member = c
	x.run = func(sc *scratch) error { return c.run(o, sc) }
	return nil
}
