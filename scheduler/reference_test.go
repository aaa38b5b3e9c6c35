package scheduler_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/scheduler"
)

// reference is a naive model of the scheduler that Sluice's default decisions
// follow: synchronous, one KV group of full attention, no connector. Its pool
// is a list of free blocks and a map from prefixes to blocks, searched from end
// to end; what it shares with the real thing is the rules alone.
type reference struct {
	blockSize, seqs, budget, threshold, maxLen int
	priority, wholeSequence                    bool

	free    []int // front is taken first
	refs    []int
	keys    []string         // prefix that a block holds, "" if none
	byKey   map[string][]int // blocks of a prefix, oldest first
	running []*refRequest
	waiting []*refRequest
}

type refRequest struct {
	name     string
	priority int
	arrival  int
	tokens   []scheduler.Token
	prompt   int
	limit    int
	computed int
	blocks   []int
	again    bool // was preempted
}

// refStep is what one step decided, in comparable form.
type refStep struct {
	rows      []string
	preempted []string
	takenBack []string
	free      int
}

func newReference(blocks int) *reference {
	m := &reference{refs: make([]int, blocks), keys: make([]string, blocks), byKey: map[string][]int{}}
	for b := 1; b < blocks; b++ {
		m.free = append(m.free, b)
	}
	return m
}

func (m *reference) key(r *refRequest, block int) string {
	return fmt.Sprint(r.tokens[:(block+1)*m.blockSize])
}

func (m *reference) unhash(b int) {
	if k := m.keys[b]; k != "" {
		m.byKey[k] = slices.DeleteFunc(m.byKey[k], func(x int) bool { return x == b })
		m.keys[b] = ""
	}
}

func (m *reference) hit(r *refRequest) []int {
	var hit []int
	for i := 0; (i+1)*m.blockSize <= len(r.tokens)-1; i++ {
		have := m.byKey[m.key(r, i)]
		if len(have) == 0 {
			break
		}
		hit = append(hit, have[0])
	}
	return hit
}

// allocate takes blocks for n more tokens behind a hit, all or nothing.
func (m *reference) allocate(r *refRequest, hit []int, n int, gate bool) bool {
	total := r.computed + len(hit)*m.blockSize
	ceil := func(tokens int) int { return (tokens + m.blockSize - 1) / m.blockSize }
	unheld := 0
	for _, b := range hit {
		if m.refs[b] == 0 {
			unheld++
		}
	}
	need := func(tokens int) int { return max(ceil(tokens)-len(r.blocks)-len(hit), 0) + unheld }
	if gate && need(min(len(r.tokens), m.maxLen)) > len(m.free) || need(min(total+n, m.maxLen)) > len(m.free) {
		return false
	}
	for _, b := range hit {
		if m.refs[b]++; m.refs[b] == 1 {
			m.free = slices.DeleteFunc(m.free, func(x int) bool { return x == b })
		}
		r.blocks = append(r.blocks, b)
	}
	for len(r.blocks) < ceil(min(total+n, m.maxLen)) {
		b := m.free[0]
		m.free = m.free[1:]
		m.unhash(b)
		m.refs[b] = 1
		r.blocks = append(r.blocks, b)
	}
	m.cache(r, min(total+n, len(r.tokens)))
	return true
}

// cache makes the full blocks of the first n tokens matchable.
func (m *reference) cache(r *refRequest, n int) {
	for i := range n / m.blockSize {
		b := r.blocks[i]
		if m.keys[b] == "" {
			m.keys[b] = m.key(r, i)
			m.byKey[m.keys[b]] = append(m.byKey[m.keys[b]], b)
		}
	}
}

// release gives a request's blocks back, the last first: those without a
// prefix to the front of the list, as one group, the others to its end.
func (m *reference) release(r *refRequest) {
	var front []int
	for _, b := range slices.Backward(r.blocks) {
		if m.refs[b]--; m.refs[b] > 0 {
			continue
		}
		if m.keys[b] == "" {
			front = append(front, b)
		} else {
			m.free = append(m.free, b)
		}
	}
	m.free = append(front, m.free...)
	r.blocks, r.computed = nil, 0
}

