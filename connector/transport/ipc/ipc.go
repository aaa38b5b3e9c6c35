package ipc

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// Near is one device's side. All methods may be called from any goroutine.
type Near struct {
	dev    ascendrt.Device
	how    Options
	blocks bool // the device takes blocks as they are named
	card   []byte
	self   card
	beacon ascendrt.Buffer
	lanes  [lanes]lane // of the neighbours in turn

	mu        sync.Mutex
	prepared  atomic.Int64        // ns
	met       int                 // neighbours so far
	processes map[string]*process // met, by their name
	closed    bool
}

// lanes is how many neighbours' copies are prepared and run at a time: of many
// small pieces preparing them takes longer than the copies do.
const lanes = 4

type lane struct {
	mu       sync.Mutex
	stream   ascendrt.Stream
	cmd      ascendrt.Commands
	dst, src []ascendrt.View
	regions  []ascendrt.BlockRegion
}

// Options say how a device copies. The zero value is its own choice.
type Options struct {
	By    ascendrt.CopyBy
	Width int // see ascendrt.BlockCopy
}

var (
	_ tcp.Near           = (*Near)(nil)
	_ tcp.StartNeighbour = (*neighbour)(nil)
)

// Memory is device memory that can be opened to other processes. Memory that a
// transport is given may hide it behind Unwrap.
type Memory interface {
	// DeviceBuffer is the memory itself, which was allocated PlaceShareable.
	DeviceBuffer() ascendrt.Buffer
}

// New prepares a device. A device or driver that shares no memory between
// processes is reported as *transport.UnavailableError.
func New(dev ascendrt.Device) (*Near, error) { return NewWith(dev, Options{}) }

// NewWith is New with choices about the copies.
func NewWith(dev ascendrt.Device, how Options) (*Near, error) {
	host, err := hostName()
	if err != nil {
		return nil, &transport.UnavailableError{Transport: "ipc", Reason: err.Error()}
	}
	info, caps := dev.Info(), dev.Caps()
	if !caps.IPCMemory {
		return nil, &transport.UnavailableError{Transport: "ipc", Reason: "the " + caps.Backend + " backend shares no memory between processes"}
	}
	n := &Near{dev: dev, how: how, blocks: caps.BlockCopy, processes: map[string]*process{}}
	n.self = card{Version: cardVersion, Host: host, Backend: caps.Backend, Device: info.UUID}
	rand.Read(n.self.Process[:]) // never fails
	for i := range n.lanes {
		if n.lanes[i].stream, err = dev.NewStream(ascendrt.StreamOptions{Role: "kv ipc"}); err != nil {
			return nil, errors.Join(fmt.Errorf("ipc: %w", err), n.Close())
		}
	}
	if err := n.light(); err != nil {
		err = errors.Join(err, n.Close())
		return nil, &transport.UnavailableError{Transport: "ipc", Reason: err.Error()}
	}
	return n, nil
}

// light makes the beacon and the card.
func (n *Near) light() error {
	var err error
	if n.beacon, err = n.dev.Alloc(len(n.self.Process), ascendrt.PlaceShareable); err != nil {
		return err
	}
	if err := ascendrt.Upload(context.Background(), n.dev, n.lanes[0].stream, n.beacon.View(), n.self.Process[:]); err != nil {
		return err
	}
	if n.self.Beacon, err = n.dev.Export(n.beacon); err != nil {
		return err
	}
	n.card, err = n.self.encode()
	return err
}

// Card is what peers are told.
func (n *Near) Card() []byte { return n.card }

// Meet imports the beacon of a process that is met for the first time.
func (n *Near) Meet(b []byte) (tcp.Neighbour, error) {
	c, err := decodeCard(b)
	if err != nil {
		return nil, err
	}
	switch {
	case c.Host != n.self.Host:
		return nil, errors.New("it is on another host")
	case c.Backend != n.self.Backend:
		return nil, fmt.Errorf("its device is of the backend %s, ours of %s", c.Backend, n.self.Backend)
	case c.Process == n.self.Process:
		return nil, errors.New("it is this very device")
	}
	x, err := n.enter(string(c.Process[:]))
	if err != nil {
		return nil, err
	}
	if err := x.p.recognise(n, c); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// enter begins the use of a process. What is done with its memory does not hold up those
// who copy from others.
func (n *Near) enter(name string) (*neighbour, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, transport.ErrClosed
	}
	p := n.processes[name]
	if p == nil {
		p = &process{name: name, regions: map[string]ascendrt.Buffer{}}
		n.processes[name] = p
	}
	p.users++
	n.met++
	return &neighbour{n: n, p: p, lane: &n.lanes[n.met%lanes]}, nil
}

// recognise looks at a process that is met for the first time.
func (p *process) recognise(n *Near, c card) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known {
		return nil
	}
	err := n.look(c)
	p.known = err == nil
	return err
}

