package scheduler

import (
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
)

// RowKind says what an executor knows about a row's request.
type RowKind uint8

const (
	// RowNew: the executor has not seen the request, or, with Executor NewResume,
	// has forgotten it. The row brings its whole block table.
	RowNew RowKind = iota
	// RowResumed: the request was preempted and runs again. The row brings its
	// whole block table; what the executor kept of the old one is void.
	RowResumed
	// RowRunning: the request ran before. The row brings the new end of its
	// block table.
	RowRunning
)

func (k RowKind) String() string {
	switch k {
	case RowNew:
		return "new"
	case RowResumed:
		return "resumed"
	case RowRunning:
		return "running"
	}
	return fmt.Sprintf("RowKind(%d)", uint8(k))
}

// Unknown stands in Inputs for a token that does not exist yet when the plan
// is made. At a position before the row's drafts it is the token that an
// earlier plan in flight samples for the same request; at a draft's position
// it is a draft that the executor holds itself or, for the placeholders of a
// tail, nothing: an embedding of any valid id, which must be rejected.
const Unknown Token = -1

// Wait is what a plan without rows waits for.
type Wait uint8

const (
	NoWait     Wait = iota // there are rows, or nothing to do
	ForStep                // a plan in flight must be applied
	ForLoad                // KV must arrive
	ForLookup              // a connector must answer
	ForRelease             // a connector must release blocks that it holds
	ForGrammar             // a grammar must become ready
	ForInput               // a session must be continued
	ForResume              // the scheduler is paused
)

var waitNames = [...]string{NoWait: "nothing", ForStep: "step", ForLoad: "load", ForLookup: "lookup", ForRelease: "release", ForGrammar: "grammar", ForInput: "input", ForResume: "resume"}

func (w Wait) String() string {
	if int(w) < len(waitNames) {
		return waitNames[w]
	}
	return fmt.Sprintf("Wait(%d)", uint8(w))
}

// Plan is one step. It belongs to the scheduler and is valid, unchanged, until
// it is given to Apply; after that its memory serves a later plan.
//
// The arrays are flat and hold neither pointers nor strings. Those of one
// group have an entry per row, request or token, as their comment says. A
// ragged array X comes with XAt, one entry longer than it has owners: owner i
// has X[XAt[i]:XAt[i+1]].
//
// An executor takes a plan up in this order:
//
//  1. Finished and Preempted: forget the state of these requests. Their slots
//     may come again in this plan.
//  2. The connector's work of the step, from [connector.Scheduler.Ops]: saves
//     of preempted blocks first, then loads. Blocks of a save may be written by
//     the rows of this very plan.
//  3. The rows, all KV of a layer before any attention of that layer reads it:
//     two rows with equal prompts share the blocks that one of them computes
//     in this step. Plans run in the order in which they were made, on one
//     stream; a block that a preemption freed may be in an earlier plan too.
//  4. Apply, also for a plan without rows.
type Plan struct {
	Seq uint64 // number of the plan, from 1, without gaps
	Now Time   // as given to Plan
	// Applied is the number of the last plan that was applied when this one was
	// made. Plans between the two are in flight, and Computed counts their drafts
	// as accepted: an executor moves a row whose first input is Unknown back by
	// the drafts that its request's rows in those plans had rejected, as far as
	// they follow the request's last row with a known first input.
	Applied uint64

	// Rows, in the order of planning: those of running requests first.

	Requests     []RequestID
	Kinds        []RowKind
	Scheduled    []int32 // tokens to compute, drafts included
	Drafts       []int32 // of them drafts to verify, at the end of the row
	Placeholders []int32 // of the drafts those that stand for nothing and must be rejected
	Computed     []int32 // tokens whose KV is there before the step
	Prefill      []int32 // tokens known at the last admission; a row with Computed below it is prefilling
	Outputs      []int32 // tokens generated before this step, those in flight included
	Samples      []uint8 // 1 if the row yields a token
	LocalHits    []int32 // RowNew, RowResumed: tokens found in the cache by this admission
	ExternalHits []int32 // RowNew, RowResumed: tokens that a connector brings into this very step
	GrammarRows  []int32 // rows whose logits need a grammar's mask; mask i is of row GrammarRows[i]
	GrammarWaits []uint8 // 1 if that mask depends on a token that is in flight

	// Inputs are the token ids of all rows, Scheduled[i] for row i, beginning
	// at position Computed[i].
	Inputs   []Token
	InputsAt []int32

	// Known are all tokens known at admission of rows of kind RowNew under
	// Executor NewResume. Other rows have none.
	Known   []Token
	KnownAt []int32

	// Blocks that changed in the rows' tables. There is one owner per row and
	// KV group, row after row: owner i·Groups+g. TableFrom is the position in
	// the request's table where the owner's blocks begin.
	Groups    int32
	TableFrom []int32
	Blocks    []kvcache.BlockID
	BlocksAt  []int32

	// CommonPrefix is, per group, the number of leading blocks that the tables
	// of all requests which hold blocks have in common.
	CommonPrefix []int32

	// Total is the sum of Scheduled. LoRAs is the number of adapters.
	Total int32
	LoRAs int32
	// NextDrafts is the number of drafts per row to propose for the next plan.
	NextDrafts int32

	// Verdicts has one per row, Graph the choice that follows from them. Both
	// are zero without a dispatcher.
	Verdicts []graphs.RowVerdict
	Graph    graphs.Decision

	// Connector's work and what it is about. Loads lists what begins in this
	// step: tokens [LoadsFrom, LoadsTo) of the request. An asynchronous one
	// has no row, and its whole table is in LoadBlocks: owner i·Groups+g; a
	// synchronous one has a row, its table is there, and its owner is empty.
	Loads        []RequestID
	LoadsFrom    []int32
	LoadsTo      []int32
	LoadsAsync   []uint8
	LoadBlocks   []kvcache.BlockID
	LoadBlocksAt []int32

	// Pending are requests whose lookup was not answered, one entry per lookup.
	Pending []RequestID

	// Finished are the requests that ended since the previous plan.
	Finished []RequestID
	Reasons  []FinishReason

	// Preempted are the requests that were preempted since the previous plan,
	// in order; PreemptedSaved is 1 where a connector saves the KV. RolledBack
	// are those of them that had a row in this plan before it was taken back.
	Preempted      []RequestID
	PreemptedSaved []uint8
	RolledBack     []RequestID

	// Refused are append attempts that this plan ends. Their outputs come with
	// its Apply.
	Refused  []RequestID
	Refusals []Refusal

	// Released are requests whose blocks returned since the previous plan
	// although they had ended before: held for a connector, or fenced.
	Released []RequestID

	// Free is the number of blocks that are free or evictable after planning.
	Free int32
	// Waits is set on a plan without rows while requests are there.
	Waits Wait

	owner     *Scheduler
	published []publication
	events    uint64 // mark of the cache's events after planning
	state     planState
}

