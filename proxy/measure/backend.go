//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// backend is an instance that answers at once and computes nothing. It
// speaks just enough HTTP/1.1 to take little of the machine's time: prefill
// legs get transfer parameters, streams the asked number of chunks at the
// asked pace (members "chunks" and "pace_ms"), anything else one short answer.
type backend struct {
	loop   *loop
	listen int
	peers  []*peer // by their number
	unused []int32
	buf    []byte
	out    []byte
}

// peer is a connection to the backend.
type peer struct {
	fd     int
	head   []byte // of the request, as far as it has come
	inBody bool
	get    bool
	left   int    // bytes of the body still to come
	body   []byte // its beginning and its end
	start  int    // bytes in body that are its beginning
	chunks int    // of the stream still to be sent
	pace   int64  // slots between them
}

// What matters of a body stands at its start (from the generator) or its end
// (from the proxy's edits): both are kept, the middle is dropped.
const (
	keptStart = 256
	keptEnd   = 1024
)

func runBackend(tick time.Duration) error {
	runtime.LockOSThread()
	exact()
	l, err := newLoop(tick)
	if err != nil {
		return err
	}
	b := &backend{loop: l, buf: make([]byte, 256<<10)}
	b.listen, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Bind(b.listen, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(b.listen, 4096), l.watch(b.listen, 0, -1)); err != nil {
		return err
	}
	name, err := syscall.Getsockname(b.listen)
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://127.0.0.1:%d\n", name.(*syscall.SockaddrInet4).Port)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-stop
		os.Exit(0)
	}()
	for {
		events, err := l.once(b.chunk)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Fd < 0 {
				b.accept()
			} else if p := b.peers[ev.Fd]; p != nil && !b.readable(ev.Fd, p) {
				b.drop(ev.Fd, p)
			}
		}
	}
}

func (b *backend) accept() {
	for {
		fd, _, err := syscall.Accept4(b.listen, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		p := &peer{fd: fd, body: make([]byte, 0, keptStart+2*keptEnd)}
		var id int32
		if n := len(b.unused); n > 0 {
			id, b.unused = b.unused[n-1], b.unused[:n-1]
			b.peers[id] = p
		} else {
			id, b.peers = int32(len(b.peers)), append(b.peers, p)
		}
		if b.loop.watch(fd, edge, id) != nil {
			b.drop(id, p)
		}
	}
}

// drop closes a connection. Its number is used again unless a chunk is still due.
func (b *backend) drop(id int32, p *peer) {
	_ = syscall.Close(p.fd)
	b.peers[id] = nil
	if p.chunks == 0 {
		b.unused = append(b.unused, id)
	}
}

func (b *backend) readable(id int32, p *peer) bool {
	for {
		n, err := read(p.fd, b.buf)
		if err == syscall.EAGAIN {
			return true
		}
		if err != nil || n == 0 || !b.take(id, p, b.buf[:n]) {
			return false
		}
		if n < len(b.buf) {
			return true
		}
	}
}

// take takes bytes of requests; false when the connection is of no more use.
func (b *backend) take(id int32, p *peer, data []byte) bool {
	for len(data) > 0 {
		if !p.inBody {
			from := len(p.head)
			p.head = append(p.head, data[:min(len(data), 4096)]...)
			end := bytes.Index(p.head, []byte("\r\n\r\n"))
			if end < 0 {
				if len(p.head) > 8192 {
					return false
				}
				data = data[len(p.head)-from:]
				continue
			}
			data = data[end+4-from:]
			p.get = bytes.HasPrefix(p.head, []byte("GET "))
			p.left = number(p.head[:end], "\r\nContent-Length: ")
			p.head, p.body, p.start, p.inBody = p.head[:0], p.body[:0], min(p.left, keptStart), true
		}
		part := data[:min(len(data), p.left)]
		data = data[len(part):]
		p.left -= len(part)
		if room := p.start - len(p.body); room > 0 {
			first := part[:min(len(part), room)]
			p.body, part = append(p.body, first...), part[len(first):]
		}
		part = part[max(len(part)-keptEnd, 0):]
		if len(p.body)+len(part) > cap(p.body) {
			last := p.body[len(p.body)-min(keptEnd, len(p.body)-p.start):]
			p.body = append(p.body[:p.start], last...)
		}
		p.body = append(p.body, part...)
		if p.left == 0 {
			p.inBody = false
			if !b.answer(id, p) {
				return false
			}
		}
	}
	return true
}

const (
	prefillAnswer = `{"id":"cmpl-p","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12001,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8]],"remote_engine_id":"p","remote_request_id":"cmpl-p-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`
	decodeAnswer  = `{"id":"chatcmpl-d","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello there"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12004,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":11984}}}`
	streamHead    = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	eventHead     = `data: {"id":"chatcmpl-d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"@`
)

func (b *backend) answer(id int32, p *peer) bool {
	text := decodeAnswer
	switch {
	case p.get:
		text = ""
	case bytes.Contains(p.body, []byte(`"do_remote_decode":true`)):
		text = prefillAnswer
	case bytes.Contains(p.body, []byte(`"stream":true`)):
		p.chunks = number(p.body, `"chunks":`)
		p.pace = int64(time.Duration(number(p.body, `"pace_ms":`)) * time.Millisecond / b.loop.slot)
		if p.chunks == 0 || write(p.fd, []byte(streamHead)) != nil {
			return false
		}
		b.loop.after(time.Now(), 0, id)
		return true
	}
	b.out = append(b.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	b.out = append(strconv.AppendInt(b.out, int64(len(text)), 10), "\r\n\r\n"...)
	return write(p.fd, append(b.out, text...)) == nil
}

// chunk sends the next chunk of a stream, with the time at which it is sent.
func (b *backend) chunk(id int32) {
	p := b.peers[id]
	if p == nil {
		b.unused = append(b.unused, id)
		return
	}
	finish := "null"
	if p.chunks--; p.chunks == 0 {
		finish = `"stop"`
	}
	out := append(b.out[:0], "000\r\n"+eventHead...)
	out = strconv.AppendInt(out, time.Now().UnixNano(), 10)
	out = append(append(append(out, `@"},"logprobs":null,"finish_reason":`...), finish...), "}]}\n\n\r\n"...)
	size := len(out) - len("000\r\n") - len("\r\n")
	const digits = "0123456789abcdef"
	out[0], out[1], out[2] = digits[size>>8], digits[size>>4&15], digits[size&15]
	if p.chunks == 0 {
		out = append(out, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"...)
	}
	b.out = out
	if size < 1<<8 {
		out = out[1:]
	}
	if write(p.fd, out) != nil {
		p.chunks = 0
		b.drop(id, p)
		return
	}
	if p.chunks > 0 {
		b.loop.again(p.pace, id)
	}
}

func number(text []byte, key string) int {
	_, rest, ok := bytes.Cut(text, []byte(key))
	if !ok {
		return 0
	}
	n := 0
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}
