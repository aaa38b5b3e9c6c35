package transport

import (
	"context"
	"errors"
)

// Tickets are grants as whoever gave them names them, by leases for example: a reader
// that holds a ticket need not ask for the capability first, nor afterwards whether
// what it has read still counted. A ticket is a secret like the capability that it
// stands for. Calls come from the transport's goroutines and must not block for long.
type Tickets interface {
	// Open gives the capability that a ticket stands for as a read begins. The bytes
	// are what a peer sent, and not kept.
	Open(ticket []byte) (Capability, error)
	// Stands is asked when all has been read: the error says that what the ticket
	// names has ended since Open.
	Stands(ticket []byte) error
}

// TicketServer is implemented by transports whose peers can read by tickets.
type TicketServer interface {
	// ServeTickets is called once, before peers connect.
	ServeTickets(Tickets)
}

// TicketReader is implemented by peers that may take tickets.
type TicketReader interface {
	// ReadTicket is ReadBlocks of a BlockReader with a ticket of the peer's. Without
	// an error the ticket stood when all had been read. ErrNoTickets says that
	// this peer or this memory is not for it.
	ReadTicket(ctx context.Context, ticket []byte, b Blocks) error
}

// MaxTicket is the greatest length of a ticket, in bytes.
const MaxTicket = 1 << 10

// ErrNoTickets: blocks have to be read by their capability.
var ErrNoTickets = errors.New("tickets are not taken")
