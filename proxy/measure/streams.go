//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// streamer is one client that runs streams one after the other on its connection.
type streamer struct {
	fd    int
	round int // the stream under way
	seen  int // chunks of it
	at    part
	left  int    // bytes of the transfer coding's chunk
	line  []byte // the beginning of a line of the framing whose end has not come
	text  []byte // the same of an event's line
	done  bool   // the end marker was read
}

// part is what of an answer comes next.
type part uint8

const (
	inHeader part = iota
	inSize
	inData
	inEnd  // the line end after the data
	inLast // the line end after the last chunk
)

// crowd is all clients of a measurement of streams.
type crowd struct {
	loop    *loop
	addr    *syscall.SockaddrInet4
	request []byte
	chunks  int // of each stream
	rounds  int
	clients []*streamer
	left    int // clients that are not done
	delays  []time.Duration
	err     error
}

// delays keeps n streams open at a time and gives the time between sending
// and receiving of every chunk but the first of each. The clients begin evenly
// over the time that one stream takes and then run one stream after the other
// on their connection; the first stream of each, which also connects, is not
// counted when there are more.
//
// The generator looks at what has come once a tick. Clients have machines of
// their own, whose network cards interrupt them no more often under load; here
// each wakeup would be at the cost of the one that sends. The calls sent
// directly are received in the same way.
func delays(addr string, tick time.Duration, n, rounds, chunks int, spread time.Duration, body string) ([]time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	exact()
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	l, err := newLoop(tick)
	if err != nil {
		return nil, err
	}
	defer l.close()
	c := &crowd{loop: l, addr: &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, request: request(body), chunks: chunks, rounds: rounds, left: n,
		clients: make([]*streamer, n), delays: make([]time.Duration, 0, n*rounds*chunks)}
	defer func() {
		for _, s := range c.clients {
			if s != nil {
				_ = syscall.Close(s.fd)
			}
		}
	}()
	began := time.Now()
	next := 0
	begin := func(int32) {
		for ; next < n && time.Since(began) >= spread*time.Duration(next)/time.Duration(n); next++ {
			c.begin(int32(next))
		}
		if next < n {
			l.after(began, spread*time.Duration(next)/time.Duration(n), 0)
		}
	}
	begin(0)
	buf := make([]byte, 64<<10)
	limit := began.Add(spread*time.Duration(rounds+1) + 2*time.Minute)
	for c.left > 0 && c.err == nil {
		rest(tick)
		events, err := l.once(begin)
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			c.readable(c.clients[ev.Fd], buf)
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("%d of %d clients were not done in time", c.left, n)
		}
	}
	return c.delays, c.err
}

// begin connects a client and sends its first request.
func (c *crowd) begin(id int32) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		c.clients[id] = &streamer{fd: fd}
		if err = syscall.Connect(fd, c.addr); err == nil {
			err = syscall.SetNonblock(fd, true)
		}
	}
	if err == nil {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		if err = c.loop.watch(fd, edge, id); err == nil {
			err = write(fd, c.request)
		}
	}
	if err != nil {
		c.err = fmt.Errorf("connect: %w", err)
	}
}

func (c *crowd) readable(s *streamer, buf []byte) {
	for c.err == nil && s.round < c.rounds {
		n, err := read(s.fd, buf)
		switch {
		case err == syscall.EAGAIN:
			return
		case err != nil:
			c.err = err
		case n == 0:
			c.err = fmt.Errorf("the connection ended after %d of %d chunks", s.seen, c.chunks)
		default:
			c.err = c.take(s, buf[:n], time.Now().UnixNano())
		}
		if n < len(buf) {
			return
		}
	}
}

// take reads what came at a time.
func (c *crowd) take(s *streamer, data []byte, at int64) error {
	for len(data) > 0 {
		if s.at == inData {
			n := min(len(data), s.left)
			if err := c.events(s, data[:n], at); err != nil {
				return err
			}
			data = data[n:]
			if s.left -= n; s.left == 0 {
				s.at = inEnd
			}
			continue
		}
		line, rest, ok := cut(&s.line, data)
		if !ok {
			return nil
		}
		data = rest
		if err := c.framing(s, bytes.TrimSuffix(line, []byte("\r"))); err != nil {
			return err
		}
	}
	return nil
}

