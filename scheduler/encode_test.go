package scheduler_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/scheduler"
)

// samplePlans are the plans of a short history in which most fields occur.
func samplePlans(tb testing.TB) [][]byte {
	c := rigConfig{blocks: 12, blockSize: 4, connector: true, graphs: true}
	c.MaxModelLen, c.MaxNumSeqs, c.MaxBatchedTokens, c.Drafts, c.Append.Enable = 40, 4, 24, 2, true
	c.Executor = scheduler.NewResume
	r, err := newRig(c)
	require.NoError(tb, err)
	r.propose(2, 50)
	var plans [][]byte
	for i := range 6 {
		req := scheduler.Request{ID: fmt.Sprint("r", i), Prompt: parseInts(1, 9), MaxTokens: 6}
		var kv remote
		switch i {
		case 1:
			req.Route = scheduler.AppendPrefill
			req.Namespace.Salt = "other"
		case 2:
			kv = remote{tokens: 9}
			req.Namespace.Salt = "remote"
		case 3:
			kv = remote{tokens: 8, sync: true}
			req.Namespace.Salt = "sync"
		case 4:
			req.Grammar = scheduler.GrammarReady
		case 5:
			kv = remote{pending: 1}
		}
		require.NoError(tb, r.add(req, kv))
	}
	for i := range 12 {
		p, err := r.plan(false)
		require.NoError(tb, err)
		b, err := p.AppendBinary(nil)
		require.NoError(tb, err)
		plans = append(plans, b)
		_, err = r.apply()
		require.NoError(tb, err)
		if i == 3 {
			r.s.Deliver(scheduler.Event{Kind: connector.Received, Request: r.ids["r2"]})
		}
	}
	return plans
}

func parseInts(from, to int) []scheduler.Token {
	var out []scheduler.Token
	for i := from; i <= to; i++ {
		out = append(out, scheduler.Token(i))
	}
	return out
}

func TestPlanEncoding(t *testing.T) {
	var p scheduler.Plan
	for _, b := range samplePlans(t) {
		require.NoError(t, p.UnmarshalBinary(b)) // into the memory of the one before
		again, err := p.AppendBinary([]byte("x"))
		require.NoError(t, err)
		require.Equal(t, b, again[1:])
		for n := range len(b) {
			require.Error(t, p.UnmarshalBinary(b[:n]), "%d of %d bytes", n, len(b))
		}
		require.Error(t, p.UnmarshalBinary(append(b, 0)))
	}
	for name, damage := range map[string]func(*scheduler.Plan){
		"offsets that go back": func(p *scheduler.Plan) { p.InputsAt[1], p.InputsAt[2] = p.InputsAt[2], p.InputsAt[1] },
		"tables that overlap": func(p *scheduler.Plan) {
			p.Blocks = append(p.Blocks, 1) // there is one at least
			n := int32(len(p.Blocks))
			p.BlocksAt[1], p.BlocksAt[2] = n, n-1
			for i := 3; i < len(p.BlocksAt); i++ {
				p.BlocksAt[i] = n
			}
			if len(p.BlocksAt) == 3 {
				p.Blocks = p.Blocks[:n-1]
			}
		},
		"offsets that do not fit": func(p *scheduler.Plan) { p.BlocksAt[len(p.BlocksAt)-1]++ },
		"offsets not from 0":      func(p *scheduler.Plan) { p.KnownAt[0] = 1 },
		"a row without tokens":    func(p *scheduler.Plan) { p.Scheduled[0] = 0 },
		"more drafts than tokens": func(p *scheduler.Plan) { p.Drafts[0] = p.Scheduled[0] },
		"a negative position":     func(p *scheduler.Plan) { p.Computed[0] = -1 },
		"an entry too few":        func(p *scheduler.Plan) { p.Samples = p.Samples[1:] },
		"a mask of no row": func(p *scheduler.Plan) {
			p.GrammarRows = append(p.GrammarRows, 99)
			p.GrammarWaits = append(p.GrammarWaits, 0)
		},
		"a table before its start": func(p *scheduler.Plan) { p.TableFrom[0] = -1 },
		"groups without end":       func(p *scheduler.Plan) { p.Groups = -1 },
	} {
		for _, b := range samplePlans(t) {
			require.NoError(t, p.UnmarshalBinary(b))
			if p.Rows() < 2 {
				continue
			}
			damage(&p)
			b, err := p.AppendBinary(nil)
			require.NoError(t, err)
			require.Error(t, new(scheduler.Plan).UnmarshalBinary(b), name)
		}
	}
	var bad *scheduler.EncodingError
	require.ErrorAs(t, p.UnmarshalBinary([]byte("SLPL\x02\x00\x00\x00")), &bad)
	require.Contains(t, bad.Error(), "version 2")
}

