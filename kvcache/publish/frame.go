package publish

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Frames of ZMTP 3: a flag byte, the length in 1 or 8 bytes, the body.
const (
	frameMore    = 1 // another frame of the message follows
	frameLong    = 2 // the length has 8 bytes
	frameCommand = 4

	// maxFrame bounds what a peer may make us read: subscriptions and requests are small.
	maxFrame  = 64 << 10
	maxFrames = 8
)

var errFrame = errors.New("publish: malformed frame")

// message returns the bytes of a message of several frames.
func message(frames ...[]byte) []byte {
	n := 0
	for _, f := range frames {
		n += 9 + len(f)
	}
	b := make([]byte, 0, n)
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = frameMore
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|frameLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// readMessage reads the next message or command, of frames up to limit bytes.
func readMessage(r *bufio.Reader, limit uint64) (frames [][]byte, command bool, err error) {
	for {
		flags, err := r.ReadByte()
		if err != nil {
			return nil, false, err
		}
		if flags&^(frameMore|frameLong|frameCommand) != 0 || flags&frameCommand != 0 && (flags&frameMore != 0 || len(frames) > 0) {
			return nil, false, fmt.Errorf("%w: flags %#x", errFrame, flags)
		}
		size := uint64(0)
		if flags&frameLong != 0 {
			var long [8]byte
			if _, err := io.ReadFull(r, long[:]); err != nil {
				return nil, false, err
			}
			size = binary.BigEndian.Uint64(long[:])
		} else {
			short, err := r.ReadByte()
			if err != nil {
				return nil, false, err
			}
			size = uint64(short)
		}
		if size > limit || len(frames) == maxFrames {
			return nil, false, fmt.Errorf("%w: %d bytes in frame %d", errFrame, size, len(frames))
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, false, err
		}
		frames = append(frames, body)
		if flags&frameMore == 0 {
			return frames, flags&frameCommand != 0, nil
		}
	}
}

// parseCommand splits a command into its name and its data.
func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil, fmt.Errorf("%w: command of %d bytes", errFrame, len(body))
	}
	n := int(body[0])
	return string(body[1 : 1+n]), body[1+n:], nil
}

func command(name string, data []byte) []byte {
	body := append(append([]byte{byte(len(name))}, name...), data...)
	return appendFrame(nil, frameCommand, body)
}
