package graphs

import "math"

// Facts about a row, one bit each; the verdict is a function of these alone.
const (
	factPrefilling = 1 << iota // c < P
	factNoContext              // c == 0
	factOneNew                 // n == 1
	factBonusNew               // n == b
	factNoDrafts               // d == 0
	factAllDrafts              // d == K
	factRejectOnly             // all drafts are placeholders
	factLast                   // P - c == 1
	factNoPrompt               // n == 0 or c + n > P; meaningful while prefilling
	factWidth                  // s == D

	numFacts = 1 << iota
)

// classifier holds what a row's verdict depends on besides the row.
type classifier struct {
	k, b, width int32
	tail        RowVerdict           // of a tail without drafts if K is 0, else of a padded one
	irregular   bool                 // rows past their prefill are more than Decode, or b is not 1
	table       [numFacts]RowVerdict // by the facts of the row
	bare        [numBare]uint64      // the same for rows without drafts: verdict, 1<<16 for a tail, 1<<32<<verdict
	any         [numAny]uint64       // the same by the facts of drafted: also 1<<24 for a padded tail
}

func newClassifier(c Config) classifier {
	x := classifier{
		k: int32(c.K), b: int32(c.Bonus.Tokens()), width: int32(c.DecodeWidth()),
		irregular: c.Policy == ShapeOnly || c.Bonus != OneBonus,
	}
	for facts := range x.table {
		x.table[facts] = c.verdict(facts)
	}
	for i := range x.bare {
		has := func(f, fact int) int { return i / f % 2 * fact }
		facts := has(barePrefilling, factPrefilling) | has(bareNoContext, factNoContext) | has(bareOne, factOneNew|factBonusNew) |
			factNoDrafts | factRejectOnly
		if x.k == 0 {
			facts |= factAllDrafts | has(bareOne, factWidth)
		}
		v := x.table[facts]
		x.bare[i] = uint64(v) | uint64(plainTailSet>>v&1)<<16 | 1<<(32+v)
	}
	for i := range x.any {
		v := x.table[anyFacts(i)]
		if i&anyImpossible != 0 {
			v = MalformedNumbers
		}
		x.any[i] = uint64(v) | uint64(plainTailSet>>v&1)<<16 | uint64(paddedTailSet>>v&1)<<24 | 1<<(32+v)
	}
	if !x.irregular {
		x.tail = x.row(x.width, x.k, x.k, 1, 2)
	}
	return x
}

// verdict is the rule: facts of one row to its class and cause.
func (c Config) verdict(facts int) RowVerdict {
	has := func(f int) bool { return facts&f != 0 }
	switch {
	case has(factPrefilling) && has(factNoPrompt):
		return MalformedPrefill
	case c.Policy == ShapeOnly && has(factWidth):
		return DecodeByShape
	case !has(factPrefilling):
		if c.Policy == OneNewTokenHardened && !has(factBonusNew) {
			return MalformedNewTokens
		}
		return Decode
	case has(factNoContext) && has(factOneNew):
		return PrefillFreshOneToken
	case has(factNoContext):
		return PrefillFresh
	case !has(factOneNew):
		return PrefillChunk
	}
	// A prefilling row with one new token over context: a tail by its shape.
	switch c.Policy {
	case ConsumerOneToken:
		if c.DecodeWidth() != 1 || !has(factNoDrafts) || !isPDConsumer(c.KV) {
			return PrefillByPolicy
		}
	case OneNewToken:
	case OneNewTokenHardened:
		switch {
		case has(factNoDrafts):
		case !has(factRejectOnly):
			return PrefillRealDrafts
		case !has(factAllDrafts) || !has(factWidth):
			return PrefillPartialPad
		case !has(factLast):
			return PrefillPaddedMidPrompt
		}
	default:
		return PrefillByPolicy
	}
	switch {
	case c.pcp() > 1:
		return PrefillContextParallel
	case has(factNoDrafts):
		return TailOneToken
	case has(factRejectOnly):
		return TailPadded
	}
	return TailDrafted
}

// impossible is negative for a row whose numbers contradict each other.
func impossible(s, d, ph, c, p int32) int32 {
	return s | (s - 1) | d | ph | c | p | (s - d) | (d - ph)
}

// sign is 1 for a negative x, else 0.
func sign(x int32) uint32 { return uint32(x) >> 31 }

// zero is 1 for x == 0, else 0; x is not negative.
func zero(x int32) uint32 { return uint32(x-1) >> 31 }

