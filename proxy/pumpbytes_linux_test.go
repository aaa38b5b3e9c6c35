package proxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// However a stream is made and cut, a client gets the same bytes of it with
// pumps and without.
func TestPumpedBytesAreTheSame(t *testing.T) {
	with, without := start(t, setup{}), start(t, setup{})
	without.proxy.pumps.none = true
	texts := []string{"a", "two words", `\n\"`, "é", strings.Repeat("long ", 300), `\u00e9`, "", "\x01", `x"}`}
	frames := []string{"data: %s\n\n", "data: %s\n\n", "data: %s\n\n", "data:%s\n\n", "data: %s\r\n\r\n", "event: e\ndata: %s\n\n", ": c\n\ndata: %s\n\n"}
	for seed := range uint64(20) {
		var got [2]string
		for i, c := range []*cluster{with, without} {
			r := rand.New(rand.NewPCG(seed, 5))
			hook, conns := handing(t)
			c.d[0].Set(func(b *backendtest.Backend) { b.Hook = hook })
			var writing sync.WaitGroup
			writing.Go(func() {
				conn := <-conns
				defer conn.Close()
				write := func(text string) {
					for text != "" {
						n := len(text)
						if r.IntN(4) == 0 {
							n = 1 + r.IntN(n)
						}
						if _, err := io.WriteString(conn, text[:n]); err != nil {
							return
						}
						text = text[n:]
						if r.IntN(5) == 0 { // so that it is often read alone; nothing depends on it
							time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
						}
					}
				}
				for n := range 20 + r.IntN(60) {
					text, frame := "plain", frames[0]
					if n > 8 && r.IntN(4) == 0 {
						text = texts[r.IntN(len(texts))]
					}
					if r.IntN(12) == 0 {
						frame = frames[r.IntN(len(frames))]
					}
					data := fmt.Sprintf(frame, strings.Replace(tokenEvent, "w0 ", text, 1))
					switch r.IntN(16) {
					case 0: // an event in two chunks
						at := 1 + r.IntN(len(data)-1)
						write(chunk(data[:at]) + chunk(data[at:]))
					case 1: // two in one
						write(chunk(data + data))
					case 2:
						write(fmt.Sprintf("%X ; x=y\r\n%s\r\n", len(data), data))
					default:
						write(chunk(data))
					}
				}
				switch r.IntN(8) {
				case 0: // cut, which may be seen as late as a second after
				case 1:
					write(chunk(`data: {"error":{"message":"boom","type":"InternalServerError","code":500}}` + "\n\n"))
				default:
					write(chunk("data: "+strings.Replace(tokenEvent, "null", `"stop"`, 1)+"\n\n") + chunk(`data: {"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n"+"data: [DONE]\n\n") + "0\r\n\r\n")
				}
			})
			reply := c.post(chatPath, turnBody(1, streamTurn), "X-Request-Id", "same")
			writing.Wait()
			got[i] = reply.body
		}
		require.Equal(t, got[1], got[0], "seed %d", seed)
	}
	require.Positive(t, with.proxy.pumps.passed())
	require.Zero(t, without.proxy.pumps.passed())
}

// Where descriptors are scarce or there is no pump streams go on without.
func TestWithoutAPump(t *testing.T) {
	c := start(t, setup{backend: func(b *backendtest.Backend) { b.Tokens = 50 }})
	c.proxy.pumps.none = true
	require.Equal(t, backendtest.Text(50), textOf(t, c.post(chatPath, turnBody(1, streamTurn)).body))
	require.Zero(t, c.proxy.pumps.passed())
	require.Nil(t, c.proxy.pumps.one())
	require.Nil(t, socketOf(devNull{}))
}
