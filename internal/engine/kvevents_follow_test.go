package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/server"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/testkit/pyzmq"
	"github.com/sluice-serving/sluice/kvcache"
)

const (
	patience  = time.Minute
	blockSize = 16
	hashSeed  = "42"
	topic     = "kv@pod1@builtin"
	script    = "../../kvcache/publish/testdata/subscriber.py"
)

// batch is one message of an engine as a router reads it.
type batch struct {
	Seq    int64   `json:"seq"`
	Topic  string  `json:"topic"`
	Events []event `json:"events"`
	Rank   int     `json:"rank"`
}

type event struct {
	Type      string          `json:"type" msgpack:"type"`
	Hashes    []uint64        `json:"block_hashes" msgpack:"block_hashes"`
	Parent    *uint64         `json:"parent_block_hash" msgpack:"parent_block_hash"`
	Tokens    []kvcache.Token `json:"token_ids" msgpack:"token_ids"`
	BlockSize int             `json:"block_size" msgpack:"block_size"`
	Medium    string          `json:"medium" msgpack:"medium"`
	Extra     [][]string      `json:"extra_keys" msgpack:"extra_keys"`
}

// held is what a router knows of a block: how its sequence begins, up to its end.
type held struct {
	ns     kvcache.Namespace
	tokens []kvcache.Token
}

// block names a block as events do.
type block struct {
	medium string
	hash   uint64
}

// rebuild gives the blocks that are cached after the batches. An event that does
// not fit what came before it is an error, and so is a hash that is not the
// tokens'. A block of the device stands behind one that is there; in the host
// tier that one may have gone before.
func rebuild(batches []batch) (map[block]bool, error) {
	hasher, err := kvcache.NewHasher(kvcache.SHA256CBOR, hashSeed, kvcache.SharedScope)
	if err != nil {
		return nil, err
	}
	blocks, known := map[block]bool{}, map[uint64]held{}
	for _, b := range batches {
		for _, e := range b.Events {
			switch e.Type {
			case "AllBlocksCleared":
				clear(blocks)
			case "BlockRemoved":
				for _, h := range e.Hashes {
					if !blocks[block{e.Medium, h}] {
						return nil, fmt.Errorf("batch %d removes %x from %s, which is not there", b.Seq, h, e.Medium)
					}
					delete(blocks, block{e.Medium, h})
				}
			case "BlockStored":
				var at held
				if e.Parent != nil {
					var ok bool
					if at, ok = known[*e.Parent]; !ok || e.Medium == "GPU" && !blocks[block{e.Medium, *e.Parent}] {
						return nil, fmt.Errorf("batch %d stores behind %x, which is not there", b.Seq, *e.Parent)
					}
				} else if len(e.Extra) > 0 && len(e.Extra[0]) > 0 {
					at.ns.Salt = e.Extra[0][0]
				}
				if e.BlockSize != blockSize || len(e.Tokens) != len(e.Hashes)*blockSize {
					return nil, fmt.Errorf("batch %d: %d blocks of %d with %d tokens", b.Seq, len(e.Hashes), e.BlockSize, len(e.Tokens))
				}
				all := append(slices.Clone(at.tokens), e.Tokens...)
				chain := hasher.Chain(nil, &at.ns, all, blockSize)
				for i, h := range e.Hashes {
					n := len(at.tokens)/blockSize + i
					if chain[n].Uint64() != h {
						return nil, fmt.Errorf("batch %d: block %d of %v is not %x", b.Seq, n, all, h)
					}
					if blocks[block{e.Medium, h}] {
						return nil, fmt.Errorf("batch %d stores %x in %s twice", b.Seq, h, e.Medium)
					}
					blocks[block{e.Medium, h}] = true
					known[h] = held{at.ns, all[:(n+1)*blockSize]}
				}
			default:
				return nil, fmt.Errorf("batch %d: event %q", b.Seq, e.Type)
			}
		}
	}
	return blocks, nil
}

// node is an engine behind HTTP.
type node struct {
	*testing.T
	engine *engine.Engine
	url    string
}

func serve(t *testing.T, cfg engine.Config) *node {
	t.Helper()
	e, err := engine.New(t.Context(), cfg, engine.Options{})
	require.NoError(t, err)
	srv := httptest.NewServer(server.New(e, server.Options{}))
	t.Cleanup(func() {
		srv.Close()
		require.NoError(t, e.Close())
	})
	return &node{t, e, srv.URL}
}

