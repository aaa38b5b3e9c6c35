//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/proxy/socket"
)

// client is one keep-alive connection that sends the same request again and again.
type client struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
}

// chatBody is a chat body of about n bytes.
func chatBody(n int, more string) string {
	const sentence = "The quick brown fox jumps over the lazy dog, \\\"twice\\\".\\n"
	pad := max(n-len(more)-100, 0)
	return `{"model":"m"` + more + `,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"` + strings.Repeat(sentence, pad/len(sentence)+1) + `"}]}`
}

func dial(addr, body string, headers ...string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	if short := socket.New(conn); short != nil {
		conn = short
	}
	return &client{conn: conn, r: bufio.NewReaderSize(conn, 16<<10), request: request(body, headers...)}, nil
}

// request is a call with a chat body.
func request(body string, headers ...string) []byte {
	var head strings.Builder
	fmt.Fprintf(&head, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&head, "%s: %s\r\n", headers[i], headers[i+1])
	}
	return []byte(head.String() + "\r\n" + body)
}

func (c *client) close() { _ = c.conn.Close() }

// do sends the request and reads the whole answer, which tells its length.
func (c *client) do() error {
	if err := c.conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		rest, _ := io.ReadAll(io.LimitReader(c.r, 300))
		return fmt.Errorf("answer %q: %s", bytes.TrimSpace(line), rest)
	}
	length := -1
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("the answer does not tell its length")
	}
	_, err = c.r.Discard(length)
	return err
}

// quantile of sorted samples.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// signed is a difference with its sign: on a busy machine the direct calls can be the slower ones.
func signed(text string) string {
	if strings.HasPrefix(text, "-") {
		return text
	}
	return "+" + text
}

func micros(d time.Duration) string { return fmt.Sprintf("%.0f µs", float64(d.Nanoseconds())/1000) }
func milli(d time.Duration) string  { return fmt.Sprintf("%.2f ms", float64(d.Nanoseconds())/1e6) }
