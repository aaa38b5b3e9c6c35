package scheduler

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/graphs"
)

// The binary form of plans and results, for executors in other processes:
// four bytes that name the kind, a version, then every field in the order of
// the functions below. Numbers are little-endian; an array is its length as
// four bytes and then its elements. A reader refuses a version that it does not
// know, lengths that the data cannot have, and bytes left over.

// EncodingVersion of plans and results. It changes with their fields.
const EncodingVersion = 1

const (
	planMagic   = "SLPL"
	resultMagic = "SLRS"
)

// EncodingError reports data that is no plan, or no result.
type EncodingError struct {
	What   string
	Offset int // bytes read before the fault
	Reason string
}

func (e *EncodingError) Error() string {
	return fmt.Sprintf("encoded %s, offset %d: %s", e.What, e.Offset, e.Reason)
}

var (
	_ encoding.BinaryAppender    = (*Plan)(nil)
	_ encoding.BinaryUnmarshaler = (*Plan)(nil)
	_ encoding.BinaryAppender    = (*Result)(nil)
	_ encoding.BinaryUnmarshaler = (*Result)(nil)
)

// AppendBinary appends the plan's encoding. It does not fail.
func (p *Plan) AppendBinary(b []byte) ([]byte, error) {
	c := codec{data: append(b, planMagic...)}
	p.code(&c)
	return c.data, nil
}

// UnmarshalBinary reads a plan and reuses the memory of the one that is there.
// Such a plan can be executed, not applied: the scheduler applies its own.
func (p *Plan) UnmarshalBinary(data []byte) error {
	c := codec{data: data, reading: true, what: "plan"}
	c.magic(planMagic)
	p.code(&c)
	if c.err == nil {
		c.check(p)
	}
	return c.done()
}

// AppendBinary appends the result's encoding. It does not fail.
func (r *Result) AppendBinary(b []byte) ([]byte, error) {
	c := codec{data: append(b, resultMagic...)}
	r.code(&c)
	return c.data, nil
}

// UnmarshalBinary reads a result and reuses the memory of the one that is there.
func (r *Result) UnmarshalBinary(data []byte) error {
	c := codec{data: data, reading: true, what: "result"}
	c.magic(resultMagic)
	r.code(&c)
	return c.done()
}

func (p *Plan) code(c *codec) {
	c.version()
	c.u64(&p.Seq)
	c.u64((*uint64)(&p.Applied))
	codeInt(c, &p.Now)
	codeArray(c, &p.Requests)
	codeBytes(c, &p.Kinds)
	for _, a := range [...]*[]int32{
		&p.Scheduled, &p.Drafts, &p.Placeholders, &p.Computed, &p.Prefill, &p.Outputs, &p.LocalHits, &p.ExternalHits, &p.GrammarRows,
		&p.InputsAt, &p.KnownAt, &p.TableFrom, &p.BlocksAt, &p.CommonPrefix, &p.LoadsFrom, &p.LoadsTo, &p.LoadBlocksAt,
	} {
		codeArray32(c, a)
	}
	codeBytes(c, &p.Samples)
	codeBytes(c, &p.GrammarWaits)
	codeArray32(c, &p.Inputs)
	codeArray32(c, &p.Known)
	c.i32(&p.Groups)
	codeArray32(c, &p.Blocks)
	c.i32(&p.Total)
	c.i32(&p.LoRAs)
	c.i32(&p.NextDrafts)
	codeBytes(c, &p.Verdicts)
	codeDecision(c, &p.Graph)
	codeArray(c, &p.Loads)
	codeBytes(c, &p.LoadsAsync)
	codeArray32(c, &p.LoadBlocks)
	codeArray(c, &p.Pending)
	codeArray(c, &p.Finished)
	codeBytes(c, &p.Reasons)
	codeArray(c, &p.Preempted)
	codeBytes(c, &p.PreemptedSaved)
	codeArray(c, &p.RolledBack)
	codeArray(c, &p.Refused)
	n := c.length(len(p.Refusals), 9)
	if c.reading {
		p.Refusals = resize(p.Refusals, n)
	}
	for i := range n {
		r := &p.Refusals[i]
		codeByte(c, &r.Reason)
		c.i32(&r.PromptTokens)
		c.i32(&r.CachedTokens)
	}
	codeArray(c, &p.Released)
	c.i32(&p.Free)
	codeByte(c, &p.Waits)
}

func codeDecision(c *codec, d *graphs.Decision) {
	codeByte(c, &d.Mode)
	codeByte(c, &d.Reason)
	for _, v := range [...]*int32{
		&d.Tokens, &d.Reqs, &d.PaddedTokens, &d.PaddedReqs, &d.Uniform, &d.Key.Tokens, &d.Key.Reqs, &d.Key.Uniform, &d.Key.Bound, &d.Key.LoRA,
		(*int32)(&d.KeyID), &d.Tails, &d.PaddedTails,
	} {
		c.i32(v)
	}
	codeByte(c, &d.Key.Mode)
}

func (r *Result) code(c *codec) {
	c.version()
	codeByte(c, &r.Outcome)
	codeInt[time.Duration](c, &r.Elapsed)
	codeArray32(c, &r.Tokens)
	codeOptional32(c, &r.Counts)
	codeArray32(c, &r.Drafts)
	codeOptional32(c, &r.DraftCounts)
	codeArray32(c, &r.GrammarErrors)
}

// codec writes fields to the end of data, or reads them from its beginning.
type codec struct {
	data    []byte
	at      int // bytes read
	reading bool
	what    string
	err     error
}

func (c *codec) fail(format string, args ...any) {
	if c.err == nil {
		c.err = &EncodingError{What: c.what, Offset: c.at, Reason: fmt.Sprintf(format, args...)}
	}
}

// take is the next n bytes of the data, or nil if there are not as many.
func (c *codec) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if len(c.data)-c.at < n {
		c.fail("%d bytes are missing", n-(len(c.data)-c.at))
		return nil
	}
	b := c.data[c.at : c.at+n]
	c.at += n
	return b
}

func (c *codec) magic(want string) {
	if b := c.take(len(want)); b != nil && string(b) != want {
		c.fail("does not begin as one")
	}
}

func (c *codec) version() {
	v := int32(EncodingVersion)
	c.i32(&v)
	if c.err == nil && v != EncodingVersion {
		c.fail("has version %d, not %d", v, EncodingVersion)
	}
}

func (c *codec) done() error {
	if c.err == nil && c.at != len(c.data) {
		c.fail("%d bytes are left over", len(c.data)-c.at)
	}
	return c.err
}

// length codes the length of an array whose elements have size bytes each.
func (c *codec) length(n, size int) int {
	v := int32(n)
	c.i32(&v)
	if !c.reading {
		return n
	}
	if c.err == nil && (v < 0 || int(v) > (len(c.data)-c.at)/size) {
		c.fail("an array claims %d elements", v)
	}
	if c.err != nil {
		return 0
	}
	return int(v)
}