func (n *node) post(path, rank string, body any) (int, []byte) {
	n.Helper()
	raw, err := json.Marshal(body)
	require.NoError(n, err)
	req, err := http.NewRequestWithContext(n.Context(), http.MethodPost, n.url+path, bytes.NewReader(raw))
	require.NoError(n, err)
	req.Header.Set("X-data-parallel-rank", rank)
	res, err := http.DefaultClient.Do(req)
	require.NoError(n, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(n, err)
	return res.StatusCode, out
}

// ask has a prompt answered.
func (n *node) ask(rank int, prompt []kvcache.Token, tokens int, more map[string]any) openai.CompletionResponse {
	n.Helper()
	body := map[string]any{"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true}
	maps.Copy(body, more)
	status, raw := n.post("/v1/completions", strconv.Itoa(rank), body)
	require.Equal(n, http.StatusOK, status, "%s", raw)
	var out openai.CompletionResponse
	require.NoError(n, json.Unmarshal(raw, &out))
	return out
}

// turn is ask that gives the prompt with its answer, and how much of it was cached.
func (n *node) turn(rank int, salt string, prompt []kvcache.Token) (history []kvcache.Token, cached int) {
	n.Helper()
	more := map[string]any{}
	if salt != "" {
		more["cache_salt"] = salt
	}
	out := n.ask(rank, prompt, 24, more)
	history = slices.Clone(prompt)
	for _, id := range out.Choices[0].TokenIDs {
		history = append(history, kvcache.Token(id))
	}
	return history, out.Usage.PromptTokensDetails.CachedTokens
}

var position = regexp.MustCompile(`\[([\d ]+)\]:(\S+)`)

// cached gives what the rank's cache holds, from its tokens.
func (n *node) cached(rank int) map[block]bool {
	n.Helper()
	var text string
	n.await("an idle rank", func() bool {
		var idle bool
		var err error
		text, idle, err = n.engine.DumpCache(n.Context(), rank)
		require.NoError(n, err)
		return idle
	})
	hasher, err := kvcache.NewHasher(kvcache.SHA256CBOR, hashSeed, kvcache.SharedScope)
	require.NoError(n, err)
	out := map[block]bool{}
	var ns kvcache.Namespace
	var path [][]kvcache.Token // what the lines above begin with, by their depth
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "namespace "); ok {
			ns = kvcache.Namespace{}
			if salt, ok := strings.CutPrefix(strings.TrimSpace(name), "salt="); ok {
				ns.Salt, err = strconv.Unquote(salt)
				require.NoError(n, err)
			}
			continue
		}
		depth := (len(line)-len(strings.TrimLeft(line, " ")))/2 - 1
		if depth < 0 {
			continue
		}
		var all []kvcache.Token
		if depth > 0 {
			all = slices.Clone(path[depth-1])
		}
		for _, m := range position.FindAllStringSubmatch(line, -1) {
			for f := range strings.FieldsSeq(m[1]) {
				id, err := strconv.Atoi(f)
				require.NoError(n, err)
				all = append(all, kvcache.Token(id))
			}
			if m[2] != "-" {
				chain := hasher.Chain(nil, &ns, all, blockSize)
				out[block{"GPU", chain[len(chain)-1].Uint64()}] = true
			}
		}
		path = append(path[:depth], all)
	}
	return out
}

func (n *node) await(what string, ok func() bool) {
	n.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("waited in vain for %s", what)
		}
	}
}

// metric sums a metric of the engine over the series with that rank.
func (n *node) metric(name string, rank int) (sum float64) {
	n.Helper()
	families, err := n.engine.Metrics().Gather()
	require.NoError(n, err)
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetName() == "engine" && l.GetValue() == strconv.Itoa(rank) {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

// follower is a subscriber, and what it has read.
type follower struct {
	name string
	mu   sync.Mutex
	all  []batch
	err  error
}

func (f *follower) add(b batch, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.err = err
	} else {
		f.all = append(f.all, b)
	}
}

func (f *follower) read() ([]batch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all), f.err
}

// parse reads a message.
func parse(frames [][]byte) (batch, error) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return batch{}, fmt.Errorf("%d frames", len(frames))
	}
	b := batch{Topic: string(frames[0]), Seq: int64(binary.BigEndian.Uint64(frames[1]))}
	if b.Seq == -1 {
		return b, nil
	}
	d := msgpack.NewDecoder(bytes.NewReader(frames[2]))
	if n, err := d.DecodeArrayLen(); err != nil || n != 3 {
		return b, fmt.Errorf("an array of %d: %w", n, err)
	}
	var at float64
	return b, d.DecodeMulti(&at, &b.Events, &b.Rank)
}