// look reads the peer's random text through its handle.
func (n *Near) look(c card) error {
	b, err := n.dev.Import(c.Beacon)
	if err != nil {
		return fmt.Errorf("its memory cannot be imported: %w", err)
	}
	var text [len(c.Process)]byte
	if b.Len() != len(text) {
		err = fmt.Errorf("its handle leads to %d bytes, want %d", b.Len(), len(text))
	} else {
		err = ascendrt.Download(context.Background(), n.dev, n.lanes[0].stream, text[:], b.View())
	}
	if err == nil && !bytes.Equal(text[:], c.Process[:]) {
		err = errors.New("its handle leads to other memory here")
	}
	return errors.Join(err, b.FreeAfter(ascendrt.Point{}))
}

// bufferOf is the device memory behind m, nil if it is none.
func bufferOf(m any) ascendrt.Buffer {
	for {
		if d, ok := m.(Memory); ok {
			return d.DeviceBuffer()
		}
		u, ok := m.(interface{ Unwrap() any })
		if !ok {
			return nil
		}
		m = u.Unwrap()
	}
}

// Expose exports device memory; other memory is not for this.
func (n *Near) Expose(m transport.Memory) (tcp.Exposed, error) {
	b := bufferOf(m)
	if b == nil {
		return nil, nil
	}
	if m.Size() > int64(b.Len()) {
		return nil, fmt.Errorf("ipc: %d bytes of memory in a buffer of %d", m.Size(), b.Len())
	}
	h, err := n.dev.Export(b)
	if err != nil {
		return nil, fmt.Errorf("ipc: %w", err)
	}
	return exposed(append(bytes.Clone(n.self.Process[:]), h...)), nil
}

// exposed is the key of memory: the process, then the handle.
type exposed []byte

func (e exposed) Key() []byte { return e }

// Close has nothing to do: a handle lives as long as its memory.
func (e exposed) Close() error { return nil }

// Close frees what is left. No neighbour is in use.
func (n *Near) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	var errs []error
	for _, p := range n.processes {
		errs = append(errs, p.close())
	}
	clear(n.processes)
	for i := range n.lanes {
		if s := n.lanes[i].stream; s != nil {
			errs = append(errs, s.Close())
		}
	}
	if n.beacon != nil {
		errs = append(errs, n.beacon.FreeAfter(ascendrt.Point{}))
	}
	return errors.Join(errs...)
}

// process is another process's memory as far as it was imported.
type process struct {
	name  string
	users int // neighbours; guarded by Near.mu

	mu      sync.Mutex                 // taken behind Near.mu, if both
	known   bool                       // its card was true
	regions map[string]ascendrt.Buffer // by handle
}

func (p *process) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, b := range p.regions {
		errs = append(errs, b.FreeAfter(ascendrt.Point{}))
	}
	clear(p.regions)
	return errors.Join(errs...)
}

// maxRegions bounds what is imported of one process.
const maxRegions = 1 << 12

// region imports memory when it is first read.
func (p *process) region(n *Near, key []byte) (ascendrt.Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := len(p.name)
	if len(key) <= name || string(key[:name]) != p.name {
		return nil, fmt.Errorf("%w: the key is of another process than the card", tcp.ErrFar)
	}
	if b := p.regions[string(key[name:])]; b != nil {
		return b, nil
	}
	if len(p.regions) == maxRegions {
		return nil, fmt.Errorf("%w: more than %d regions", tcp.ErrFar, maxRegions)
	}
	b, err := n.dev.Import(key[name:])
	if err != nil {
		return nil, fmt.Errorf("%w: import of %s: %w", tcp.ErrFar, hex.EncodeToString(key[:4]), err)
	}
	p.regions[string(key[name:])] = b
	return b, nil
}

// neighbour is a process as one connection sees it.
type neighbour struct {
	n    *Near
	p    *process // nil: closed
	lane *lane
}

// Close ends the use of a process; the last one closes what was imported.
func (x *neighbour) Close() {
	x.n.mu.Lock()
	defer x.n.mu.Unlock()
	p := x.p
	x.p = nil
	if p == nil || x.n.closed {
		return
	}
	if p.users--; p.users == 0 {
		delete(x.n.processes, p.name)
		_ = p.close() // of a device that is lost or closed; both free everything
	}
}

// Prepared is how long copies were prepared and submitted so far, all lanes together.
func (n *Near) Prepared() time.Duration { return time.Duration(n.prepared.Load()) }

// preparing counts the time until it is called.
func (n *Near) preparing() func() {
	begin := time.Now()
	return func() { n.prepared.Add(int64(time.Since(begin))) }
}

// Fetch copies in one submission and waits for its end.
func (x *neighbour) Fetch(ranges []tcp.NearRange) error {
	p, err := x.submit(ranges)
	if err != nil {
		return err
	}
	return p.Wait(context.Background()) // a copy that was submitted cannot be taken back
}

