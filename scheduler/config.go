package scheduler

import (
	"errors"
	"fmt"
	"time"
)

// Config of a scheduler. The zero value of a field means its default; only
// MaxModelLen has none.
type Config struct {
	// MaxNumSeqs is the number of requests that run at once. Default 128.
	MaxNumSeqs int
	// MaxBatchedTokens is the number of tokens of a step, with the slots that a
	// drafter needs. Default 2,048.
	MaxBatchedTokens int
	// MaxScheduledTokens is the number of tokens of a step without these slots.
	// Default MaxBatchedTokens.
	MaxScheduledTokens int
	// MaxModelLen is the longest sequence in tokens, prompt and output. A pool
	// that cannot hold one such sequence lowers it.
	MaxModelLen int
	// VocabSize bounds token ids. 0: ids are only checked to be positive.
	VocabSize int

	// Chunking of prompts. Default ChunkedPrefill.
	Chunking Chunking
	// LongPrefillThreshold is the most tokens that one request gets in a step. 0: no limit.
	LongPrefillThreshold int
	// Admission gate. Default WholeSequence.
	Admission Admission
	// Watermark is the share of blocks, in [0, 1), that admissions leave free
	// while others run. Default 0.
	Watermark float64
	// MaxLoRAs is the number of adapters in one step. 0: no limit.
	MaxLoRAs int

	// Policy orders the waiting requests. Default FCFS.
	Policy Policy
	// AgingAfter is how long a long request waits under ShortFirst before it
	// goes ahead of short ones. Default 10 s.
	AgingAfter time.Duration
	// ShortPrompt is the longest prompt, in tokens, that ShortFirst calls short.
	// Default 1,024.
	ShortPrompt int
	// Quantum is the number of tokens that a tenant gets per round under
	// FairShare. Default MaxBatchedTokens.
	Quantum int
	// Victim chooses whom a lack of blocks preempts. Default VictimByPolicy.
	Victim Victim

	// Scheduling is synchronous or asynchronous. Default Sync.
	Scheduling Scheduling
	// InFlight is the number of plans that may be made and not applied. Default
	// 1 for Sync and 2 for Async.
	InFlight int

	// Drafts is the number K of draft tokens per request and step; 0: none.
	Drafts int
	// DraftSlots is the number of extra slots per request that a drafter needs
	// in MaxBatchedTokens.
	DraftSlots int
	// Lookahead is the number of slots beyond a step's tokens that are
	// allocated for a drafter. Default Drafts; NoLookahead for none.
	Lookahead int
	// DynamicDrafts gives K by the number of running requests, densely: entry n
	// is the K of n requests, the last entry that of more. Nil: always Drafts.
	DynamicDrafts []int
	// TailPadding says when the last prompt token of an admission is padded to
	// the width of rows with drafts. Default PadBesideRunning.
	TailPadding TailPadding

	// HoldBack is the most tokens left of a prompt with context that are
	// computed one per step beside decodes, so that the batch keeps their shape
	// and its graph (graphs.HoldBack). It pays where a step without a FULL graph
	// costs more than a further step. 0 or 1: off.
	HoldBack int

	// LoadFailure says what becomes of a request whose KV did not arrive.
	// Default FailRequest.
	LoadFailure LoadFailure
	// Recompute says what becomes of a request that must give way on a decoder
	// whose connector has not saved it. Default RecomputeHere.
	Recompute Recompute
	// LoadTimeout bounds asynchronous loads. Default 60 s.
	LoadTimeout time.Duration
	// LookupTimeout bounds how long a connector may leave a lookup pending; the
	// request then goes on without it. Default 30 s.
	LookupTimeout time.Duration
	// HoldTimeout bounds how long blocks of a finished request are kept for a
	// connector. Default 480 s.
	HoldTimeout time.Duration
	// GrammarTimeout bounds the wait for a grammar. Default 120 s.
	GrammarTimeout time.Duration
	// InputTimeout bounds the wait of a session for its next turn. Default 600 s.
	InputTimeout time.Duration
	// Grace is added to a load's deadline before its blocks are taken back,
	// because the worker stops at the deadline itself. Default 2 s.
	Grace time.Duration
	// Workers that report each load and send. Default 1.
	Workers int

	// Append configures append attempts.
	Append AppendConfig
	// Executor says how resumed requests are reported. Default CachedResume.
	Executor Executor
}

