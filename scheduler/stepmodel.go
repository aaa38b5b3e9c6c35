package scheduler

import "math"

// stepModel predicts how long a step takes, in seconds:
//
//	Base + Decode·decodes + Prefill·tokens + Context·Σcontext
//
// where tokens are those of rows that prefill and Σcontext is the sum, over
// these tokens, of the tokens that they attend to.
type stepModel struct {
	Base, Decode, Prefill, Context float64
}

// StepWork is what a step asks of the device, as far as its time hangs on that.
type StepWork struct {
	Decodes int     // rows that decode, one-token tails included
	Prefill int     // tokens of the other rows
	Context float64 // Σ over these tokens of the tokens they attend to
}

// predict is the model's time of a step.
func (m stepModel) predict(w StepWork) float64 {
	return m.decodeOnly(w.Decodes) + m.append(float64(w.Prefill), w.Context)
}

func (m stepModel) decodeOnly(decodes int) float64 { return m.Base + m.Decode*float64(decodes) }

func (m stepModel) append(tokens, context float64) float64 {
	return m.Prefill*tokens + m.Context*context
}

// line is a weighted least-squares fit of y = u·p + v·q that forgets: each
// sample lowers the weight of those before it. Samples far from the fit count
// little (Huber's weights), unless many in a row are far: then it is the fit
// that is wrong, and it follows.
type line struct {
	pp, pq, qq, py, qy float64
	scale              float64 // typical size of a residual
	n                  int
	far                int // samples in a row beyond the bound, all on one side
	side               bool
}

const (
	lineForget = 0.98 // weight of the past at each sample: about 50 samples count
	lineBound  = 2.5  // residuals beyond so many scales count less
	lineFollow = 6    // so many far samples in a row restart the fit
)

// add takes one sample. predicted is the fit's value for it.
func (l *line) add(p, q, y, predicted float64) {
	w := 1.0
	r := y - predicted
	if l.n >= 4 {
		bound := lineBound * max(l.scale, 1e-3*math.Abs(predicted))
		if a := math.Abs(r); a > bound {
			w = bound / a
			if side := r > 0; side == l.side {
				l.far++
			} else {
				l.far, l.side = 1, side
			}
			if l.far >= lineFollow { // the device has changed: the past counts little from here on
				l.pp, l.pq, l.qq, l.py, l.qy = l.pp*0.02, l.pq*0.02, l.qq*0.02, l.py*0.02, l.qy*0.02
				w, l.far = 1, 0
			}
			r = math.Copysign(bound, r)
		} else {
			l.far = 0
		}
		l.scale += 0.1 * (math.Abs(r) - l.scale)
	}
	l.n++
	l.pp = lineForget*l.pp + w*p*p
	l.pq = lineForget*l.pq + w*p*q
	l.qq = lineForget*l.qq + w*q*q
	l.py = lineForget*l.py + w*p*y
	l.qy = lineForget*l.qy + w*q*y
	if l.n == 4 {
		l.scale = 0.05 * math.Abs(y)
	}
}

// solve returns u and v, neither negative. Where the samples do not tell the
// two apart, all is put on u.
func (l *line) solve() (u, v float64) {
	if l.pp == 0 {
		return 0, 0
	}
	det := l.pp*l.qq - l.pq*l.pq
	if det <= 1e-6*l.pp*l.qq {
		return max(l.py/l.pp, 0), 0
	}
	u = (l.py*l.qq - l.qy*l.pq) / det
	v = (l.qy*l.pp - l.py*l.pq) / det
	switch {
	case v < 0:
		return max(l.py/l.pp, 0), 0
	case u < 0:
		return 0, max(l.qy/l.qq, 0)
	}
	return u, v
}

// stepFit learns a stepModel from measured steps, while it is used. Steps
// without prefill teach it Base and Decode, the others what prefill adds; each
// kind forgets only by samples of its own kind, so that a long time without
// one does not blur what is known of it. It is deterministic and allocates
// nothing. The zero value knows nothing.
type stepFit struct {
	decode line
	prefil line
	model  stepModel
}

// samples is the number of decode-only steps and of steps with prefill that
// were observed.
func (f *stepFit) samples() (decode, prefill int) { return f.decode.n, f.prefil.n }

// observe takes the measured time of a step in seconds. Times that are not
// positive and finite, and steps without work, are ignored.
func (f *stepFit) observe(w StepWork, seconds float64) {
	if !(seconds > 0) || math.IsInf(seconds, 0) || w.Decodes < 0 || w.Prefill < 0 {
		return
	}
	switch {
	case w.Prefill > 0:
		base := f.model.decodeOnly(w.Decodes)
		f.prefil.add(float64(w.Prefill), w.Context, max(seconds-base, 0), f.model.append(float64(w.Prefill), w.Context))
		f.model.Prefill, f.model.Context = f.prefil.solve()
	case w.Decodes > 0:
		f.decode.add(1, float64(w.Decodes), seconds, f.model.decodeOnly(w.Decodes))
		f.model.Base, f.model.Decode = f.decode.solve()
	}
}
