package graphs

import "fmt"

// Row is what the classification needs to know of one scheduled request.
type Row struct {
	Scheduled    int32 `json:"scheduled"`    // tokens scheduled this step, drafts included
	Drafts       int32 `json:"drafts"`       // of them drafts to verify, placeholders included
	Placeholders int32 `json:"placeholders"` // of the drafts reject-only placeholders
	Computed     int32 `json:"computed"`     // tokens whose KV exists before the step
	Prefill      int32 `json:"prefill"`      // tokens known when the request was last admitted
}

// Rows is a batch as a struct of arrays, one entry per row in each. The arrays
// have equal length, belong to the caller and are only read.
//
// In asynchronous scheduling the drafts of a row past its prefill also look
// like placeholders, since their ids live on the device; Placeholders therefore
// only has a meaning for rows that are still prefilling.
type Rows struct {
	Scheduled    []int32
	Drafts       []int32
	Placeholders []int32
	Computed     []int32
	Prefill      []int32
}

// MakeRows copies rows into a struct of arrays.
func MakeRows(rows []Row) Rows {
	var r Rows
	for _, x := range rows {
		r.Append(x)
	}
	return r
}

// Append adds one row at the end.
func (r *Rows) Append(x Row) {
	r.Scheduled = append(r.Scheduled, x.Scheduled)
	r.Drafts = append(r.Drafts, x.Drafts)
	r.Placeholders = append(r.Placeholders, x.Placeholders)
	r.Computed = append(r.Computed, x.Computed)
	r.Prefill = append(r.Prefill, x.Prefill)
}

// Len is the number of rows.
func (r Rows) Len() int { return len(r.Scheduled) }

// At returns row i.
func (r Rows) At(i int) Row {
	return Row{r.Scheduled[i], r.Drafts[i], r.Placeholders[i], r.Computed[i], r.Prefill[i]}
}

// Class is what a row runs as.
type Class uint8

const (
	ClassDecode    Class = iota // past its prefill
	ClassTail                   // logically prefilling, runs as a decode
	ClassPrefill                // runs as a prefill
	ClassMalformed              // numbers that no scheduler may produce
)

// String returns the name of the class.
func (c Class) String() string {
	switch c {
	case ClassDecode:
		return "decode"
	case ClassTail:
		return "tail"
	case ClassPrefill:
		return "prefill"
	case ClassMalformed:
		return "malformed"
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// RowVerdict is the class of one row in one step together with its cause. It is
// computed once and handed to everything that must know how the row runs: the
// choice of the graph, the drafter and the builders of attention metadata.
type RowVerdict uint8

const (
	Decode        RowVerdict = iota // past its prefill
	DecodeByShape                   // ShapeOnly: has the decode width, nothing else was asked

	TailOneToken // one prompt token over context, no draft
	TailPadded   // one prompt token over context, padded with reject-only placeholders
	TailDrafted  // OneNewToken only: one prompt token over context, carrying drafts

	PrefillChunk           // more than one new token
	PrefillFresh           // no context yet, more than one new token
	PrefillFreshOneToken   // no context yet, one new token
	PrefillByPolicy        // a tail that the policy does not admit
	PrefillContextParallel // a tail in a context-parallel group, whose ranks see different lengths
	PrefillRealDrafts      // one prompt token over context with drafts that could be accepted
	PrefillPaddedMidPrompt // padded although more prompt follows
	PrefillPartialPad      // padded, but not to the decode width

	MalformedNumbers   // negative or contradicting counts
	MalformedPrefill   // prefilling with no prompt token, or with more than exist
	MalformedNewTokens // past its prefill with a number of new tokens that is not b

	numVerdicts
)

var verdictInfo = [numVerdicts]struct {
	class Class
	cause string
}{
	Decode:                 {ClassDecode, "past its prefill"},
	DecodeByShape:          {ClassDecode, "has the decode width"},
	TailOneToken:           {ClassTail, "one prompt token over context"},
	TailPadded:             {ClassTail, "last prompt token padded with placeholders"},
	TailDrafted:            {ClassTail, "one prompt token over context, with drafts"},
	PrefillChunk:           {ClassPrefill, "more than one new token"},
	PrefillFresh:           {ClassPrefill, "no context yet"},
	PrefillFreshOneToken:   {ClassPrefill, "one-token prompt without context"},
	PrefillByPolicy:        {ClassPrefill, "tail that the policy does not admit"},
	PrefillContextParallel: {ClassPrefill, "tail in a context-parallel group"},
	PrefillRealDrafts:      {ClassPrefill, "prompt token with real drafts"},
	PrefillPaddedMidPrompt: {ClassPrefill, "padded in the middle of the prompt"},
	PrefillPartialPad:      {ClassPrefill, "not padded to the decode width"},
	MalformedNumbers:       {ClassMalformed, "negative or contradicting numbers"},
	MalformedPrefill:       {ClassMalformed, "prefilling with no prompt token or more than exist"},
	MalformedNewTokens:     {ClassMalformed, "wrong number of new tokens for a decode"},
}

// Class is what the row runs as.
func (v RowVerdict) Class() Class {
	if v < numVerdicts {
		return verdictInfo[v].class
	}
	return ClassMalformed
}

// Cause says why, as a short phrase.
func (v RowVerdict) Cause() string {
	if v < numVerdicts {
		return verdictInfo[v].cause
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// String is the class and the cause.
func (v RowVerdict) String() string { return v.Class().String() + ": " + v.Cause() }

// RunsAsDecode reports whether the row may be part of a FULL decode graph and
// its metadata must describe it as a decode.
func (v RowVerdict) RunsAsDecode() bool { return v <= TailDrafted }
