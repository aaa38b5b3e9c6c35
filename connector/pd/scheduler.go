package pd

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// Role is what an engine does with the KV of prompts.
type Role uint8

const (
	// Both hands on and takes.
	Both Role = iota
	// Producer computes prompts for others (P).
	Producer
	// Consumer takes prompts from others (D).
	Consumer
)

func (r Role) String() string {
	switch r {
	case Both:
		return "kv_both"
	case Producer:
		return "kv_producer"
	case Consumer:
		return "kv_consumer"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// ParseRole reads kv_role. Empty is Both.
func ParseRole(s string) (Role, error) {
	for _, r := range []Role{Both, Producer, Consumer} {
		if s == r.String() {
			return r, nil
		}
	}
	if s == "" {
		return Both, nil
	}
	return 0, fmt.Errorf("kv_role: want kv_producer, kv_consumer or kv_both, got %q", s)
}

// Endpoint is how peers reach an engine's worker.
type Endpoint struct {
	EngineID string // another one after every start
	Host     string // of the control channel
	Port     int
}

// SchedulerConfig configures the scheduler's side.
type SchedulerConfig struct {
	Role      Role
	Self      Endpoint      // of this engine's worker; see Worker.Endpoint
	Key       [32]byte      // random; the secrets of leases are drawn from it
	BlockSize int           // tokens; default 16
	Workers   int           // whose completions count, at most 64; default 1
	Lease     time.Duration // of a finished prompt's blocks; default 30 s
	MaxHold   time.Duration // of the blocks, however often the lease was renewed; default 480 s
	Load      time.Duration // deadline of a load; default 60 s
	Reverse   ReverseConfig // off by default
}

func (c SchedulerConfig) withDefaults() SchedulerConfig {
	if c.BlockSize == 0 {
		c.BlockSize = 16
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	c.Lease, c.MaxHold = leaseTimes(c.Lease, c.MaxHold)
	if c.Load == 0 {
		c.Load = 60 * time.Second
	}
	c.Reverse = c.Reverse.withDefaults()
	return c
}

// leaseTimes applies the defaults that both sides share.
func leaseTimes(lease, hold time.Duration) (time.Duration, time.Duration) {
	if lease == 0 {
		lease = connector.DefaultLease
	}
	if hold == 0 {
		hold = max(480*time.Second, lease)
	}
	return lease, hold
}

// Validate reports every value that cannot work.
func (c SchedulerConfig) Validate() error {
	var errs []error
	if c.Self.EngineID == "" {
		errs = append(errs, errors.New("pd: no engine id"))
	}
	if c.Workers < 0 || c.Workers > 64 {
		errs = append(errs, fmt.Errorf("pd: %d workers, want 1 to 64", c.Workers))
	}
	if c.BlockSize < 0 {
		errs = append(errs, fmt.Errorf("pd: block size %d", c.BlockSize))
	}
	if c.Lease < 0 || c.MaxHold < 0 || c.Load < 0 {
		errs = append(errs, errors.New("pd: negative duration"))
	}
	errs = append(errs, c.Reverse.validate())
	return errors.Join(errs...)
}

// SchedulerStats are counters since the start.
type SchedulerStats struct {
	Tracked   uint64 // requests that came with a peer's blocks
	Loads     uint64 // of them those that read blocks
	Empty     uint64 // of them those whose local hit was full
	Early     uint64 // of them those that ended before they were loaded
	Holds     uint64 // finished prompts whose blocks were kept for a decoder
	Offered   uint64 // finished turns whose blocks were kept for the next turn's prefiller
	Slower    uint64 // reverse pulls not made because computing was predicted to be faster
	Unknown   uint64 // completions of requests that wait for none
	Duplicate uint64 // completions that came twice from one worker
}

// Scheduler is the scheduler's side of either role. It has no goroutine, lock,
// clock or I/O.
type Scheduler struct {
	cfg    SchedulerConfig
	pulls  map[connector.RequestID]*pull
	holds  map[connector.RequestID]*completions
	turns  keptTurns
	speed  speed
	hasher *kvcache.Hasher
	ops    []connector.Op
	stats  SchedulerStats
}

var (
	_ connector.Scheduler = (*Scheduler)(nil)
	_ connector.Delivery  = (*Scheduler)(nil)
)

// pull is a request whose prompt a peer has computed.
type pull struct {
	params  *Params
	phase   phase
	reverse bool // D's blocks are read by P
	slower  bool // and that was predicted to take longer than computing
	common  int  // tokens that a turn's name and this prompt have in common; -1: not looked at
	ended   bool // the request is gone; the entry waits for its load
	done    completions
}

type phase uint8

const (
	queued  phase = iota // nothing was read; the lease is ours to release
	loading              // an OpLoad is with the worker, which releases
	over                 // loaded, failed or released
)

// completions notes which workers have reported.
type completions struct{ seen uint64 }

// report notes a worker and says whether all have reported now.
func (c *completions) report(worker, workers int) (all, again bool) {
	if worker < 0 || worker >= workers {
		return false, true
	}
	bit := uint64(1) << worker
	again = c.seen&bit != 0
	c.seen |= bit
	return c.seen == 1<<workers-1, again
}

// NewScheduler makes the scheduler's side.
func NewScheduler(cfg SchedulerConfig) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "", kvcache.SharedScope)
	if err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg.withDefaults(), hasher: h, pulls: map[connector.RequestID]*pull{}, holds: map[connector.RequestID]*completions{}}, nil
}

