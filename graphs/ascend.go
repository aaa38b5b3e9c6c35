package graphs

import (
	"errors"
	"fmt"
)

// Xlite is the mode of a fused runtime on Ascend that replaces parts of the
// forward pass.
type Xlite uint8

const (
	XliteOff        Xlite = iota // default: the forward pass is the engine's own
	XliteDecodeOnly              // decode steps
	XliteFull                    // every step
)

// AscendOptions are settings of an Ascend deployment that decide over graphs.
type AscendOptions struct {
	Xlite          Xlite
	EncoderDecoder bool // the model has an encoder
	LaunchBlocking bool // every launch is synchronous, as ASCEND_LAUNCH_BLOCKING=1 asks for
}

// ErrLaunchBlocking is the error of synchronous launches together with graphs.
var ErrLaunchBlocking = errors.New("graphs: launches are synchronous (ASCEND_LAUNCH_BLOCKING=1), which no graph can be captured with; unset it or use mode NONE")

// ResolveAscend narrows the mode as Resolve does and then by the rules of
// Ascend.
func (c Config) ResolveAscend(b Backend, o AscendOptions) (ModeConfig, []string, error) {
	asked := c.Mode
	var notes []string
	note := func(to ModeConfig, why string) {
		if c.Mode != to {
			notes = append(notes, fmt.Sprintf("graph mode %v becomes %v: %s", c.Mode, to, why))
			c.Mode = to
		}
	}
	switch {
	case asked == ModeNone:
	case o.Xlite == XliteFull && c.K == 0:
		note(ModeNone, "the fused runtime runs every step itself")
	case o.Xlite == XliteDecodeOnly:
		note(ModeFullDecodeOnly, "the fused runtime runs decode steps")
	case o.EncoderDecoder && b.Piecewise:
		note(ModePiecewise, "an encoder-decoder model runs as pieces")
	case o.EncoderDecoder:
		note(ModeNone, "an encoder-decoder model that does not run as pieces")
	}
	mode, more, err := c.Resolve(b)
	notes = append(notes, more...)
	if err == nil && mode != ModeNone && o.LaunchBlocking {
		err = ErrLaunchBlocking
	}
	return mode, notes, err
}

// StreamBudget describes the historical limit on Ascend, where every captured
// graph of every layer holds a stream. Devices whose driver reports the limit
// itself need no budget.
type StreamBudget struct {
	Layers      int
	DraftLayers int // 0 = no drafter
	DP, TP      int
	MoE         bool
	ExpertPar   bool // experts are spread over ranks
	SharedSide  bool // shared experts run on a side stream
	PCP, DCP    int
	AIV         bool // collectives expand on vector cores
	Sizes       int  // sizes asked for; subtracted first where FULL and PIECEWISE are both captured
	Mode        ModeConfig
}

// streamsForGraphs is what 2,048 streams leave for graphs.
const streamsForGraphs = 1800

// MaxSizes is the number of sizes that the streams of a device hold.
func (b StreamBudget) MaxSizes() int {
	budget := streamsForGraphs
	if b.Mode == ModeFullAndPiecewise {
		budget -= b.Sizes
	}
	cost := b.Layers + 1
	if b.DraftLayers > 0 {
		cost += b.DraftLayers + 1
	}
	groups := 0
	for _, n := range []int{b.DP, b.TP} {
		if n > 1 {
			groups++
		}
	}
	if b.AIV {
		f := 1 + groups
		if b.ExpertPar {
			f++
		}
		if b.SharedSide {
			f++
		}
		if b.MoE {
			if b.DP > 1 {
				f++
			}
		} else {
			budget -= f * cost
		}
		return max(budget/cost/f, 0)
	}
	if b.PCP > 1 {
		budget -= 100
	}
	if b.DCP > 1 {
		budget -= 100
	}
	return max((budget-40*groups)/cost/(1+2*groups), 0)
}

// AttentionState is what the Ascend attention operator is told about a batch.
type AttentionState uint8