func (x *neighbour) submit(ranges []tcp.NearRange) (ascendrt.Point, error) {
	l := x.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	defer x.n.preparing()()
	l.dst, l.src = l.dst[:0], l.src[:0]
	var to, from ascendrt.Buffer
	for i, r := range ranges {
		if i == 0 || r.Memory != ranges[i-1].Memory {
			if to = bufferOf(r.Memory); to == nil {
				return ascendrt.Point{}, fmt.Errorf("%w: no device memory", tcp.ErrFar)
			}
		}
		if i == 0 || !bytes.Equal(r.Key, ranges[i-1].Key) {
			var err error
			if from, err = x.region(r.Key); err != nil {
				return ascendrt.Point{}, err
			}
		}
		l.dst = append(l.dst, slice(to, r.Offset, r.Length))
		l.src = append(l.src, slice(from, r.From, r.Length))
	}
	l.cmd.Reset()
	l.cmd.CopyBatch(l.dst, l.src)
	if err := l.cmd.Err(); err != nil {
		return ascendrt.Point{}, err
	}
	return l.hand()
}

// hand gives the lane's commands to the device. Of what failed in the middle the first copies
// have ended, as the memory is the caller's again.
func (l *lane) hand() (ascendrt.Point, error) {
	p, _, err := l.stream.Submit(&l.cmd)
	if err != nil {
		_ = p.Wait(context.Background()) // of a device that is lost: nothing runs
	}
	return p, err
}

// FetchBlocks copies in one submission and waits for its end.
func (x *neighbour) FetchBlocks(regions []tcp.NearRegion, local, remote []int32) error {
	wait, err := x.StartBlocks(regions, local, remote)
	if err != nil {
		return err
	}
	return wait()
}

// StartBlocks copies in one submission.
func (x *neighbour) StartBlocks(regions []tcp.NearRegion, local, remote []int32) (func() error, error) {
	p, err := x.submitBlocks(regions, local, remote)
	if err != nil {
		return nil, err
	}
	return func() error { return p.Wait(context.Background()) }, nil
}

func (x *neighbour) submitBlocks(regions []tcp.NearRegion, local, remote []int32) (ascendrt.Point, error) {
	l := x.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	defer x.n.preparing()()
	l.regions = l.regions[:0]
	for _, r := range regions {
		to := bufferOf(r.Memory)
		if to == nil {
			return ascendrt.Point{}, fmt.Errorf("%w: no device memory", tcp.ErrFar)
		}
		from, err := x.region(r.Key)
		if err != nil {
			return ascendrt.Point{}, err
		}
		if r.Bytes <= 0 || r.Bytes > int64(to.Len()) {
			return ascendrt.Point{}, fmt.Errorf("units of %d bytes in memory of %d", r.Bytes, to.Len())
		}
		l.regions = append(l.regions, ascendrt.BlockRegion{
			Dst: to.View(), Src: slice(from, r.From, int64(from.Len())-r.From), DstStride: int(r.Bytes), SrcStride: int(r.Bytes), Bytes: int(r.Bytes),
		})
	}
	l.cmd.Reset()
	if x.n.blocks {
		l.cmd.CopyBlocks(&ascendrt.BlockCopy{Regions: l.regions, Dst: local, Src: remote, By: x.n.how.By, Width: x.n.how.Width})
	} else {
		l.pieces(local, remote)
	}
	if err := l.cmd.Err(); err != nil {
		return ascendrt.Point{}, err
	}
	return l.hand()
}

// pieces appends copies of the blocks in l.regions, neighbours as one.
func (l *lane) pieces(local, remote []int32) {
	l.dst, l.src = l.dst[:0], l.src[:0]
	for _, r := range l.regions {
		for i := 0; i < len(local); {
			n := 1
			for i+n < len(local) && local[i+n] == local[i+n-1]+1 && remote[i+n] == remote[i+n-1]+1 {
				n++
			}
			l.dst = append(l.dst, r.Dst.Slice(int(local[i])*r.Bytes, n*r.Bytes))
			l.src = append(l.src, r.Src.Slice(int(remote[i])*r.Bytes, n*r.Bytes))
			i += n
		}
	}
	l.cmd.CopyBatch(l.dst, l.src)
}

// region is the peer's memory of a key.
func (x *neighbour) region(key []byte) (ascendrt.Buffer, error) {
	x.n.mu.Lock()
	p, closed := x.p, x.n.closed
	x.n.mu.Unlock()
	if closed || p == nil {
		return nil, transport.ErrClosed
	}
	return p.region(x.n, key)
}

// slice is part of a buffer, or an invalid view.
func slice(b ascendrt.Buffer, off, n int64) ascendrt.View {
	if off < 0 || n < 0 || off > int64(b.Len()) || n > int64(b.Len())-off {
		return ascendrt.View{Len: -1}
	}
	return b.Slice(int(off), int(n))
}
