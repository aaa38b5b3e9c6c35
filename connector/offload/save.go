package offload

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// Preempting reserves host blocks for the computed blocks of a request and
// stages their copy: all of them or none.
func (s *Scheduler) Preempting(r *connector.Request, tables connector.Tables, computed int) bool {
	if rec := s.records[r.ID]; rec != nil && !rec.over {
		return true
	}
	if computed <= 0 || len(tables) == 0 {
		return false
	}
	if s.records[r.ID] != nil { // an earlier one whose job has not ended: its place is not free yet
		s.stats.NoRoom++
		return false
	}
	rec := &record{computed: computed, slots: make([][]slot, len(tables))}
	type want struct{ g, i int }
	var copies []want
	var held []slot
	for g, table := range tables {
		n := min(ceilDiv(computed, s.cfg.BlockSize), len(table))
		rec.slots[g] = make([]slot, n)
		for i := range n {
			rec.slots[g][i] = noSlot
			if table[i] == kvcache.NullBlock {
				continue
			}
			if s.full(r, i, computed) {
				if x, isReady, _ := s.pool.find(s.key(r, g, i)); isReady {
					s.pool.hold(x)
					held = append(held, x)
					rec.slots[g][i] = x
					s.stats.SavesSkipped++
					continue
				}
			}
			copies = append(copies, want{g, i})
		}
	}
	fresh, ok := s.pool.alloc(len(copies))
	if !ok || len(copies)+len(held) == 0 {
		for _, x := range held {
			s.pool.drop(x)
		}
		s.stats.NoRoom++
		return false
	}
	s.stats.Saves++
	s.records[r.ID] = rec
	if len(copies) == 0 { // all of it is here already
		rec.state = ready
		return true
	}
	w := s.newWork(jobSave, r.ID)
	j := s.jobs[w.job]
	blocks := make(connector.Tables, len(tables))
	for n, c := range copies {
		x, b := fresh[n], tables[c.g][c.i]
		rec.slots[c.g][c.i] = x
		w.items = append(w.items, item{group: c.g, block: b, slot: x})
		blocks[c.g] = append(blocks[c.g], b)
		if s.full(r, c.i, computed) {
			s.pool.promise(x, s.key(r, c.g, c.i))
			j.publish = append(j.publish, x)
			s.announce(j, r, c.g, c.i)
		}
	}
	s.stageSave(r, w, blocks, computed)
	return true
}

// full says whether block i can be shared: all its tokens are computed.
func (s *Scheduler) full(r *connector.Request, i, computed int) bool {
	return s.cfg.Sharing == Turns && (i+1)*s.cfg.BlockSize <= min(computed, len(r.Tokens))
}

func (s *Scheduler) stageSave(r *connector.Request, w *work, blocks connector.Tables, computed int) {
	s.ops = append(s.ops, connector.Op{
		Kind: connector.OpSave, Request: r.ID, Tokens: connector.Range{To: computed}, Blocks: blocks, Timeout: s.cfg.Save, Payload: w,
	})
}

// Finished gives up the request's record and saves a finished turn's full
// blocks that are not in the tier yet.
func (s *Scheduler) Finished(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	defer delete(s.chains, r.ID)
	if rec := s.records[r.ID]; rec != nil && !rec.over {
		s.dropRecord(r.ID, rec)
	}
	if s.cfg.Sharing != Turns || !end.Reason.Complete() || len(tables) != len(s.cfg.Groups) {
		return connector.Hold{}
	}
	type want struct {
		g, i int
		k    Key
	}
	var copies []want
	for i := 0; s.full(r, i, end.Computed); i++ {
		for g, table := range tables {
			if i >= len(table) || table[i] == kvcache.NullBlock {
				continue
			}
			k := s.key(r, g, i)
			if x, isReady, ok := s.pool.find(k); ok {
				if isReady {
					s.pool.order.touch(x)
				}
				s.stats.SavesSkipped++
				continue
			}
			copies = append(copies, want{g, i, k})
		}
	}
	copies = copies[:min(len(copies), s.pool.available())] // the start of the prefix first
	fresh, ok := s.pool.alloc(len(copies))
	if !ok || len(copies) == 0 {
		return connector.Hold{}
	}
	s.stats.Turns++
	w := s.newWork(jobTurn, r.ID)
	j := s.jobs[w.job]
	blocks := make(connector.Tables, len(tables))
	for n, c := range copies {
		x, b := fresh[n], tables[c.g][c.i]
		s.pool.promise(x, c.k)
		j.slots, j.publish = append(j.slots, x), append(j.publish, x)
		s.announce(j, r, c.g, c.i)
		_, filed := s.files[c.k]
		w.items = append(w.items, item{group: c.g, block: b, slot: x, key: c.k, filed: !filed})
		blocks[c.g] = append(blocks[c.g], b)
	}
	s.stageSave(r, w, blocks, end.Computed)
	return connector.Hold{Delay: true, Timeout: 2 * s.cfg.Save}
}