const (
	StatePrefillNoCache AttentionState = iota // every row starts at its first token
	StateDecodeOnly                           // one token per row
	StateSpecDecode                           // one new token per row, with drafts of a multi-token predictor
	StateChunkedPrefill                       // anything else
)

// String names the state.
func (s AttentionState) String() string {
	switch s {
	case StatePrefillNoCache:
		return "prefill_no_cache"
	case StateDecodeOnly:
		return "decode_only"
	case StateSpecDecode:
		return "spec_decoding"
	case StateChunkedPrefill:
		return "chunked_prefill"
	}
	return fmt.Sprintf("AttentionState(%d)", uint8(s))
}

// Predictor says what makes the drafts.
type Predictor uint8

const (
	PredictorOther      Predictor = iota // a model of its own, n-grams, or none
	PredictorMultiToken                  // layers of the model itself
)

// AttentionStateOf sums a batch up for the Ascend attention operator. It treats
// one token missing from the cache as a decode.
func AttentionStateOf(rows Rows, by Predictor) AttentionState {
	fresh, one, oneNew := true, true, true
	for i, s := range rows.Scheduled {
		fresh = fresh && rows.Computed[i] == 0
		one = one && s == 1
		oneNew = oneNew && s-rows.Drafts[i] == 1
	}
	switch {
	case fresh:
		return StatePrefillNoCache
	case one && by == PredictorMultiToken:
		return StateSpecDecode
	case one:
		return StateDecodeOnly
	case oneNew && by == PredictorMultiToken:
		return StateSpecDecode
	}
	return StateChunkedPrefill
}

// QueryEnds are the cumulative query lengths of a padded batch together with
// what must be appended to the arrays beside them.
type QueryEnds struct {
	Ends     []int32 // one per row, the last equal to the padded tokens
	Appended int     // rows appended: their KV length is 1 and their block row 0
}

// DummyRow says when a batch that is not made of whole dummy rows gets one
// further row that ends at the padded tokens.
type DummyRow uint8

const (
	DummyRowAlways   DummyRow = iota // runner generation 2
	DummyRowIfNeeded                 // runner generation 1: only where the last row ends before
)

// ErrQueryRows is the error of a decode graph that cannot hold the rows.
var ErrQueryRows = errors.New("graphs: rows do not fit the graph")

// AscendQueryEnds continues the cumulative query lengths of the real rows so
// that the last one equals the padded tokens of the graph, as the operator
// demands. A decode graph of width D appends rows of D tokens up to its row
// count; any other one gets a single row that takes all padding. dst is
// extended and returned.
func AscendQueryEnds(dst []int32, ends []int32, k Key, width int32, mode ModeConfig, rule DummyRow) (QueryEnds, error) {
	n := int32(len(ends))
	dst = append(dst, ends...)
	last := int32(0)
	if n > 0 {
		last = ends[n-1]
	}
	if last > k.Tokens {
		return QueryEnds{}, fmt.Errorf("%w: %d tokens in a graph of %v", ErrQueryRows, last, k)
	}
	if k.Tokens == k.Reqs*width && mode != ModeFull {
		if n > k.Reqs || last != n*width {
			return QueryEnds{}, fmt.Errorf("%w: %d rows with %d tokens in a graph of %v", ErrQueryRows, n, last, k)
		}
		for r := n; r < k.Reqs; r++ {
			last += width
			dst = append(dst, last)
		}
		return QueryEnds{Ends: dst, Appended: int(k.Reqs - n)}, nil
	}
	if k.Reqs > 0 && n > k.Reqs {
		return QueryEnds{}, fmt.Errorf("%w: %d rows in a graph of %v", ErrQueryRows, n, k)
	}
	if rule == DummyRowIfNeeded && last == k.Tokens {
		return QueryEnds{Ends: dst}, nil
	}
	return QueryEnds{Ends: append(dst, k.Tokens), Appended: 1}, nil
}
