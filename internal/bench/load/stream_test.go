package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/openai"
)

// answerEvents is an answer of n tokens as the engine streams it, by events: the first
// one repeats a prompt of that many token ids.
func answerEvents(prompt, n int) (events []string) {
	for i := range n {
		more, finish := "", "null"
		if i == 0 && prompt > 0 {
			more = `,"prompt_token_ids":[` + strings.Repeat("123456,", prompt-1) + `7]`
		}
		if i == n-1 {
			finish = `"length"`
		}
		events = append(events, fmt.Sprintf(`data: {"id":"cmpl-3fd8c1a2b4e5f60718293a4b5c6d7e8f","object":"text_completion","created":1764500000,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":%s,"stop_reason":null,"token_ids":[%d]%s}]}`+"\n\n", finish, 50000+i, more))
	}
	return append(events, fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", max(prompt, 1), n), "data: [DONE]\n\n")
}

// played is a connection on which parts come at known moments, of a clock of its own.
type played struct {
	parts []string
	at    []time.Duration
	next  func() // before each read
	now   time.Duration
}

func (p *played) Read(b []byte) (int, error) {
	if p.next != nil {
		p.next()
	}
	if len(p.parts) == 0 {
		return 0, io.EOF
	}
	p.now = p.at[0]
	n := copy(b, p.parts[0])
	if p.parts[0] = p.parts[0][n:]; p.parts[0] == "" {
		p.parts, p.at = p.parts[1:], p.at[1:]
	}
	return n, nil
}

func (p *played) clock() time.Duration { return p.now }

// Whatever the length of the prompt that the first event repeats, and in however many
// parts it comes, the times of an answer are the same, and nothing is parsed before
// the answer has ended.
func TestTimesDoNotDependOnThePrompt(t *testing.T) {
	var want *measure.Record
	for _, prompt := range []int{0, 1, 12_288} {
		for _, size := range []int{1 << 20, 4096, 700} {
			p := new(played)
			for i, ev := range answerEvents(prompt, 9) {
				at := 100*time.Millisecond + time.Duration(i)*time.Millisecond
				for part := 0; len(ev) > 0; part++ {
					n := min(size, len(ev))
					p.parts, p.at = append(p.parts, ev[:n]), append(p.at, at+time.Duration(part)*time.Microsecond)
					ev = ev[n:]
				}
			}
			rec := new(measure.Record)
			p.next = func() { require.Equal(t, new(measure.Record), rec) }
			require.NoError(t, readStream(p, p.clock, rec))
			require.Len(t, rec.TokenIDs, 9)
			rec.PromptTokens = 0
			if want == nil {
				want = rec
			}
			require.Equal(t, want, rec, "%d tokens in parts of %d bytes", prompt, size)
		}
	}
	require.Equal(t, 100*time.Millisecond, want.First)
	require.Equal(t, 108*time.Millisecond, want.Last)
	require.Equal(t, 110*time.Millisecond, want.End)
	for _, gap := range want.Gaps {
		require.Equal(t, time.Millisecond, gap)
	}
	tpot, ok := want.TPOT()
	require.True(t, ok)
	require.Equal(t, time.Millisecond, tpot)
}

// An answer of any length is read: what is longer than is kept is parsed meanwhile.
func TestLongAnswers(t *testing.T) {
	events := answerEvents(0, 2*maxUnparsed/200)
	p := new(played)
	for i, ev := range events {
		p.parts, p.at = append(p.parts, ev), append(p.at, time.Duration(1+i)*time.Millisecond)
	}
	rec := new(measure.Record)
	most := 0
	p.next = func() { most = max(most, len(rec.TokenIDs)) }
	require.NoError(t, readStream(p, p.clock, rec))
	require.Equal(t, len(events)-2, len(rec.TokenIDs))
	require.Equal(t, time.Millisecond, rec.First)
	require.Equal(t, time.Duration(len(events)-2)*time.Millisecond, rec.Last)
	require.Positive(t, most)
	require.Less(t, most, len(rec.TokenIDs))
}

// Where an answer ends does not depend on what else looks like its end marker.
func TestEndMarker(t *testing.T) {
	token := answerEvents(0, 1)[0]
	for _, end := range []string{"data: [DONE]\n\n", "data:[DONE]\r\n\r\n", "data: [DONE]\r\r", "event: e\ndata: [DONE] \n\n"} {
		for _, before := range []string{"", ": [DONE]\n\n", "id: [DONE]\n\n", "\xef\xbb\xbf"} {
			if strings.HasPrefix(before, "\xef") {
				before += token
			} else {
				before = token + before
			}
			for name, split := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader} {
				rec := new(measure.Record)
				require.NoError(t, readStream(split(strings.NewReader(before+end+"data: behind\n\n")), func() time.Duration { return 7 }, rec), "%s %q", name, before+end)
				require.Equal(t, []int32{50000}, rec.TokenIDs)
				require.Equal(t, time.Duration(7), rec.End)
				err := readStream(split(strings.NewReader(before)), func() time.Duration { return 7 }, new(measure.Record))
				require.ErrorContains(t, err, "without its end marker", "%s %q", name, before)
			}
		}
	}
	broken := errors.New("broken")
	require.ErrorIs(t, readStream(io.MultiReader(strings.NewReader(token), iotest.ErrReader(broken)), func() time.Duration { return 7 }, new(measure.Record)), broken)
}

