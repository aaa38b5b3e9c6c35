package scheduler

// lanes is the queue of the ShortFirst policy: short prompts first, each lane
// by time of Add. A long prompt that has waited long enough goes ahead of the
// short ones, so that it waits no longer than AgingAfter behind them. Requests
// that were preempted go first of all.
type lanes struct {
	again, short, long fifo
	s                  *Scheduler
}

var _ queue = (*lanes)(nil)

// lane is where a request waits. It does not change while the request is in
// the queue.
func (q *lanes) lane(r *request) *fifo {
	switch {
	case r.preemptions > 0:
		return &q.again
	case int(r.prompt) <= q.s.cfg.ShortPrompt:
		return &q.short
	}
	return &q.long
}

// aged is true for a long prompt that has waited its time.
func (q *lanes) aged(r *request) bool { return q.s.now.Sub(r.since) >= q.s.cfg.AgingAfter }

func (q *lanes) push(r *request) { q.lane(r).push(r) }

func (q *lanes) front(rs []*request) {
	for i := len(rs) - 1; i >= 0; i-- {
		q.lane(rs[i]).front(rs[i : i+1])
	}
}

func (q *lanes) peek() *request {
	switch {
	case q.again.n > 0:
		return q.again.head
	case q.long.n > 0 && (q.short.n == 0 || q.aged(q.long.head)):
		return q.long.head
	}
	return q.short.head
}

func (q *lanes) remove(r *request) { q.lane(r).remove(r) }

func (q *lanes) len() int { return q.again.n + q.short.n + q.long.n }

// rank orders requests of two queues.
func (q *lanes) rank(r *request) int {
	switch q.lane(r) {
	case &q.again:
		return 0
	case &q.short:
		return 2
	}
	if q.aged(r) {
		return 1
	}
	return 3
}

func (q *lanes) less(a, b *request) bool {
	if x, y := q.rank(a), q.rank(b); x != y {
		return x < y
	}
	return a.order < b.order
}

func (q *lanes) each(f func(*request) bool) {
	more := true
	visit := func(r *request) bool {
		more = f(r)
		return more
	}
	for _, l := range [...]*fifo{&q.again, &q.short, &q.long} {
		if more {
			l.each(visit)
		}
	}
}

func (q *lanes) charge(*request) {}