func (c *codec) u64(v *uint64) {
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint64(c.data, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (c *codec) i32(v *int32) {
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint32(c.data, uint32(*v))
	} else if b := c.take(4); b != nil {
		*v = int32(binary.LittleEndian.Uint32(b))
	}
}

func codeInt[T ~int64](c *codec, v *T) {
	u := uint64(*v)
	c.u64(&u)
	*v = T(u)
}

func codeByte[T ~uint8](c *codec, v *T) {
	if !c.reading {
		c.data = append(c.data, byte(*v))
	} else if b := c.take(1); b != nil {
		*v = T(b[0])
	}
}

func codeBytes[T ~uint8](c *codec, s *[]T) {
	n := c.length(len(*s), 1)
	if !c.reading {
		for _, v := range *s {
			c.data = append(c.data, byte(v))
		}
		return
	}
	*s = resize(*s, n)
	for i, v := range c.take(n) {
		(*s)[i] = T(v)
	}
}

func codeArray32[T ~int32](c *codec, s *[]T) {
	n := c.length(len(*s), 4)
	if !c.reading {
		for _, v := range *s {
			c.data = binary.LittleEndian.AppendUint32(c.data, uint32(v))
		}
		return
	}
	*s = resize(*s, n)
	b := c.take(4 * n)
	for i := range len(b) / 4 {
		(*s)[i] = T(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// codeOptional32 keeps nil and empty apart.
func codeOptional32(c *codec, s *[]int32) {
	var there uint8
	if *s != nil {
		there = 1
	}
	codeByte(c, &there)
	if there == 0 {
		*s = nil
		return
	}
	codeArray32(c, s)
	if *s == nil {
		*s = []int32{}
	}
}

func codeArray[T ~uint64](c *codec, s *[]T) {
	n := c.length(len(*s), 8)
	if !c.reading {
		for _, v := range *s {
			c.data = binary.LittleEndian.AppendUint64(c.data, uint64(v))
		}
		return
	}
	*s = resize(*s, n)
	b := c.take(8 * n)
	for i := range len(b) / 8 {
		(*s)[i] = T(binary.LittleEndian.Uint64(b[8*i:]))
	}
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// check refuses a plan whose arrays do not belong together, so that an
// executor may index them without looking.
func (c *codec) check(p *Plan) {
	rows, groups, loads := len(p.Requests), int(p.Groups), len(p.Loads)
	same := func(name string, n, want int) {
		if n != want {
			c.fail("%s has %d entries, not %d", name, n, want)
		}
	}
	if groups < 0 || groups > 1<<16 {
		c.fail("%d KV groups", groups)
		return
	}
	same("Kinds", len(p.Kinds), rows)
	same("Scheduled", len(p.Scheduled), rows)
	same("Drafts", len(p.Drafts), rows)
	same("Placeholders", len(p.Placeholders), rows)
	same("Computed", len(p.Computed), rows)
	same("Prefill", len(p.Prefill), rows)
	same("Outputs", len(p.Outputs), rows)
	same("Samples", len(p.Samples), rows)
	same("LocalHits", len(p.LocalHits), rows)
	same("ExternalHits", len(p.ExternalHits), rows)
	same("GrammarWaits", len(p.GrammarWaits), len(p.GrammarRows))
	same("TableFrom", len(p.TableFrom), rows*groups)
	same("CommonPrefix", len(p.CommonPrefix), groups)
	same("LoadsFrom", len(p.LoadsFrom), loads)
	same("LoadsTo", len(p.LoadsTo), loads)
	same("LoadsAsync", len(p.LoadsAsync), loads)
	same("Reasons", len(p.Reasons), len(p.Finished))
	same("PreemptedSaved", len(p.PreemptedSaved), len(p.Preempted))
	same("Refusals", len(p.Refusals), len(p.Refused))
	if len(p.Verdicts) > 0 {
		same("Verdicts", len(p.Verdicts), rows)
	}
	ragged := func(name string, at []int32, owners, elements int) {
		same(name, len(at), owners+1)
		for i := range at {
			if i == 0 && at[0] != 0 || i > 0 && at[i] < at[i-1] {
				c.fail("%s does not ascend from 0", name)
				return
			}
		}
		if len(at) > 0 && int(at[len(at)-1]) != elements {
			c.fail("%s ends at %d, not %d", name, at[len(at)-1], elements)
		}
	}
	ragged("InputsAt", p.InputsAt, rows, len(p.Inputs))
	ragged("KnownAt", p.KnownAt, rows, len(p.Known))
	ragged("BlocksAt", p.BlocksAt, rows*groups, len(p.Blocks))
	ragged("LoadBlocksAt", p.LoadBlocksAt, loads*groups, len(p.LoadBlocks))
	for i := range p.Scheduled {
		if c.err == nil && (p.Scheduled[i] < 1 || p.Scheduled[i] != p.InputsAt[i+1]-p.InputsAt[i] || p.Drafts[i] < 0 || p.Drafts[i] >= p.Scheduled[i] || p.Computed[i] < 0) {
			c.fail("row %d has impossible numbers", i)
		}
	}
	for _, row := range p.GrammarRows {
		if row < 0 || int(row) >= rows {
			c.fail("GrammarRows names row %d of %d", row, rows)
		}
	}
	for _, from := range p.TableFrom {
		if from < 0 {
			c.fail("a table changes from %d on", from)
		}
	}
}
