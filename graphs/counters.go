package graphs

// Counters counts executed steps. The owner calls Observe once for each real
// step, never for dummy batches. NewCounters also counts
// the replays of each key; the zero value counts everything else.
type Counters struct {
	Modes        [Full + 1]uint64   // steps by mode
	Reasons      [NumReasons]uint64 // steps by reason
	Tails        uint64             // tails that ran in FULL decode graphs
	PaddedTails  uint64             // of them padded for speculation
	Tokens       uint64             // tokens before padding
	PaddedTokens uint64             // tokens after padding
	Reqs         uint64             // rows before padding, of FULL steps
	PaddedReqs   uint64             // rows after padding, of FULL steps
	Replays      []uint64           // replays by KeyID
}

// NewCounters returns counters for the keys of d.
func NewCounters(d *Dispatcher) *Counters {
	return &Counters{Replays: make([]uint64, len(d.keys))}
}

// Observe counts one executed step. It allocates nothing.
func (c *Counters) Observe(dec Decision) {
	c.Modes[dec.Mode]++
	c.Reasons[dec.Reason]++
	c.Tokens += uint64(dec.Tokens)
	c.PaddedTokens += uint64(dec.PaddedTokens)
	if dec.Mode == Full {
		c.Reqs += uint64(dec.Reqs)
		c.PaddedReqs += uint64(dec.PaddedReqs)
		c.Tails += uint64(dec.Tails)
		c.PaddedTails += uint64(dec.PaddedTails)
	}
	if dec.KeyID >= 0 && int(dec.KeyID) < len(c.Replays) {
		c.Replays[dec.KeyID]++
	}
}

// Steps is the number of observed steps.
func (c *Counters) Steps() uint64 { return c.Modes[None] + c.Modes[Piecewise] + c.Modes[Full] }

// NonFullShare is the share of steps that did not run as FULL, 0 without steps.
func (c *Counters) NonFullShare() float64 {
	if c.Steps() == 0 {
		return 0
	}
	return float64(c.Steps()-c.Modes[Full]) / float64(c.Steps())
}
