package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Pump waits for many connections at once, outside of the runtime's poller. Of
// a connection that has joined it the first look at what comes is the Quick's,
// on the pump's goroutine: a connection whose bytes it deals with costs neither
// a wakeup of its owner's goroutine nor that goroutine's memory.
type Pump struct {
	// Events of connections come in arrivals. The runtime's poller waits for
	// gate, in which arrivals stands for one event at a time: while the pump
	// works nobody is woken by what comes meanwhile.
	arrivals, gate int
	file           *os.File // gate, as the runtime knows it
	raw            syscall.RawConn
	done           chan struct{}

	passed atomic.Uint64

	mu      sync.Mutex // guards what follows
	lanes   []slot
	unused  []int32
	running bool
	closed  bool
}

// slot is the place of a connection. The count tells events of one that has
// left from those of the next.
type slot struct {
	lane  *lane
	count int32
}

// Work is memory that one Quick after the other uses.
type Work struct {
	Now time.Time // a little ago
	Out []byte    // whatever a Quick makes of it
}

// Quick takes bytes that came; they are another's when it returns. It must not
// wait. Giving false it wakes the owner.
type Quick func(p []byte, w *Work) bool

// lane is a connection's part in a pump.
type lane struct {
	state atomic.Uint32
	fd    int // a descriptor of its own
	quick Quick
	c     *Conn
	pump  *Pump
	slot  int32
	wake  chan struct{}
}

// The states of a lane.
const (
	laneBusy   uint32 = iota // the owner's
	laneReady                // the owner's, and something has come
	laneParked               // the pump's
)

// NewPump makes a pump; its goroutine begins with the first connection.
func NewPump() (*Pump, error) {
	p := &Pump{arrivals: -1, gate: -1, done: make(chan struct{})}
	var err error
	if p.arrivals, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err == nil {
		if p.gate, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err == nil {
			err = errors.Join(syscall.SetNonblock(p.gate, true), p.open(syscall.EPOLL_CTL_ADD))
		}
	}
	if err == nil {
		p.file = os.NewFile(uintptr(p.gate), "pump")
		if p.raw, err = p.file.SyscallConn(); err == nil {
			return p, nil
		}
	}
	p.release()
	return nil, fmt.Errorf("a pump for connections: %w", err)
}

// open lets the gate tell of the next arrival.
func (p *Pump) open(how int) error {
	return syscall.EpollCtl(p.gate, how, p.arrivals, &syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLONESHOT})
}

func (p *Pump) release() {
	switch {
	case p.file != nil:
		_ = p.file.Close()
	case p.gate >= 0:
		_ = syscall.Close(p.gate)
	}
	if p.arrivals >= 0 {
		_ = syscall.Close(p.arrivals)
	}
}

// Close ends the pump's goroutine. No connection may be in it, and none can join.
func (p *Pump) Close() {
	p.mu.Lock()
	running := p.running
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return
	}
	if running {
		_ = p.file.SetReadDeadline(time.Unix(1, 0))
		<-p.done
	}
	p.release()
}

const (
	readHangup = 0x2000  // EPOLLRDHUP
	edge       = 1 << 31 // EPOLLET
	// maxIn is the room for what comes at a time.
	maxIn = 32 << 10
)

// Len is the number of connections in the pump.
func (p *Pump) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes) - len(p.unused)
}

// Passed is how often something came that a Quick alone has dealt with.
func (p *Pump) Passed() uint64 { return p.passed.Load() }

// run is the pump's goroutine.
func (p *Pump) run() {
	defer close(p.done)
	var (
		events [256]syscall.EpollEvent
		lanes  [256]*lane
		work   Work
		in     = make([]byte, maxIn)
		step   = func(gate uintptr) bool {
			var one [1]syscall.EpollEvent
			return pollNow(int(gate), one[:]) > 0
		}
	)
	for p.raw.Read(step) == nil {
		for {
			n := pollNow(p.arrivals, events[:])
			p.mu.Lock()
			for i, ev := range events[:n] {
				lanes[i] = nil
				if s := &p.lanes[ev.Fd]; s.count == ev.Pad {
					lanes[i] = s.lane
				}
			}
			p.mu.Unlock()
			work.Now = time.Now()
			passed := uint64(0)
			for i, l := range lanes[:n] {
				if l != nil && l.serve(events[i].Events, in, &work) {
					passed++
				}
			}
			p.passed.Add(passed)
			if n < len(events) {
				break
			}
		}
		if p.open(syscall.EPOLL_CTL_MOD) != nil {
			return
		}
	}
}

// pollNow gives the events that are there.
func pollNow(poll int, events []syscall.EpollEvent) int {
	n, _, err := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if err != 0 {
		return 0
	}
	return int(n)
}

