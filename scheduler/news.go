package scheduler

// news is what happened since the last plan, for the next one.
type news struct {
	ended    []RequestID
	reasons  []FinishReason
	victims  []RequestID
	saved    []uint8
	returned []RequestID
}

func (n *news) any() bool { return len(n.ended)+len(n.victims)+len(n.returned) > 0 }

func (n *news) finished(id RequestID, why FinishReason) {
	n.ended = append(n.ended, id)
	n.reasons = append(n.reasons, why)
}

func (n *news) preempted(id RequestID, saved bool) {
	n.victims = append(n.victims, id)
	var flag uint8
	if saved {
		flag = 1
	}
	n.saved = append(n.saved, flag)
}

func (n *news) released(id RequestID) { n.returned = append(n.returned, id) }

// moveTo hands everything to a plan.
func (n *news) moveTo(p *Plan, a Allocator) {
	p.Finished = add(a, p.Finished, n.ended...)
	p.Reasons = add(a, p.Reasons, n.reasons...)
	p.Preempted = add(a, p.Preempted, n.victims...)
	p.PreemptedSaved = add(a, p.PreemptedSaved, n.saved...)
	p.Released = add(a, p.Released, n.returned...)
	n.ended, n.reasons, n.victims, n.saved, n.returned = n.ended[:0], n.reasons[:0], n.victims[:0], n.saved[:0], n.returned[:0]
}