// NoLookahead is the value of Config.Lookahead that switches it off.
const NoLookahead = -1

// Chunking of prompts.
type Chunking uint8

const (
	ChunkedPrefill Chunking = iota // a prompt may be spread over several steps
	WholePrefill                   // a prompt runs in one step or not at all
)

// TailPadding of one-token prompt tails where there are drafts.
type TailPadding uint8

const (
	PadBesideRunning TailPadding = iota // to the shape of the running rows of the step, if there are any
	PadAlways                           // also without them, where decode graphs have that width alone
)

// Admission gate of waiting requests.
type Admission uint8

const (
	WholeSequence Admission = iota // blocks for all known tokens must be available
	FirstChunk                     // blocks for the first chunk suffice
)

// Policy of the waiting queue.
type Policy uint8

const (
	FCFS             Policy = iota // by time of Add
	Priority                       // by priority, arrival and ID
	ShortFirst                     // short prompts first, long ones after AgingAfter
	EarliestDeadline               // by deadline, then arrival
	FairShare                      // deficit round robin over tenants
)

var policyNames = [...]string{FCFS: "fcfs", Priority: "priority", ShortFirst: "short_first", EarliestDeadline: "earliest_deadline", FairShare: "fair_share"}

func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy reads a name as String writes it.
func ParsePolicy(s string) (Policy, error) {
	for p, name := range policyNames {
		if s == name {
			return Policy(p), nil
		}
	}
	return 0, fmt.Errorf("unknown policy %q", s)
}

// Victim chooses which running request gives way when blocks are short.
type Victim uint8

const (
	VictimByPolicy    Victim = iota // Priority: the least urgent; otherwise the last admitted
	VictimByRecompute               // the one whose blocks cost the fewest tokens to compute again
)

// Scheduling says whether a plan is made before its predecessor is applied.
type Scheduling uint8

const (
	Sync  Scheduling = iota // a request is in at most one plan in flight
	Async                   // a request may be in several; the tokens that are not known yet are placeholders
)

func (s Scheduling) String() string {
	if s == Async {
		return "async"
	}
	return "sync"
}

// LoadFailure is the policy for KV that did not arrive.
type LoadFailure uint8

const (
	FailRequest   LoadFailure = iota // the request ends with an error
	RecomputeLoad                    // what did not arrive is computed here
)

// Recompute is the policy for a running request that must give way.
type Recompute uint8

const (
	// RecomputeHere queues it again; what is no longer cached is computed again.
	RecomputeHere Recompute = iota
	// RecomputeAway ends it with FinishRecomputed, so that its sender takes it
	// to a prefiller, unless the connector has saved its KV.
	RecomputeAway
)

// Executor is the generation of executors that read the plans.
type Executor uint8

const (
	// CachedResume: a resumed request has a row of kind RowResumed; the executor
	// still knows its prompt.
	CachedResume Executor = iota
	// NewResume: a resumed request is reported as new, with all its tokens.
	NewResume
)

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	dur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxNumSeqs, 128)
	def(&c.MaxBatchedTokens, 2048)
	def(&c.MaxScheduledTokens, c.MaxBatchedTokens)
	dur(&c.AgingAfter, 10*time.Second)
	def(&c.ShortPrompt, 1024)
	def(&c.Quantum, c.MaxBatchedTokens)
	if c.InFlight == 0 {
		c.InFlight = 1
		if c.Scheduling == Async {
			c.InFlight = 2
		}
	}
	switch c.Lookahead {
	case 0:
		c.Lookahead = c.Drafts
	case NoLookahead:
		c.Lookahead = 0
	}
	dur(&c.LoadTimeout, 60*time.Second)
	dur(&c.LookupTimeout, 30*time.Second)
	dur(&c.HoldTimeout, 480*time.Second)
	dur(&c.GrammarTimeout, 120*time.Second)
	dur(&c.InputTimeout, 600*time.Second)
	dur(&c.Grace, 2*time.Second)
	def(&c.Workers, 1)
	return c
}

// Validate reports everything that is wrong with the configuration, joined:
// each a *ConfigError or a *ConflictError. New also looks at what depends on the
// connector.
func (c Config) Validate() error { return (&choices{Config: c}).validate() }

