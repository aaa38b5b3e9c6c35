package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

func TestHeaderRoundTrip(t *testing.T) {
	h := header{kind: kindData, flags: flagCRC | flagLast, status: statusMemory, length: 12, id: 1 << 60, crc: 77}
	var b [headerSize]byte
	h.put(b[:])
	got, err := parseHeader(b[:])
	require.NoError(t, err)
	require.Equal(t, h, got)
	for i := range b {
		bad := b
		bad[i] ^= 0x10
		_, err := parseHeader(bad[:])
		require.ErrorIs(t, err, transport.ErrProtocol, "byte %d", i)
	}
	for k := kindHello; k < kindEnd; k++ {
		header{kind: k, length: k.limit() + 1}.put(b[:])
		_, err := parseHeader(b[:])
		require.ErrorContains(t, err, "limit")
	}
	header{kind: kindEnd}.put(b[:])
	_, err = parseHeader(b[:])
	require.ErrorContains(t, err, "unknown frame")
}

func TestRequestRoundTrip(t *testing.T) {
	c := transport.Capability{1, 2, 3}
	spans := []span{{1, 0, 5}, {9, 1 << 40, 1}}
	b := appendRequest(nil, c, 6, spans)
	gotC, total, got, err := parseRequest(b, nil)
	require.NoError(t, err)
	require.Equal(t, c, gotC)
	require.EqualValues(t, 6, total)
	require.Equal(t, spans, got)
	for name, bad := range map[string][]byte{
		"short":         b[:requestBase-1],
		"cut":           b[:len(b)-1],
		"longer":        append(append([]byte(nil), b...), 0),
		"wrong total":   appendRequest(nil, c, 7, spans),
		"no segments":   appendRequest(nil, c, 0, nil),
		"zero length":   appendRequest(nil, c, 0, []span{{1, 0, 0}}),
		"beyond 2^62":   appendRequest(nil, c, 1, []span{{1, 1<<62 + 1, 1}}),
		"negative":      appendRequest(nil, c, 1, []span{{1, -1, 1}}),
		"beyond a part": appendRequest(nil, c, 2*maxRequest, []span{{1, 0, maxRequest}, {1, 0, maxRequest}}),
		"too many":      appendRequest(nil, c, maxSegments+1, make([]span, maxSegments+1)),
	} {
		_, _, _, err := parseRequest(bad, nil)
		require.ErrorIs(t, err, transport.ErrProtocol, name)
	}
}

func FuzzParse(f *testing.F) {
	var b [headerSize]byte
	header{kind: kindRead, length: 44}.put(b[:])
	f.Add(b[:])
	f.Add(appendRequest(nil, transport.Capability{}, 6, []span{{1, 0, 5}, {2, 8, 1}}))
	var h [helloSize]byte
	hello{crc: 1}.put(h[:])
	f.Add(h[:])
	f.Add([]byte("\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00k\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if h, err := parseHeader(raw); err == nil {
			require.LessOrEqual(t, h.length, h.kind.limit())
		}
		if c, total, spans, err := parseRequest(raw, nil); err == nil {
			require.LessOrEqual(t, total, int64(maxRequest))
			require.Equal(t, raw, appendRequest(nil, c, total, spans))
		}
		if l, err := parseLend(raw, 5); err == nil {
			require.LessOrEqual(t, len(l.pieces), 5)
		}
		_, _ = parseHello(raw)
	})
}