// cut takes a line from the data, whose beginning may have come before; without
// its end the data is kept for later.
func cut(kept *[]byte, data []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(data, '\n')
	if i < 0 {
		*kept = append(*kept, data...)
		return nil, nil, false
	}
	line, rest = data[:i], data[i+1:]
	if len(*kept) > 0 {
		line = append(*kept, line...)
		*kept = line[:0]
	}
	return line, rest, true
}

// framing reads a line of the header or of the transfer coding.
func (c *crowd) framing(s *streamer, line []byte) error {
	switch s.at {
	case inHeader:
		if bytes.HasPrefix(line, []byte("HTTP/1.1 ")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("answer %q", line)
		}
		if len(line) == 0 {
			s.at = inSize
		}
	case inSize:
		for s.left = 0; len(line) > 0; line = line[1:] {
			digit := bytes.IndexByte([]byte("0123456789abcdef"), line[0])
			if digit < 0 {
				return fmt.Errorf("the chunk size ends with %q", line)
			}
			s.left = s.left<<4 | digit
		}
		if s.at = inData; s.left == 0 {
			s.at = inLast
		}
	case inEnd:
		s.at = inSize
	case inLast:
		if len(line) > 0 || !s.done || s.seen != c.chunks {
			return fmt.Errorf("a stream ended after %d of %d chunks", s.seen, c.chunks)
		}
		s.round++
		s.seen, s.at, s.done = 0, inHeader, false
		if s.round == c.rounds {
			c.left--
			return nil
		}
		return write(s.fd, c.request)
	}
	return nil
}

// events reads what the chunks carry.
func (c *crowd) events(s *streamer, data []byte, at int64) error {
	for {
		line, rest, ok := cut(&s.text, data)
		if !ok {
			return nil
		}
		data = rest
		switch {
		case bytes.HasPrefix(line, []byte("data: [DONE]")):
			s.done = true
		case bytes.HasPrefix(line, []byte("data: ")):
			_, rest, _ := bytes.Cut(line, []byte("@"))
			stamp, _, ok := bytes.Cut(rest, []byte("@"))
			sent, err := strconv.ParseInt(string(stamp), 10, 64)
			if !ok || err != nil {
				return fmt.Errorf("the event %q carries no time", line)
			}
			if s.seen++; s.seen > 1 && (s.round > 0 || c.rounds == 1) {
				c.delays = append(c.delays, time.Duration(at-sent))
			}
		}
	}
}

// streams is the delay that the proxy adds to the chunks of many streams.
func streams(o options) error {
	b, err := setUp(o)
	if err != nil {
		return err
	}
	defer b.stop()
	const each = 64
	body := chatBody(2000, fmt.Sprintf(`,"stream":true,"chunks":%d,"pace_ms":20`, each))
	const length = each * 20 * time.Millisecond
	before := b.work()
	direct, err := delays(b.d.addr, o.tick, o.streams, o.rounds, each, length, body)
	if err != nil {
		return err
	}
	between := b.work()
	via, err := delays(b.proxy.addr, o.tick, o.streams, o.rounds, each, length, body)
	if err != nil {
		return err
	}
	slices.Sort(direct)
	slices.Sort(via)
	for _, q := range []float64{.5, .99} {
		a, v := quantile(direct, q), quantile(via, q)
		fmt.Printf("| %d streams of %d chunks at 20 ms, delay of a chunk, p%.0f | %s | %s | %s |\n", o.streams, each, q*100, milli(a), milli(v), signed(milli(v-a)))
	}
	chunks := o.streams * o.rounds * each
	b.rows("chunk", before, between, chunks, chunks)
	return nil
}

// memory is the proxy's resident memory while many streams are open.
func memory(o options) error {
	b, err := setUp(o)
	if err != nil {
		return err
	}
	defer b.stop()
	idle := b.proxy.memory("VmRSS")
	body := chatBody(2000, `,"stream":true,"chunks":20,"pace_ms":500`)
	if _, err := delays(b.proxy.addr, o.tick, o.many, 1, 20, 4*time.Second, body); err != nil {
		return err
	}
	peak := b.proxy.memory("VmHWM")
	fmt.Printf("| %d streams open at a time, memory of the proxy | idle %.0f MiB | peak %.0f MiB | %.1f KiB per stream |\n", o.many, idle, peak, (peak-idle)*1024/float64(o.many))
	return nil
}