// serve deals with an event of a connection; true when nobody else has to.
func (l *lane) serve(events uint32, in []byte, w *Work) bool {
	if events&(readHangup|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 {
		l.c.poll.ended.Store(true)
	}
	for {
		switch l.state.Load() {
		case laneBusy:
			if l.state.CompareAndSwap(laneBusy, laneReady) {
				return false
			}
		case laneReady:
			return false
		case laneParked:
			if l.quick != nil && !l.c.poll.ended.Load() && l.pass(in, w) {
				return true
			}
			l.state.Store(laneBusy)
			l.wake <- struct{}{}
			return false
		}
	}
}

// pass lets the Quick deal with what has come; false when the owner has to.
func (l *lane) pass(in []byte, w *Work) bool {
	for {
		n, err := read(uintptr(l.fd), in)
		switch {
		case err == syscall.EAGAIN:
			return true
		case err != 0:
			l.c.poll.err = err
			return false
		case n == 0 || !l.quick(in[:n], w):
			return false
		case n < len(in):
			return true
		}
	}
}

// pumped is Poll of a connection that has joined.
func (c *Conn) pumped(step func() bool) error {
	l := c.lane
	c.poll.fd = uintptr(l.fd)
	for {
		if c.isClosed() {
			return c.closedError("read")
		}
		c.poll.empty = false
		if step() {
			return nil
		}
		if !c.own.joined {
			return c.Poll(step)
		}
		if l.state.CompareAndSwap(laneBusy, laneParked) {
			<-l.wake
		} else {
			l.state.Store(laneBusy) // something came meanwhile
		}
	}
}

// Join takes the connection out of the runtime's poller and lets the pump wait
// for it. It is the owner's call, outside of Poll. Until Leave the methods of
// this package are the only ones that may be called, and those that read and
// write by the owner alone. A write that has to wait leaves the pump.
func (c *Conn) Join(p *Pump) error {
	fd, err := c.another()
	if err != nil {
		return err
	}
	c.own.Lock()
	defer c.own.Unlock()
	if c.own.closed {
		_ = syscall.Close(fd)
		return c.closedError("join")
	}
	if c.lane == nil {
		c.lane = &lane{c: c, wake: make(chan struct{}, 1)}
	}
	l := c.lane
	l.fd, l.pump, l.quick = fd, p, nil
	l.state.Store(laneBusy)
	c.poll.err = 0
	c.poll.ended.Store(false)
	if err := p.add(l); err != nil {
		_ = syscall.Close(fd)
		return err
	}
	_ = c.TCPConn.Close() // the connection goes on with the other descriptor
	c.own.joined = true
	return nil
}

// Joined reports whether a pump waits for the connection.
func (c *Conn) Joined() bool { return c.own.joined }

// Quick sets who deals first with what comes while Poll waits; nil leaves it to
// Poll's step. It is called in that step.
func (c *Conn) Quick(q Quick) { c.lane.quick = q }

// Leave undoes Join, also in Poll's step. An error says that the connection is
// closed.
func (c *Conn) Leave() error {
	l := c.lane
	l.pump.remove(l)
	l.state.Store(laneBusy)
	f := os.NewFile(uintptr(l.fd), "") // its descriptor
	defer f.Close()
	c.own.Lock()
	defer c.own.Unlock()
	l.pump, l.quick, l.fd = nil, nil, -1
	c.own.joined = false
	if c.own.closed {
		return c.closedError("leave")
	}
	back, err := net.FileConn(f)
	if err == nil {
		c.TCPConn = back.(*net.TCPConn)
		c.raw, err = c.TCPConn.SyscallConn()
	}
	c.own.closed = err != nil
	return err
}

// joinedAs is the descriptor of a connection that has joined.
func (c *Conn) joinedAs() uintptr { return uintptr(c.lane.fd) }

// shut ends both directions, of which Poll is told.
func (c *Conn) shut() { _ = syscall.Shutdown(c.lane.fd, syscall.SHUT_RDWR) }

// add begins to wait for a connection.
func (p *Pump) add(l *lane) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	if n := len(p.unused); n > 0 {
		l.slot, p.unused = p.unused[n-1], p.unused[:n-1]
	} else {
		l.slot, p.lanes = int32(len(p.lanes)), append(p.lanes, slot{})
	}
	s := &p.lanes[l.slot]
	s.lane = l
	ev := syscall.EpollEvent{Events: syscall.EPOLLIN | readHangup | edge, Fd: l.slot, Pad: s.count}
	if err := syscall.EpollCtl(p.arrivals, syscall.EPOLL_CTL_ADD, l.fd, &ev); err != nil {
		p.free(l)
		return os.NewSyscallError("epoll_ctl", err)
	}
	if !p.running {
		p.running = true
		go p.run()
	}
	return nil
}

func (p *Pump) remove(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = syscall.EpollCtl(p.arrivals, syscall.EPOLL_CTL_DEL, l.fd, nil)
	p.free(l)
}

func (p *Pump) free(l *lane) {
	s := &p.lanes[l.slot]
	s.lane = nil
	s.count++
	p.unused = append(p.unused, l.slot)
}

// another gives another descriptor of the connection.
func (c *Conn) another() (fd int, err error) {
	control := c.raw.Control(func(own uintptr) {
		n, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, own, syscall.F_DUPFD_CLOEXEC, 0)
		if fd = int(n); errno != 0 {
			err = os.NewSyscallError("fcntl", errno)
		}
	})
	return fd, errors.Join(control, err)
}

// Twin is another descriptor of a connection, to write without waiting.
type Twin struct{ fd int }

// Twin gives one, which must be closed; an error where descriptors are scarce.
func (c *Conn) Twin() (Twin, error) {
	fd, err := c.another()
	if err == nil && uint64(fd) >= plenty() {
		_ = syscall.Close(fd)
		err = os.NewSyscallError("fcntl", syscall.EMFILE)
	}
	return Twin{fd}, err
}

// plenty is the number of descriptors that may be open before they are scarce:
// three quarters of those that the process may have. The kernel gives the lowest
// that is free.
var plenty = sync.OnceValue(func() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return limit.Cur / 4 * 3
})

// TryWrite writes what the socket takes and gives its length. What else there
// is to know a Write of the rest on the connection tells.
func (t Twin) TryWrite(p []byte) int {
	n, _ := write(uintptr(t.fd), p) // 0 after an error
	return n
}

// Close gives the descriptor up; the connection stays.
func (t Twin) Close() { _ = syscall.Close(t.fd) }