// row gives the verdict of one row.
func (x *classifier) row(s, d, ph, c, p int32) RowVerdict {
	if impossible(s, d, ph, c, p) < 0 {
		return MalformedNumbers
	}
	n := s - d
	facts := sign(c-p)*factPrefilling |
		zero(c)*factNoContext |
		zero(n^1)*factOneNew |
		zero(n^x.b)*factBonusNew |
		zero(d)*factNoDrafts |
		zero(d^x.k)*factAllDrafts |
		zero(ph^d)*factRejectOnly |
		sign(((p-c)^1)-1)*factLast |
		(sign(p-c-n)|zero(n))*factNoPrompt |
		zero(s^x.width)*factWidth
	return x.table[facts%numFacts]
}

// block is the number of rows that the common cases handle at once.
const block = 16

type ints = *[block]int32

// narrow looks at a block of rows of a deployment without speculation. odd is 0
// if all are decodes of one token or tails of one token; prefilling is negative
// if there are tails among them.
func narrow(s8, d8, ph8, c8, p8 ints) (odd, prefilling int32) {
	for i, s := range s8 {
		c, p := c8[i], p8[i]
		prefilling |= c - p
		odd |= (s ^ 1) | d8[i] | ph8[i] | ((c-1)|p)>>31
	}
	return odd, prefilling
}

// wide looks at a block of rows of a deployment with k drafts. odd is 0 if all
// are decodes of full width or prefilling rows of that shape; prefilling is
// negative if there are any of these.
func wide(s8, d8, ph8, c8, p8 ints, k int32) (odd, prefilling int32) {
	var negative int32
	for i, s := range s8 {
		ph, c, p := ph8[i], c8[i], p8[i]
		prefilling |= c - p
		negative |= (k - ph) | ph | (c - 1) | p
		odd |= ((s - 1) ^ k) | (d8[i] ^ k)
	}
	return odd | negative>>31, prefilling
}

// tails writes the verdicts of a block of decodes and tails. odd is 0 if every
// tail has the ordinary form: no drafts where k is 0, else the last prompt
// token with k placeholders; count is the number of tails.
func (x *classifier) tails(ph8, c8, p8 ints, out *[block]RowVerdict) (odd, count int32) {
	last := min(x.k, 1) // whether a tail must be the last prompt token
	for i, c := range c8 {
		tail := (c - p8[i]) >> 31
		out[i] = RowVerdict(tail) & x.tail
		odd |= tail & ((ph8[i] ^ x.k) | (p8[i]-c-1)*last)
		count -= tail
	}
	return odd, count
}

// Facts about a row without drafts, whose new tokens are all its tokens.
const (
	barePrefilling = 1 << iota
	bareNoContext
	bareOne // s == 1

	numBare = 1 << iota
)

// undrafted looks at a block of rows of any kind and notes the facts of each.
// odd is 0 if none has drafts or impossible numbers.
func undrafted(s8, d8, ph8, c8, p8 ints, facts *[block]uint8) (odd int32) {
	var negative int32
	for i, s := range s8 {
		c, p := c8[i], p8[i]
		past := c - p
		negative |= (s - 1) | c | p | past&^(past+s-1) // the last one: more prompt tokens than exist
		odd |= d8[i] | ph8[i]
		facts[i] = uint8(past>>31&barePrefilling | (c-1)>>31&bareNoContext | (s-2)>>31&bareOne)
	}
	return odd | negative>>31
}

// Facts about a row of any kind where one token is sampled per step. That it has
// the decode width follows from them: with one new token it has it if all drafts are there, and
// else nobody asks.
const (
	anyPrompt = 1 << iota // n > 0 and c + n <= P; meaningful while prefilling, as the next
	anyMore               // P - c > 1
	anyOneNew
	anyNoContext
	anyPrefilling
	anyImpossible
	anyRejectOnly
	anyAllDrafts
	anyNoDrafts

	numAny = 1 << iota
)

// anyFacts gives the facts of row's table for those of drafted.
func anyFacts(i int) (facts int) {
	for _, f := range []struct{ from, to int }{
		{anyPrefilling, factPrefilling}, {anyNoContext, factNoContext}, {anyOneNew, factOneNew | factBonusNew}, {anyNoDrafts, factNoDrafts},
		{anyAllDrafts, factAllDrafts}, {anyRejectOnly, factRejectOnly}, {anyOneNew | anyAllDrafts, factWidth},
	} {
		if i&f.from == f.from {
			facts |= f.to
		}
	}
	if i&anyPrompt == 0 {
		facts |= factNoPrompt
	}
	if i&anyMore == 0 {
		facts |= factLast
	}
	return facts
}

