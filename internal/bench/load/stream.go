package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/openai"
)

// received is a stream as it comes: its bytes and when they came. Nothing is parsed while
// more may come, so that an event is not noted late because the one before it is long:
// the first event of an answer may repeat a prompt of many thousand token ids.
type received struct {
	text   []byte // not given to the parser yet
	given  int    // bytes that were
	reads  []read // in order
	inside bool   // a line was begun, so that the next byte begins no event
	end    error  // of the stream, io.EOF or why it was cut; nil while it goes on
	memory []byte // that text is in
}

// receiving is the memory of one answer, which another one uses later: collecting what
// answers leave behind would take time from those that still come.
type receiving struct {
	from   received
	events openai.Reader
}

var receivings = sync.Pool{New: func() any { return new(receiving) }}

// maxKept is the most memory of an answer that is kept, in bytes.
const maxKept = 1 << 20

func (r *receiving) giveBack() {
	f := &r.from
	*f = received{memory: f.memory, reads: f.reads[:0]}
	r.events.Reset(nil, 0)
	if cap(f.memory)+16*cap(f.reads)+r.events.Memory() <= maxKept {
		receivings.Put(r)
	}
}

// read is one read of a stream: where it begins, in bytes, and when it came.
type read struct {
	from int
	at   time.Duration
}

// maxUnparsed bounds what waits to be parsed of an answer, in bytes: some ten thousand events.
const maxUnparsed = 4 << 20

// next reads on; now gives when what a read brings has come. Where an event may begin
// it reads a single byte: net/http gives the bytes behind it when the rest of their
// chunk has come too. False at the end of the stream, and where the end marker may have come.
func (r *received) next(body io.Reader, now func() time.Duration) bool {
	if len(r.text) == 0 {
		r.text = r.memory[:0]
	}
	if cap(r.text)-len(r.text) < 4<<10 {
		grown := make([]byte, len(r.text), max(16<<10, 2*cap(r.text)))
		copy(grown, r.text)
		r.text, r.memory = grown, grown
	}
	had, room := len(r.text), cap(r.text)
	if !r.inside {
		room = had + 1
	}
	n, err := body.Read(r.text[had:room])
	r.text = r.text[:had+n]
	if n > 0 {
		r.reads = append(r.reads, read{r.given + had, now()})
		last := r.text[had+n-1]
		r.inside = last != '\n' && last != '\r'
	}
	r.end = err
	return err == nil && !bytes.Contains(r.text[max(0, had+1-len(openai.Done)):], []byte(openai.Done))
}

// at is when the byte at that place of the stream came.
func (r *received) at(place int) time.Duration {
	i := sort.Search(len(r.reads), func(i int) bool { return r.reads[i].from > place })
	return r.reads[i-1].at
}

// Read gives the parser what has come; openai.ErrWait when that is all so far.
func (r *received) Read(p []byte) (int, error) {
	n := copy(p, r.text)
	r.text = r.text[n:]
	r.given += n
	switch {
	case n > 0:
		return n, nil
	case r.end != nil:
		return 0, r.end
	}
	return 0, openai.ErrWait
}

// chunk is one event of either endpoint.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          *string         `json:"content"`
			ReasoningContent string          `json:"reasoning_content"`
			ToolCalls        json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		TokenIDs     []int32 `json:"token_ids"`
		FinishReason *string `json:"finish_reason"`
		StopReason   any     `json:"stop_reason"`
	} `json:"choices"`
	Usage *openai.Usage   `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// readStream reads an answer to its end marker and fills rec. now gives when what a
// read brings has come.
func readStream(body io.Reader, now func() time.Duration, rec *measure.Record) error {
	m := receivings.Get().(*receiving)
	defer m.giveBack()
	r := &m.from
	m.events.Reset(r, 0)
	p := parser{from: r, events: &m.events, rec: rec}
	defer func() { rec.Text = p.text.String() }()
	for {
		// The rest of an event whose beginning is with the parser may have the end marker.
		if r.next(body, now) && len(r.text) <= maxUnparsed && len(m.events.Buffered()) == 0 {
			continue
		}
		if err := p.parse(); err != openai.ErrWait {
			return err
		}
	}
}

// parser makes a record of a stream.
type parser struct {
	from   *received
	events *openai.Reader
	text   strings.Builder
	rec    *measure.Record
}

// parse takes what has come; openai.ErrWait while the answer goes on, nil at its end marker.
func (p *parser) parse() error {
	for {
		ev, err := p.events.Next()
		switch {
		case err == openai.ErrWait:
			return err
		case errors.Is(err, io.EOF):
			return errors.New("the stream ended without its end marker")
		case err != nil:
			return fmt.Errorf("read stream: %w", err)
		case ev.Data == nil:
			continue
		}
		// The first byte tells when the server had the token: how long the rest takes on
		// its way says how much was asked for besides.
		at := p.from.at(p.from.given - len(p.events.Buffered()) - len(ev.Raw))
		if ev.IsDone() {
			p.rec.End = at
			return nil
		}
		if err := p.event(ev.Data, at); err != nil {
			return err
		}
	}
}

// event takes the data of an event that came at that time.
func (p *parser) event(data []byte, at time.Duration) error {
	var c chunk
	rec := p.rec
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("event is not JSON: %w", err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return answerError(rec.Status, data)
	}
	if c.Usage != nil {
		rec.PromptTokens, rec.OutputTokens, rec.CachedTokens = c.Usage.PromptTokens, c.Usage.CompletionTokens, c.Usage.Cached()
	}
	for i := range c.Choices {
		ch := &c.Choices[i]
		piece := ch.Text
		if ch.Delta.Content != nil {
			piece += *ch.Delta.Content
		}
		if piece != "" || len(ch.TokenIDs) > 0 || ch.Delta.ReasoningContent != "" || len(ch.Delta.ToolCalls) > 0 {
			seen(at, rec)
		}
		p.text.WriteString(piece)
		rec.TokenIDs = append(rec.TokenIDs, ch.TokenIDs...)
		if ch.FinishReason != nil {
			rec.FinishReason = *ch.FinishReason
		}
		if ch.StopReason != nil {
			rec.StopReason = fmt.Sprint(ch.StopReason)
		}
	}
	return nil
}

// seen notes an event with output.
func seen(at time.Duration, rec *measure.Record) {
	if rec.First == 0 {
		rec.First = at
	} else {
		rec.Gaps = append(rec.Gaps, at-rec.Last)
	}
	rec.Last = at
}
