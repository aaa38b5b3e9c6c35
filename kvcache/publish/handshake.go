package publish

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// socket is the type of a ZeroMQ socket, as the handshake names it.
type socket string

const (
	pubSocket    socket = "PUB"
	routerSocket socket = "ROUTER"
)

// fits are the types that a socket may be connected to, after the ZMTP
// specification (rfc.zeromq.org/spec/23).
var fits = map[socket][]string{
	pubSocket:    {"SUB", "XSUB"},
	routerSocket: {"REQ", "DEALER", "ROUTER"},
}

// greetingSize is the size of ZMTP 3's greeting: a signature of 10 bytes, version
// (2), mechanism (20), whether this is a server (1), and 31 bytes of nothing.
const greetingSize = 64

const mechanism = "NULL" // no security

var errHandshake = errors.New("publish: handshake")

// greeting is ours. The version is 3.0, whose subscriptions are messages.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:32], mechanism)
	return g
}

// handshake agrees with a peer that it speaks ZMTP 3 without security, and that
// its socket fits ours. Both sides do the same, whoever has connected. What the peer
// may make us read is bounded.
func handshake(r *bufio.Reader, w io.Writer, ours socket) error {
	ready := command("READY", property(property(nil, "Socket-Type", string(ours)), "Identity", ""))
	if _, err := w.Write(greeting()); err != nil {
		return err
	}
	var g [greetingSize]byte
	if _, err := io.ReadFull(r, g[:]); err != nil {
		return err
	}
	switch theirs := strings.TrimRight(string(g[12:32]), "\x00"); {
	case g[0] != 0xff || g[9]&1 != 1:
		return fmt.Errorf("%w: the peer does not begin as ZMTP does", errHandshake)
	case g[10] < 3:
		return fmt.Errorf("%w: the peer speaks ZMTP %d, want 3", errHandshake, g[10])
	case theirs != mechanism:
		return fmt.Errorf("%w: the peer wants the mechanism %q, there is %s alone", errHandshake, theirs, mechanism)
	}
	if _, err := w.Write(ready); err != nil {
		return err
	}
	frames, isCommand, err := readMessage(r, maxFrame)
	if err != nil {
		return err
	}
	if !isCommand {
		return fmt.Errorf("%w: a message in place of READY", errHandshake)
	}
	name, data, err := parseCommand(frames[0])
	if err != nil {
		return err
	}
	if name != "READY" {
		return fmt.Errorf("%w: the peer says %q in place of READY", errHandshake, name)
	}
	theirs, err := socketType(data)
	if err == nil && !slices.Contains(fits[ours], theirs) {
		err = fmt.Errorf("%w: the peer's socket is %q, ours %s", errHandshake, theirs, ours)
	}
	return err
}

// property appends one to the metadata of READY.
func property(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// socketType finds the peer's in the metadata of its READY.
func socketType(b []byte) (kind string, err error) {
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+4 {
			return "", fmt.Errorf("%w: a property of %d bytes", errHandshake, len(b))
		}
		name, size := string(b[1:1+n]), binary.BigEndian.Uint32(b[1+n:])
		if b = b[1+n+4:]; uint64(size) > uint64(len(b)) {
			return "", fmt.Errorf("%w: property %q has %d bytes, %d are there", errHandshake, name, size, len(b))
		}
		if strings.EqualFold(name, "Socket-Type") {
			kind = string(b[:size])
		}
		b = b[size:]
	}
	return kind, nil
}
