package tests

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/golden"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Numbers of sluice.h.
const (
	lookupAsk   = 2
	lookupOffer = 3
	holdAtEnd   = 4
)

// remote is a scheduler in a C program: testdata/serve.c, over a pipe.
type remote struct {
	in  *bufio.Writer
	out *bufio.Reader
	err error // of the pipe; sticky

	plan    scheduler.Plan
	live    map[scheduler.RequestID]*remoteRequest
	names   map[scheduler.RequestID]string
	numbers []int32 // of the last 'S'
}

// remoteRequest is what decides when a request's lookups are answered.
type remoteRequest struct {
	kv    golden.KV
	asked int
}

var _ golden.Core = (*remote)(nil)

// startRemote starts the program with a configuration of these parts.
func startRemote(t *testing.T, program string, cfg scheduler.Config, cache kvcache.Config, conn golden.Connector) (*remote, error) {
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close() // the program ends at it
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	r := &remote{in: bufio.NewWriter(in), out: bufio.NewReader(out), live: map[scheduler.RequestID]*remoteRequest{}, names: map[scheduler.RequestID]string{}}
	tree := map[string]any{
		"Scheduler": cfg,
		"Cache":     map[string]any{"Blocks": cache.Blocks, "BlockSize": cache.BlockSize, "Caching": cache.Caching},
	}
	if conn == golden.StandIn {
		tree["Connector"] = map[string]any{}
	}
	text, err := json.Marshal(tree)
	require.NoError(t, err)
	r.command('N', string(text))
	status, said := r.i32(), r.text()
	if r.err != nil {
		return nil, r.err
	}
	if status != 0 {
		return nil, fmt.Errorf("sluice_new: %d: %s", status, said)
	}
	return r, nil
}

// command sends a letter and its arguments.
func (r *remote) command(letter byte, args ...any) {
	send := func(v any) {
		if r.err == nil {
			r.err = binary.Write(r.in, binary.NativeEndian, v)
		}
	}
	send(letter)
	for _, a := range args {
		switch a := a.(type) {
		case string:
			send(int32(len(a)))
			send([]byte(a))
		case []scheduler.Token:
			send(int32(len(a)))
			send(a)
		case []kvcache.BlockID:
			send(int32(len(a)))
			send(a)
		default:
			send(a)
		}
	}
	if r.err == nil {
		r.err = r.in.Flush()
	}
}

func (r *remote) read(v any) {
	if r.err == nil {
		r.err = binary.Read(r.out, binary.NativeEndian, v)
	}
}

func (r *remote) i32() (v int32) { r.read(&v); return v }

func (r *remote) i64() (v int64) { r.read(&v); return v }

func (r *remote) text() string { return string(items[byte](r)) }

// items is a list.
func items[T any](r *remote) []T {
	n := r.i32()
	if r.err != nil || n <= 0 {
		return nil
	}
	list := make([]T, n)
	r.read(list)
	return list
}

// failure is a status as an error, with the text of the handle.
func (r *remote) failure(call string) error {
	status := r.i32()
	if r.err != nil {
		return r.err
	}
	if status == 0 {
		return nil
	}
	return fmt.Errorf("%s: status %d", call, status)
}

func offerOf(kv golden.KV, asked int) (kind int32, tokens int64, async, repeat int32) {
	if asked < kv.Unknown {
		return lookupAsk, 0, 0, 0
	}
	if kv.Mode != "sync" {
		async = 1
	}
	if kv.Once != nil && !*kv.Once {
		repeat = 1
	}
	return lookupOffer, int64(kv.Remote), async, repeat
}

func (r *remote) Add(req scheduler.Request) (scheduler.RequestID, error) {
	kv, has := req.Params.(golden.KV)
	kind, tokens, async, repeat := int32(0), int64(0), int32(0), int32(0)
	var flags int32
	if has {
		kind, tokens, async, repeat = offerOf(kv, 0)
		if kv.Send {
			flags |= holdAtEnd
		}
	}
	r.command('A', req.ID, req.Prompt, req.StopIDs, req.EOS, req.Namespace.Salt, req.Namespace.LoRA.Name, req.Namespace.LoRA.ID,
		int64(req.MaxTokens), int64(req.MinTokens), int32(req.Priority), int64(req.Arrival), flags, kind, tokens, async, repeat)
	err := r.failure("sluice_add")
	id := scheduler.RequestID(r.i64())
	if err == nil {
		r.names[id] = req.ID
		r.live[id] = &remoteRequest{kv: kv}
	}
	return id, err
}

func (r *remote) Abort(id scheduler.RequestID) error {
	r.command('X', int64(id))
	return r.failure("sluice_abort")
}

func (r *remote) Deliver(events ...scheduler.Event) {
	for _, ev := range events {
		r.command('D', int32(ev.Kind), int64(ev.Request), ev.Blocks)
		if err := r.failure("sluice_deliver"); err != nil && r.err == nil {
			r.err = err
		}
	}
}

func (r *remote) Plan(now scheduler.Time) *scheduler.Plan {
	r.command('P', int64(now))
	if err := r.failure("sluice_plan"); err != nil {
		r.err = err
		return nil
	}
	p := &r.plan
	*p = scheduler.Plan{Seq: uint64(r.i64()), Applied: uint64(r.i64()), Groups: r.i32(), Total: r.i32(), Free: r.i32(), Waits: scheduler.Wait(r.i32())}
	p.Requests, p.Kinds, p.Scheduled = items[scheduler.RequestID](r), items[scheduler.RowKind](r), items[int32](r)
	p.Drafts, p.Computed, p.Prefill = items[int32](r), items[int32](r), items[int32](r)
	p.Samples, p.LocalHits, p.ExternalHits = items[uint8](r), items[int32](r), items[int32](r)
	p.Inputs, p.InputsAt = items[scheduler.Token](r), items[int32](r)
	p.TableFrom, p.Blocks, p.BlocksAt = items[int32](r), items[kvcache.BlockID](r), items[int32](r)
	p.CommonPrefix = items[int32](r)
	p.Loads, p.LoadsFrom, p.LoadsTo, p.LoadsAsync = items[scheduler.RequestID](r), items[int32](r), items[int32](r), items[uint8](r)
	p.LoadBlocks, p.LoadBlocksAt = items[kvcache.BlockID](r), items[int32](r)
	p.Pending, p.Finished = items[scheduler.RequestID](r), items[scheduler.RequestID](r)
	p.Preempted, p.RolledBack = items[scheduler.RequestID](r), items[scheduler.RequestID](r)
	if r.err != nil {
		return nil
	}
	for _, id := range p.Pending {
		q := r.live[id]
		if q.asked++; q.asked >= q.kv.Unknown {
			kind, tokens, async, repeat := offerOf(q.kv, q.asked)
			r.command('O', int64(id), kind, tokens, async, repeat)
			if r.err = r.failure("sluice_offer"); r.err != nil {
				return nil
			}
		}
	}
	return p
}

func (r *remote) Apply(p *scheduler.Plan, res scheduler.Result) ([]scheduler.Output, error) {
	r.command('Y', int64(p.Seq), res.Tokens)
	if err := r.failure("sluice_apply"); err != nil {
		return nil, err
	}
	n := r.i32()
	var outs []scheduler.Output
	for range n {
		o := scheduler.Output{Request: scheduler.RequestID(r.i64())}
		o.ID = r.names[o.Request]
		o.Finish, o.Stop, o.StopToken = scheduler.FinishReason(r.i32()), scheduler.Stop(r.i32()), scheduler.Token(r.i32())
		o.Tokens = items[scheduler.Token](r)
		outs = append(outs, o)
	}
	return outs, r.err
}

func (r *remote) Status(id scheduler.RequestID) (scheduler.Status, bool) {
	r.command('T', int64(id))
	err := r.failure("sluice_request_state")
	return scheduler.Status(r.i32()), err == nil
}

func (r *remote) Queues() scheduler.Queues {
	var q scheduler.Queues
	for i, list := range []*[]string{&q.Running, &q.Waiting, &q.Skipped} {
		r.command('Q', int32(i))
		if err := r.failure("sluice_queue"); err != nil {
			r.err = err
			return q
		}
		for _, id := range items[scheduler.RequestID](r) {
			*list = append(*list, r.names[id])
		}
	}
	return q
}

func (r *remote) stats() {
	r.command('S')
	if err := r.failure("sluice_stats"); err != nil && r.err == nil {
		r.err = err
	}
	r.numbers = []int32{r.i32(), r.i32(), r.i32(), r.i32()}
}

func (r *remote) Stats() scheduler.Stats {
	r.stats()
	return scheduler.Stats{Running: int(r.numbers[0]), Waiting: int(r.numbers[1]), Skipped: int(r.numbers[2])}
}

func (r *remote) Free() int {
	r.stats()
	return int(r.numbers[3])
}
