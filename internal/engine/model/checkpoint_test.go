package model

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// small is a shape whose checkpoints the tests write.
func small(llama bool) Config {
	return Config{
		Vocab: 40, Hidden: 16, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 24, RopeTheta: 5e5, NormEps: 1e-5, MaxPositions: 64,
		HeadNorm: !llama, Tied: !llama,
	}
}

type entry struct {
	Type    string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

// safetensors encodes tensors of a type.
func safetensors(t *testing.T, w Weights, tensors []Tensor, typ string) []byte {
	t.Helper()
	head, data := map[string]entry{}, []byte(nil)
	for _, x := range tensors {
		at := len(data)
		for _, v := range w[x.Name] {
			switch typ {
			case "F32":
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
			case "BF16":
				data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
			}
		}
		head[x.Name] = entry{typ, x.Shape, [2]int{at, len(data)}}
	}
	h, err := json.Marshal(head)
	require.NoError(t, err)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), data...)
}

func configJSON(c Config) map[string]any {
	arch := "LlamaForCausalLM"
	if c.HeadNorm {
		arch = "Qwen3ForCausalLM"
	}
	m := map[string]any{
		"architectures": []string{arch}, "vocab_size": c.Vocab, "hidden_size": c.Hidden, "num_hidden_layers": c.Layers,
		"num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads, "head_dim": c.HeadDim, "intermediate_size": c.FFN,
		"rms_norm_eps": c.NormEps, "max_position_embeddings": c.MaxPositions, "tie_word_embeddings": c.Tied, "rope_theta": c.RopeTheta,
		"hidden_act": "silu", "eos_token_id": []int{3, 7},
	}
	if c.MoE.Experts > 0 {
		m["architectures"], m["intermediate_size"], m["moe_intermediate_size"] = []string{"Qwen3MoeForCausalLM"}, 9*c.FFN, c.FFN
		m["num_experts"], m["num_experts_per_tok"], m["norm_topk_prob"] = c.MoE.Experts, c.MoE.TopK, c.MoE.Normalised
		m["decoder_sparse_step"], m["mlp_only_layers"] = 1, []int{}
	}
	return m
}

