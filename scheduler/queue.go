package scheduler

import (
	"cmp"

	"github.com/google/btree"
)

// queue holds requests that are not running. Requests come back to the front
// when they are preempted or passed over.
type queue interface {
	push(r *request)
	// front puts requests that were taken off the queue back, keeping their
	// order.
	front(rs []*request)
	peek() *request
	remove(r *request)
	len() int
	// less is the order in which a request of this queue and one of another
	// queue of the same kind are taken.
	less(a, b *request) bool
	each(f func(*request) bool)
	// charge is told of every admission, before the request is removed.
	charge(r *request)
}

// fifo is a doubly linked list through the requests.
type fifo struct {
	head, tail *request
	n          int
}

func (q *fifo) push(r *request) {
	r.prev, r.next = q.tail, nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.next = r
	}
	q.tail = r
	q.n++
}

func (q *fifo) front(rs []*request) {
	for i := len(rs) - 1; i >= 0; i-- {
		r := rs[i]
		r.prev, r.next = nil, q.head
		if q.head == nil {
			q.tail = r
		} else {
			q.head.prev = r
		}
		q.head = r
		q.n++
	}
}

func (q *fifo) peek() *request { return q.head }

func (q *fifo) remove(r *request) {
	if r.prev == nil {
		q.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		q.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	q.n--
}

func (q *fifo) len() int { return q.n }

func (q *fifo) less(_, _ *request) bool { return false }

func (q *fifo) each(f func(*request) bool) {
	for r := q.head; r != nil; r = r.next {
		if !f(r) {
			return
		}
	}
}

func (q *fifo) charge(*request) {}

// ordered is a queue by a strict order of its requests.
type ordered struct {
	tree *btree.BTreeG[*request]
	lt   func(a, b *request) bool
}

func newOrdered(lt func(a, b *request) bool) *ordered {
	return &ordered{tree: btree.NewG(16, btree.LessFunc[*request](lt)), lt: lt}
}

func (q *ordered) push(r *request) { q.tree.ReplaceOrInsert(r) }

func (q *ordered) front(rs []*request) {
	for _, r := range rs {
		q.tree.ReplaceOrInsert(r)
	}
}

func (q *ordered) peek() *request {
	r, _ := q.tree.Min()
	return r
}

func (q *ordered) remove(r *request) { q.tree.Delete(r) }

func (q *ordered) len() int { return q.tree.Len() }

func (q *ordered) less(a, b *request) bool { return q.lt(a, b) }

func (q *ordered) each(f func(*request) bool) { q.tree.Ascend(f) }

func (q *ordered) charge(*request) {}

// byPriority is the order of the Priority policy: smaller priority, earlier
// arrival, smaller ID.
func byPriority(a, b *request) bool {
	if c := cmp.Compare(a.req.Priority, b.req.Priority); c != 0 {
		return c < 0
	}
	if c := cmp.Compare(a.req.Arrival, b.req.Arrival); c != 0 {
		return c < 0
	}
	return a.req.ID < b.req.ID
}

// newQueues makes the two queues of a policy.
func newQueues(s *Scheduler) (waiting, skipped queue) {
	switch s.cfg.Policy {
	case Priority:
		return newOrdered(byPriority), newOrdered(byPriority)
	case ShortFirst:
		return &lanes{s: s}, &lanes{s: s}
	case EarliestDeadline:
		return newOrdered(byDeadline), newOrdered(byDeadline)
	case FairShare:
		return newShares(s), &fifo{}
	}
	return &fifo{}, &fifo{}
}
