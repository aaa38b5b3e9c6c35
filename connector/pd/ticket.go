package pd

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

// ticket names the blocks of one KV group of a lease to P's transport: D need neither
// claim the lease before it reads nor ask for it afterwards. It opens what the
// capability of the group does and no more: its secret is drawn from the lease's, to
// which it does not lead back.
type ticket struct {
	Request string `json:"request"`
	Lease          // its secret is proof of the lease's, for this group
	Group   int    `json:"group"`
}

func ticketOf(r ref, group int) ticket {
	t := ticket{Request: r.name, Lease: r.lease, Group: group}
	t.Secret = proof(r.lease.Secret, group)
	return t
}

// proof shows that whoever gives it knows a lease's secret.
func proof(s Secret, group int) Secret {
	m := hmac.New(sha256.New, s[:])
	m.Write(binary.LittleEndian.AppendUint64([]byte("read"), uint64(group)))
	return Secret(m.Sum(nil)[:len(s)])
}

// encode gives what travels; nil if it is too long for that.
func (t ticket) encode() []byte {
	b, err := json.Marshal(t)
	if err != nil || len(b) > transport.MaxTicket {
		return nil
	}
	return b
}

// tickets answers the transport at P.
type tickets struct{ w *Worker }

// errNoLease is all that P says of a ticket that opens nothing.
var errNoLease = errors.New("no such lease")

// find gives the lease that a ticket names.
func (x tickets) find(b []byte) (ticket, leaseRef, error) {
	var t ticket
	if err := json.Unmarshal(b, &t); err != nil {
		return t, leaseRef{}, fmt.Errorf("ticket: %w", err)
	}
	r, ok := x.w.leases.named(t)
	if !ok {
		return t, r, errNoLease
	}
	return t, r, nil
}

// Open renews the lease, as a claim does, and gives the capability of the group.
func (x tickets) Open(b []byte) (transport.Capability, error) {
	t, r, err := x.find(b)
	if err != nil {
		return transport.Capability{}, err
	}
	s := x.w.leases.renew(r, time.Now())
	if !s.Held || t.Group < 0 || t.Group >= len(s.Open) {
		return transport.Capability{}, errNoLease
	}
	return s.Open[t.Group], nil
}

// Stands confirms the lease.
func (x tickets) Stands(b []byte) error {
	_, r, err := x.find(b)
	if err == nil && !x.w.leases.confirm(r, time.Now()).Held {
		err = errNoLease
	}
	return err
}

// named gives the whole name of the live lease that a ticket is for.
func (l *leases) named(t ticket) (leaseRef, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.m[connector.NewRequestID(t.Slot, t.Generation)]
	if h == nil || h.name != t.Request {
		return leaseRef{}, false
	}
	want := proof(h.lease.Secret, t.Group)
	return leaseRef{h.name, h.lease}, subtle.ConstantTimeCompare(want[:], t.Secret[:]) == 1
}
