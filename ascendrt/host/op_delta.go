package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// OpGatedDelta is an operation of this backend alone: a gated delta rule, the
// recurrent layer of hybrid models, for any mix of prefills, tails, decodes and
// rows with drafts. Float32 only.
//
// Arguments q[N,H·D], k[N,H·D], v[N,H·D], gates[N,2H] (the decay of each head,
// then its write strength, before the sigmoid), starts[R+1] (first row of each
// request), in[R] (state that the request starts from), out[N] (state that is
// kept behind the row), states[S,H,D,D], y[N,H·D]. Per head and row, with decay
// α and strength β: S ← αS, S ← S + β·k·(v − Sᵀk)ᵀ, y = Sᵀq. A state of 0 or
// less is the null state: it reads as zeros and is never written. Rows behind
// starts[R] give zero rows. A row with drafts keeps a state per position, so
// that the one behind the last accepted token can be taken up.
const OpGatedDelta ascendrt.OpKind = "gated_delta"

// GatedDeltaAttr is the attribute of OpGatedDelta.
type GatedDeltaAttr struct{ Heads, HeadDim int }

func (s *opState) gatedDelta(spec ascendrt.OpSpec) error {
	at, err := opspec.Attr(spec, func(a GatedDeltaAttr) []int { return []int{a.Heads, a.HeadDim} })
	if err == nil && spec.Type != ascendrt.Float32 {
		return fmt.Errorf("gated_delta computes float32 alone: %w", ascendrt.ErrUnsupported)
	}
	const f, i = ascendrt.Float32, ascendrt.Int32
	row, size := at.Heads*at.HeadDim, at.Heads*at.HeadDim*at.HeadDim
	s.Signature = opspec.New(spec, []opspec.Param{
		{Name: "q", Type: f, Rank: 2, Row: row}, {Name: "k", Type: f, Rank: 2, Row: row}, {Name: "v", Type: f, Rank: 2, Row: row},
		{Name: "gates", Type: f, Rank: 2, Row: 2 * at.Heads}, {Name: "starts", Type: i, Rank: 1, Row: -1},
		{Name: "in", Type: i, Rank: 1, Row: -1}, {Name: "out", Type: i, Rank: 1, Row: -1},
		{Name: "states", Type: f, Rank: 4, Row: size, Use: opspec.Paged}, {Name: "y", Type: f, Rank: 2, Row: row, Use: opspec.Writes},
	}, nil, func(s *opspec.Signature, a []ascendrt.Tensor) error {
		if a[4].Rows() != a[5].Rows()+1 {
			return errors.New("starts and in disagree about the number of requests")
		}
		return s.SameRows(a, 0, 1, 2, 3, 6, 8)
	})
	s.make = func(a []arg, _ [][]int64) (func(*scratch) error, error) {
		m := &deltaRun{q: a[0], k: a[1], v: a[2], gates: a[3], starts: a[4], in: a[5], out: a[6], states: a[7], y: a[8], at: at}
		return m.run, nil
	}
	return err
}

type deltaRun struct {
	q, k, v, gates, starts, in, out, states, y arg

	at GatedDeltaAttr
}

func (m *deltaRun) run(sc *scratch) error {
	size := m.at.Heads * m.at.HeadDim * m.at.HeadDim
	starts, in, out, states := m.starts.i32(), m.in.i32(), m.out.i32(), m.states.f32()
	state := sc.f(0, size)
	end := 0
	for r, from := range in[:m.in.rows] {
		if int(from) >= m.states.rows {
			return outOfRange("state", r, from, m.states.rows)
		}
		lo, hi := int(starts[r]), int(starts[r+1])
		if lo < end || hi < lo || hi > m.q.rows {
			return errors.New("starts do not ascend within the rows")
		}
		end = hi
		if lo == hi {
			continue
		}
		clear(state)
		if from > 0 {
			copy(state, states[int(from)*size:][:size])
		}
		for i := lo; i < hi; i++ {
			m.token(i, state)
			switch to := out[i]; {
			case int(to) >= m.states.rows:
				return outOfRange("state", i, to, m.states.rows)
			case to > 0:
				copy(states[int(to)*size:][:size], state)
			}
		}
	}
	for i := end; i < m.q.rows; i++ {
		clear(m.y.load(i, nil))
	}
	return nil
}

// token advances the state of every head by one row.
func (m *deltaRun) token(i int, state []float32) {
	d := m.at.HeadDim
	q, k, v, g, y := m.q.load(i, nil), m.k.load(i, nil), m.v.load(i, nil), m.gates.load(i, nil), m.y.load(i, nil)
	for h := range m.at.Heads {
		s := state[h*d*d : (h+1)*d*d]
		decay, strength := sigmoid(g[h]), sigmoid(g[m.at.Heads+h])
		for j := range s {
			s[j] *= decay
		}
		for col := range d {
			var seen, sum float32
			for r := range d {
				seen += float32(s[r*d+col] * k[h*d+r])
			}
			write := strength * (v[h*d+col] - seen)
			for r := range d {
				s[r*d+col] += float32(k[h*d+r] * write)
				sum += float32(s[r*d+col] * q[h*d+r])
			}
			y[h*d+col] = sum
		}
	}
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }
