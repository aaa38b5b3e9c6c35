package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/socket"
)

const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

func TestMalformedChunks(t *testing.T) {
	for _, body := range []string{
		"\r\n", "x\r\n", "-1\r\n", "+1\r\na\r\n", "0x1\r\na\r\n", " 1\r\na\r\n", "1\na\r\n0\r\n\r\n", "1\ra\r\n", "1\r\r\na\r\n0\r\n\r\n", "1\r\nab\r\n0\r\n\r\n", "1\r\na\n0\r\n\r\n",
		"1 1\r\na\r\n", "1;\rx\r\na\r\n", "1000000000000000\r\na", "1_0\r\na", ";x\r\na", "1;" + strings.Repeat("x", 5000) + "\r\na\r\n0\r\n\r\n",
		strings.Repeat("1;"+strings.Repeat("x", 1000)+"\r\na\r\n", 20) + "0\r\n\r\n",
	} {
		_, _, err := parse([]byte(chunkedHead+body), 4096)
		var bad *AnswerError
		require.ErrorAs(t, err, &bad, "%q", body)
		for piece := 1; piece < 100; piece += 9 {
			_, _, err = parsePieces([]byte(chunkedHead+body), 4096, piece, 32<<10)
			require.ErrorAs(t, err, &bad, "%q in pieces of %d", body, piece)
		}
	}
}

// A chunked body that comes byte by byte is the same as one that comes at once,
// waited for in both ways.
func TestChunksInPieces(t *testing.T) {
	body := "5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n1 \r\n!\r\n0\r\nTrailer: x\r\n\r\n"
	for _, pause := range []time.Duration{0, time.Millisecond} {
		addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			if pause == 0 {
				_, _ = io.WriteString(c, chunkedHead+body)
				return
			}
			for _, b := range []byte(chunkedHead + body) {
				_, _ = c.Write([]byte{b})
				time.Sleep(pause)
			}
		})
		for _, poll := range []bool{false, true} {
			resp, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
			require.NoError(t, err)
			if !poll {
				require.Equal(t, "hello0123456789!", read(t, resp))
				continue
			}
			var got []byte
			buf := make([]byte, 7)
			require.NoError(t, resp.Poll(func() bool {
				for {
					n, err := resp.Read(buf)
					got = append(got, buf[:n]...)
					switch {
					case errors.Is(err, socket.ErrWait):
						return false
					case err == io.EOF:
						return true
					}
					require.NoError(t, err)
				}
			}))
			require.Equal(t, "hello0123456789!", string(got))
			require.NoError(t, resp.Close())
			require.ErrorIs(t, resp.Poll(nil), errClosed)
		}
	}
}

// Chunks are read in place however they are cut, and nothing that follows the
// answer is lost sight of.
func TestChunksInPlace(t *testing.T) {
	var body, want strings.Builder
	for i := range 200 {
		data := strings.Repeat("abcdefghij\r\n0\r\n\r\n", 100)[:i*i%1500+1]
		fmt.Fprintf(&body, "%x", len(data))
		if i%50 == 7 {
			body.WriteString("; more=\"x\"")
		}
		body.WriteString("\r\n" + data + "\r\n")
		want.WriteString(data)
	}
	body.WriteString("0\r\nTrailer: x\r\n\r\n")
	for _, piece := range []int{1, 2, 3, 5, 100, 1000, 4096, 1 << 20} {
		for _, room := range []int{3, minInPlace, 4096, 1 << 20} {
			r, got, err := parsePieces([]byte(chunkedHead+body.String()), 4096, piece, room)
			require.NoError(t, err)
			require.Equal(t, want.String(), got, "pieces of %d, room for %d", piece, room)
			require.Zero(t, r.conn.rest())
			r, got, err = parsePieces([]byte(chunkedHead+body.String()+"HTTP/1.1 200 OK"), 4096, 1<<20, room)
			require.NoError(t, err)
			require.Equal(t, want.String(), got)
			require.Positive(t, r.conn.rest())
		}
	}
}

// Chunks that are there are given together.
func TestChunksTogether(t *testing.T) {
	c := newConn(nil, nil)
	c.r = bufio.NewReader(strings.NewReader(chunkedHead + "1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"))
	r, err := readAnswer(c)
	require.NoError(t, err)
	r.pool = New(Config{})
	buf := make([]byte, 64)
	n, err := r.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "abc", string(buf[:n]))
	_, err = r.Read(buf)
	require.ErrorIs(t, err, io.EOF)
}

// An answer that is cut off together with its last bytes is found out.
func TestEndedAnswer(t *testing.T) {
	addr := raw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, chunkedHead)
			time.Sleep(20 * time.Millisecond)
			_, _ = io.WriteString(c, "5\r\nhel")
		}
	})
	resp, err := pool(t, Config{}).Do(t.Context(), &Request{Method: "GET", Addr: addr, Path: "/"})
	require.NoError(t, err)
	ended := resp.Ended()
	require.False(t, ended())
	time.Sleep(60 * time.Millisecond) // bytes and end have come
	found := make(chan struct{})
	conn := resp.conn
	go func() {
		defer close(found)
		for range 5000 {
			if ended() {
				_ = conn.Close()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	buf := make([]byte, 64)
	var got string
	var cut bool
	err = resp.Poll(func() bool {
		for {
			n, err := resp.Read(buf)
			got += string(buf[:n])
			if errors.Is(err, socket.ErrWait) {
				return false
			}
			if err != nil {
				cut = errors.Is(err, io.ErrUnexpectedEOF)
				return true
			}
		}
	})
	require.True(t, cut || errors.Is(err, net.ErrClosed))
	require.Equal(t, "hel", got)
	_ = closed(resp)
	<-found
}