func (c *choices) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &ConfigError{field, fmt.Sprintf(format, args...)})
	}
	notNegative := func(field string, v int) {
		if v < 0 {
			bad(field, "is %d, must not be negative", v)
		}
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"MaxNumSeqs", c.MaxNumSeqs}, {"MaxBatchedTokens", c.MaxBatchedTokens}, {"MaxScheduledTokens", c.MaxScheduledTokens},
		{"VocabSize", c.VocabSize}, {"LongPrefillThreshold", c.LongPrefillThreshold}, {"MaxLoRAs", c.MaxLoRAs},
		{"ShortPrompt", c.ShortPrompt}, {"Quantum", c.Quantum}, {"InFlight", c.InFlight}, {"Drafts", c.Drafts},
		{"DraftSlots", c.DraftSlots}, {"Workers", c.Workers}, {"HoldBack", c.HoldBack},
	} {
		notNegative(f.name, f.v)
	}
	for _, f := range []struct {
		name string
		v    time.Duration
	}{
		{"AgingAfter", c.AgingAfter}, {"LoadTimeout", c.LoadTimeout}, {"LookupTimeout", c.LookupTimeout}, {"HoldTimeout", c.HoldTimeout},
		{"GrammarTimeout", c.GrammarTimeout}, {"InputTimeout", c.InputTimeout}, {"Grace", c.Grace},
	} {
		if f.v < 0 {
			bad(f.name, "is %v, must not be negative", f.v)
		}
	}
	if c.MaxModelLen <= 0 {
		bad("MaxModelLen", "is %d, must be positive", c.MaxModelLen)
	}
	if c.Watermark < 0 || c.Watermark >= 1 || c.Watermark != c.Watermark {
		bad("Watermark", "is %v, must lie in [0, 1)", c.Watermark)
	}
	if c.Lookahead < NoLookahead {
		bad("Lookahead", "is %d, must not be below %d", c.Lookahead, NoLookahead)
	}
	for i, k := range c.DynamicDrafts {
		if k < 0 || k > c.Drafts {
			bad("DynamicDrafts", "entry %d is %d, must lie in [0, Drafts=%d]", i, k, c.Drafts)
		}
	}
	for _, f := range []struct {
		name   string
		v, end int
	}{
		{"Chunking", int(c.Chunking), int(WholePrefill)}, {"TailPadding", int(c.TailPadding), int(PadAlways)}, {"Admission", int(c.Admission), int(FirstChunk)},
		{"Policy", int(c.Policy), int(FairShare)}, {"Victim", int(c.Victim), int(VictimByRecompute)},
		{"Scheduling", int(c.Scheduling), int(Async)}, {"LoadFailure", int(c.LoadFailure), int(RecomputeLoad)},
		{"Recompute", int(c.Recompute), int(RecomputeAway)}, {"Executor", int(c.Executor), int(NewResume)},
	} {
		if f.v > f.end {
			bad(f.name, "has the unknown value %d", f.v)
		}
	}
	d := c.withDefaults()
	if c.MaxScheduledTokens > d.MaxBatchedTokens {
		bad("MaxScheduledTokens", "is %d, more than MaxBatchedTokens=%d", c.MaxScheduledTokens, d.MaxBatchedTokens)
	}
	if d.DraftSlots >= d.MaxBatchedTokens && d.MaxBatchedTokens > 0 {
		bad("DraftSlots", "is %d, leaves nothing of MaxBatchedTokens=%d", d.DraftSlots, d.MaxBatchedTokens)
	}
	if d.Drafts+1 > d.MaxBatchedTokens && d.MaxBatchedTokens > 0 {
		bad("Drafts", "is %d, does not fit MaxBatchedTokens=%d", d.Drafts, d.MaxBatchedTokens)
	}
	if c.Chunking == WholePrefill && c.MaxModelLen > d.MaxBatchedTokens {
		bad("Chunking", "is off, but MaxBatchedTokens=%d is less than MaxModelLen=%d", d.MaxBatchedTokens, c.MaxModelLen)
	}
	c.Append.validate(bad)
	return errors.Join(append(errs, c.conflicts()...)...)
}