// publication is a block that a plan made matchable before it was computed.
type publication struct {
	block kvcache.BlockID
	by    RequestID
}

type planState uint8

const (
	planIdle planState = iota
	planInFlight
	planApplied
)

// Rows is the number of rows.
func (p *Plan) Rows() int { return len(p.Requests) }

// Input is the token ids of a row.
func (p *Plan) Input(row int) []Token { return p.Inputs[p.InputsAt[row]:p.InputsAt[row+1]] }

// Table is what changed of a row's table in one group: blocks that stand at
// position from and after it.
func (p *Plan) Table(row, group int) (from int, blocks []kvcache.BlockID) {
	i := row*int(p.Groups) + group
	return int(p.TableFrom[i]), p.Blocks[p.BlocksAt[i]:p.BlocksAt[i+1]]
}

// KnownTokens is the row's part of Known.
func (p *Plan) KnownTokens(row int) []Token { return p.Known[p.KnownAt[row]:p.KnownAt[row+1]] }

// LoadTable is the whole table of an asynchronous load in one group.
func (p *Plan) LoadTable(load, group int) []kvcache.BlockID {
	i := load*int(p.Groups) + group
	return p.LoadBlocks[p.LoadBlocksAt[i]:p.LoadBlocksAt[i+1]]
}

// GraphRows is the view of the rows that graph dispatch reads.
func (p *Plan) GraphRows() graphs.Rows {
	return graphs.Rows{Scheduled: p.Scheduled, Drafts: p.Drafts, Placeholders: p.Placeholders, Computed: p.Computed, Prefill: p.Prefill}
}

// reset empties the plan and keeps its memory.
func (p *Plan) reset(a Allocator) {
	p.Requests = p.Requests[:0]
	p.Kinds = p.Kinds[:0]
	p.Scheduled = p.Scheduled[:0]
	p.Drafts = p.Drafts[:0]
	p.Placeholders = p.Placeholders[:0]
	p.Computed = p.Computed[:0]
	p.Prefill = p.Prefill[:0]
	p.Outputs = p.Outputs[:0]
	p.Samples = p.Samples[:0]
	p.LocalHits = p.LocalHits[:0]
	p.ExternalHits = p.ExternalHits[:0]
	p.GrammarRows = p.GrammarRows[:0]
	p.GrammarWaits = p.GrammarWaits[:0]
	p.Inputs = p.Inputs[:0]
	p.InputsAt = p.InputsAt[:0]
	p.Known = p.Known[:0]
	p.KnownAt = p.KnownAt[:0]
	p.TableFrom = p.TableFrom[:0]
	p.Blocks = p.Blocks[:0]
	p.BlocksAt = p.BlocksAt[:0]
	p.CommonPrefix = p.CommonPrefix[:0]
	p.Total, p.LoRAs, p.NextDrafts = 0, 0, 0
	p.Verdicts = p.Verdicts[:0]
	p.Graph = graphs.Decision{}
	p.Loads = p.Loads[:0]
	p.LoadsFrom = p.LoadsFrom[:0]
	p.LoadsTo = p.LoadsTo[:0]
	p.LoadsAsync = p.LoadsAsync[:0]
	p.LoadBlocks = p.LoadBlocks[:0]
	p.LoadBlocksAt = add(a, p.LoadBlocksAt[:0], 0)
	p.Pending = p.Pending[:0]
	p.Finished = p.Finished[:0]
	p.Reasons = p.Reasons[:0]
	p.Preempted = p.Preempted[:0]
	p.PreemptedSaved = p.PreemptedSaved[:0]
	p.RolledBack = p.RolledBack[:0]
	p.Refused = p.Refused[:0]
	p.Refusals = p.Refusals[:0]
	p.Released = p.Released[:0]
	p.Free, p.Waits = 0, NoWait
	p.published = p.published[:0]
}
