package model

import "math"

// Reference runs a model one token at a time with plain loops and no device: an
// independent account of the architecture, for tests and for the choice of
// scales. It keeps the keys and values of everything it has read.
type Reference struct {
	c    Config
	w    Weights
	keys [][]float32 // per layer: position x KVWidth, after norm and rotation
	vals [][]float32
	n    int
}

// NewReference starts an empty sequence.
func NewReference(c Config, w Weights) *Reference {
	return &Reference{c: c, w: w, keys: make([][]float32, c.Layers), vals: make([][]float32, c.Layers)}
}

// Len is the number of tokens read.
func (r *Reference) Len() int { return r.n }

// Keys gives the keys of one layer, position by position; writable.
func (r *Reference) Keys(layer int) []float32 { return r.keys[layer] }

// Values gives the values of one layer, position by position; writable.
func (r *Reference) Values(layer int) []float32 { return r.vals[layer] }

// Step reads one token and returns the logits that follow it.
func (r *Reference) Step(token int) []float32 {
	c := r.c
	h := append([]float32(nil), r.w[EmbedName][token*c.Hidden:(token+1)*c.Hidden]...)
	for l := range c.Layers {
		t := func(part string) []float32 { return r.w[LayerName(l, part)] }
		x := rmsnorm(h, t("input_layernorm"), c.NormEps)
		q, k, v := matvec(t("self_attn.q_proj"), x), matvec(t("self_attn.k_proj"), x), matvec(t("self_attn.v_proj"), x)
		var qGain, kGain []float32
		if c.HeadNorm {
			qGain, kGain = t("self_attn.q_norm"), t("self_attn.k_norm")
		}
		for i := range c.Heads {
			r.rotate(head(q, i, c.HeadDim), qGain)
		}
		for i := range c.KVHeads {
			r.rotate(head(k, i, c.HeadDim), kGain)
		}
		r.keys[l] = append(r.keys[l], k...)
		r.vals[l] = append(r.vals[l], v...)
		attended := make([]float32, c.QWidth())
		for i := range c.Heads {
			r.attend(l, i, head(q, i, c.HeadDim), head(attended, i, c.HeadDim))
		}
		add(h, matvec(t("self_attn.o_proj"), attended))
		x = rmsnorm(h, t("post_attention_layernorm"), c.NormEps)
		if c.MoE.Experts > 0 {
			add(h, r.experts(l, x))
			continue
		}
		add(h, feedForward(t("mlp.gate_proj"), t("mlp.up_proj"), t("mlp.down_proj"), x))
	}
	r.n++
	out := r.w[EmbedName]
	if !c.Tied {
		out = r.w[HeadName]
	}
	return matvec(out, rmsnorm(h, r.w[FinalNormName], c.NormEps))
}

// experts is what a token's experts make of x, weighed by their shares.
func (r *Reference) experts(layer int, x []float32) []float32 {
	share := r.Shares(layer, x)
	out := make([]float64, len(x))
	for e, w := range share {
		if w == 0 {
			continue
		}
		t := func(part string) []float32 { return r.w[ExpertName(layer, e, part)] }
		for i, v := range feedForward(t("gate_proj"), t("up_proj"), t("down_proj"), x) {
			out[i] += w * float64(v)
		}
	}
	sum := make([]float32, len(x))
	for i, v := range out {
		sum[i] = float32(v)
	}
	return sum
}

// Shares are the weights of all experts for x, the input of a layer's router; 0
// for those that are not taken. Of equal ones the lower index is taken.
func (r *Reference) Shares(layer int, x []float32) []float64 {
	logits := matvec(r.w[LayerName(layer, "mlp.gate")], x)
	var total float64
	for _, v := range logits {
		total += math.Exp(float64(v))
	}
	share := make([]float64, len(logits))
	var taken float64
	for range r.c.MoE.TopK {
		best := -1
		for e, v := range logits {
			if share[e] == 0 && (best < 0 || v > logits[best]) {
				best = e
			}
		}
		share[best] = math.Exp(float64(logits[best])) / total
		taken += share[best]
	}
	if r.c.MoE.Normalised {
		for e := range share {
			share[e] /= taken
		}
	}
	return share
}

// feedForward is SwiGLU between two projections.
func feedForward(gate, up, down, x []float32) []float32 {
	a, b := matvec(gate, x), matvec(up, x)
	for i := range a {
		g := float64(a[i])
		a[i] = float32(g/(1+math.Exp(-g))) * b[i]
	}
	return matvec(down, a)
}

// rotate turns one head in place to the current position; with a gain it
// normalises it before.
func (r *Reference) rotate(x, gain []float32) {
	if gain != nil {
		copy(x, rmsnorm(x, gain, r.c.NormEps))
	}
	half := len(x) / 2
	for i := range half {
		angle := float64(r.n) * r.c.frequency(i)
		sin, cos := math.Sincos(angle)
		a, b := float64(x[i]), float64(x[i+half])
		x[i], x[i+half] = float32(a*cos-b*sin), float32(b*cos+a*sin)
	}
}

func (r *Reference) attend(layer, qHead int, q, out []float32) {
	c := r.c
	kvHead := qHead / (c.Heads / c.KVHeads)
	width, off := c.KVWidth(), kvHead*c.HeadDim
	n := len(r.keys[layer]) / width
	score := make([]float64, n)
	top := math.Inf(-1)
	for p := range n {
		k := r.keys[layer][p*width+off:][:c.HeadDim]
		var s float64
		for i := range q {
			s += float64(q[i]) * float64(k[i])
		}
		score[p] = s / math.Sqrt(float64(c.HeadDim))
		top = max(top, score[p])
	}
	var total float64
	for p := range score {
		score[p] = math.Exp(score[p] - top)
		total += score[p]
	}
	for i := range out {
		var s float64
		for p := range n {
			s += score[p] * float64(r.vals[layer][p*width+off+i])
		}
		out[i] = float32(s / total)
	}
}

// Greedy reads prompt and returns the n tokens that greedy decoding continues it with.
func (r *Reference) Greedy(prompt []int, n int) []int {
	var logits []float32
	for _, t := range prompt {
		logits = r.Step(t)
	}
	out := make([]int, 0, n)
	for len(out) < n {
		t := Argmax(logits)
		out = append(out, t)
		if len(out) < n {
			logits = r.Step(t)
		}
	}
	return out
}

// Argmax is the lowest index of the largest value.
func Argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

func head(x []float32, i, width int) []float32 { return x[i*width : (i+1)*width] }

func rmsnorm(x, gain []float32, eps float32) []float32 {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	f := 1 / math.Sqrt(s/float64(len(x))+float64(eps))
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(float64(v)*f) * gain[i]
	}
	return out
}

func matvec(w, x []float32) []float32 {
	out := make([]float32, len(w)/len(x))
	for o := range out {
		row := w[o*len(x):][:len(x)]
		var s float32
		for i, v := range x {
			s += row[i] * v
		}
		out[o] = s
	}
	return out
}

func add(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}
