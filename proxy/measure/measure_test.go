//go:build linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain is a backend too, for the tests that need one.
func TestMain(m *testing.M) {
	if parent, err := strconv.Atoi(os.Getenv("MEASURE_AWAKE")); err == nil {
		if err := runAwake(parent); err != nil {
			os.Exit(3)
		}
		os.Exit(0)
	}
	if os.Getenv("MEASURE_BACKEND") != "" {
		if err := runBackend(100 * time.Microsecond); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func startBackend(t *testing.T) *process {
	t.Setenv("MEASURE_BACKEND", "1")
	self, err := os.Executable()
	require.NoError(t, err)
	p, err := launch(self)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.stop()) })
	return p
}

// The measurement's own ends agree about streams, however they are cut.
func TestStreamsAreMeasured(t *testing.T) {
	p := startBackend(t)
	for _, rounds := range []int{1, 3} {
		list, err := delays(p.addr, 100*time.Microsecond, 50, rounds, 5, 20*time.Millisecond, chatBody(2000, `,"stream":true,"chunks":5,"pace_ms":2`))
		require.NoError(t, err)
		require.Len(t, list, 50*max(rounds-1, 1)*4)
		for _, d := range list {
			require.GreaterOrEqual(t, d, time.Duration(0))
		}
	}
	_, err := delays(p.addr, 100*time.Microsecond, 1, 1, 6, 0, chatBody(2000, `,"stream":true,"chunks":5,"pace_ms":0`))
	require.ErrorContains(t, err, "after 5 of 6 chunks")
	_, err = delays(p.addr, 100*time.Microsecond, 1, 1, 6, 0, chatBody(2000, `,"stream":true,"chunks":0`))
	require.ErrorContains(t, err, "the connection ended after 0 of 6 chunks")
}

// Answers are read however they and their events are cut.
func TestStreamsInPieces(t *testing.T) {
	answer := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n9\r\n {\"x\":\"@1\r\n12\r\n2@\"}\n\ndata: [DONE]\r\n2\r\n\n\n\r\n0\r\n\r\n"
	for size := 1; size <= len(answer); size++ {
		c := &crowd{chunks: 1, rounds: 1, left: 1}
		s := &streamer{}
		for from := 0; from < len(answer); from += size {
			require.NoError(t, c.take(s, []byte(answer[from:min(from+size, len(answer))]), 20))
		}
		require.Zero(t, c.left)
	}
	c, s := &crowd{chunks: 2, rounds: 2, left: 1}, &streamer{round: 1}
	for i := range 2 {
		require.NoError(t, c.events(s, []byte("data: @1"+strconv.Itoa(i)+"@\n\n"), 50))
	}
	require.Equal(t, []time.Duration{39}, c.delays)
	require.Error(t, c.take(&streamer{}, []byte("HTTP/1.1 503 x\r\n"), 0))
	require.Error(t, c.take(&streamer{at: inSize}, []byte("x\r\n"), 0))
	require.Error(t, c.take(&streamer{at: inData, left: 20}, []byte("data: {}\n"), 0))
}

// Bodies of every size get the answer of their kind, one after the other.
func TestCallsAreAnswered(t *testing.T) {
	p := startBackend(t)
	for _, size := range []int{200, 2000, 48 << 10, 1 << 20} {
		for _, more := range []string{"", prefillMark} {
			c, err := dial(p.addr, chatBody(size, more))
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, c.do())
			}
			c.close()
		}
	}
	// What the proxy adds stands at a body's end.
	c := &peer{body: make([]byte, 0, keptStart+2*keptEnd)}
	b := &backend{}
	long := request(chatBody(100<<10, "")[:100<<10] + `","end":"mark"}`)
	for len(long) > 0 { // all but the last byte: nothing is answered yet
		n := min(len(long), 1777)
		if n == len(long) {
			n--
		}
		if n == 0 {
			break
		}
		require.True(t, b.take(0, c, long[:n]))
		long = long[n:]
	}
	require.Equal(t, 1, c.left)
	require.Contains(t, string(c.body), `{"model":"m"`)
	require.Contains(t, string(c.body), `"end":"mark"`)
}

func TestProcessors(t *testing.T) {
	require.NoError(t, pin(""))
	require.Error(t, pin("x"))
	require.Error(t, pin("0,-1"))
	require.Error(t, pin("4096"))
	require.Positive(t, cores())
}

// What keeps a processor awake gives way to everything else, and does not outlive
// the one that has started it.
func TestAwakeGivesWayAndEnds(t *testing.T) {
	t.Setenv("MEASURE_AWAKE", strconv.Itoa(os.Getpid()))
	self, err := os.Executable()
	require.NoError(t, err)
	p, err := launch(self)
	require.NoError(t, err)
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/sched")
	if err == nil {
		require.Regexp(t, `(?m)^policy\s*:\s*5$`, string(raw))
	}
	require.NoError(t, p.stop())

	t.Setenv("MEASURE_AWAKE", "1") // as if the one that has started it had gone
	orphan := exec.Command(self)
	var exit *exec.ExitError
	require.ErrorAs(t, orphan.Run(), &exit)
	require.Equal(t, 3, exit.ExitCode())
}
