package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// desk gives capabilities for tickets.
type desk struct {
	mu    sync.Mutex
	m     map[string]transport.Capability
	opens atomic.Int64

	opening, opened func() // called ahead of Open and behind it; nil: nothing
}

var errGone = errors.New("it is gone")

func (d *desk) Open(ticket []byte) (transport.Capability, error) {
	d.opens.Add(1)
	if d.opening != nil {
		d.opening()
	}
	if d.opened != nil {
		defer d.opened()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c, ok := d.m[string(ticket)]
	if !ok {
		return c, errGone
	}
	return c, nil
}

func (d *desk) Stands(ticket []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.m[string(ticket)]; !ok {
		return errGone
	}
	return nil
}

func (d *desk) end(ticket string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.m, ticket)
}

const good = "a good ticket"

// ticketSides are sides of units whose owner takes the good ticket.
func ticketSides(t *testing.T, a, b Config) (*unitSides, *desk) {
	t.Helper()
	s := newUnitSides(t, a, b)
	d := &desk{m: map[string]transport.Capability{good: s.c}}
	s.y.ServeTickets(d)
	return s, d
}

func blocksSide() Config { return Config{Near: besideBlocks{newBeside()}} }

// Blocks are read by a ticket where both sides know of it, and where not the caller is
// told before anything was read.
func TestReadTicket(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b Config
		mute bool // nobody takes tickets at the owner
		want error
	}{
		{name: "both", a: blocksSide(), b: blocksSide()},
		{name: "a reader as before", a: Config{Near: besideBlocks{newBeside()}, NoTickets: true}, b: blocksSide(), want: transport.ErrNoTickets},
		{name: "an owner as before", a: blocksSide(), b: Config{Near: besideBlocks{newBeside()}, NoTickets: true}, want: transport.ErrNoTickets},
		{name: "an owner without tickets", a: blocksSide(), b: blocksSide(), mute: true, want: transport.ErrNoTickets},
		{name: "an owner that knows of no units", a: blocksSide(), b: Config{Near: besideBlocks{newBeside()}, Pieces: true}, want: transport.ErrNoTickets},
		{name: "no neighbours", want: transport.ErrNoTickets},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newUnitSides(t, c.a, c.b)
			d := &desk{m: map[string]transport.Capability{good: s.c}}
			if !c.mute {
				s.y.ServeTickets(d)
			}
			p := s.connect(t).(transport.TicketReader)
			require.ErrorIs(t, p.ReadTicket(t.Context(), []byte(good), s.b), c.want)
			if c.want == nil {
				s.check(t)
				require.Equal(t, s.total(), s.x.Stats().ReadBytes)
				require.EqualValues(t, 1, d.opens.Load())
			} else {
				require.Zero(t, s.x.Stats().ReadBytes)
				require.Zero(t, d.opens.Load())
			}
			require.NoError(t, transport.ReadBlocks(t.Context(), p.(transport.Peer), s.c, s.b), "by its capability")
			s.check(t)
		})
	}
}

// A ticket opens what its capability does, and only while it stands.
func TestTicketsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		ticket string
		spoil  func(s *unitSides, d *desk)
		want   error
	}{
		"of nobody":             {"a bad ticket", func(*unitSides, *desk) {}, transport.ErrDenied},
		"over":                  {good, func(_ *unitSides, d *desk) { d.end(good) }, transport.ErrDenied},
		"with a revoked grant":  {good, func(s *unitSides, _ *desk) { s.y.Revoke(s.c) }, transport.ErrDenied},
		"for other units":       {good, func(s *unitSides, _ *desk) { s.b.Remote[3] = 0 }, transport.ErrDenied},
		"for a region too many": {good, func(s *unitSides, d *desk) { d.m[good] = s.mustGrant(transport.PeerReads, 1) }, transport.ErrDenied},
		"for no region":         {good, func(s *unitSides, _ *desk) { s.b.Regions[1].Remote = 99 }, transport.ErrRegion},
		"to write":              {good, func(s *unitSides, d *desk) { d.m[good] = s.mustGrant(transport.PeerWrites, -1) }, transport.ErrDenied},
		"none":                  {"", func(*unitSides, *desk) {}, transport.ErrNoTickets},
		"too long":              {string(make([]byte, transport.MaxTicket+1)), func(*unitSides, *desk) {}, transport.ErrNoTickets},
		"for nothing":           {good, func(s *unitSides, _ *desk) { s.b.Local, s.b.Remote = nil, nil }, transport.ErrNoTickets},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := ticketSides(t, blocksSide(), blocksSide())
			p := s.connect(t).(transport.TicketReader)
			c.spoil(s, d)
			require.ErrorIs(t, p.ReadTicket(t.Context(), []byte(c.ticket), s.b), c.want)
			for k := range s.mx {
				require.Equal(t, make(transport.Host, len(s.mx[k])), s.mx[k])
			}
			require.Zero(t, s.x.Stats().Fetched)
			require.Zero(t, s.x.Stats().Retries)
		})
	}
}

