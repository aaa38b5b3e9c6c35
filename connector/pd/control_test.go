package pd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

func frame(v any) []byte {
	b, ok := v.([]byte)
	if !ok {
		b, _ = json.Marshal(v)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func FuzzReadMessage(f *testing.F) {
	f.Add(frame(request{Version: 1, Verb: verbRenew, Leases: []leaseRef{{Request: "r"}}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var buf bytes.Buffer
		var req request
		var rep reply
		_ = readMessage(bytes.NewReader(raw), &buf, &req)
		_ = readMessage(bytes.NewReader(raw), &buf, &rep)
		new(Worker).notified(transport.Instance{}, raw)
	})
}

// FuzzAnswer sends decoded garbage to a worker's decisions.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"v":1,"verb":"release","want":"p-1","leases":[{"request":"p-1","slot":1,"generation":1,"secret":"00000000000000000000000000000000"}]}`))
	f.Add([]byte(`{"v":1,"verb":"hello","want":"p-1","hello":{"groups":[{}],"regions":[{"layer":-5}]}}`))
	f.Add([]byte(`{"v":1,"verb":"offer","want":"p-1","offer":{"transfer":"x","from":3,"blocks":[[1,-1]],"open":["00000000000000000000000000000000"],"wait_ms":9}}`))
	f.Add([]byte(`{"v":1,"verb":"withdraw","want":"p-1","offer":{"transfer":"x"}}`))
	w := &Worker{cfg: WorkerConfig{EngineID: "p-1"}.withDefaults(), leases: newLeases(time.Hour, time.Hour)}
	w.pushes = newPushes(w)
	w.leases.add(&held{request: connector.NewRequestID(1, 1), name: "p-1", lease: Lease{1, 1, Secret{9}}}, time.Now())
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req request
		if json.Unmarshal(raw, &req) != nil {
			return
		}
		rep, ended := w.answer(&req, &identity{})
		require.NotNil(t, rep)
		require.Empty(t, ended, "nobody guesses the secret")
		if rep.Error == nil && req.Verb != verbHello && req.Offer == nil {
			require.Len(t, rep.Leases, len(req.Leases))
		}
	})
}

func TestHostileControlFrames(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	params := p.prefill(1, 9, 1)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.w.Endpoint().Port))
	many := request{Version: 1, Verb: verbRelease, Want: "p-1", Leases: make([]leaseRef, maxLeases+1)}
	for name, raw := range map[string][]byte{
		"length beyond the limit": {0xff, 0xff, 0xff, 0xff},
		"not JSON":                frame([]byte("hello?")),
		"an array":                frame([]byte("[]")),
		"empty":                   frame([]byte{}),
		"no version":              frame(request{Verb: verbRenew, Want: "p-1"}),
		"unknown verb":            frame(request{Version: 1, Verb: "take", Want: "p-1"}),
		"hello without identity":  frame(request{Version: 1, Verb: verbHello, Want: "p-1"}),
		"too many leases":         frame(many),
		"deep JSON":               frame(bytes.Repeat([]byte("["), 20000)),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Write(raw)
			require.NoError(t, err)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, err = io.ReadAll(c) // the worker hangs up, with or without a reason
			if err != nil {
				require.ErrorContains(t, err, "reset")
			}
		})
	}
	// A length within the limit whose bytes never come allocates nothing.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var conns []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		_, err = c.Write([]byte{0, 0, 0x0f, 0})
		require.NoError(t, err)
		conns = append(conns, c)
	}
	time.Sleep(50 * time.Millisecond)
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapAlloc, before.HeapAlloc+32<<20, "100 announced frames of 983,040 bytes")
	for _, c := range conns {
		c.Close()
	}
	// The worker still serves.
	d := newEngine(t, "d-1", Consumer, 2)
	d.load(remote(1, 9, params), 1)
	require.Equal(t, connector.Received, d.next().Kind)
}
