package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// runBackend is an instance that answers at once and computes nothing. It
// speaks just enough HTTP/1.1 to take little of the machine's time: prefill
// legs get transfer parameters, streams the asked number of chunks at the
// asked pace (members "chunks" and "pace_ms"), anything else one short answer.
func runBackend() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	l = socket.Listen(l)
	fmt.Printf("listening on http://%s\n", l.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-stop
		_ = l.Close()
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil // closed by the signal
		}
		go serveConn(conn)
	}
}

const (
	prefillAnswer = `{"id":"cmpl-p","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12001,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8]],"remote_engine_id":"p","remote_request_id":"cmpl-p-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`
	decodeAnswer  = `{"id":"chatcmpl-d","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello there"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12004,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":11984}}}`
)

func serveConn(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	head := make([]byte, 0, 1024)
	tail := make([]byte, 0, 2048)
	for {
		length, get := 0, false
		head = head[:0]
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(head) == 0 {
				head = append(head, line...)
				get = bytes.HasPrefix(line, []byte("GET "))
			}
			if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(n)))
			}
			if len(line) <= 2 {
				break
			}
		}
		// What matters of a body stands at its start (from the generator) or its
		// end (from the proxy's edits): both are kept, the middle is dropped.
		keep := min(length, 256)
		tail = append(tail[:0], make([]byte, keep)...)
		if _, err := io.ReadFull(r, tail); err != nil {
			return
		}
		if rest := length - keep; rest > 0 {
			end := min(rest, 1024)
			if _, err := r.Discard(rest - end); err != nil {
				return
			}
			at := len(tail)
			tail = append(tail, make([]byte, end)...)
			if _, err := io.ReadFull(r, tail[at:]); err != nil {
				return
			}
		}
		switch {
		case get:
			if !write(conn, "") {
				return
			}
		case bytes.Contains(tail, []byte(`"do_remote_decode":true`)):
			if !write(conn, prefillAnswer) {
				return
			}
		case bytes.Contains(tail, []byte(`"stream":true`)):
			if !stream(conn, number(tail, `"chunks":`), time.Duration(number(tail, `"pace_ms":`))*time.Millisecond) {
				return
			}
		default:
			if !write(conn, decodeAnswer) {
				return
			}
		}
	}
}

func number(body []byte, key string) int {
	_, rest, ok := bytes.Cut(body, []byte(key))
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

func write(conn net.Conn, body string) bool {
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	return err == nil
}

// stream sends chunks that carry the time at which they were sent.
func stream(conn net.Conn, chunks int, pace time.Duration) bool {
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		return false
	}
	var buf, event []byte
	send := func(event []byte) bool {
		buf = append(append(append(strconv.AppendInt(buf[:0], int64(len(event)), 16), "\r\n"...), event...), "\r\n"...)
		_, err := conn.Write(buf)
		return err == nil
	}
	next := time.Now()
	for i := range chunks {
		if pace > 0 && i > 0 {
			next = next.Add(pace)
			time.Sleep(time.Until(next))
		}
		finish := "null"
		if i == chunks-1 {
			finish = `"stop"`
		}
		event = append(event[:0], `data: {"id":"chatcmpl-d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"@`...)
		event = strconv.AppendInt(event, time.Now().UnixNano(), 10)
		event = append(append(append(event, `@"},"logprobs":null,"finish_reason":`...), finish...), "}]}\n\n"...)
		if !send(event) {
			return false
		}
	}
	if !send([]byte("data: [DONE]\n\n")) {
		return false
	}
	_, err := io.WriteString(conn, "0\r\n\r\n")
	return err == nil
}
