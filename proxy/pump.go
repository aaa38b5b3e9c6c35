package proxy

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/proxy/socket"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// pumps are what streams wait in that are nothing but events of a pattern.
type pumps struct {
	mu   sync.Mutex
	list []*socket.Pump
	none bool // none can be made, or no more
}

// perPump is how many connections a pump has before there is another.
const perPump = 256

// one gives the pump with the fewest connections; nil where there is none.
func (p *pumps) one() (best *socket.Pump) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.none {
		return nil
	}
	least := perPump
	for _, pump := range p.list {
		if n := pump.Len(); best == nil || n < least {
			best, least = pump, n
		}
	}
	if least >= perPump && len(p.list) < runtime.GOMAXPROCS(0) {
		made, err := socket.NewPump()
		if err == nil {
			p.list = append(p.list, made)
			return made
		}
		p.none = best == nil
	}
	return best
}

// passed is how often something came that the pumps alone have dealt with.
func (p *pumps) passed() (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pump := range p.list {
		n += pump.Passed()
	}
	return n
}

func (p *pumps) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.none = true
	for _, pump := range p.list {
		pump.Close()
	}
}

// pumping is the part of a stream that a pump carries. Once some events in a
// row had the pattern, both connections of the stream are the pump's: it reads
// the next ones, and writes what the client is to see of them, without this
// stream's goroutine. Whatever else comes, and whatever cannot be written at
// once, wakes the goroutine, which goes on as if it had waited itself.
type pumping struct {
	r     *relay
	resp  *wire.Response
	watch *watch
	twin  socket.Twin // of the client's connection
	on    bool        // there is one
	take  wire.Take
	join  bool   // the pump is to be entered
	never bool   // it cannot be
	left  []byte // of a chunk that was written in part
}

// fitForPump is how many events in a row have the pattern before a connection
// enters a pump. It stays there for the streams that come later.
const fitForPump = 4

// poll is Poll of the answer.
func (p *pumping) poll(step func() bool) error {
	for {
		if err := p.resp.Poll(step); err != nil || !p.join {
			return err
		}
		p.join = false
		if pump := p.r.x.p.pumps.one(); pump == nil || p.resp.Join(pump) != nil {
			p.never = true
		}
	}
}

// wait is what a step gives that has found nothing more; clean says that it
// has taken all that was read.
func (p *pumping) wait(clean bool) (over bool) {
	if p.never {
		return false
	}
	r := p.r
	d := &r.x.out.direct
	fit := clean && r.pattern.known && r.pattern.plain && r.sawOutput && d.conn != nil && d.err == nil && len(d.buf) == 0
	if !p.on {
		can, does := p.resp.Pumpable()
		switch {
		case !fit || !can:
			return false
		case !does:
			p.join = r.pattern.used >= fitForPump
			return p.join
		case !p.begin():
			return false
		}
	}
	if fit {
		p.resp.Take(p.take)
	} else {
		p.resp.Take(nil)
	}
	return false
}

// begin lets the pump write to the client; false when it cannot.
func (p *pumping) begin() bool {
	if conn := socketOf(p.r.x.out.direct.conn); conn != nil {
		var err error
		p.twin, err = conn.Twin()
		p.on = err == nil
	}
	p.never = !p.on
	p.take = p.events
	return p.on
}

// end is the stream's end.
func (p *pumping) end() {
	if p.on {
		p.twin.Close()
	}
}

// socketOf is the socket under a client's connection; nil when there is none.
func socketOf(c net.Conn) *socket.Conn {
	if shaped, ok := c.(shapedConn); ok {
		c = shaped.Conn
	}
	if p, ok := c.(*seated); ok {
		c = p.Conn
	}
	short, _ := c.(*socket.Conn)
	return short
}

const (
	dataField = "data: "
	blankLine = "\n\n"
)

// events deals with events of the pattern, on the pump's goroutine. It is
// what alike does, for all that came at a time.
func (p *pumping) events(body []byte, w *socket.Work) (took, stay bool) {
	r := p.r
	pattern := &r.pattern
	var room [sizeRoom]byte
	out := append(w.Out[:0], room[:]...)
	n := 0
	for len(body) > 0 {
		end := bytes.IndexByte(body, '\n')
		if end < len(dataField) || end+1 == len(body) || body[end+1] != '\n' || string(body[:len(dataField)]) != dataField {
			return false, false
		}
		text, ok := pattern.text(body[len(dataField):end])
		if !ok {
			return false, false
		}
		out = append(append(out, dataField...), pattern.outBefore...)
		out = append(append(append(out, text...), pattern.outAfter...), blankLine...)
		body = body[end+len(blankLine):]
		n++
	}
	if n == 0 {
		return false, false
	}
	p.watch.reads.Add(1)
	for range n {
		r.outputs++
		r.pace(w.Now)
	}
	chunk, from := framed(out)
	w.Out = chunk
	chunk = chunk[from:]
	if sent := p.twin.TryWrite(chunk); sent < len(chunk) {
		p.left = append(p.left[:0], chunk[sent:]...)
		return true, false
	}
	return true, true
}

// rest writes what a pump could not, as the goroutine may wait.
func (p *pumping) rest() bool {
	if len(p.left) == 0 {
		return true
	}
	p.r.x.out.deadline(time.Now())
	ok := p.r.x.out.direct.write(p.left)
	p.left = nil
	return ok
}
