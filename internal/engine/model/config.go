// Package model describes the transformers that the reference engine runs and
// makes the weights of the built-in one.
//
// The architecture is Qwen3 (dense or MoE) or Llama 3: pre-norm blocks of grouped-query
// attention, with an RMSNorm over each query and key head in Qwen3, rotary
// positions in the half-split form, a SwiGLU feed-forward, a final RMSNorm, and
// logits through the transposed embedding or a matrix of their own. Qwen3-MoE has,
// in place of the feed-forward, experts of which a router takes some for each
// token. Tensor names and shapes are those of the published checkpoints. A Source
// gives the tensors: generated Weights, a Checkpoint on disk, or Random.
package model

import (
	"errors"
	"fmt"
)

// Config is the shape of one model.
type Config struct {
	Name         string  // the name under which /v1/models lists it
	Vocab        int     // rows of the embedding
	Hidden       int     // width of the residual stream
	Layers       int     // transformer blocks
	Heads        int     // query heads
	KVHeads      int     // key and value heads; Heads is a multiple
	HeadDim      int     // width of a head; even
	FFN          int     // inner width of the feed-forward, or of each expert
	MoE          MoE     // experts in place of the feed-forward; zero: none
	RopeTheta    float64 // base of the rotary frequencies
	RopeScaling  Scaling // change of the rotary frequencies; zero: none
	NormEps      float32 // added to the mean square in every RMSNorm
	MaxPositions int     // longest sequence, prompt and output together
	HeadNorm     bool    // an RMSNorm over each query and key head (Qwen3)
	Tied         bool    // logits through the embedding instead of a matrix of their own
}

// MoE are the experts of a layer, each a feed-forward, and how a token is routed:
// to those with the largest share of a softmax over all, which weighs them.
type MoE struct {
	Experts    int  // 0: none
	TopK       int  // experts of a token
	Normalised bool // the weights of a token's experts sum to 1
}

// Builtin is the model that the binary carries: 1.1 million parameters besides
// the embedding, small enough for two CPU cores and deep enough that its
// answers depend on every block of the context.
func Builtin() Config {
	return Config{
		Name: "builtin", Vocab: 272, Hidden: 128, Layers: 4, Heads: 4, KVHeads: 2, HeadDim: 32,
		FFN: 576, RopeTheta: 10000, NormEps: 1e-6, MaxPositions: 8192, HeadNorm: true, Tied: true,
	}
}

// Validate joins all errors of the shape.
func (c Config) Validate() error {
	var errs []error
	positive := func(what string, n int) {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("%s is %d, must be positive", what, n))
		}
	}
	positive("vocabulary", c.Vocab)
	positive("hidden width", c.Hidden)
	positive("layers", c.Layers)
	positive("query heads", c.Heads)
	positive("kv heads", c.KVHeads)
	positive("head width", c.HeadDim)
	positive("feed-forward width", c.FFN)
	positive("positions", c.MaxPositions)
	if c.KVHeads > 0 && c.Heads%c.KVHeads != 0 {
		errs = append(errs, fmt.Errorf("query heads %d are no multiple of kv heads %d", c.Heads, c.KVHeads))
	}
	if m := c.MoE; m.Experts < 0 || m.Experts > 0 && (m.TopK < 1 || m.TopK > m.Experts) {
		errs = append(errs, fmt.Errorf("%d of %d experts are taken", m.TopK, m.Experts))
	}
	if c.HeadDim%2 != 0 {
		errs = append(errs, fmt.Errorf("head width %d is odd", c.HeadDim))
	}
	if c.RopeTheta <= 1 {
		errs = append(errs, fmt.Errorf("rope theta is %g, must exceed 1", c.RopeTheta))
	}
	errs = append(errs, c.RopeScaling.validate())
	return errors.Join(errs...)
}

// QWidth is the width of all query heads together.
func (c Config) QWidth() int { return c.Heads * c.HeadDim }

// KVWidth is the width of all key heads together; the value heads have the same.
func (c Config) KVWidth() int { return c.KVHeads * c.HeadDim }

// KVBytesPerToken counts the fp32 keys and values of one token over all layers.
func (c Config) KVBytesPerToken() int { return c.Layers * 2 * c.KVWidth() * 4 }

// BlockParameters counts the parameters besides the embedding.
func (c Config) BlockParameters() int {
	n := 0
	for _, t := range c.Tensors() {
		if t.Name != EmbedName {
			n += t.Len()
		}
	}
	return n
}