// subscribe follows a rank with zmq4's socket until the test ends.
func (n *node) subscribe(rank int) *follower {
	n.Helper()
	f := &follower{name: fmt.Sprintf("zmq4, rank %d", rank)}
	ctx, cancel := context.WithCancel(context.Background())
	addr, _ := n.engine.EventsAddr(rank)
	sub := zmq4.NewSub(ctx)
	require.NoError(n, sub.Dial("tcp://"+addr.String()))
	require.NoError(n, sub.SetOption(zmq4.OptionSubscribe, "kv@"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			m, err := sub.Recv()
			if err != nil {
				return // closed
			}
			f.add(parse(m.Frames))
		}
	}()
	n.Cleanup(func() {
		cancel()
		_ = sub.Close() // its context has ended
		<-ended
	})
	return f
}

// subscribePython follows a rank with libzmq's socket until the test ends.
func (n *node) subscribePython(interpreter string, rank int) *follower {
	n.Helper()
	f := &follower{name: fmt.Sprintf("pyzmq, rank %d", rank)}
	addr, _ := n.engine.EventsAddr(rank)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, interpreter, script, "sub", "tcp://"+addr.String(), "kv@", "1000000")
	out, err := cmd.StdoutPipe()
	require.NoError(n, err)
	require.NoError(n, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var b batch
			f.add(b, json.Unmarshal(lines.Bytes(), &b))
		}
	}()
	n.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait() // it was killed
	})
	return f
}

// replay asks a rank for its batches from a number on.
func (n *node) replay(rank int, from int64) (all []batch) {
	n.Helper()
	_, addr := n.engine.EventsAddr(rank)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dealer := zmq4.NewDealer(ctx)
	defer dealer.Close()
	require.NoError(n, dealer.Dial("tcp://"+addr.String()))
	require.NoError(n, dealer.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, uint64(from)))))
	for {
		m, err := dealer.Recv()
		require.NoError(n, err)
		b, err := parse(m.Frames[1:])
		require.NoError(n, err)
		if b.Seq == -1 {
			return all
		}
		all = append(all, b)
	}
}