func TestResultEncoding(t *testing.T) {
	for _, r := range []scheduler.Result{
		{},
		{Outcome: scheduler.Failed},
		{Tokens: parseInts(1, 3), Elapsed: 7},
		{Tokens: parseInts(1, 3), Counts: []int32{2, 1}, Drafts: parseInts(4, 5), DraftCounts: []int32{1, 1}, GrammarErrors: []int32{1}},
		{Counts: []int32{}},
	} {
		b, err := r.AppendBinary(nil)
		require.NoError(t, err)
		var got scheduler.Result
		require.NoError(t, got.UnmarshalBinary(b))
		again, err := got.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b, again)
		require.Equal(t, r.Counts == nil, got.Counts == nil)
		require.Error(t, got.UnmarshalBinary(b[:len(b)-1]))
	}
}

func FuzzPlanDecode(f *testing.F) {
	for _, b := range samplePlans(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p scheduler.Plan
		if p.UnmarshalBinary(b) != nil {
			return
		}
		for i := range p.Requests { // what passes may be indexed
			_ = p.Input(i)
			_ = p.KnownTokens(i)
			for g := range int(p.Groups) {
				_, _ = p.Table(i, g)
			}
		}
		again, err := p.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}

// TestOtherProcess drives an executor that knows nothing but encoded plans: it
// runs in a process of its own, and what requests yield is right.
func TestOtherProcess(t *testing.T) {
	if os.Getenv("SLUICE_TEST_EXECUTOR") != "" {
		t.Skip("this is the other process")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	words := append(strings.Fields(os.Getenv("SLUICE_TEST_RUNNER")), self, "-test.run", "^TestExecutorProcess$") // as go test -exec runs it
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "SLUICE_TEST_EXECUTOR=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	from := bufio.NewReader(out)

	c := rigConfig{blocks: 16, blockSize: 4}
	c.MaxModelLen, c.MaxNumSeqs, c.MaxBatchedTokens = 60, 4, 16
	r, err := newRig(c)
	require.NoError(t, err)
	for i := range 6 {
		require.NoError(t, r.add(scheduler.Request{ID: fmt.Sprint("r", i), Prompt: parseInts(10*i+1, 10*i+9+i), MaxTokens: 8}, remote{}))
	}
	for r.s.HasWork() {
		p := r.s.Plan(r.now)
		b, err := p.AppendBinary(nil)
		require.NoError(t, err)
		require.NoError(t, writeFrame(in, b))
		answer, err := readFrame(from)
		require.NoError(t, err)
		var res scheduler.Result
		require.NoError(t, res.UnmarshalBinary(answer))
		outs, err := r.s.Apply(p, res)
		require.NoError(t, err)
		for _, o := range outs {
			r.got[o.ID] = append(r.got[o.ID], o.Tokens...)
			r.ends[o.ID] = o.Finish
		}
	}
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.Positive(t, r.s.Stats().Preemptions)
	for _, name := range r.order {
		require.NoError(t, r.verify(name))
	}
}

// TestExecutorProcess is the other side of TestOtherProcess.
func TestExecutorProcess(t *testing.T) {
	if os.Getenv("SLUICE_TEST_EXECUTOR") == "" {
		t.Skip("runs as a process of TestOtherProcess")
	}
	e := newExecutor(24, 4)
	in := bufio.NewReader(os.Stdin)
	var p scheduler.Plan
	for {
		b, err := readFrame(in)
		if err == io.EOF {
			os.Exit(0) // nothing but frames goes to standard output
		}
		require.NoError(t, err)
		require.NoError(t, p.UnmarshalBinary(b))
		res := e.run(&p, false)
		b, err = res.AppendBinary(nil)
		require.NoError(t, err)
		require.NoError(t, writeFrame(os.Stdout, b))
	}
}

func writeFrame(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint32(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}
