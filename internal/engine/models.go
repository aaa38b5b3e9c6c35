package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/scheduler"
)

// loadedModel is what the ranks of an engine run.
type loadedModel struct {
	config      model.Config
	source      model.Source
	eos         []scheduler.Token
	defaults    sample.Defaults
	text        bool          // it has a tokenizer here; else prompts and answers are token ids
	fingerprint func() string // a digest of the weights: engines whose digests differ do not read each other's KV
	close       func() error  // releases the source; the executors have the weights then
}

// randomPrefix marks a model of a published shape with generated weights.
const randomPrefix = "random:"

// loadModel finds the model that a configuration names: the built-in one, a
// generated one, or a checkpoint's folder.
func loadModel(name string) (*loadedModel, error) {
	if name == "builtin" {
		return &loadedModel{
			config: builtinModel, source: builtinWeights(), eos: []scheduler.Token{tokenizer.EOS}, text: true,
			defaults: sample.GreedyDefaults(), fingerprint: fingerprint, close: func() error { return nil },
		}, nil
	}
	if shape, ok := strings.CutPrefix(name, randomPrefix); ok {
		c, err := model.Shape(shape)
		if err != nil {
			return nil, err
		}
		return &loadedModel{
			config: c, source: model.Random{Config: c, Seed: builtinSeed}, defaults: sample.GreedyDefaults(), close: func() error { return nil },
			fingerprint: func() string { return fmt.Sprintf("%s%s:%d", randomPrefix, shape, builtinSeed) },
		}, nil
	}
	k, err := model.Open(name)
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", name, err)
	}
	m := &loadedModel{config: k.Config, source: k, close: k.Close}
	if m.defaults, err = sample.ReadDefaults(name); err != nil {
		return nil, errors.Join(fmt.Errorf("model %q: %w", name, err), k.Close())
	}
	for _, id := range k.EOS {
		m.eos = append(m.eos, scheduler.Token(id))
	}
	digest := sampled(k)
	m.fingerprint = func() string { return digest }
	return m, nil
}

// sampled is a digest of a checkpoint's shapes and of the first, middle and last
// bytes of each tensor: the whole of it would take as long as reading it.
func sampled(k *model.Checkpoint) string {
	const part = 4 << 10
	h := sha256.New()
	for _, t := range k.Config.Tensors() {
		fmt.Fprintf(h, "%s %v\n", t.Name, t.Shape)
		d, err := k.Get(t.Name, t.Shape...)
		if err != nil {
			continue // Open has checked that there is none
		}
		for _, at := range []int{0, len(d.Raw) / 2, len(d.Raw) - part} {
			at = max(at, 0)
			h.Write(d.Raw[at:min(at+part, len(d.Raw))])
		}
	}
	return k.Config.Name + ":" + hex.EncodeToString(h.Sum(nil)[:12])
}

// Vocab is the number of token ids of the model.
func (e *Engine) Vocab() int { return e.model.config.Vocab }

// Text reports whether prompts and answers may be text; else they are token ids.
func (e *Engine) Text() bool { return e.model.text }
