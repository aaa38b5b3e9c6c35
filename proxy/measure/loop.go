//go:build linux

package main

import (
	"errors"
	"syscall"
	"time"
	"unsafe"
)

// loop waits for many sockets and for points in time on one goroutine. Sending
// and receiving ends are helpers beside what is measured: a goroutine for each
// connection would cost as much as the call that it makes.
type loop struct {
	poll   int
	events [256]syscall.EpollEvent
	// The points in time: a ring of slots, each with what is due in it.
	ring [ringSlots][]int32
	at   int64 // the next slot, counted from the beginning
	due  int   // entries in the ring
	from time.Time
	// slot is how exactly the loop keeps a time. What is due in one is done
	// together, as the step of an engine gives a token to each of its streams.
	slot time.Duration
}

// ringSlots bounds how far ahead something may be due.
const ringSlots = 8192

func newLoop(slot time.Duration) (*loop, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &loop{poll: fd, from: time.Now(), slot: slot}, nil
}

func (l *loop) close() { _ = syscall.Close(l.poll) }

// edge tells of each arrival once.
const edge = 1 << 31

// watch begins to tell of what comes on a socket.
func (l *loop) watch(fd int, flags uint32, id int32) error {
	return syscall.EpollCtl(l.poll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN | flags, Fd: id})
}

// after makes id due once the time has passed.
func (l *loop) after(now time.Time, wait time.Duration, id int32) {
	n := int64((now.Sub(l.from) + wait + l.slot - 1) / l.slot)
	n = min(max(n, l.at), l.at+ringSlots-1)
	l.ring[n%ringSlots] = append(l.ring[n%ringSlots], id)
	l.due++
}

// again makes id due some slots after the one that is being worked on.
func (l *loop) again(slots int64, id int32) {
	n := (l.at - 1 + min(max(slots, 1), ringSlots-1)) % ringSlots
	l.ring[n] = append(l.ring[n], id)
	l.due++
}

// once does what is due, waits until something comes or is due, and gives what came.
func (l *loop) once(fire func(id int32)) ([]syscall.EpollEvent, error) {
	for now := int64(time.Since(l.from) / l.slot); l.at <= now; {
		if l.due == 0 {
			l.at = now + 1
			break
		}
		list := l.ring[l.at%ringSlots]
		l.ring[l.at%ringSlots] = list[:0]
		l.at++
		l.due -= len(list)
		for _, id := range list {
			fire(id)
		}
	}
	wait := time.Duration(-1)
	if l.due > 0 {
		next := l.at
		for len(l.ring[next%ringSlots]) == 0 {
			next++
		}
		wait = max(time.Until(l.from.Add(time.Duration(next)*l.slot)), 0)
	}
	n, err := l.wait(wait)
	return l.events[:n], err
}

// epollPwait2 waits with the exactness of a timer, where epoll_wait counts milliseconds.
const epollPwait2 = 441

func (l *loop) wait(d time.Duration) (int, error) {
	var limit *syscall.Timespec
	if d >= 0 {
		t := syscall.NsecToTimespec(int64(d))
		limit = &t
	}
	n, _, errno := syscall.Syscall6(epollPwait2, uintptr(l.poll), uintptr(unsafe.Pointer(&l.events)), uintptr(len(l.events)), uintptr(unsafe.Pointer(limit)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case syscall.EINTR:
		return 0, nil
	case syscall.ENOSYS, syscall.EPERM:
		millis := -1
		if d >= 0 {
			millis = int((d + time.Millisecond - 1) / time.Millisecond)
		}
		n, err := syscall.EpollWait(l.poll, l.events[:], millis)
		if errors.Is(err, syscall.EINTR) {
			return 0, nil
		}
		return max(n, 0), err
	}
	return 0, errno
}

// rest sleeps until the next multiple of d.
func rest(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d) - time.Now().UnixNano()%int64(d))
	_ = syscall.Nanosleep(&t, nil) // a shorter sleep after a signal does no harm
}

// exact makes the sleeps of this thread as long as they are asked to be, where
// the kernel would add up to 50 µs.
func exact() {
	const setTimerSlack = 29
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
}

// Reads and writes never block, so that the runtime need not know of them.

func read(fd int, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p) }

// write is of little at a time, which a socket whose peer reads always takes.
func write(fd int, p []byte) error {
	n, err := call(syscall.SYS_WRITE, fd, p)
	if err == nil && n < len(p) {
		err = syscall.EAGAIN
	}
	return err
}

func call(number uintptr, fd int, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
