package model

import (
	"fmt"
	"unsafe"
)

// EmbedName is the embedding, and in tied models the output projection too.
const EmbedName = "model.embed_tokens.weight"

// HeadName is the output projection of models that are not tied.
const HeadName = "lm_head.weight"

// FinalNormName is the RMSNorm before the output projection.
const FinalNormName = "model.norm.weight"

// Tensor is the name and shape of one weight; row major, output features first.
type Tensor struct {
	Name  string
	Shape []int
	kind  kind
}

// Len is the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// kind tells the generator how to scale a tensor.
type kind uint8

const (
	kindEmbed kind = iota
	kindNorm
	kindHeadNorm
	kindQK
	kindV
	kindO
	kindUp
	kindDown
	kindHead
	kindRouter
)

// LayerName is the full name of a tensor of one layer, for example
// LayerName(2, "self_attn.q_proj").
func LayerName(layer int, part string) string {
	return fmt.Sprintf("model.layers.%d.%s.weight", layer, part)
}

// ExpertName is the full name of a tensor of one expert, for example
// ExpertName(2, 7, "up_proj").
func ExpertName(layer, expert int, part string) string {
	return LayerName(layer, fmt.Sprintf("mlp.experts.%d.%s", expert, part))
}

// Tensors lists every weight in a fixed order.
func (c Config) Tensors() []Tensor {
	out := []Tensor{{EmbedName, []int{c.Vocab, c.Hidden}, kindEmbed}}
	for l := range c.Layers {
		add := func(part string, k kind, shape ...int) {
			out = append(out, Tensor{LayerName(l, part), shape, k})
		}
		add("input_layernorm", kindNorm, c.Hidden)
		add("self_attn.q_proj", kindQK, c.QWidth(), c.Hidden)
		add("self_attn.k_proj", kindQK, c.KVWidth(), c.Hidden)
		add("self_attn.v_proj", kindV, c.KVWidth(), c.Hidden)
		add("self_attn.o_proj", kindO, c.Hidden, c.QWidth())
		if c.HeadNorm {
			add("self_attn.q_norm", kindHeadNorm, c.HeadDim)
			add("self_attn.k_norm", kindHeadNorm, c.HeadDim)
		}
		add("post_attention_layernorm", kindNorm, c.Hidden)
		feedForward := func(prefix string) {
			add(prefix+"gate_proj", kindUp, c.FFN, c.Hidden)
			add(prefix+"up_proj", kindUp, c.FFN, c.Hidden)
			add(prefix+"down_proj", kindDown, c.Hidden, c.FFN)
		}
		if c.MoE.Experts == 0 {
			feedForward("mlp.")
			continue
		}
		add("mlp.gate", kindRouter, c.MoE.Experts, c.Hidden)
		for e := range c.MoE.Experts {
			feedForward(fmt.Sprintf("mlp.experts.%d.", e))
		}
	}
	out = append(out, Tensor{FinalNormName, []int{c.Hidden}, kindNorm})
	if !c.Tied {
		out = append(out, Tensor{HeadName, []int{c.Vocab, c.Hidden}, kindHead})
	}
	return out
}

// Weights holds the tensors of one model by name, fp32, row major.
type Weights map[string][]float32

// Bytes views fp32 values as the bytes that they are in memory.
func Bytes(data []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 4*len(data))
}