// drafted judges a block of rows of any kind, possible or not. It has no branch,
// since what such rows are has no pattern. sum is their verdicts and, above them,
// tails of one token and padded ones; set is the verdicts' bits.
func (x *classifier) drafted(s8, d8, ph8, c8, p8 []int32, out *[block]RowVerdict) (sum, set uint32) {
	s8, d8, ph8, c8, p8 = s8[:block], d8[:block], ph8[:block], c8[:block], p8[:block]
	var (
		facts [block]uint32
		all   uint64
		k     = x.k
	)
	// Two loops, each with few values at a time.
	for i := range facts {
		s, d, ph := s8[i], d8[i], ph8[i]
		real := d - ph
		bad := s | (s - 1) | (s - d) | d | ph | real | c8[i] | p8[i]
		f := sign(d - 1)
		f = f*2 + sign((d^k)-1)
		f = f*2 + sign(real-1)
		facts[i] = f*2 + sign(bad)
	}
	for i, f := range facts {
		c := c8[i]
		past := c - p8[i]
		n := s8[i] - d8[i]
		f = f*2 + sign(past)
		f = f*2 + sign(c-1)
		f = f*2 + sign((n^1)-1)
		f = f*2 + sign(past+1)
		f = f*2 + sign((past+n-1)&-n)
		e := x.any[f%numAny]
		out[i] = RowVerdict(e)
		all |= e
		sum += uint32(e)
	}
	return sum, uint32(all >> 32)
}

// Sets of verdicts, one bit each.
const (
	asDecodeSet  = 1<<(TailDrafted+1) - 1
	malformedSet = 1<<MalformedNumbers | 1<<MalformedPrefill | 1<<MalformedNewTokens
	// impossibleSet rows cannot be run in any mode.
	impossibleSet = malformedSet &^ (1 << MalformedNewTokens)
	plainTailSet  = 1 << TailOneToken
	paddedTailSet = 1<<TailPadded | 1<<TailDrafted
	tailSet       = plainTailSet | paddedTailSet
	prefillSet    = 1<<numVerdicts - 1 - asDecodeSet - malformedSet
)

// lengths gives the largest and the sum of the rows' lengths, and the bits in
// which they differ from the first.
func lengths(ss []int32) (q int32, total int64, differ int32) {
	first := ss[0]
	var q2 int32
	var total2 int64
	for len(ss) >= 2 { // two chains, since each step waits for the one before
		a, b := ss[0], ss[1]
		ss = ss[2:]
		q, q2 = max(q, a), max(q2, b)
		total += int64(a)
		total2 += int64(b)
		differ |= (a ^ first) | (b ^ first)
	}
	for _, a := range ss {
		q, total, differ = max(q, a), total+int64(a), differ|(a^first)
	}
	return max(q, q2), total + total2, differ
}

// classifier is the rule of a step's K. A K without graphs of its width is
// judged by the configured one.
func (d *Dispatcher) classifier(step Step) *classifier {
	if step.FewerDrafts != 0 {
		if x := d.fewer[step.FewerDrafts]; x != nil {
			return x
		}
	}
	return &d.rows
}