// What a ticket names ends while a neighbour copies, though the grant still stands: the
// read does not count.
func TestTicketEndsWhileUnitsAreCopied(t *testing.T) {
	na := newBeside()
	s, d := ticketSides(t, Config{Near: besideBlocks{na}}, blocksSide())
	p := s.connect(t).(transport.TicketReader)
	na.fetching = func() { d.end(good) }
	err := p.ReadTicket(t.Context(), []byte(good), s.b)
	require.ErrorIs(t, err, transport.ErrDenied)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
	require.Zero(t, s.x.Stats().ReadBytes)
	require.Zero(t, s.y.Stats().ServedReads)
}

// The grant of a ticket is revoked while a neighbour copies.
func TestTicketRevokedWhileUnitsAreCopied(t *testing.T) {
	na := newBeside()
	s, _ := ticketSides(t, Config{Near: besideBlocks{na}, Conns: 1, Retries: -1}, Config{Near: besideBlocks{newBeside()}, Grace: 10 * time.Millisecond})
	p := s.connect(t).(transport.TicketReader)
	var once sync.Once
	na.fetching = func() { once.Do(func() { s.y.Revoke(s.c) }) }
	err := p.ReadTicket(t.Context(), []byte(good), s.b)
	require.Error(t, err)
	require.Len(t, transport.FailedSegments(err, len(s.b.Local)), len(s.b.Local))
}

// Requests whose ticket has a wrong length, or comes from a peer that was told of none,
// end the connection.
func TestHostileTickets(t *testing.T) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}})
	require.NoError(t, err)
	defer s.Close()
	d := &desk{m: map[string]transport.Capability{}}
	s.ServeTickets(d)
	units := rawUnits(transport.Capability{}, 1, 1, 5, 4096, 1)
	with := func(n int, text string, rest []byte) []byte {
		return append(append(binary.LittleEndian.AppendUint16(nil, uint16(n)), text...), rest...)
	}
	const asks = cardUnits | cardTickets
	for name, c := range map[string]struct {
		asks byte
		raw  []byte
		ends bool
	}{
		"fits, of nobody":   {asks, with(4, "none", units), false},
		"no bytes":          {asks, nil, true},
		"half a length":     {asks, []byte{1}, true},
		"of no length":      {asks, with(0, "", units), true},
		"too long":          {asks, with(transport.MaxTicket+1, string(make([]byte, transport.MaxTicket+1)), units), true},
		"longer than all":   {asks, with(200, "none", units), true},
		"takes of the rest": {asks, with(5, "none", units), true},
		"nothing behind":    {asks, with(4, "none", nil), true},
		"not agreed":        {cardUnits, with(4, "none", units), true},
		"without units":     {cardTickets, with(4, "none", units), true},
	} {
		t.Run(name, func(t *testing.T) {
			stream := append(greeting(near, c.asks), rawFrame(header{kind: kindUnits, flags: flagTicket, id: 1}, c.raw)...)
			before := s.Stats().Malformed
			got := tell(t, name, s, stream)
			require.Equal(t, c.ends, s.Stats().Malformed > before)
			if !c.ends {
				require.True(t, bytes.Contains(got, []byte(errGone.Error())), "it says why")
			}
		})
	}
	require.EqualValues(t, 1, d.opens.Load())
}

// FuzzServeTickets feeds requests by tickets that nobody was given.
func FuzzServeTickets(f *testing.F) {
	near := newBeside()
	s, err := New(Config{Near: besideBlocks{near}, DialTimeout: time.Second, StallTimeout: time.Second, IdleTimeout: time.Second})
	require.NoError(f, err)
	f.Cleanup(func() { s.Close() })
	s.ServeTickets(&desk{})
	d, err := s.Register(struct{ transport.Memory }{make(transport.Host, 64<<10)}, 4096)
	require.NoError(f, err)
	for _, raw := range hostileUnits() {
		f.Add(append([]byte{1, 0, 'x'}, raw...))
	}
	fits := append([]byte{1, 0, 'x'}, rawUnits(transport.Capability{}, 1, 2, uint32(d.Region), 4096, 0, 3)...)
	f.Add(fits)
	f.Add([]byte{255, 255})
	before := greeting(near, cardUnits|cardTickets)
	feed := func(raw []byte) {
		s.feed(append(before[:len(before):len(before)], rawFrame(header{kind: kindUnits, flags: flagTicket, id: 1}, raw)...))
	}
	feed(fits)
	require.EqualValues(f, 1, s.Stats().Denied, "it gets as far as the tickets")
	f.Fuzz(func(t *testing.T, raw []byte) {
		feed(raw)
		require.Zero(t, s.Stats().ServedReads)
		require.Zero(t, near.open.Load(), "the neighbour was let go of")
	})
}
