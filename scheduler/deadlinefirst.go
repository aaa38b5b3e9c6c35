package scheduler

import "cmp"

// byDeadline is the order of the EarliestDeadline policy: the request that is
// due first, those without a deadline last; then by arrival and time of Add.
func byDeadline(a, b *request) bool {
	due := func(r *request) Time {
		if r.req.Deadline == 0 {
			return Never
		}
		return r.req.Deadline
	}
	c := cmp.Or(cmp.Compare(due(a), due(b)), cmp.Compare(a.req.Arrival, b.req.Arrival), cmp.Compare(a.order, b.order))
	return c < 0
}