// Behind the end marker nothing is waited for, whatever follows it, and whatever else
// the parser has been given before.
func TestNothingIsReadBehindTheEndMarker(t *testing.T) {
	long := "data: {\"choices\":[{\"text\":\"" + strings.Repeat("x", maxUnparsed) + "\"}]}\n\n"
	for name, parts := range map[string][]string{
		"spaces":             {"data: [DONE] \n\n"},
		"a comment":          {"data: [DONE]\n\n: bye\n\n"},
		"CRLF in two":        {"data: [DONE]\r\n\r", "\n"},
		"CRLF in three":      {"data: [DONE]\r\n", "\r", "\n"},
		"the marker in two":  {"data: [DO", "NE]\n\n"},
		"behind a long one":  {long[:len(long)-2], "\n\ndata: [DO", "NE]\n\n"},
		"in a text as well":  {"data: {\"choices\":[{\"text\":\"[DONE]", "\"}]}\n\nd", "ata: [DONE]\n\n"},
		"in a comment too":   {": [DONE]\n", "\ndata: [DONE]\n\n"},
		"with an event name": {"event: end\n", "data: [DONE]\n\n"},
		"an empty event":     {"\n", "\n", "data: [DONE]\n", "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &played{parts: slices.Clone(parts), at: make([]time.Duration, len(parts))}
			p.next = func() { require.NotEmpty(t, p.parts, "the end marker was there") }
			require.NoError(t, readStream(p, p.clock, new(measure.Record)))
		})
	}
}

// drip is a connection that counts what has come.
type drip struct {
	net.Conn
	came *atomic.Int64
}

func (d drip) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.came.Add(int64(n))
	return n, err
}

// The time of an event is that of its first byte, though net/http gives the event when all
// of its chunk has come, and however it came on the connection.
func TestEventsThatComeInParts(t *testing.T) {
	long := "data: {\"choices\":[{\"text\":\"" + strings.Repeat("x", 100_000) + "\"}]}\n\n"
	chunked := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	const header = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct{ first, rest, second, end string }{
		"one chunk each":   {chunked(long)[:60], chunked(long)[60:], chunked(long)[:20_000], chunked(long)[20_000:]},
		"a byte of each":   {chunked(long)[:8], chunked(long)[8:], chunked(long)[:8], chunked(long)[8:]},
		"behind a newline": {chunked("\n") + chunked(long)[:9], chunked(long)[9:], chunked("\n") + chunked(long)[:9], chunked(long)[9:]},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			var came atomic.Int64
			client := NewHTTPClient()
			defer client.CloseIdleConnections()
			client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err == nil {
					conn.(*stamped).Conn = drip{conn.(*stamped).Conn, &came}
				}
				return conn, err
			}
			start := time.Now()
			var there [2]time.Duration // the beginnings of the events
			var serving sync.WaitGroup
			serving.Go(func() {
				conn, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					t.Error(err)
				}
				sent := 0
				write := func(s string) {
					n, err := io.WriteString(conn, s)
					must(t, err)
					for sent += n; came.Load() < int64(sent); {
						time.Sleep(time.Millisecond)
					}
				}
				write(header + c.first)
				there[0] = time.Since(start)
				write(c.rest)
				write(c.second)
				there[1] = time.Since(start)
				_, err = io.WriteString(conn, c.end+chunked("data: [DONE]\n\n")+"0\r\n\r\n")
				must(t, err)
			})
			var rec measure.Record
			server := Server{URL: "http://" + l.Addr().String(), Client: client}
			server.Do(t.Context(), &Call{Endpoint: Completions, Body: struct{}{}}, start, &rec)
			serving.Wait()
			require.Empty(t, rec.Error)
			require.Len(t, rec.Text, 200_000)
			require.LessOrEqual(t, rec.First, there[0])
			require.LessOrEqual(t, rec.Last, there[1])
			require.Greater(t, rec.Last, there[0])
		})
	}
}

