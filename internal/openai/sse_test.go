package openai

import (
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type plainEvent struct{ raw, name, data string }

func readAll(src io.Reader) ([]plainEvent, error) {
	r := NewReader(src, 0)
	var out []plainEvent
	for {
		ev, err := r.Next()
		if err != nil {
			return out, err
		}
		if ev.DataAt >= 0 && string(ev.Raw[ev.DataAt:ev.DataAt+len(ev.Data)]) != string(ev.Data) {
			return out, errors.New("DataAt does not point at the data")
		}
		out = append(out, plainEvent{string(ev.Raw), string(ev.Name), string(ev.Data)})
	}
}

func TestReaderTable(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []plainEvent
		err      error
	}{
		{"empty", "", nil, io.EOF},
		{"two events", "data: a\n\ndata: b\n\n", []plainEvent{{"data: a\n\n", "", "a"}, {"data: b\n\n", "", "b"}}, io.EOF},
		{"crlf", "data: a\r\n\r\ndata:b\r\n\r\n", []plainEvent{{"data: a\r\n\r\n", "", "a"}, {"data:b\r\n\r\n", "", "b"}}, io.EOF},
		{"cr", "data: a\r\rdata: b\r\r", []plainEvent{{"data: a\r\r", "", "a"}, {"data: b\r\r", "", "b"}}, io.EOF},
		{"name and lines", "event: e\ndata: a\ndata: b\ndata: c\n\n", []plainEvent{{"event: e\ndata: a\ndata: b\ndata: c\n\n", "e", "a\nb\nc"}}, io.EOF},
		{"comment", ": ping\n\ndata: a\n\n", []plainEvent{{": ping\n\n", "", ""}, {"data: a\n\n", "", "a"}}, io.EOF},
		{"mark", "\xef\xbb\xbfdata: a\n\n", []plainEvent{{"data: a\n\n", "", "a"}}, io.EOF},
		{"cut", "data: a\n\ndata: b\n", []plainEvent{{"data: a\n\n", "", "a"}}, io.ErrUnexpectedEOF},
		{"blank tail", "data: a\n\n\n", []plainEvent{{"data: a\n\n", "", "a"}, {"\n", "", ""}}, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, src := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in)), iotest.DataErrReader(strings.NewReader(c.in))} {
				got, err := readAll(src)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.want, got)
			}
		})
	}
}

func TestReaderLimitAndReadError(t *testing.T) {
	r := NewReader(strings.NewReader("data: "+strings.Repeat("x", 10_000)), 1000)
	_, err := r.Next()
	require.ErrorIs(t, err, ErrEventTooLong)
	broken := errors.New("broken")
	got, err := readAll(io.MultiReader(strings.NewReader("data: a\n\ndata"), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Len(t, got, 1)
}

// chunked returns at most the given numbers of bytes per read, in turn.
type chunked struct {
	src   io.Reader
	sizes []int
	i     int
}

func (c *chunked) Read(p []byte) (int, error) {
	n := c.sizes[c.i%len(c.sizes)]
	c.i++
	return c.src.Read(p[:min(n, len(p))])
}

func TestReaderAnyChunking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"data: x", "data:", "event: e", ":c", "\n", "\n\n", "\r\n", "\r", "é", "id: 1"}), 0, 40).Draw(t, "parts"), "")
		want, wantErr := readAll(strings.NewReader(in))
		sizes := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 8).Draw(t, "sizes")
		got, err := readAll(&chunked{src: strings.NewReader(in), sizes: sizes})
		if !errors.Is(err, wantErr) {
			t.Fatalf("error %v, whole read gives %v", err, wantErr)
		}
		var a, b strings.Builder
		for _, e := range want {
			a.WriteString(e.raw)
		}
		for _, e := range got {
			b.WriteString(e.raw)
		}
		if a.String() != b.String() {
			t.Fatalf("raw bytes differ: %q and %q", a.String(), b.String())
		}
		if !strings.HasPrefix(in, b.String()) {
			t.Fatalf("raw bytes %q are no prefix of %q", b.String(), in)
		}
	})
}

// waiting has nothing at every second read.
type waiting struct {
	src   io.Reader
	empty bool
}

func (w *waiting) Read(p []byte) (int, error) {
	if w.empty = !w.empty; w.empty {
		return 0, ErrWait
	}
	return w.src.Read(p)
}