// RequiresDelivery is true for a producer: its requests must end with KV that
// can be handed on.
func (s *Scheduler) RequiresDelivery() bool { return s.cfg.Role == Producer }

// Stats returns the counters.
func (s *Scheduler) Stats() SchedulerStats { return s.stats }

// Live is the number of requests that are tracked or held.
func (s *Scheduler) Live() int { return len(s.pulls) + len(s.holds) }

// Added begins to renew the lease of a request that comes with a peer's
// blocks. A lease that this engine will not use is released at once.
func (s *Scheduler) Added(r *connector.Request) {
	p, ok := connector.ParamsOf[*Params](r)
	if ok && p != nil && p.Pushed() && p.DoRemoteDecode && s.cfg.Role != Consumer {
		s.ops = append(s.ops, connector.Op{Kind: connector.OpRenew, Request: r.ID, Payload: trackPayload{p.Transfer, refOf(p).peer}})
		return
	}
	if !ok || p == nil || p.EngineID == "" && p.Metaserver == "" {
		return
	}
	q := &pull{params: p, common: -1}
	if p.Metaserver != "" {
		q.params = p.Clone()
		q.params.Transfer = fmt.Sprintf("%x", s.sign("transfer", r.ID.Slot(), r.ID.Generation()))
	}
	switch {
	case p.DoRemotePrefill && s.cfg.Role != Producer:
	case p.DoRemoteDecode && !p.DoRemotePrefill && s.cfg.Role != Consumer:
		q.reverse = true
	default:
		return
	}
	s.pulls[r.ID] = q
	s.stats.Tracked++
	if q.reverse && !s.cfg.Reverse.Enable {
		s.release(r.ID, q)
		return
	}
	if !p.Pushed() { // else there is no lease yet
		s.ops = append(s.ops, connector.Op{Kind: connector.OpRenew, Request: r.ID, Payload: refOf(p)})
	}
}

// Lookup offers the prompt's tokens that the peer has computed and that are
// not local, once.
func (s *Scheduler) Lookup(r *connector.Request, local int) connector.Answer {
	q := s.pulls[r.ID]
	if q == nil || q.phase != queued {
		return connector.Answer{}
	}
	n := s.remoteTokens(q, r) - local
	if n <= 0 || q.reverse && !s.worthwhile(q, n) {
		return connector.Answer{}
	}
	return connector.Answer{Tokens: n, Async: true, Timeout: s.cfg.Load}
}

// remoteTokens is the number of leading tokens whose KV the peer holds in every
// group. P holds those of the very prompt; a turn's blocks hold those that they
// are named by.
func (s *Scheduler) remoteTokens(q *pull, r *connector.Request) int {
	p, n := q.params, r.Prompt
	if q.reverse || p.prefix != nil {
		if q.common < 0 {
			q.common = s.common(p.prefix, r, p.NumTokens)
		}
		n = q.common
	} else if p.NumTokens > 0 {
		n = min(n, p.NumTokens)
	}
	for _, list := range p.Blocks {
		n = min(n, len(list)*s.cfg.BlockSize)
	}
	if len(p.Blocks) == 0 && !p.Pushed() {
		return 0
	}
	return n
}

