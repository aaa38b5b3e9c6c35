package ranks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-serving/sluice/graphs"
)

// The frames of the star. All numbers are little endian and all frames have a
// fixed length, so that a peer can neither make us wait for more nor make us
// allocate.
//
//	hello   magic u32, version u16, status u16, rank u32, ranks u32, fingerprint u64
//	vote    step u64, mode u32, tokens u32, reqs u32, uniform u32, bound u32
//	result  status u16, reserved u16, rank u32, step u64; votes of all ranks behind status 0
const (
	magic       = 0x534c5652 // "RVLS" on the wire
	version     = 1
	helloBytes  = 24
	voteBytes   = 28
	resultBytes = 16
)

// The statuses of a hello and of a result.
const (
	statusOK uint16 = iota
	statusMissing
	statusStep
	statusDiffers
	statusVote
	statusClosed
	statusHello
)

var statusErrors = [...]error{
	statusMissing: ErrMissing,
	statusStep:    ErrStep,
	statusDiffers: ErrDiffers,
	statusVote:    ErrVote,
	statusClosed:  ErrClosed,
	statusHello:   ErrHello,
}

// statusOf is the status that stands for an error.
func statusOf(err error) uint16 {
	for s, e := range statusErrors {
		if e != nil && errors.Is(err, e) {
			return uint16(s)
		}
	}
	return statusClosed
}

// statusErr is the error that a status stands for.
func statusErr(s uint16) error {
	if int(s) < len(statusErrors) && statusErrors[s] != nil {
		return statusErrors[s]
	}
	return fmt.Errorf("%w: status %d", ErrHello, s)
}

type hello struct {
	status      uint16
	rank, ranks uint32
	fingerprint uint64
}

func (h hello) encode() []byte {
	b := make([]byte, 0, helloBytes)
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, h.status)
	b = binary.LittleEndian.AppendUint32(b, h.rank)
	b = binary.LittleEndian.AppendUint32(b, h.ranks)
	return binary.LittleEndian.AppendUint64(b, h.fingerprint)
}

func readHello(r io.Reader) (hello, error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return hello{}, err
	}
	return decodeHello(b[:])
}

func decodeHello(b []byte) (hello, error) {
	if m, v := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]); m != magic || v != version {
		return hello{}, fmt.Errorf("%w: magic %#x, version %d", ErrHello, m, v)
	}
	return hello{
		status: binary.LittleEndian.Uint16(b[6:]), rank: binary.LittleEndian.Uint32(b[8:]),
		ranks: binary.LittleEndian.Uint32(b[12:]), fingerprint: binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

func appendVote(b []byte, step uint64, v graphs.Vote) []byte {
	b = binary.LittleEndian.AppendUint64(b, step)
	for _, x := range []int32{int32(v.Mode), v.Tokens, v.Reqs, v.Uniform, v.Bound} {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

func decodeVote(b []byte) (step uint64, v graphs.Vote, err error) {
	at := func(i int) int32 { return int32(binary.LittleEndian.Uint32(b[8+4*i:])) }
	step = binary.LittleEndian.Uint64(b)
	v = graphs.Vote{Mode: graphs.Full, Tokens: at(1), Reqs: at(2), Uniform: at(3), Bound: at(4)}
	if m := at(0); m < 0 || m > int32(graphs.Full) {
		return step, v, fmt.Errorf("%w: mode %d", ErrVote, m)
	}
	v.Mode = graphs.Mode(at(0))
	if err := v.Validate(); err != nil {
		return step, v, fmt.Errorf("%w: %w", ErrVote, err)
	}
	return step, v, nil
}

func appendResult(b []byte, status uint16, rank int, step uint64) []byte {
	b = binary.LittleEndian.AppendUint16(b, status)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(rank)))
	return binary.LittleEndian.AppendUint64(b, step)
}

func decodeResult(b []byte) (status uint16, rank int, step uint64) {
	return binary.LittleEndian.Uint16(b), int(int32(binary.LittleEndian.Uint32(b[4:]))), binary.LittleEndian.Uint64(b[8:])
}