// Classify gives each row its verdict, written to verdicts[0:N], and sums the
// batch up. verdicts must have room for every row. It allocates nothing.
func (d *Dispatcher) Classify(rows Rows, step Step, verdicts []RowVerdict) Batch {
	n := len(rows.Scheduled)
	if n == 0 {
		return Batch{Flags: step.Flags, LoRA: d.loraCase(step.LoRAs), Obstacle: ReasonNoTokens}
	}
	var (
		ss, ds, phs = rows.Scheduled[:n], rows.Drafts[:n], rows.Placeholders[:n]
		cs, ps, out = rows.Computed[:n], rows.Prefill[:n], verdicts[:n]
		x           = d.classifier(step)
		seen        uint32
		mixed       int32
		facts       [block]uint8
		uncommon    = x.irregular
		withDrafts  bool // the block before had drafts or impossible numbers

		blockTails, plainTails, paddedTails int32
	)
	i := 0
	for ; i+block <= n; i += block {
		s8, d8, ph8, c8, p8 := ints(ss[i:]), ints(ds[i:]), ints(phs[i:]), ints(cs[i:]), ints(ps[i:])
		odd, prefilling := int32(1), int32(0)
		switch {
		case uncommon: // so was the block before: most likely this one too
		case x.k == 0:
			odd, prefilling = narrow(s8, d8, ph8, c8, p8)
		default:
			odd, prefilling = wide(s8, d8, ph8, c8, p8, x.k)
		}
		count := int32(0)
		if odd == 0 && prefilling < 0 {
			odd, count = x.tails(ph8, c8, p8, (*[block]RowVerdict)(out[i:]))
		}
		mixed |= odd
		switch {
		case odd == 0 && count > 0:
			blockTails += count
			seen |= 1<<Decode | 1<<x.tail
		case odd == 0:
			clear(out[i : i+block]) // Decode
			seen |= 1 << Decode
		case !x.irregular && !withDrafts && undrafted(s8, d8, ph8, c8, p8, &facts) == 0:
			var (
				set uint64
				sum uint32 // verdicts and, above them, tails
				to  = (*[block]RowVerdict)(out[i:])
			)
			for j, f := range facts {
				e := x.bare[f%numBare]
				to[j] = RowVerdict(e)
				set |= e
				sum += uint32(e)
			}
			plainTails += int32(sum >> 16)
			seen |= uint32(set >> 32)
			uncommon = set>>32&^(1<<Decode|1<<TailOneToken) != 0
		case !x.irregular:
			sum, set := x.drafted(ss[i:], ds[i:], phs[i:], cs[i:], ps[i:], (*[block]RowVerdict)(out[i:]))
			plainTails += int32(sum >> 16 & 0xff)
			paddedTails += int32(sum >> 24)
			seen |= set
			uncommon = set&^(1<<Decode|1<<x.tail) != 0
			withDrafts = uncommon
		default:
			set := uint32(0)
			for j := range block {
				v := x.row(s8[j], d8[j], ph8[j], c8[j], p8[j])
				out[i+j] = v
				set |= 1 << (v & 31)
				plainTails += plainTailSet >> v & 1
				paddedTails += paddedTailSet >> v & 1
			}
			seen |= set
			uncommon = x.irregular || set&^(1<<Decode|1<<x.tail) != 0
		}
	}
	for ; i < n; i++ {
		v := x.row(ss[i], ds[i], phs[i], cs[i], ps[i])
		out[i] = v
		seen |= 1 << (v & 31)
		plainTails += plainTailSet >> v & 1
		paddedTails += paddedTailSet >> v & 1
		mixed |= ss[i] ^ x.width
	}
	q, total, differ := x.width, int64(x.width)*int64(n), int32(0)
	if mixed != 0 { // not all of full width: look at the lengths themselves
		q, total, differ = lengths(ss)
	}
	if total > math.MaxInt32 || total < 0 {
		seen |= 1 << MalformedNumbers
		total = 0
	}
	b := Batch{
		Reqs:     int32(n),
		Tokens:   int32(total),
		MaxQuery: q,
		Flags:    step.Flags,
		LoRA:     d.loraCase(step.LoRAs),
	}
	if step.TrimmedTokens > 0 && step.TrimmedTokens < b.Tokens {
		differ |= 1
		b.Tokens = step.TrimmedTokens
	}
	switch {
	case seen&impossibleSet != 0:
		b.Obstacle, b.unrunnable = ReasonMalformed, true
	case seen&malformedSet != 0:
		b.Obstacle = ReasonMalformed
	case seen&prefillSet&^(1<<PrefillFreshOneToken|1<<PrefillContextParallel) != 0:
		b.Obstacle = ReasonPrefillRow
	case seen&(1<<PrefillFreshOneToken) != 0:
		b.Obstacle = ReasonFreshOneToken
	case seen&(1<<PrefillContextParallel) != 0:
		b.Obstacle = ReasonContextParallel
	case differ == 0:
		b.Uniform = q
	}
	if seen&^uint32(1<<Decode|1<<DecodeByShape) == 0 {
		b.Bound = q
	}
	if 1<<x.tail&tailSet == 0 {
		blockTails = 0 // what looks like a tail is none under this policy
	}
	if x.k > 0 {
		paddedTails += blockTails
	}
	b.Tails, b.PaddedTails = plainTails+paddedTails, paddedTails
	if x.k == 0 {
		b.Tails += blockTails
	}
	if step.RankTokens > 0 && d.pcp > 1 {
		b.Tokens = step.RankTokens
	}
	return b
}
