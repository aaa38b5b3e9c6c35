package splice

import "encoding/json"

// Edit is one change of a top-level member.
type Edit struct {
	key     string
	raw     []byte // the new value; nil removes the member
	replace bool   // only when the member exists
}

// Set gives a member a value, replacing the old one or adding the member at
// the end. raw must be valid JSON.
func Set(key string, raw []byte) Edit { return Edit{key: key, raw: raw} }

// Replace gives a member a value when it exists.
func Replace(key string, raw []byte) Edit { return Edit{key: key, raw: raw, replace: true} }

// Delete removes a member when it exists.
func Delete(key string) Edit { return Edit{key: key} }

// piece is one stretch of the edited text.
type piece struct {
	from, to int // of the source, or of the added members
	what     int // fromSource, fromAdded, or the index of the edit whose value it is
}

const (
	fromSource = -1
	fromAdded  = -2
)

// Apply appends the object with the edits made to dst. Every key may be edited once.
func (o *Object) Apply(dst []byte, edits ...Edit) []byte {
	var room [24]piece
	var text [256]byte
	pieces, added := o.pieces(room[:0], text[:0], edits)
	for _, p := range pieces {
		switch p.what {
		case fromSource:
			dst = append(dst, o.src[p.from:p.to]...)
		case fromAdded:
			dst = append(dst, added[p.from:p.to]...)
		default:
			dst = append(dst, edits[p.what].raw...)
		}
	}
	return dst
}

// Splice appends the edited object to out as byte ranges: parts of the source,
// untouched, and the inserted bytes between them. The list can be written with
// one vectored write; it copies nothing of the source.
func (o *Object) Splice(out [][]byte, edits ...Edit) [][]byte {
	var room [24]piece
	pieces, added := o.pieces(room[:0], nil, edits)
	for _, p := range pieces {
		switch {
		case p.what >= 0:
			out = append(out, edits[p.what].raw)
		case p.to == p.from:
		case p.what == fromAdded:
			out = append(out, added[p.from:p.to])
		default:
			out = append(out, o.src[p.from:p.to])
		}
	}
	return out
}

// pieces appends the stretches of the edited text to list, and the text of the
// members that are added to added.
func (o *Object) pieces(list []piece, added []byte, edits []Edit) ([]piece, []byte) {
	type change struct{ at, edit int } // indexes in o.members and edits
	var room [16]change
	changes := room[:0]
	removed, fresh := 0, 0
	for i := range edits {
		e := &edits[i]
		at := o.find(e.key)
		switch {
		case at >= 0:
			n := len(changes)
			changes = append(changes, change{at, i})
			for ; n > 0 && changes[n-1].at > at; n-- { // in the order of the source
				changes[n], changes[n-1] = changes[n-1], changes[n]
			}
			if e.raw == nil {
				removed++
			}
		case e.raw != nil && !e.replace:
			if fresh++; fresh == 1 && added == nil {
				added = make([]byte, 0, 64+len(e.raw))
			}
			added = append(appendQuoted(append(added, ','), e.key), ':')
			added = append(added, e.raw...)
		}
	}
	pos := 0
	kept := 0 // members written before pos
	next := 0 // first member not yet looked at
	for _, c := range changes {
		m := o.members[c.at]
		kept += c.at - next
		next = c.at + 1
		if edits[c.edit].raw != nil {
			list = append(list, piece{pos, m.value, fromSource}, piece{what: c.edit})
			pos = m.end
			kept++
			continue
		}
		// Removing takes the comma before the member, or the one after it
		// when no member before it is left.
		if kept > 0 {
			list = append(list, piece{pos, o.members[c.at-1].end, fromSource})
			pos = m.end
			continue
		}
		list = append(list, piece{pos, m.start, fromSource})
		pos = m.end
		if c.at+1 < len(o.members) {
			pos = o.members[c.at+1].start
		}
	}
	if fresh > 0 {
		from := 0
		if len(o.members)-removed == 0 {
			from = 1 // no comma before the first
		}
		list = append(list, piece{pos, o.close, fromSource}, piece{from, len(added), fromAdded})
		pos = o.close
	}
	return append(list, piece{pos, len(o.src), fromSource}), added
}

// appendQuoted appends a key as a JSON string.
func appendQuoted(dst []byte, key string) []byte {
	for i := range len(key) {
		if c := key[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(key)
			if err != nil { // a string always encodes
				panic(err)
			}
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), key...), '"')
}
