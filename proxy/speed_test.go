package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/route"
)

// instant is an instance that answers every request at once with the same
// bytes and allocates nothing.
func instant(b *testing.B, answer string) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	var conns sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			conns.Go(func() {
				defer c.Close()
				r := bufio.NewReaderSize(c, 64<<10)
				for skipRequest(r) == nil {
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			})
		}
	})
	b.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	return l.Addr().String()
}

// skipRequest reads one request with a Content-Length.
func skipRequest(r *bufio.Reader) error {
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			for _, c := range bytes.TrimSpace(n) {
				length = length*10 + int(c-'0')
			}
		}
		if len(line) <= 2 {
			_, err = r.Discard(length)
			return err
		}
	}
}

func fixed(contentType, body string) string {
	return "HTTP/1.1 200 OK\r\nContent-Type: " + contentType + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// events is a chat stream of n events as a chunked answer.
func events(n int) string {
	var s strings.Builder
	s.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := func(text string) { fmt.Fprintf(&s, "%x\r\n%s\r\n", len(text), text) }
	for i := range n {
		finish := "null"
		if i == n-1 {
			finish = `"stop"`
		}
		chunk(`data: {"id":"chatcmpl-d","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"hello"},"logprobs":null,"finish_reason":` + finish + "}]}\n\n")
	}
	chunk("data: [DONE]\n\n")
	return s.String() + "0\r\n\r\n"
}

const (
	prefillReply = `{"id":"cmpl-p","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12001,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8]],"remote_engine_id":"p","remote_request_id":"cmpl-p-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`
	decodeReply  = `{"id":"chatcmpl-d","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello there"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":12000,"total_tokens":12004,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":11984}}}`
)

// BenchmarkTurn is one request of 48 KB through the proxy over loopback, with
// instances that answer at once, all in this process. Allocations are those of
// the proxy and of net/http's server under it.
func BenchmarkTurn(b *testing.B) {
	const sentence = `The quick brown fox jumps over the lazy dog, \"twice\".\n`
	text := strings.Repeat(sentence, 48<<10/len(sentence))
	for _, c := range []struct {
		name, header, more, answer string
	}{
		{"local", "X-Session-Id: s\r\n", "", fixed("application/json", decodeReply)},
		{"pd", "", "", fixed("application/json", decodeReply)},
		{"stream64", "X-Session-Id: s\r\n", `,"stream":true`, events(64)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, err := New(Config{Append: true, ScrapeEvery: -1, Prefillers: []string{instant(b, fixed("application/json", prefillReply))}, Decoders: []Decoder{{Addr: instant(b, c.answer)}}})
			require.NoError(b, err)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(b.Context())
			var serving sync.WaitGroup
			serving.Go(func() { require.NoError(b, p.Serve(ctx, l, 0)) })
			defer serving.Wait()
			defer cancel()
			body := `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"` + text + `"}]` + c.more + `}`
			request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + c.header + "Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(b, err)
			defer conn.Close()
			r := bufio.NewReaderSize(conn, 16<<10)
			turn := func() {
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				resp, err := http.ReadResponse(r, nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(err, resp)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
			}
			turn() // binds the session
			b.ReportAllocs()
			for b.Loop() {
				turn()
			}
		})
	}
}

// firstEvent is the first event of a completion by token ids whose prompt has n of them.
func firstEvent(n int) string {
	var s strings.Builder
	s.WriteString(`data: {"id":"cmpl-d","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[7]`)
	for i := range n {
		s.WriteString([]string{`,"prompt_token_ids":[`, ","}[min(i, 1)])
		s.WriteString(strconv.Itoa(100_000 + i))
	}
	if n > 0 {
		s.WriteByte(']')
	}
	return s.String() + "}]}\n\n"
}

// BenchmarkFirstEvent is the first event of an answer that returns token ids, from
// its bytes to what is written to the client: of a prompt of no tokens and of 12,288.
func BenchmarkFirstEvent(b *testing.B) {
	for _, n := range []int{0, 12_288} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := idleProxy(b)
			text := firstEvent(n)
			b.ReportAllocs()
			for b.Loop() {
				r := relayOf(b, p, &sink{header: http.Header{}})
				r.x.at = completions
				r.scratch = takeScratch()
				r.pattern.forget()
				r.events.Reset(strings.NewReader(text), 0)
				ev, err := r.events.Next()
				if err != nil {
					b.Fatal(err)
				}
				if _, over := r.event(ev, false); over || !r.sawOutput {
					b.Fatal("no output")
				}
				r.giveBack()
				p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
			}
		})
	}
}