// Allocated stages the read of the blocks that are not local, or the release
// when there are none.
func (s *Scheduler) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	s.endTurn(r.Session) // the next turn holds its blocks now
	q := s.pulls[r.ID]
	if q == nil || q.phase != queued {
		return
	}
	if external <= 0 {
		s.stats.Empty++
		s.release(r.ID, q)
		return
	}
	q.phase = loading
	s.stats.Loads++
	from, to := local/s.cfg.BlockSize, ceilDiv(local+external, s.cfg.BlockSize)
	load := &loadPayload{ref: refOf(q.params), groups: len(q.params.Blocks), transfer: q.params.Transfer, metaserver: q.params.Metaserver, name: r.Name}
	blocks := make(connector.Tables, len(tables))
	load.remote = make(connector.Tables, len(tables))
	for g, table := range tables {
		if q.params.Pushed() {
			load.positions = append(load.positions, append([]kvcache.BlockID{}, table[min(from, len(table)):min(to, len(table))]...))
		}
		for i := from; i < min(to, len(table)); i++ {
			if table[i] == kvcache.NullBlock {
				continue
			}
			remote := kvcache.NullBlock
			if g < len(q.params.Blocks) && i < len(q.params.Blocks[g]) {
				remote = q.params.Blocks[g][i]
			}
			blocks[g] = append(blocks[g], table[i])
			load.remote[g] = append(load.remote[g], remote)
		}
	}
	s.ops = append(s.ops, connector.Op{
		Kind: connector.OpLoad, Request: r.ID, Tokens: connector.Range{From: local, To: local + external},
		Blocks: blocks, Timeout: s.cfg.Load, Payload: load,
	})
}

// release ends a lease without a read.
func (s *Scheduler) release(id connector.RequestID, q *pull) {
	q.phase = over
	if q.params.Metaserver != "" {
		return // nobody was asked yet
	}
	op := connector.Op{Kind: connector.OpRelease, Request: id, Payload: refOf(q.params)}
	if q.params.Pushed() {
		op.Payload = withdrawPayload{refOf(q.params).peer, q.params.Transfer}
	}
	s.ops = append(s.ops, op)
}

// Preempting saves nothing.
func (s *Scheduler) Preempting(*connector.Request, connector.Tables, int) bool { return false }

// Finished releases P's blocks if D never read them, and keeps a finished
// prompt's blocks if a decoder is to come.
func (s *Scheduler) Finished(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	if end.Reason.Complete() { // what was refused or aborted may come again elsewhere
		s.endTurn(r.Session)
	}
	if q := s.pulls[r.ID]; q != nil {
		switch q.phase {
		case queued:
			s.stats.Early++
			s.release(r.ID, q)
			delete(s.pulls, r.ID)
		case loading: // its Received ends the entry
			q.ended = true
			s.ops = append(s.ops, connector.Op{Kind: connector.OpCancel, Request: r.ID, Payload: refOf(q.params)})
		case over:
			delete(s.pulls, r.ID)
		}
	}
	p, ok := connector.ParamsOf[*Params](r)
	if !ok || p == nil {
		return connector.Hold{}
	}
	push := p.Pushed() && p.DoRemoteDecode && s.cfg.Role != Consumer
	if !end.Reason.Complete() || tables.Blocks() == 0 {
		if push {
			s.ops = append(s.ops, connector.Op{Kind: connector.OpCancel, Request: r.ID, Payload: trackPayload{transfer: p.Transfer}})
		}
		return connector.Hold{}
	}
	if push {
		end.Computed = min(end.Computed, r.Prompt)
	}
	switch {
	case p.DoRemoteDecode && s.cfg.Role != Consumer:
		s.stats.Holds++
		out := s.hold(r, tables, end, 0, p.Transfer)
		out.DoRemotePrefill, out.NumTokens = true, min(end.Computed, r.Prompt)
		// The worker ends the hold; the scheduler's own deadline is behind it.
		h := connector.Hold{Delay: true, Timeout: s.cfg.MaxHold + s.cfg.Lease}
		if !push { // of a push D was told at the same time as P
			h.Params = out
		}
		return h
	case !p.DoRemoteDecode && s.cfg.Role != Producer && s.cfg.Reverse.Enable:
		return s.offerTurn(r, tables, end)
	}
	return connector.Hold{}
}

