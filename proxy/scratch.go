package proxy

import (
	"sync"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// scratch is memory that one leg after the other uses: of its answer, or of
// the event at hand. Nothing of it may be kept when the leg is over.
type scratch struct {
	events         openai.Reader
	raw            []byte // a whole answer
	object         splice.Object
	usage, details splice.Object // inside of it
	edited, out    []byte        // rewritten: a whole answer or data of several lines, and an event
	numbers        []byte
	pattern        pattern // of the stream's events
	chunk          []byte  // what is written of them at a time
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func takeScratch() *scratch { return scratches.Get().(*scratch) }

// maxScratch is the longest answer, or event, whose memory is kept: the first event of a
// long prompt whose ids are asked for.
const maxScratch = 256 << 10

// giveBack keeps the memory for the next leg.
func (s *scratch) giveBack() {
	s.events.Reset(nil, 0)
	if s.events.Memory() <= maxScratch && cap(s.raw) <= maxScratch && cap(s.edited) <= maxScratch && cap(s.out) <= maxScratch && cap(s.chunk) <= maxScratch {
		scratches.Put(s)
	}
}
