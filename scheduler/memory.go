package scheduler

import "unsafe"

// Allocator gives the memory of plans' arrays, for callers that read plans
// from outside Go. Nothing in them is a pointer.
type Allocator interface {
	// Alloc returns at least size bytes, aligned to 8. It does not fail.
	Alloc(size int) []byte
	// Free takes back what Alloc returned, as it was returned.
	Free(b []byte)
}

// WithAllocator lets plans' arrays lie in memory of a. The memory stays at its
// place while a plan is in flight. Close gives it back.
func WithAllocator(a Allocator) Option { return func(s *Scheduler) { s.alloc = a } }

// Close gives the memory of all plans back to the allocator. The scheduler and
// its plans are not used any more. Without an allocator it does nothing.
func (s *Scheduler) Close() {
	if s.alloc == nil {
		return
	}
	for _, list := range [][]*Plan{s.flight, s.spare} {
		for _, p := range list {
			p.visit(freer{s.alloc})
			p.owner = nil
		}
	}
	s.flight, s.spare = nil, nil
}

// elements are the types that plans' arrays have.
type elements interface {
	~int32 | ~uint8 | ~uint64 | Refusal
}

// room makes s hold n elements in all without moving.
func room[T elements](a Allocator, s []T, n int) []T {
	if cap(s) >= n {
		return s
	}
	n = max(n, 2*cap(s), 16)
	if a == nil {
		return append(make([]T, 0, n), s...)
	}
	var one T
	b := a.Alloc(n * int(unsafe.Sizeof(one)))
	grown := append(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)[:0], s...)
	release(a, s)
	return grown
}

// release gives an array's memory back.
func release[T elements](a Allocator, s []T) {
	if cap(s) > 0 {
		a.Free(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), cap(s)*int(unsafe.Sizeof(s[:1][0]))))
	}
}

// add appends to an array.
func add[T elements](a Allocator, s []T, v ...T) []T {
	return append(room(a, s, len(s)+len(v)), v...)
}

// sized gives an array n elements; their content is undefined.
func sized[T elements](a Allocator, s []T, n int) []T { return room(a, s, n)[:n] }

// visitor is called for every array of a plan.
type visitor interface {
	ids(*[]RequestID)
	ints(*[]int32)
	bytes(*[]uint8)
	others(p *Plan)
}

// freer gives every array's memory back.
type freer struct{ a Allocator }

func (f freer) ids(s *[]RequestID) { release(f.a, *s); *s = nil }
func (f freer) ints(s *[]int32)    { release(f.a, *s); *s = nil }
func (f freer) bytes(s *[]uint8)   { release(f.a, *s); *s = nil }
func (f freer) others(p *Plan) {
	release(f.a, p.Kinds)
	release(f.a, p.Inputs)
	release(f.a, p.Known)
	release(f.a, p.Blocks)
	release(f.a, p.LoadBlocks)
	release(f.a, p.Verdicts)
	release(f.a, p.Reasons)
	release(f.a, p.Refusals)
	p.Kinds, p.Inputs, p.Known, p.Blocks, p.LoadBlocks, p.Verdicts, p.Reasons, p.Refusals = nil, nil, nil, nil, nil, nil, nil, nil
}

// visit goes over all arrays of the plan.
func (p *Plan) visit(v visitor) {
	for _, s := range [...]*[]RequestID{&p.Requests, &p.Loads, &p.Pending, &p.Finished, &p.Preempted, &p.RolledBack, &p.Refused, &p.Released} {
		v.ids(s)
	}
	for _, s := range [...]*[]int32{
		&p.Scheduled, &p.Drafts, &p.Placeholders, &p.Computed, &p.Prefill, &p.Outputs, &p.LocalHits, &p.ExternalHits, &p.GrammarRows,
		&p.InputsAt, &p.KnownAt, &p.TableFrom, &p.BlocksAt, &p.CommonPrefix, &p.LoadsFrom, &p.LoadsTo, &p.LoadBlocksAt,
	} {
		v.ints(s)
	}
	for _, s := range [...]*[]uint8{&p.Samples, &p.GrammarWaits, &p.LoadsAsync, &p.PreemptedSaved} {
		v.bytes(s)
	}
	v.others(p)
}