// hold keeps a request's blocks under a lease, whose first term is life or the
// usual one, and names them.
func (s *Scheduler) hold(r *connector.Request, tables connector.Tables, end connector.End, life time.Duration, transfer string) *Params {
	s.holds[r.ID] = &completions{}
	lease := Lease{Slot: r.ID.Slot(), Generation: r.ID.Generation()}
	lease.Secret = s.secret(lease)
	blocks := tables.Clone()
	s.ops = append(s.ops, connector.Op{
		Kind: connector.OpSend, Request: r.ID, Tokens: connector.Range{To: end.Computed}, Blocks: blocks,
		Payload: &sendPayload{name: r.Name, lease: lease, life: life, transfer: transfer},
	})
	out := &Params{
		EngineID: s.cfg.Self.EngineID, RequestID: r.Name, Host: s.cfg.Self.Host, Port: s.cfg.Self.Port,
		BlockSize: s.cfg.BlockSize, NumTokens: end.Computed, NumPrompt: ceilDiv(r.Prompt, s.cfg.BlockSize),
		Lease: lease, Mode: "pull", Blocks: make([][]kvcache.BlockID, len(blocks)),
	}
	for g := range blocks {
		out.Blocks[g] = append([]kvcache.BlockID{}, blocks[g]...)
	}
	if n := len(r.Tokens); n > r.Prompt {
		last := int(r.Tokens[n-1])
		out.LastToken = &last
	}
	return out
}

// secret is a function of the key and the lease's name, so that this side
// needs no random source.
func (s *Scheduler) secret(l Lease) Secret { return s.sign("", l.Slot, l.Generation) }

// sign gives what nobody without the key can guess, for one purpose.
func (s *Scheduler) sign(purpose string, slot, generation uint32) Secret {
	m := hmac.New(sha256.New, s.cfg.Key[:])
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], slot)
	binary.LittleEndian.PutUint32(b[4:], generation)
	m.Write([]byte(s.cfg.Self.EngineID))
	m.Write(b[:])
	m.Write([]byte(purpose))
	return Secret(m.Sum(nil)[:16])
}

// Completed notes ends of loads and holds; anything else is counted.
func (s *Scheduler) Completed(ev connector.Event) {
	switch ev.Kind {
	case connector.Received:
		q := s.pulls[ev.Request]
		if q == nil || q.phase == queued {
			s.stats.Unknown++
			return
		}
		all, again := q.done.report(ev.Worker, s.cfg.Workers)
		if again {
			s.stats.Duplicate++
			return
		}
		if t, ok := ev.Payload.(Transfer); ok {
			s.speed.note(t)
		}
		if all {
			q.phase = over
			if q.ended {
				delete(s.pulls, ev.Request)
			}
		}
	case connector.Sent:
		h := s.holds[ev.Request]
		if h == nil {
			s.stats.Unknown++
			return
		}
		all, again := h.report(ev.Worker, s.cfg.Workers)
		if again {
			s.stats.Duplicate++
		}
		if all {
			delete(s.holds, ev.Request)
			s.turns.forget(ev.Request)
		}
	}
}

// Ops hands over what was staged.
func (s *Scheduler) Ops(step uint64, dst []connector.Op) []connector.Op {
	for i := range s.ops {
		s.ops[i].Step = step
	}
	dst = append(dst, s.ops...)
	clear(s.ops)
	s.ops = s.ops[:0]
	return dst
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// What the two sides say to each other.

// ref names a lease at a peer.
type ref struct {
	peer  Endpoint
	name  string // P's request id
	lease Lease
}

func refOf(p *Params) ref {
	return ref{Endpoint{EngineID: p.EngineID, Host: p.Host, Port: p.Port}, p.RequestID, p.Lease}
}

// sendPayload goes with OpSend.
type sendPayload struct {
	name  string
	lease Lease
	life  time.Duration // of the first term; 0: the usual one

	transfer string // of a push
}

// trackPayload goes with OpRenew at P when a request enters whose KV is to be
// pushed, and with OpCancel when it ends without all of it.
type trackPayload struct {
	transfer string
	decoder  Endpoint // that is to be told where this engine is; zero: it knows
}

// withdrawPayload goes with OpRelease at D: nothing is to be pushed.
type withdrawPayload struct {
	peer     Endpoint
	transfer string
}

// ownPayload goes with OpRelease: the lease is this engine's own.
type ownPayload struct{ id connector.RequestID }

// loadPayload goes with OpLoad. remote has the peer's block for each local one.
type loadPayload struct {
	ref    ref
	groups int // KV groups of the peer's lists
	remote connector.Tables

	transfer string // of a push; remote is not used then
	// of a push whose P is not known yet
	metaserver string
	name       string // of the request here

	positions [][]kvcache.BlockID // of a push: the local blocks, holes included, from the first position on
}