func (m *reference) less(a, b *refRequest) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.arrival, b.arrival), strings.Compare(a.name, b.name))
}

func (m *reference) add(r *refRequest) {
	m.waiting = append(m.waiting, r)
	if m.priority {
		slices.SortFunc(m.waiting, m.less)
	}
}

func (m *reference) front(r *refRequest) {
	m.waiting = slices.Insert(m.waiting, 0, r)
	if m.priority {
		slices.SortFunc(m.waiting, m.less)
	}
}

type refRow struct {
	r    *refRequest
	n    int
	kind string
	hit  int
	new  int
}

// plan makes one step and applies it: every row that reaches its end samples
// what the model says.
func (m *reference) plan() refStep {
	var st refStep
	var rows []refRow
	budget := m.budget
	for i := 0; i < len(m.running) && budget > 0; i++ {
		r := m.running[i]
		n := len(r.tokens) - r.computed
		if m.threshold > 0 {
			n = min(n, m.threshold)
		}
		n = min(n, budget)
		if n <= 0 {
			continue
		}
		had := len(r.blocks)
		placed := m.allocate(r, nil, n, false)
		for !placed {
			v := len(m.running) - 1
			if m.priority {
				v = 0
				for j, x := range m.running {
					w := m.running[v]
					if cmp.Or(cmp.Compare(x.priority, w.priority), cmp.Compare(x.arrival, w.arrival)) > 0 {
						v = j
					}
				}
			}
			victim := m.running[v]
			m.running = slices.Delete(m.running, v, v+1)
			if v < i {
				i--
			}
			if at := slices.IndexFunc(rows, func(x refRow) bool { return x.r == victim }); at >= 0 {
				budget += rows[at].n
				rows = slices.Delete(rows, at, at+1)
				st.takenBack = append(st.takenBack, victim.name)
				// Sluice differs here: a block that the row would have filled is
				// not matchable, because it is not computed.
				for _, b := range victim.blocks[victim.computed/m.blockSize:] {
					m.unhash(b)
				}
			}
			m.release(victim)
			victim.again = true
			m.front(victim)
			st.preempted = append(st.preempted, victim.name)
			if victim == r {
				break
			}
			placed = m.allocate(r, nil, n, false)
		}
		if !placed {
			break
		}
		budget -= n
		rows = append(rows, refRow{r, n, "running", 0, len(r.blocks) - had})
	}
	for len(st.preempted) == 0 && len(m.waiting) > 0 && budget > 0 && len(m.running) < m.seqs {
		r := m.waiting[0]
		hit := m.hit(r)
		n := len(r.tokens) - len(hit)*m.blockSize
		if m.threshold > 0 {
			n = min(n, m.threshold)
		}
		n = min(n, budget)
		if !m.allocate(r, hit, n, m.wholeSequence) {
			break
		}
		m.waiting = m.waiting[1:]
		m.running = append(m.running, r)
		r.computed = len(hit) * m.blockSize
		kind := "new"
		if r.again {
			kind = "resumed"
		}
		budget -= n
		rows = append(rows, refRow{r, n, kind, len(hit) * m.blockSize, len(r.blocks)})
	}
	st.free = len(m.free)
	for _, w := range rows {
		st.rows = append(st.rows, fmt.Sprintf("%s %s %d after %d, hit %d, %d blocks", w.r.name, w.kind, w.n, w.r.computed, w.hit, w.new))
		w.r.computed += w.n
	}
	for _, w := range rows {
		r := w.r
		if r.computed < len(r.tokens) {
			continue
		}
		r.tokens = append(r.tokens, answer(r.tokens, 1)[0])
		if len(r.tokens) >= r.limit {
			m.running = slices.DeleteFunc(m.running, func(x *refRequest) bool { return x == r })
			m.release(r)
		}
	}
	return st
}

