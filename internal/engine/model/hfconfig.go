package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// hfConfig is config.json as checkpoints of Qwen3 and Llama have it. Newer files
// keep the rotary values in rope_parameters.
type hfConfig struct {
	Architectures []string `json:"architectures"`
	Vocab         int      `json:"vocab_size"`
	Hidden        int      `json:"hidden_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	FFN           int      `json:"intermediate_size"`
	Eps           float32  `json:"rms_norm_eps"`
	Positions     int      `json:"max_position_embeddings"`
	Tied          bool     `json:"tie_word_embeddings"`
	Activation    string   `json:"hidden_act"`
	Bias          bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`
	Sliding       bool     `json:"use_sliding_window"`
	Theta         float64  `json:"rope_theta"`
	Experts       int      `json:"num_experts"`
	TopK          int      `json:"num_experts_per_tok"`
	ExpertFFN     int      `json:"moe_intermediate_size"`
	Normalised    bool     `json:"norm_topk_prob"`
	SparseStep    int      `json:"decoder_sparse_step"`
	DenseLayers   []int    `json:"mlp_only_layers"`
	Scaling       *hfRope  `json:"rope_scaling"`
	Rope          *hfRope  `json:"rope_parameters"`

	EOS          json.RawMessage `json:"eos_token_id"`
	Quantization json.RawMessage `json:"quantization_config"`
}

type hfRope struct {
	Type     string  `json:"rope_type"`
	OldType  string  `json:"type"`
	Theta    float64 `json:"rope_theta"`
	Factor   float64 `json:"factor"`
	Low      float64 `json:"low_freq_factor"`
	High     float64 `json:"high_freq_factor"`
	Original int     `json:"original_max_position_embeddings"`
}

// parseConfig reads config.json. It joins everything that this engine does not
// compute.
func parseConfig(raw []byte) (Config, []int, error) {
	var h hfConfig
	if err := json.Unmarshal(raw, &h); err != nil {
		return Config{}, nil, err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c := Config{
		Vocab: h.Vocab, Hidden: h.Hidden, Layers: h.Layers, Heads: h.Heads, KVHeads: h.KVHeads, HeadDim: h.HeadDim,
		FFN: h.FFN, NormEps: h.Eps, MaxPositions: h.Positions, Tied: h.Tied, RopeTheta: h.Theta,
	}
	known := []string{"Qwen3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"}
	switch {
	case slices.Contains(h.Architectures, known[0]):
		c.HeadNorm = true
	case slices.Contains(h.Architectures, known[2]):
		c.HeadNorm, c.FFN, c.MoE = true, h.ExpertFFN, MoE{h.Experts, h.TopK, h.Normalised}
		if h.Experts < 1 {
			bad("num_experts is %d, must be positive", h.Experts)
		}
		if h.SparseStep > 1 || len(h.DenseLayers) > 0 {
			bad("decoder_sparse_step is %d and mlp_only_layers %v; every layer has experts here", h.SparseStep, h.DenseLayers)
		}
	case !slices.Contains(h.Architectures, known[1]):
		bad("architectures is %v; this engine runs %v", h.Architectures, known)
	}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if h.Activation != "" && h.Activation != "silu" {
		bad("hidden_act is %q; silu is computed", h.Activation)
	}
	if h.Bias || h.MLPBias {
		bad("attention_bias or mlp_bias is set; projections have no bias here")
	}
	if h.Sliding {
		bad("use_sliding_window is set; all layers see the whole context here")
	}
	if len(h.Quantization) > 0 && string(h.Quantization) != "null" {
		bad("quantization_config is set; weights are bf16, fp16 or fp32 here")
	}
	for _, r := range []*hfRope{h.Rope, h.Scaling} {
		if r == nil {
			continue
		}
		if r.Theta > 0 {
			c.RopeTheta = r.Theta
		}
		kind := r.Type
		if kind == "" {
			kind = r.OldType
		}
		switch kind {
		case "", "default":
		case "linear":
			c.RopeScaling = Scaling{Kind: ScalingLinear, Factor: r.Factor}
		case "llama3":
			c.RopeScaling = Scaling{Kind: ScalingLlama3, Factor: r.Factor, Low: r.Low, High: r.High, Original: r.Original}
		default:
			bad("rope type is %q; default, linear and llama3 are computed", kind)
		}
	}
	if c.RopeTheta == 0 {
		c.RopeTheta = 10000
	}
	eos, err := tokenIDs(h.EOS)
	if err != nil {
		bad("eos_token_id: %w", err)
	}
	errs = append(errs, c.Validate())
	return c, eos, errors.Join(errs...)
}

// tokenIDs reads one id, a list of them, or nothing.
func tokenIDs(raw json.RawMessage) ([]int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var one int
	if json.Unmarshal(raw, &one) == nil {
		return []int{one}, nil
	}
	var many []int
	err := json.Unmarshal(raw, &many)
	return many, err
}
