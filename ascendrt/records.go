package ascendrt

// Record is one decoded command of a buffer.
type Record struct {
	Kind    Kind
	Index   int // position among the commands
	A       [HeaderWords - 1]uint64
	Payload []uint64 // aliases the buffer
}

// Records iterates over encoded words; it stops at the first malformed record.
func Records(words []uint64) func(yield func(Record) bool) {
	return func(yield func(Record) bool) {
		for i := 0; len(words) >= HeaderWords; i++ {
			n := int(words[0] >> 32)
			if n > len(words)-HeaderWords {
				return
			}
			r := Record{Kind: Kind(uint32(words[0])), Index: i, Payload: words[HeaderWords : HeaderWords+n]}
			copy(r.A[:], words[1:HeaderWords])
			words = words[HeaderWords+n:]
			if !yield(r) {
				return
			}
		}
	}
}

// DecodeTensor reads one tensor from the TensorWords words of a payload.
func DecodeTensor(w []uint64) Tensor {
	return Tensor{
		View: View{Addr: Addr(w[0]), Len: int(w[1]), Max: int(w[1])},
		Type: DType(w[2] & 0xff), Rank: int(w[2] >> 8 & 0xff),
		Dim:       [MaxRank]int{int(w[3]), int(w[4]), int(w[5]), int(w[6])},
		RowStride: int(w[7]),
	}
}

// ErrorAt gives the first wrong argument of the buffer and the index of its
// command; commands before it may be accepted.
func (c *Commands) ErrorAt() (int, error) { return c.errN, c.err }

// CheckCapture applies the capture rules that all runtimes share, before
// anything reaches a driver: no copy batch, no launch of a graph and no wait
// for a point; a stream is used only after it waited for an event that this
// capture recorded; each such stream is joined before the end by an event that
// the origin, or a stream that is itself joined, waits for. origin is the
// stream of the capture, external tells whether an event may cross the
// graph's edge.
func CheckCapture(c *Commands, backend string, origin Ref, external func(Ref) bool) error {
	bad := func(r Record, text string) error {
		return &Error{Backend: backend, Call: "capture: " + r.Kind.String(), Text: text, Command: r.Index, Class: ErrCapture}
	}
	type branch struct{ work, joined int } // commands on the stream, and how many of them another stream waits for
	type mark struct {
		stream Ref
		work   int
	}
	streams := map[Ref]*branch{origin: {}}
	recorded := map[Ref]mark{} // by event
	current, at := origin, streams[origin]
	var pending Ref // stream selected but not yet forked
	var err error
	last := 0
	for r := range Records(c.buf) {
		last = r.Index
		switch r.Kind {
		case KindCopyBatch, KindCopyBlocks, KindGraph, KindWaitPoint:
			err = bad(r, "not allowed in a graph")
		case KindStream:
			s := Ref(r.A[0])
			pending = 0
			if b := streams[s]; b != nil {
				current, at = s, b
			} else {
				current, at, pending = s, nil, s
			}
		case KindWaitEvent:
			e := Ref(r.A[0])
			from, ok := recorded[e]
			switch {
			case !ok && external(e) && pending == 0:
				at.work++
			case !ok:
				err = bad(r, "the event was not recorded in this capture, and it is not external or cannot fork a stream")
			default:
				if pending != 0 {
					at = &branch{}
					streams[current] = at
					pending = 0
				}
				if from.stream != current {
					b := streams[from.stream]
					b.joined = max(b.joined, from.work)
				}
				at.work++
			}
		case KindRecord:
			if pending != 0 {
				err = bad(r, "the stream has not joined the capture: let it wait for an event recorded in it first")
				break
			}
			e := Ref(r.A[0])
			if !external(e) {
				recorded[e] = mark{current, at.work}
			}
		default:
			if pending != 0 {
				err = bad(r, "the stream has not joined the capture: let it wait for an event recorded in it first")
				break
			}
			at.work++
		}
		if err != nil {
			return err
		}
	}
	for s, b := range streams {
		if s != origin && b.joined < b.work {
			return &Error{Backend: backend, Call: "capture: end", Command: last, Class: ErrCapture,
				Text: "a forked stream is not joined: record an event on it and let the origin wait for it"}
		}
	}
	return nil
}