func (m *reference) abort(name string) {
	for _, list := range []*[]*refRequest{&m.running, &m.waiting} {
		if i := slices.IndexFunc(*list, func(r *refRequest) bool { return r.name == name }); i >= 0 {
			m.release((*list)[i])
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

// TestDecidesAsTheReference compares hits, rows, preemptions and free blocks,
// step by step, with the naive model.
func TestDecidesAsTheReference(t *testing.T) {
	setChecks(t, 200)
	rapid.Check(t, func(t *rapid.T) {
		c := rigConfig{blocks: rapid.IntRange(10, 40).Draw(t, "blocks"), blockSize: rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "blockSize")}
		c.MaxModelLen = (c.blocks - 1) * c.blockSize
		c.MaxNumSeqs = rapid.IntRange(1, 8).Draw(t, "seqs")
		c.MaxBatchedTokens = rapid.IntRange(1, 30).Draw(t, "budget")
		c.LongPrefillThreshold = rapid.SampledFrom([]int{0, 0, 2, 5}).Draw(t, "threshold")
		c.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.FCFS, scheduler.Priority}).Draw(t, "policy")
		c.Admission = rapid.SampledFrom([]scheduler.Admission{scheduler.WholeSequence, scheduler.FirstChunk}).Draw(t, "gate")
		r, err := newRig(c)
		require.NoError(t, err)
		m := newReference(c.blocks)
		m.blockSize, m.seqs, m.budget, m.threshold, m.maxLen = c.blockSize, c.MaxNumSeqs, c.MaxBatchedTokens, c.LongPrefillThreshold, r.s.MaxLen()
		m.priority, m.wholeSequence = c.Policy == scheduler.Priority, c.Admission == scheduler.WholeSequence

		longest := r.s.MaxLen() * 2 / 3
		step := func() {
			want := m.plan()
			p, err := r.plan(false)
			require.NoError(t, err)
			got := refStep{free: int(p.Free)}
			for i, id := range p.Requests {
				_, blocks := p.Table(i, 0)
				got.rows = append(got.rows, fmt.Sprintf("%s %s %d after %d, hit %d, %d blocks",
					r.names[id], p.Kinds[i], p.Scheduled[i], p.Computed[i], p.LocalHits[i], len(blocks)))
			}
			for _, id := range p.Preempted {
				got.preempted = append(got.preempted, r.names[id])
			}
			for _, id := range p.RolledBack {
				got.takenBack = append(got.takenBack, r.names[id])
			}
			require.Equal(t, want, got, "step %d", p.Seq)
			_, err = r.apply()
			require.NoError(t, err)
			require.Equal(t, len(m.free), r.s.Free(), "free after step %d", p.Seq)
		}
		for i := range rapid.IntRange(4, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "add", "step", "step", "step", "abort"}).Draw(t, "do") {
			case "add":
				n := rapid.IntRange(1, longest).Draw(t, "length")
				if rapid.Bool().Draw(t, "whole blocks") {
					n = max(n/c.blockSize, 1) * c.blockSize
				}
				prompt := make([]scheduler.Token, n)
				shared := rapid.IntRange(0, n).Draw(t, "shared")
				if rapid.IntRange(0, 2).Draw(t, "equal") == 0 {
					shared = n
				}
				for j := range prompt {
					prompt[j] = scheduler.Token(1 + j)
					if j >= shared {
						prompt[j] = scheduler.Token(1000 + 50*i + j)
					}
				}
				q := &refRequest{
					name: fmt.Sprintf("r%03d", i), priority: rapid.IntRange(0, 3).Draw(t, "priority"), arrival: i, tokens: prompt, prompt: n,
				}
				most := rapid.IntRange(1, 12).Draw(t, "max")
				q.limit = min(n+most, m.maxLen)
				require.NoError(t, r.add(scheduler.Request{
					ID: q.name, Prompt: slices.Clone(prompt), MaxTokens: most, Priority: q.priority, Arrival: scheduler.Time(q.arrival),
				}, remote{}))
				m.add(q)
			case "abort":
				if len(r.order) > 0 && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					name := rapid.SampledFrom(r.order).Draw(t, "whom")
					_ = r.s.Abort(r.ids[name]) // one that has ended is unknown
					m.abort(name)
				}
			default:
				step()
			}
		}
		for range 20_000 {
			if r.s.Unfinished() == 0 {
				break
			}
			step()
		}
		require.Zero(t, r.s.Unfinished())
		require.Empty(t, m.running)
	})
}
