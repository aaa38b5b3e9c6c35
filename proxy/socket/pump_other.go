//go:build !linux

package socket

import (
	"errors"
	"time"
)

// Pump is not made here: connections wait in the runtime's poller.
type Pump struct{}

// NewPump gives an error.
func NewPump() (*Pump, error) { return nil, errors.ErrUnsupported }

// Close is not called.
func (*Pump) Close() {}

// Len is not called.
func (*Pump) Len() int { return 0 }

// Passed is not called.
func (*Pump) Passed() uint64 { return 0 }

// Work is what a Quick is given.
type Work struct {
	Now time.Time
	Out []byte
}

// Quick is not called.
type Quick func(p []byte, w *Work) bool

// Join gives an error.
func (*Conn) Join(*Pump) error { return errors.ErrUnsupported }

// Joined gives false.
func (*Conn) Joined() bool { return false }

// Quick is not called.
func (*Conn) Quick(Quick) {}

// Leave is not called.
func (*Conn) Leave() error { return errors.ErrUnsupported }

// Twin is not made here.
type Twin struct{}

// Twin gives an error.
func (*Conn) Twin() (Twin, error) { return Twin{}, errors.ErrUnsupported }

// TryWrite is not called.
func (Twin) TryWrite([]byte) int { return 0 }

// Close is not called.
func (Twin) Close() {}
