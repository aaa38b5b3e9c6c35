package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/proxy/socket"
)

func TestUnframed(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"3\r\nabc\r\n", "abc"}, {"003\r\nabc\r\n", "abc"}, {"A\r\n0123456789\r\n", "0123456789"}, {"b\r\n0123456789\n\r\n", "0123456789\n"},
		{"3\r\nabc\r\n1\r\nd\r\n2\r\nef\r\n", "abcdef"}, {"2\r\n\r\n\r\n1\r\n1\r\n", "\r\n1"},
	} {
		got, ok := unframed([]byte(c.in))
		require.True(t, ok, c.in)
		require.Equal(t, c.want, string(got))
		// Cut anywhere it is left alone, but between two chunks.
		for i := range c.in {
			in := []byte(c.in[:i])
			if _, ok := unframed(in); !ok {
				require.Equal(t, c.in[:i], string(in))
			} else {
				require.True(t, strings.HasSuffix(c.in[:i], "\r\n"), "%q", c.in[:i])
			}
		}
	}
	for _, in := range []string{
		"", "3", "3\r", "3\r\n", "3\r\nabc", "3\r\nabc\r", "3\r\nabcd\r", "3\r\nabcd\r\n", "3\r\nab\r\n", "0\r\n\r\n", "00\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "3;x\r\nabc\r\n",
		"3 \r\nabc\r\n", "3\nabc\r\n", "\r\nabc\r\n", "g\r\nabc\r\n", "-3\r\nabc\r\n", "3\r\nabc\r\n3\r\nab", "3\r\nabc\n\n", "000003\r\nabc\r\n", "fffffffff\r\nabc\r\n", "3\r\r\nabc\r\n",
	} {
		kept := []byte(in)
		_, ok := unframed(kept)
		require.False(t, ok, "%q", in)
		require.Equal(t, in, string(kept))
	}
}

// Whoever deals with each piece of a chunked body, and however it is cut, all
// of it is given once and in order.
func TestTakenAndRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var body, stream strings.Builder
		var ends []int // of chunks
		for i := range rapid.IntRange(1, 12).Draw(rt, "chunks") {
			data := strings.Repeat(string(rune('a'+i)), rapid.IntRange(1, 600).Draw(rt, "size"))
			body.WriteString(data)
			fmt.Fprintf(&stream, rapid.SampledFrom([]string{"%x", "%X", "%04x", "%x;e=1"}).Draw(rt, "spelling")+"\r\n%s\r\n", len(data), data)
			ends = append(ends, stream.Len())
		}
		stream.WriteString("0\r\n\r\n")
		limit := &limitedConn{Conn: source{Reader: &pieces{src: strings.NewReader(""), size: 1}}, left: -1}
		c := &conn{r: bufio.NewReaderSize(limit, 4<<10), limit: limit, sock: new(socket.Conn)}
		r := &Response{conn: c, chunked: true, left: -1, pool: New(Config{})}
		var got []byte
		room := make([]byte, rapid.SampledFrom([]int{3, minInPlace, 4000}).Draw(rt, "room"))
		for rest := stream.String(); rest != ""; {
			n := rapid.IntRange(1, min(len(rest), 1500)).Draw(rt, "piece")
			if rapid.Bool().Draw(rt, "whole") {
				for _, end := range ends {
					if left := end - (stream.Len() - len(rest)); left > 0 {
						n = left
						break
					}
				}
			}
			piece := []byte(rest[:n])
			rest = rest[n:]
			if r.chunks.at != chunkSize || c.rest() > 0 || len(r.back) > 0 { // as Take leaves it to Read
				limit.Conn = source{Reader: bytes.NewReader(piece)}
			} else {
				refuse := rapid.Bool().Draw(rt, "refuse")
				r.take = func(p []byte, _ *socket.Work) (bool, bool) {
					if !refuse {
						got = append(got, p...)
					}
					return !refuse, true
				}
				r.taken(piece, nil)
				limit.Conn = source{Reader: bytes.NewReader(nil)}
			}
			limit.Conn = source{Reader: &thenWait{limit.Conn.(source).Reader.(*bytes.Reader)}}
			for {
				m, err := r.Read(room)
				got = append(got, room[:m]...)
				if err != nil {
					break
				}
			}
		}
		require.Equal(t, body.String(), string(got))
		require.True(t, r.eof)
	})
}

// thenWait gives what there is, and then that there is nothing at the moment.
type thenWait struct{ *bytes.Reader }

func (w *thenWait) Read(p []byte) (int, error) {
	if w.Len() == 0 {
		return 0, socket.ErrWait
	}
	return w.Reader.Read(p)
}

// Little memory is kept for what was given back.
func TestGivenBack(t *testing.T) {
	l := &limitedConn{Conn: source{Reader: bytes.NewReader(nil)}, left: -1, back: make([]byte, 2*maxBack)}
	buf := make([]byte, maxBack)
	for range 2 {
		n, err := l.Read(buf)
		require.NoError(t, err)
		require.Equal(t, maxBack, n)
	}
	require.Nil(t, l.back)
}
