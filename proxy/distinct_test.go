package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// tagged is the text of the n-th event of the answer to a request, and its token ids: both
// tell whose they are. Some events are long, some have no text.
func tagged(seed uint64, n int) (text, ids string) {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	size := []int{1, 1, 1, 0, 40, 300, 1_000, 25_000}[r.IntN(7+r.IntN(16)/15)]
	if n%40 > 12 { // a stretch of ordinary tokens
		size = 1
	}
	return strings.Repeat(fmt.Sprintf("%x-%d ", seed, n), size), strings.TrimSuffix(strings.Repeat(strconv.Itoa(int(seed))+",", 1+size/8), ",")
}

// Streams whose memory others have used before, and that end at any moment from either
// side, carry nothing but what their own Decoder has sent.
func TestStreamsShareNothing(t *testing.T) {
	for name, change := range map[string]func(*Config){"as it comes": func(*Config) {}, "with continuation": continuing} {
		t.Run(name, func(t *testing.T) { streamsShareNothing(t, change) })
	}
}

func streamsShareNothing(t *testing.T, change func(*Config)) {
	c := start(t, setup{decoders: 2, change: change})
	answer := func(w http.ResponseWriter, req *http.Request, rec backendtest.Record) bool {
		seed, err := strconv.ParseUint(rec.Header.Get("X-Request-Id")[:8], 16, 64)
		if rec.Leg != "d" || err != nil {
			return false
		}
		r := rand.New(rand.NewPCG(seed, 1))
		events, breaks := 10+r.IntN(90), -1
		if r.IntN(16) == 0 {
			breaks = r.IntN(events)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for n := range events {
			text, ids := tagged(seed, n)
			data := fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":%q},"token_ids":[%s],"finish_reason":null}]}`, text, ids)
			frame := "data: %s\n\n"
			if n%40 < 12 {
				frame = []string{"data: %s\n\n", "data:%s\r\n\r\n", "event: e\ndata: %s\n\n", ": c\n\ndata: %s\n\n"}[r.IntN(4)]
			}
			if r.IntN(30) == 0 {
				data = strings.ReplaceAll(data, `,"choices"`, "\ndata: ,\"choices\"")
			}
			out := fmt.Sprintf(frame, data)
			if n == breaks {
				_, _ = io.WriteString(w, out[:r.IntN(len(out))])
				_ = flush.Flush()
				panic(http.ErrAbortHandler)
			}
			if _, err := io.WriteString(w, out); err != nil {
				return true
			}
			if r.IntN(3) > 0 || n%40 > 12 {
				_ = flush.Flush()
			}
			if r.IntN(8) == 0 {
				time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
			}
		}
		_, _ = io.WriteString(w, `data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":`+strconv.Itoa(events)+"}}\n\ndata: [DONE]\n\n")
		return true
	}
	for _, b := range c.d {
		b.Hook = answer
	}
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for n := range 5 {
				seed := uint64(0x10000000 + worker*1000 + n)
				if err := c.streamOf(seed); err != nil {
					t.Errorf("%x: %v", seed, err)
				}
			}
		})
	}
	all.Wait()
}

// streamOf reads one stream, perhaps in part, and checks that it is what was to come.
func (c *cluster) streamOf(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 2))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	body := turnBody(1, `,"return_token_ids":true,"max_tokens":5000`+streamTurn)
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: %08x\r\nContent-Length: %d\r\n\r\n%s", chatPath, seed, len(body), body); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusBadGateway {
		return nil // every Decoder broke off before any output
	}
	leave := -1
	if r.IntN(3) == 0 {
		leave = r.IntN(30)
	}
	events, n := openai.NewReader(resp.Body, 0), 0
	for {
		ev, err := events.Next()
		switch {
		case err != nil:
			return fmt.Errorf("behind event %d: %w", n, err)
		case n == leave, ev.IsDone():
			return nil
		case ev.Data == nil:
			continue
		}
		var m struct {
			ID      string
			Error   *struct{ Message string }
			Choices []struct {
				Delta    struct{ Content string }
				TokenIDs json.RawMessage `json:"token_ids"`
			}
		}
		if err := json.Unmarshal(ev.Data, &m); err != nil {
			return fmt.Errorf("event %d: %w", n, err)
		}
		if m.Error != nil {
			return nil // it says that it was cut
		}
		if want := fmt.Sprintf("chatcmpl-%08x", seed); m.ID != want {
			return fmt.Errorf("event %d has the id %q", n, m.ID)
		}
		if len(m.Choices) == 0 {
			continue
		}
		text, ids := tagged(seed, n)
		if m.Choices[0].Delta.Content != text || string(m.Choices[0].TokenIDs) != "["+ids+"]" {
			return fmt.Errorf("event %d has %d bytes, %.60q, and the ids %.60q", n, len(m.Choices[0].Delta.Content), m.Choices[0].Delta.Content, m.Choices[0].TokenIDs)
		}
		n++
	}
}