// However a stream is cut into reads, the record is the same.
func FuzzReadStream(f *testing.F) {
	f.Add([]byte(strings.Join(answerEvents(3, 2), "")))
	f.Add([]byte("\xef\xbb\xbfdata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n"))
	f.Add([]byte("data: {\"error\":{}}\n\n: [DONE]\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		clock := func() time.Duration { return 5 }
		whole, parts := new(measure.Record), new(measure.Record)
		err := readStream(bytes.NewReader(in), clock, whole)
		again := readStream(iotest.OneByteReader(bytes.NewReader(in)), clock, parts)
		require.Equal(t, whole, parts)
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(again))
	})
}

// Requests that follow one another have one connection: none waits for a new one.
func TestConnectionsAreKept(t *testing.T) {
	var made atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		out := openai.NewStream(w)
		for _, ev := range answerEvents(5, 3) {
			must(t, out.Raw([]byte(ev)))
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	s.Start()
	client := NewHTTPClient()
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	w, err := (&workload.Conversations{Seed: 1, Content: workload.Tokens, Sessions: 1, Turns: 12, First: workload.Range{Low: 4, High: 4}, Next: workload.Range{Low: 2, High: 2}, MaxTokens: 3}).Generate()
	require.NoError(t, err)
	records, err := Run(t.Context(), w, Config{Server: Server{URL: s.URL, Client: client}, Endpoint: Completions})
	require.NoError(t, err)
	for i := range records {
		require.True(t, records[i].Valid(), records[i].Error)
		require.GreaterOrEqual(t, records[i].End, records[i].Last)
	}
	require.EqualValues(t, 1, made.Load())
}

// What has come with the header has come before the client is told of the header, and
// asked later it has not come later.
func TestArrival(t *testing.T) {
	asked := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		must(t, openai.NewStream(w).Raw([]byte("data: a\n\n")))
		<-asked
	}))
	client := NewHTTPClient()
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	start := time.Now()
	came := arrival{start: start}
	sent := time.Since(start)
	req, err := http.NewRequestWithContext(came.trace(t.Context()), http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	event := make([]byte, 9)
	_, err = io.ReadFull(resp.Body, event)
	require.NoError(t, err)
	read := time.Since(start)
	for range 3 {
		require.LessOrEqual(t, came.last(), read)
		require.Greater(t, came.last(), sent)
	}
	close(asked)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())

	other := arrival{start: start}
	require.GreaterOrEqual(t, other.last(), read, "without such a connection it is the moment")
}

// BenchmarkFirstEvent is an answer of 9 tokens whose first event repeats a prompt of that
// many: the time until the client reads on behind the first event, and all of it.
func BenchmarkFirstEvent(b *testing.B) {
	for _, prompt := range []int{0, 12_288} {
		b.Run(strconv.Itoa(prompt), func(b *testing.B) {
			events := answerEvents(prompt, 9)
			first, rest := events[0], strings.Join(events[1:], "")
			var held time.Duration
			b.ReportAllocs()
			for b.Loop() {
				var came time.Time
				p := &played{parts: []string{first, rest}, at: []time.Duration{1, 2}}
				p.next = func() {
					if came.IsZero() {
						came = time.Now()
					} else if len(p.parts) == 1 && p.now == 1 {
						held += time.Since(came)
					}
				}
				rec := new(measure.Record)
				if err := readStream(p, p.clock, rec); err != nil || len(rec.TokenIDs) != 9 {
					b.Fatal(err, len(rec.TokenIDs))
				}
			}
			b.ReportMetric(float64(held.Nanoseconds())/float64(b.N), "ns-to-next-read/op")
		})
	}
}
