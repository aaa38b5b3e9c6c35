package proxy

import (
	"bytes"

	"github.com/sluice-serving/sluice/proxy/splice"
)

// pattern is what the events of a stream have in common: the bytes before and
// after the text that an event adds, as the Decoder sends them and as the
// client is to see them. An event that differs from the one before only in its
// text is neither parsed nor edited again; that the text is a JSON string is
// all that is left to check.
type pattern struct {
	known               bool
	before, after       []byte // of the Decoder's data
	outBefore, outAfter []byte // of the client's
	used                int    // since it was learned
	missed              int    // times that it was learned for little
	plain               bool   // the last event was a line of data and nothing else
}

// forget begins a new stream; the memory is used again.
func (p *pattern) forget() { p.known, p.used, p.missed, p.plain = false, 0, 0, false }

// text gives the text of an event of the pattern, with its quotes; false when
// it is another kind of event, or adds no text.
func (p *pattern) text(data []byte) ([]byte, bool) {
	if !p.known || len(data) < len(p.before)+len(p.after)+3 ||
		!bytes.HasPrefix(data, p.before) || !bytes.HasSuffix(data, p.after) {
		return nil, false
	}
	text := data[len(p.before) : len(data)-len(p.after)]
	if !splice.IsString(text) {
		return nil, false
	}
	p.used++
	return text, true
}

// maxPattern is the longest event that a pattern is learned from, in bytes. The first one
// of an answer may have the ids of the whole prompt besides its text; none that
// follows has, and to look through them takes longer than a token.
const maxPattern = 4 << 10

// maxMissed bounds the attempts to learn from events that have nothing in common.
const maxMissed = 8

// places are where the text of an event stands.
var places = [...]string{"/choices/0/delta/content", "/choices/0/text", "/choices/0/delta/reasoning_content", "/choices/0/delta/tool_calls/0/function/arguments"}

// learn takes the pattern of an event and of what became of it. Streams whose
// events have nothing in common are given up.
func (p *pattern) learn(data, out []byte) {
	if p.missed > maxMissed {
		return
	}
	if p.used < 4 {
		p.missed++
	}
	p.known, p.used = false, 0
	for _, place := range places {
		at, text := located(data, place)
		if at < 0 {
			continue
		}
		outAt, same := located(out, place)
		if outAt < 0 || !bytes.Equal(text, same) {
			return
		}
		p.before = append(p.before[:0], data[:at]...)
		p.after = append(p.after[:0], data[at+len(text):]...)
		p.outBefore = append(p.outBefore[:0], out[:outAt]...)
		p.outAfter = append(p.outAfter[:0], out[outAt+len(text):]...)
		p.known = true
		return
	}
}

// located is a text of checked JSON and where it stands; negative when there
// is none, or an empty one.
func located(data []byte, pointer string) (int, []byte) {
	text := splice.Pointer(data, pointer)
	if len(text) < 3 || text[0] != '"' {
		return -1, nil
	}
	return cap(data) - cap(text), text // text is a part of data up to whose end both may grow
}

// plain reports whether an event is one that a pattern may be learned from: it
// adds text to the only choice and says nothing else that the proxy takes
// notice of.
func (r *relay) plain(f features) bool {
	o := &r.object
	return len(o.Source()) <= maxPattern && r.x.cont == nil && r.x.at.prefix != "" && f.choices == 1 && f.text && f.finishReason == "" && f.stopReason == "" && !f.isError &&
		!o.Has("kv_transfer_params") && !o.Has("usage")
}
