package offload

import (
	"slices"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// journal records in order what becomes matchable in host memory and what
// leaves it, until it is taken.
type journal struct {
	hasher *kvcache.Hasher // of the hashes in events; nil: nothing is recorded
	medium string
	queue  []kvcache.Event
}

func newJournal(c kvcache.Events) (journal, error) {
	if c.Mode == kvcache.EventsOff {
		return journal{}, nil
	}
	j := journal{medium: c.Medium}
	if j.medium == "" {
		j.medium = "CPU"
	}
	var err error
	j.hasher, err = kvcache.NewHasher(c.Algorithm, c.Seed, c.Scope)
	return j, err
}

// told is a shared block as an event names it.
type told struct {
	group        int
	hash, parent kvcache.Hash
	tokens       []kvcache.Token
	namespace    kvcache.Namespace
	first        bool
}

// announce remembers how to name block i of a request, in one group, when the
// job's copy is complete.
func (s *Scheduler) announce(j *job, r *connector.Request, group, i int) {
	if s.journal.hasher == nil {
		return
	}
	c := s.chain(r)
	c.names = s.extend(s.journal.hasher, c.names, r, i)
	t := told{group: group, hash: c.names[i], tokens: slices.Clone(s.block(r, i)), namespace: r.Namespace, first: i == 0}
	if i > 0 {
		t.parent = c.names[i-1]
	}
	j.told = append(j.told, t)
}

// recordStored joins the newest event where that one ends at the block before.
func (j *journal) recordStored(t *told, spec kvcache.GroupSpec, blockSize int) {
	if k := len(j.queue) - 1; k >= 0 {
		e := &j.queue[k]
		if e.Kind == kvcache.Stored && e.Group == t.group && !t.first && e.Hashes[len(e.Hashes)-1] == t.parent {
			e.Hashes, e.Tokens = append(e.Hashes, t.hash), append(e.Tokens, t.tokens...)
			return
		}
	}
	j.queue = append(j.queue, kvcache.Event{
		Kind: kvcache.Stored, Group: t.group, Spec: spec, Medium: j.medium, Hashes: []kvcache.Hash{t.hash}, Parent: t.parent,
		Tokens: t.tokens, BlockSize: blockSize, Namespace: t.namespace, AtStart: t.first,
	})
}

func (j *journal) recordRemoved(group int, spec kvcache.GroupSpec, h kvcache.Hash) {
	if k := len(j.queue) - 1; k >= 0 {
		if e := &j.queue[k]; e.Kind == kvcache.Removed && e.Group == group {
			e.Hashes = append(e.Hashes, h)
			return
		}
	}
	j.queue = append(j.queue, kvcache.Event{Kind: kvcache.Removed, Group: group, Spec: spec, Medium: j.medium, Hashes: []kvcache.Hash{h}})
}

// TakeEvents appends to dst what has become matchable in host memory and what
// has left it since the last call, in order, and returns dst. Files are not
// told of, nor is what belongs to one preempted request alone.
func (s *Scheduler) TakeEvents(dst []kvcache.Event) []kvcache.Event {
	dst = append(dst, s.journal.queue...)
	clear(s.journal.queue)
	s.journal.queue = s.journal.queue[:0]
	return dst
}