func write(t *testing.T, dir, name string, v any) {
	t.Helper()
	raw, ok := v.([]byte)
	if !ok {
		var err error
		raw, err = json.Marshal(v)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
}

func everyToken(int) bool { return true }

func TestCheckpoints(t *testing.T) {
	for _, llama := range []bool{false, true} {
		for _, typ := range []string{"F32", "BF16"} {
			c := small(llama)
			w := Generate(c, BuiltinScales(), 3, everyToken)
			dir := t.TempDir()
			write(t, dir, "config.json", configJSON(c))
			all := c.Tensors()
			if llama { // in two files
				write(t, dir, "a.safetensors", safetensors(t, w, all[:5], typ))
				write(t, dir, "b.safetensors", safetensors(t, w, all[5:], typ))
				index := map[string]string{}
				for i, x := range all {
					index[x.Name] = "b.safetensors"
					if i < 5 {
						index[x.Name] = "a.safetensors"
					}
				}
				write(t, dir, "model.safetensors.index.json", map[string]any{"weight_map": index})
			} else {
				write(t, dir, "model.safetensors", safetensors(t, w, all, typ))
			}
			k, err := Open(dir)
			require.NoError(t, err)
			require.Equal(t, []int{3, 7}, k.EOS)
			require.Equal(t, typ, k.Type.String())
			want := c
			want.Name = filepath.Base(dir)
			require.Equal(t, want, k.Config)
			for _, x := range all {
				d, err := k.Get(x.Name, x.Shape...)
				require.NoError(t, err)
				got := d.Widen(nil, 1, x.Len()-1)
				for i, v := range w[x.Name][1:] {
					if typ == "BF16" {
						v = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
					}
					require.Equal(t, v, got[i], x.Name)
				}
			}
			require.NoError(t, k.Close())
			require.NoError(t, k.Close(), "a second time")
			_, err = k.Get(EmbedName, c.Vocab, c.Hidden)
			require.ErrorIs(t, err, ErrClosed)
		}
	}
}

func TestCheckpointsThatCannotBeUsed(t *testing.T) {
	c := small(false)
	w := Generate(c, BuiltinScales(), 3, everyToken)
	good := safetensors(t, w, c.Tensors(), "F32")
	huge := append(binary.LittleEndian.AppendUint64(nil, 1<<40), good[8:]...)
	reshaped := func(f func([]Tensor) []Tensor) []byte { return safetensors(t, w, f(c.Tensors()), "F32") }
	w["model.layers.9.extra"] = []float32{1}
	for _, x := range []struct {
		name   string
		tensor []byte
		config func(map[string]any)
		texts  []string
	}{
		{"no file", nil, nil, []string{"model.safetensors", "no such file"}},
		{"empty", []byte{}, nil, []string{"0 bytes, less than a header"}},
		{"header length", huge, nil, []string{"its header is said to have 1099511627776 bytes"}},
		{"truncated", good[:len(good)-40], nil, []string{"truncated", "tensor model."}},
		{"no JSON", append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, "xx"...), nil, []string{"no JSON object"}},
		{"missing", reshaped(func(x []Tensor) []Tensor { return x[1:] }), nil, []string{EmbedName + " is missing", "[40 16]"}},
		{"shape", reshaped(func(x []Tensor) []Tensor { x[0].Shape = []int{16, 40}; return x }), nil,
			[]string{EmbedName + " in model.safetensors has shape [16 40]; the model needs shape [40 16]"}},
		{"extra", reshaped(func(x []Tensor) []Tensor { return append(x, Tensor{Name: "model.layers.9.extra", Shape: []int{1}}) }), nil,
			[]string{"model.safetensors: tensor model.layers.9.extra is not of this architecture"}},
		{"architecture", good, func(m map[string]any) { m["architectures"] = []string{"MambaForCausalLM"} }, []string{"[MambaForCausalLM]", "Qwen3ForCausalLM LlamaForCausalLM"}},
		{"rope", good, func(m map[string]any) { m["rope_scaling"] = map[string]any{"rope_type": "yarn", "factor": 4} }, []string{`rope type is "yarn"`}},
		{"bias", good, func(m map[string]any) { m["attention_bias"] = true }, []string{"attention_bias"}},
		{"activation", good, func(m map[string]any) { m["hidden_act"] = "gelu" }, []string{`hidden_act is "gelu"`}},
		{"size", good, func(m map[string]any) { m["num_attention_heads"] = -4 }, []string{"query heads is -4"}},
		{"quantised", good, func(m map[string]any) { m["quantization_config"] = map[string]any{"bits": 4} }, []string{"quantization_config"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir := t.TempDir()
			m := configJSON(c)
			if x.config != nil {
				x.config(m)
			}
			write(t, dir, "config.json", m)
			if x.tensor != nil {
				write(t, dir, "model.safetensors", x.tensor)
			}
			_, err := Open(dir)
			require.Error(t, err)
			for _, text := range x.texts {
				require.ErrorContains(t, err, text)
			}
		})
	}
	dir := t.TempDir()
	_, err := Open(dir)
	require.ErrorContains(t, err, "config.json")
	write(t, dir, "config.json", configJSON(c))
	write(t, dir, "model.safetensors.index.json", map[string]any{"weight_map": map[string]string{"x": "../y"}})
	_, err = Open(dir)
	require.ErrorContains(t, err, "no file of the folder")
}

func TestRopeScaling(t *testing.T) {
	raw, err := json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
		"intermediate_size": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
		"rope_parameters": map[string]any{"rope_theta": 500000, "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192},
	})
	require.NoError(t, err)
	c, _, err := parseConfig(raw)
	require.NoError(t, err)
	c.HeadDim = 128
	plain := c
	plain.RopeScaling = Scaling{}
	for i := range 64 {
		f, g := plain.frequency(i), c.frequency(i)
		switch wave := 2 * math.Pi / f; {
		case wave < 8192/4:
			require.Equal(t, f, g)
		case wave > 8192:
			require.InEpsilon(t, f/8, g, 1e-12)
		default:
			require.Less(t, g, f)
			require.Greater(t, g, f/8)
		}
	}
	table := plain.RopeTable(3)
	require.Len(t, table, 3*128)
	require.InDelta(t, math.Cos(2), table[2*128], 1e-6)
	require.InDelta(t, math.Sin(2), table[2*128+64], 1e-6)
	require.Error(t, Scaling{Kind: ScalingLinear, Factor: 0.5}.validate())
	require.Error(t, Scaling{Kind: ScalingLlama3, Factor: 2, Low: 4, High: 1, Original: 10}.validate())
}

func TestRandomIsTheGenerators(t *testing.T) {
	c, err := Shape("tiny")
	require.NoError(t, err)
	r := Random{Config: c, Seed: 5}
	for _, x := range c.Tensors() {
		d, err := r.Get(x.Name, x.Shape...)
		require.NoError(t, err)
		whole := d.Widen(nil, 0, x.Len())
		require.Equal(t, whole[7:11], d.Widen(nil, 7, 4), "any part alone")
	}
	_, err = r.Get("nothing", 1)
	require.ErrorContains(t, err, "is not of this model")
	_, err = Shape("gpt-9")
	require.ErrorContains(t, err, "llama3-8b, qwen3-0.6b, tiny, tiny-moe")
	require.False(t, strings.Contains(c.Name, " "))
}