// A reader goes on after a source that had nothing, at any byte.
func TestReaderWaits(t *testing.T) {
	const in = "data: a\r\n\r\n: c\n\nevent: e\ndata: b\ndata: c\n\ndata: d\r\r"
	want, wantErr := readAll(strings.NewReader(in))
	r := NewReader(&waiting{src: iotest.OneByteReader(strings.NewReader(in))}, 0)
	var got []plainEvent
	for {
		ev, err := r.Next()
		if err == ErrWait {
			continue
		}
		if err != nil {
			require.Equal(t, wantErr, err)
			break
		}
		got = append(got, plainEvent{string(ev.Raw), string(ev.Name), string(ev.Data)})
	}
	require.Equal(t, want, got)
}

// A reader that begins another stream knows nothing of the last one, and needs no
// memory beside that of the last one.
func TestReaderBeginsAgain(t *testing.T) {
	const in = "\xef\xbb\xbfdata: a\ndata: b\n\ndata: half"
	want, wantErr := readAll(strings.NewReader(in))
	r := NewReader(strings.NewReader(strings.Repeat("x", 10_000)), 100)
	_, err := r.Next()
	require.ErrorIs(t, err, ErrEventTooLong)
	for range 2 {
		held := r.Memory()
		require.GreaterOrEqual(t, held, 4096)
		r.Reset(strings.NewReader(in), 0)
		var got []plainEvent
		for {
			ev, err := r.Next()
			if err != nil {
				require.Equal(t, wantErr, err)
				break
			}
			got = append(got, plainEvent{string(ev.Raw), string(ev.Name), string(ev.Data)})
		}
		require.Equal(t, want, got)
	}
	src := strings.NewReader("data: a\n\n")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		src.Reset("data: a\n\n")
		r.Reset(src, 0)
		_, _ = r.Next()
	}))
}

// plainly reads the events that have data as the standard tells it: all at once, line by line.
func plainly(in string) (out []plainEvent) {
	in = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(in, "\xef\xbb\xbf"))
	lines := strings.Split(in, "\n")
	name, data := "", []string(nil)
	for _, line := range lines[:len(lines)-1] { // the last one has no end
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				out = append(out, plainEvent{name: name, data: strings.Join(data, "\n")})
			}
			name, data = "", nil
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		}
	}
	return out
}

// In whatever parts a stream comes, its events are those of the standard.
func FuzzReader(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\nevent: x\ndata\n\n"), uint8(1))
	f.Add([]byte("\xef\xbb\xbf:\r\r\n\ndata: a\rdata: b\r\n\r"), uint8(2))
	f.Add([]byte("data: [1,2,3]\ndata\nevent: e\n\r\ndata: x"), uint8(200))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		total := 0
		var got []plainEvent
		r := NewReader(&waiting{src: &chunked{src: strings.NewReader(string(in)), sizes: []int{1 + int(size), 1}}}, 0)
		for {
			ev, err := r.Next()
			if err == ErrWait {
				continue
			}
			if err != nil {
				break
			}
			require.NotEmpty(t, ev.Raw)
			total += len(ev.Raw)
			if ev.Data != nil {
				got = append(got, plainEvent{name: string(ev.Name), data: string(ev.Data)})
			}
		}
		require.LessOrEqual(t, total, len(in))
		require.Equal(t, plainly(string(in)), got)
	})
}

func TestStream(t *testing.T) {
	w := httptest.NewRecorder()
	s := NewStream(w)
	require.False(t, s.Begun())
	require.NoError(t, s.Send(map[string]int{"a": 1}))
	require.NoError(t, s.Fail(BadGateway("gone")))
	require.NoError(t, s.Done())
	require.Equal(t, 200, w.Code)
	require.Equal(t, ContentTypeSSE, w.Header().Get("Content-Type"))
	require.Equal(t, "data: {\"a\":1}\n\ndata: {\"error\":{\"message\":\"gone\",\"type\":\"upstream_error\",\"param\":null,\"code\":null}}\n\ndata: [DONE]\n\n", w.Body.String())
	require.Equal(t, "event: e\ndata: a\ndata: b\n\n", string(AppendEvent(nil, "e", []byte("a\nb"))))
}

// BenchmarkLongEvent is an event of 1 MiB that comes in segments of a network.
func BenchmarkLongEvent(b *testing.B) {
	text := "data: " + strings.Repeat("x", 1<<20) + "\n\n"
	b.SetBytes(int64(len(text)))
	r := new(Reader)
	for b.Loop() {
		r.Reset(&chunked{src: strings.NewReader(text), sizes: []int{1448}}, 0)
		if ev, err := r.Next(); err != nil || len(ev.Raw) != len(text) {
			b.Fatal(err)
		}
	}
}
