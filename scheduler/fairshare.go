package scheduler

// shares is the queue of the FairShare policy: deficit round robin over
// tenants. In its turn a tenant gets Quantum tokens of credit; its requests are
// admitted, in the order of Add, as long as their prompts fit the credit. A
// tenant that has nothing waiting keeps no credit. A request that was preempted
// was paid for already.
type shares struct {
	s       *Scheduler
	tenants map[string]*tenant
	ring    []*tenant // with something waiting, in the order in which that began
	turn    int       // whose turn it is
	n       int
}

type tenant struct {
	name   string
	queue  fifo
	credit int64
	fresh  bool // its turn has come and its credit was not added yet
}

var _ queue = (*shares)(nil)

func newShares(s *Scheduler) *shares { return &shares{s: s, tenants: map[string]*tenant{}} }

func cost(r *request) int64 {
	if r.preemptions > 0 {
		return 0
	}
	return int64(r.prompt)
}

// tenant is the request's, which has something waiting from now on.
func (q *shares) tenant(r *request) *tenant {
	t := q.tenants[r.req.Tenant]
	if t == nil {
		t = &tenant{name: r.req.Tenant, fresh: true}
		q.tenants[t.name] = t
		q.ring = append(q.ring, t)
	}
	return t
}

func (q *shares) push(r *request) {
	q.tenant(r).queue.push(r)
	q.n++
}

func (q *shares) front(rs []*request) {
	for i := len(rs) - 1; i >= 0; i-- {
		q.tenant(rs[i]).queue.front(rs[i : i+1])
		q.n++
	}
}

// peek moves the turn on to the first tenant whose credit reaches for its next
// request. Rounds in which nobody's would are skipped at once.
func (q *shares) peek() *request {
	if q.n == 0 {
		return nil
	}
	quantum := int64(q.s.cfg.Quantum)
	for round := 0; ; round++ {
		if round == 1 {
			skip := int64(-1)
			for _, t := range q.ring {
				if need := (cost(t.queue.head) - t.credit + quantum - 1) / quantum; skip < 0 || need < skip {
					skip = need
				}
			}
			for _, t := range q.ring {
				t.credit += max(skip-1, 0) * quantum
			}
		}
		for range q.ring {
			t := q.ring[q.turn]
			if t.fresh {
				t.credit += quantum
				t.fresh = false
			}
			if cost(t.queue.head) <= t.credit {
				return t.queue.head
			}
			q.next()
		}
	}
}

// next gives the turn to the next tenant.
func (q *shares) next() {
	q.turn++
	if q.turn >= len(q.ring) {
		q.turn = 0
	}
	q.ring[q.turn].fresh = true
}

func (q *shares) remove(r *request) {
	t := q.tenants[r.req.Tenant]
	t.queue.remove(r)
	q.n--
	if t.queue.n > 0 {
		return
	}
	delete(q.tenants, t.name)
	for i, u := range q.ring {
		if u != t {
			continue
		}
		q.ring = append(q.ring[:i], q.ring[i+1:]...)
		switch {
		case i < q.turn:
			q.turn--
		case i == q.turn && len(q.ring) > 0:
			q.turn %= len(q.ring)
			q.ring[q.turn].fresh = true
		}
		break
	}
	if len(q.ring) == 0 {
		q.turn = 0
	}
}

func (q *shares) len() int { return q.n }

// less lets requests that were passed over come first.
func (q *shares) less(_, _ *request) bool { return false }

func (q *shares) each(f func(*request) bool) {
	more := true
	for _, t := range q.ring {
		if more {
			t.queue.each(func(r *request) bool {
				more = f(r)
				return more
			})
		}
	}
}

// charge takes an admitted request's prompt off its tenant's credit.
func (q *shares) charge(r *request) {
	if t := q.tenants[r.req.Tenant]; t != nil {
		t.credit -= cost(r)
	}
}
