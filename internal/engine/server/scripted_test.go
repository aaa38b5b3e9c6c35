package server

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
)

// scripted is the folder of a checkpoint whose answer to every prompt that ends
// with a line end is the given text, a token a piece, and the end of sequence. A
// piece is the added token with that content, and bytes stand for themselves.
// No piece may come twice.
//
// Its layers add nothing, so the token alone decides on the next one: the output
// projection of a token is the embedding of the one before it.
func scripted(t *testing.T, pieces []string, edit func(dir string)) string {
	t.Helper()
	dir := t.TempDir()
	var file map[string]any
	raw, err := os.ReadFile("../tokenizer/testdata/qwen/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &file))
	c := model.Config{
		Vocab: 704, Hidden: 64, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 32, RopeTheta: 10000, NormEps: 1e-6, MaxPositions: 4096,
	}
	added := file["added_tokens"].([]any)
	next := int(added[len(added)-1].(m)["id"].(float64)) + 1
	var ids []int
	vocab := file["model"].(m)["vocab"].(m)
	for _, p := range pieces {
		if len(p) == 1 {
			ids = append(ids, byteID(t, vocab, p[0]))
			continue
		}
		if p == "<tool_call>" || p == "</tool_call>" {
			for _, a := range added {
				if a.(m)["content"] == p {
					ids = append(ids, int(a.(m)["id"].(float64)))
				}
			}
			continue
		}
		added = append(added, m{"id": next, "content": p})
		ids = append(ids, next)
		next++
	}
	require.LessOrEqual(t, next, c.Vocab)
	file["added_tokens"] = added
	eos := 0
	for _, a := range added {
		if a.(m)["content"] == "<|im_end|>" {
			eos = int(a.(m)["id"].(float64))
		}
	}

	w := model.Weights{}
	for _, x := range c.Tensors() {
		w[x.Name] = make([]float32, x.Len())
		if len(x.Shape) == 1 { // norms
			for i := range w[x.Name] {
				w[x.Name][i] = 1
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	embed := w[model.EmbedName]
	for i := range embed {
		embed[i] = float32(1 - 2*random.IntN(2))
	}
	last := byteID(t, vocab, '\n')
	for _, id := range append(ids, eos) {
		for i := range c.Hidden {
			w[model.HeadName][id*c.Hidden+i] += embed[last*c.Hidden+i]
		}
		last = id
	}

	saveModel(t, dir, c, w, m{"architectures": []string{"LlamaForCausalLM"}, "eos_token_id": eos})
	raw, err = json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, tokenizer.File), raw, 0o600))
	config, err := os.ReadFile("../tokenizer/testdata/qwen/tokenizer_config.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600))
	if edit != nil {
		edit(dir)
	}
	return dir
}

// saveModel writes the weights and the configuration of a checkpoint.
func saveModel(t *testing.T, dir string, c model.Config, w model.Weights, more m) {
	t.Helper()
	header, data := m{}, []byte(nil)
	for _, x := range c.Tensors() {
		at := len(data)
		for _, v := range w[x.Name] {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		header[x.Name] = m{"dtype": "F32", "shape": x.Shape, "data_offsets": []int{at, len(data)}}
	}
	head, err := json.Marshal(header)
	require.NoError(t, err)
	data = append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), data...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o600))
	config, err := json.Marshal(merged(m{
		"vocab_size": c.Vocab, "hidden_size": c.Hidden, "num_hidden_layers": c.Layers, "num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads,
		"head_dim": c.HeadDim, "intermediate_size": c.FFN, "rms_norm_eps": c.NormEps, "max_position_embeddings": c.MaxPositions, "rope_theta": c.RopeTheta,
		"tie_word_embeddings": c.Tied,
	}, more))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
}

// byteID is the token of a byte in the byte-level alphabet of the small
// tokenizers, whose ids are in the order of its characters.
func byteID(t *testing.T, vocab m, b byte) int {
	t.Helper()
	r := rune(b)
	switch { // of those that the tests need
	case b == '\n':
		r = 0x10a
	case b == ' ':
		r = 0x120
	case b >= 0x7f && b <= 0xa0:
		r = 0x121 + rune(b) - 0x7f
	}
	id, ok := vocab[string(r)]
	require.True(t, ok, "byte %#x", b)
	return int(id.(float64))
}