// agree waits until a follower knows exactly what the rank's cache holds.
func (n *node) agree(what string, rank int, followers ...*follower) {
	n.Helper()
	want := n.cached(rank)
	for _, f := range followers {
		var got map[block]bool
		var wrong error
		end := time.Now().Add(patience)
		for {
			all, err := f.read()
			require.NoError(n, err, f.name)
			got, wrong = rebuild(all)
			if wrong == nil && maps.Equal(got, want) {
				break
			}
			if time.Now().After(end) {
				n.Fatalf("%s: %s: %d blocks are cached, %d followed (%v)", what, f.name, len(want), len(got), wrong)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	n.Logf("%s: rank %d has %d blocks", what, rank, len(want))
}

// count counts events of a kind.
func count(t *testing.T, f *follower, kind string) (n int) {
	all, err := f.read()
	require.NoError(t, err)
	for _, b := range all {
		for _, e := range b.Events {
			if e.Type == kind {
				n++
			}
		}
	}
	return n
}

func prompt(first, n int) []kvcache.Token {
	out := make([]kvcache.Token, n)
	for i := range out {
		out[i] = kvcache.Token(3 + (first*61+i*i)%200)
	}
	return out
}

// Routers that follow an engine of two ranks, over zmq4 and over libzmq, know at
// every rest exactly the blocks that its caches hold: after turns of which the
// second finds the first, under a salt, while a small pool evicts, after a reset
// and behind it. A lost event would be seen, and a gap is filled by a replay.
func TestRoutersKnowWhatIsCached(t *testing.T) {
	cfg := engine.Config{
		KVBlocks: 40, MaxModelLen: 512, MaxTokens: 64, MaxSeqs: 4, BlockSize: blockSize, DataParallel: 2, DeviceWorkers: 1, Eager: true,
		HashSeed: hashSeed, KVEvents: engine.KVEvents{Enable: true, Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: topic},
	}
	n := serve(t, cfg)
	interpreter := pyzmq.Find(t)
	followers := make([][]*follower, cfg.DataParallel)
	for rank := range followers {
		followers[rank] = append(followers[rank], n.subscribe(rank))
		if interpreter != "" {
			followers[rank] = append(followers[rank], n.subscribePython(interpreter, rank))
		}
		n.await("the subscribers", func() bool { return n.metric("sluice_kv_events_subscribers", rank) == float64(len(followers[rank])) })
	}
	agree := func(what string) {
		t.Helper()
		for rank, all := range followers {
			n.agree(what, rank, all...)
		}
	}
	agree("at first")
	history, hit := n.turn(0, "", prompt(1, 150)) // three chunks, of which two are in flight
	require.Zero(t, hit)
	agree("one turn")
	history, hit = n.turn(0, "", append(history, prompt(2, 40)...))
	require.GreaterOrEqual(t, hit, 160)
	agree("a turn that found the one before")
	n.turn(0, "", append(history[:100:100], prompt(3, 60)...)) // leaves it in the middle of a block
	n.turn(1, "", prompt(1, 100))
	agree("a branch, and the other rank")
	n.turn(1, "pepper", prompt(1, 100))
	agree("the same under a salt")
	var together sync.WaitGroup
	for i := range 6 {
		together.Go(func() { n.turn(i%2, "", prompt(10+i, 200)) })
	}
	together.Wait()
	agree("many together")
	for i := range 6 {
		n.turn(i%2, "", prompt(20+i, 300))
	}
	agree("more than the pool holds")
	for _, f := range followers[0] {
		require.Positive(t, count(t, f, "BlockRemoved"), "evictions")
		require.Zero(t, count(t, f, "AllBlocksCleared"))
	}
	n.await("a reset", func() bool {
		status, _ := n.post("/reset_prefix_cache", "0", map[string]any{})
		return status == http.StatusOK
	})
	for rank, all := range followers {
		require.Empty(t, n.cached(rank))
		n.agree("a reset", rank, all...)
		require.Equal(t, 1, count(t, all[0], "AllBlocksCleared"))
	}
	for i := range 4 {
		n.turn(0, "", prompt(30+i, 200))
		n.turn(1, "", prompt(20+i, 200))
	}
	agree("at last")

	for rank, all := range followers {
		batches, err := all[0].read()
		require.NoError(t, err)
		for i, b := range batches {
			require.EqualValues(t, i, b.Seq)
			require.Equal(t, rank, b.Rank)
			require.Equal(t, topic, b.Topic)
		}
		require.EqualValues(t, len(batches), n.metric("sluice_kv_events_batches_total", rank))
		require.Zero(t, n.metric("sluice_kv_events_dropped_total", rank))
		for _, f := range all[1:] {
			same, err := f.read()
			require.NoError(t, err)
			require.Equal(t, batches, same, f.name)
		}
		want := n.cached(rank)
		lostIsSeen(t, batches, want)

		// Who comes late, or has lost some, asks for what is missing.
		late, err := rebuild(n.replay(rank, 0))
		require.NoError(t, err)
		require.Equal(t, want, late)
		from := len(batches) - 3
		gap := append(slices.Clone(batches[:from]), batches[from+2:]...)
		got, err := rebuild(gap)
		require.True(t, err != nil || !maps.Equal(want, got), "the gap would be seen")
		missing := n.replay(rank, int64(from))
		require.Equal(t, batches[from:], missing)
		got, err = rebuild(append(slices.Clone(batches[:from]), missing...))
		require.NoError(t, err)
		require.Equal(t, want, got)
		if interpreter != "" {
			_, addr := n.engine.EventsAddr(rank)
			text, err := exec.Command(interpreter, script, "replay", "tcp://"+addr.String(), strconv.Itoa(from)).Output()
			require.NoError(t, err)
			var read []batch
			for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
				var b batch
				require.NoError(t, d.Decode(&b))
				read = append(read, b)
			}
			require.Equal(t, missing, read[:len(read)-1])
			require.EqualValues(t, -1, read[len(read)-1].Seq)
		}
	}
}

// lostIsSeen drops one event after the other of those since the last reset: what
// is rebuilt without it is not what is cached.
func lostIsSeen(t *testing.T, batches []batch, want map[block]bool) {
	t.Helper()
	seen := 0
	for i := len(batches) - 1; i >= 0; i-- {
		for k := len(batches[i].Events) - 1; k >= 0; k-- {
			short := slices.Clone(batches)
			short[i].Events = slices.Delete(slices.Clone(batches[i].Events), k, k+1)
			got, err := rebuild(short)
			require.True(t, err != nil || !maps.Equal(want, got), "batch %d without event %d", i, k)
			seen++
			if batches[i].Events[k].Type == "AllBlocksCleared" {
				require.Greater(t, seen, 4)
				return
			}
		}
	}
	t.Fatal("no reset")
}
