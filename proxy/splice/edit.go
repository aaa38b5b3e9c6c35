package splice

import (
	"encoding/json"
	"slices"
)

// Edit is one change of a top-level member.
type Edit struct {
	key string
	raw []byte // the new value; nil removes the member
	rel relation
}

type relation uint8

const (
	always    relation = iota
	ifPresent          // only when the member exists
	ifAbsent           // only when it does not
)

// Set gives a member a value, replacing the old one or adding the member at
// the end. raw must be valid JSON.
func Set(key string, raw []byte) Edit { return Edit{key: key, raw: raw} }

// SetString is Set with a text.
func SetString(key, value string) Edit {
	raw, err := json.Marshal(value)
	if err != nil { // a string always encodes
		panic(err)
	}
	return Set(key, raw)
}

// Replace gives a member a value when it exists.
func Replace(key string, raw []byte) Edit { return Edit{key: key, raw: raw, rel: ifPresent} }

// Default adds a member when it does not exist.
func Default(key string, raw []byte) Edit { return Edit{key: key, raw: raw, rel: ifAbsent} }

// Delete removes a member when it exists.
func Delete(key string) Edit { return Edit{key: key} }

// piece is one stretch of the edited text: bytes of the source or inserted ones.
type piece struct {
	from, to int
	insert   []byte
}

// Apply appends the object with the edits made to dst. Every key may be edited once.
func (o *Object) Apply(dst []byte, edits ...Edit) []byte {
	for _, p := range o.pieces(edits) {
		if p.insert != nil {
			dst = append(dst, p.insert...)
		} else {
			dst = append(dst, o.src[p.from:p.to]...)
		}
	}
	return dst
}

// Spliced gives the edited object as a list of byte ranges: parts of the
// source, untouched, and the inserted bytes between them. The list can be
// written with one vectored write; it copies nothing of the source.
func (o *Object) Spliced(edits ...Edit) [][]byte {
	pieces := o.pieces(edits)
	out := make([][]byte, 0, len(pieces))
	for _, p := range pieces {
		switch {
		case p.insert != nil:
			out = append(out, p.insert)
		case p.to > p.from:
			out = append(out, o.src[p.from:p.to])
		}
	}
	return out
}

func (o *Object) pieces(edits []Edit) []piece {
	type change struct {
		at  int // index in o.members
		raw []byte
	}
	changes := make([]change, 0, len(edits))
	var added []byte
	removed := 0
	for _, e := range edits {
		i := o.find(e.key)
		switch {
		case i >= 0 && e.rel != ifAbsent:
			changes = append(changes, change{i, e.raw})
			if e.raw == nil {
				removed++
			}
		case i < 0 && e.raw != nil && e.rel != ifPresent:
			name, err := json.Marshal(e.key)
			if err != nil { // a string always encodes
				panic(err)
			}
			added = append(append(append(append(added, ','), name...), ':'), e.raw...)
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return a.at - b.at })
	pieces := make([]piece, 0, 2*len(changes)+3)
	pos := 0
	kept := 0 // members written before pos
	next := 0 // first member not yet looked at
	for _, c := range changes {
		m := o.members[c.at]
		kept += c.at - next
		next = c.at + 1
		if c.raw != nil {
			pieces = append(pieces, piece{from: pos, to: m.value}, piece{insert: c.raw})
			pos = m.end
			kept++
			continue
		}
		// Removing takes the comma before the member, or the one after it
		// when no member before it is left.
		if kept > 0 {
			pieces = append(pieces, piece{from: pos, to: o.members[c.at-1].end})
			pos = m.end
			continue
		}
		pieces = append(pieces, piece{from: pos, to: m.start})
		pos = m.end
		if c.at+1 < len(o.members) {
			pos = o.members[c.at+1].start
		}
	}
	tail := o.close
	if added != nil {
		if len(o.members)-removed == 0 {
			added = added[1:]
		}
		pieces = append(pieces, piece{from: pos, to: tail}, piece{insert: added})
		pos = tail
	}
	return append(pieces, piece{from: pos, to: len(o.src)})
}
