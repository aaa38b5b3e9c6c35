package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
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
	text        tokenizer.Tokenizer // nil: prompts and answers are token ids
	fingerprint func() string       // a digest of the weights: engines whose digests differ do not read each other's KV
	close       func() error        // releases the source; the executors have the weights then
}

// randomPrefix marks a model of a published shape with generated weights.
const randomPrefix = "random:"

// loadModel finds the model that a configuration names: the built-in one, a
// generated one, or a checkpoint's folder, whose tokenizer is not read if ids says
// that token ids are all that is wanted.
func loadModel(name string, ids bool) (*loadedModel, error) {
	if name == "builtin" {
		return &loadedModel{
			config: builtinModel, source: builtinWeights(), eos: []scheduler.Token{tokenizer.EOS}, text: tokenizer.Builtin{},
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
	if ids {
		return m, nil
	}
	own, err := loadTokenizer(name, m)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model %q: %w", name, err), k.Close())
	}
	if own != nil {
		m.text = own
	}
	return m, nil
}

// VocabularyError reports a tokenizer that is not the model's.
type VocabularyError struct {
	File             string // the tokenizer's
	Tokenizer, Model int    // token ids that each has
	EOS              int    // the model's end of sequence that the tokenizer lacks; -1: all ids are too many
}

func (e *VocabularyError) Error() string {
	if e.EOS >= 0 {
		return fmt.Sprintf("%s has no token with id %d, the model's end of sequence; it has ids up to %d, the model's vocabulary %d", e.File, e.EOS, e.Tokenizer-1, e.Model)
	}
	return fmt.Sprintf("%s has %d token ids, the model's vocabulary %d", e.File, e.Tokenizer, e.Model)
}

// loadTokenizer reads the tokenizer of a checkpoint's folder, nil if it has none.
// Models may have ids beyond their tokenizer's, as tables are padded, but a
// tokenizer whose ids the model lacks belongs to another one.
func loadTokenizer(dir string, m *loadedModel) (*tokenizer.Model, error) {
	own, err := tokenizer.Load(dir)
	if err != nil || own == nil {
		return nil, err
	}
	wrong := &VocabularyError{File: filepath.Join(dir, tokenizer.File), Tokenizer: own.Size(), Model: m.config.Vocab, EOS: -1}
	if own.Size() > m.config.Vocab {
		return nil, wrong
	}
	for _, id := range m.eos {
		if !own.Has(id) {
			wrong.EOS = int(id)
			return nil, wrong
		}
	}
	return own, nil
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

// Tokenizer is the model's, nil if prompts and answers are token ids.
func (e *Engine) Tokenizer() tokenizer.Tokenizer { return e.model.text }

// noteText says at the start what the model lacks to read and write text.
func (e *Engine) noteText() {
	switch own, ok := e.model.text.(*tokenizer.Model); {
	case e.model.text == nil:
		e.log.Warn("no tokenizer: prompts and answers are token ids, and text is refused", "model", e.cfg.Model, "file", tokenizer.File)
	case ok && !own.HasTemplate():
		e.log.Warn("the tokenizer has no chat template: chat is refused", "model", e.cfg.Model)
	case ok:
		e.log.Info("tokenizer", "ids", own.Size(), "vocabulary", e.Vocab())
	}
}
