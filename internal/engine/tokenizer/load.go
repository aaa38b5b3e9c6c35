package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"

	"github.com/sluice-serving/sluice/kvcache"
)

// The parts of a tokenizer.json. A part that is a list of parts has the type
// "Sequence".
type (
	tokenizerFile struct {
		Added     []added                `json:"added_tokens"`
		Normal    *normalPart            `json:"normalizer"`
		Cut       *cutPart               `json:"pre_tokenizer"`
		Model     modelPart              `json:"model"`
		Processor *processorPart         `json:"post_processor"`
		Decoder   *struct{ Type string } `json:"decoder"`
	}
	normalPart struct {
		Type  string
		Parts []normalPart `json:"normalizers"`
	}
	cutPart struct {
		Type    string
		Parts   []cutPart `json:"pretokenizers"`
		Pattern struct {
			String *string
			Regex  *string
		} `json:"pattern"`
		Behavior       string `json:"behavior"`
		Invert         bool   `json:"invert"`
		AddPrefixSpace bool   `json:"add_prefix_space"`
		Individual     bool   `json:"individual_digits"`
		UseRegex       *bool  `json:"use_regex"` // absent: true
	}
	modelPart struct {
		Type         string
		Vocab        map[string]kvcache.Token `json:"vocab"`
		Merges       []json.RawMessage        `json:"merges"` // "a b" or ["a","b"], by rank
		IgnoreMerges bool                     `json:"ignore_merges"`
		ByteFallback bool                     `json:"byte_fallback"`
		Dropout      *float64                 `json:"dropout"`
		Prefix       *string                  `json:"continuing_subword_prefix"`
		Suffix       *string                  `json:"end_of_word_suffix"`
	}
	processorPart struct {
		Type   string
		Parts  []processorPart `json:"processors"`
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			}
			Sequence *struct{}
		} `json:"single"`
		Tokens map[string]struct {
			IDs []kvcache.Token `json:"ids"`
		} `json:"special_tokens"`
	}
)

// maxVocab bounds the ids of a vocabulary; the largest published ones have a
// quarter of a million.
const maxVocab = 1 << 24

// gpt2Words is the expression that a ByteLevel pre-tokenizer cuts by unless
// use_regex is false.
const gpt2Words = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// parseByteLevel reads a tokenizer.json that describes a byte-level BPE. Another
// kind is an error that names the part.
func parseByteLevel(raw []byte) (*byteLevel, error) {
	var f tokenizerFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	b := &byteLevel{}
	err := errors.Join(f.Model.check(), b.vocabulary(f.Model, f.Added))
	if err == nil {
		err = errors.Join(b.readMerges(f.Model), b.normalizer(f.Normal), b.decoder(f.Decoder))
	}
	if err != nil {
		return nil, err
	}
	for _, a := range f.Added {
		if a.Normalized {
			b.normal.add(a, b.normalize(a.Content))
		} else {
			b.raw.add(a, a.Content)
		}
	}
	level, err := b.preTokenizer(f.Cut)
	if err == nil && !level {
		err = errors.New("pre_tokenizer has no ByteLevel part: only byte-level vocabularies are supported")
	}
	if err = errors.Join(err, b.postProcessor(f.Processor)); err != nil {
		return nil, err
	}
	return b, nil
}

func (m modelPart) check() error {
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("model type %q is not supported, only BPE", m.Type)
	case m.ByteFallback:
		return errors.New("model.byte_fallback is not supported: only byte-level vocabularies are")
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout is %v, which makes tokens random", *m.Dropout)
	case set(m.Prefix) || set(m.Suffix):
		return errors.New("model.continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	return nil
}

// vocabulary takes the tokens in: those of the model, whose spelling is bytes in
// the byte-level alphabet, and the added ones.
func (b *byteLevel) vocabulary(m modelPart, list []added) error {
	most := kvcache.Token(-1)
	for _, content := range slices.Sorted(maps.Keys(m.Vocab)) {
		if id := m.Vocab[content]; id < 0 || id >= maxVocab {
			return fmt.Errorf("model.vocab: token %q has id %d", content, id)
		}
		most = max(most, m.Vocab[content])
	}
	for _, a := range list {
		if a.ID < 0 || a.ID >= maxVocab {
			return fmt.Errorf("added_tokens: token %q has id %d", a.Content, a.ID)
		}
		most = max(most, a.ID)
	}
	b.pieces, b.known = make([]string, most+1), make([]bool, most+1)
	b.ids = make(map[string]kvcache.Token, len(m.Vocab))
	for content, id := range m.Vocab {
		if b.known[id] {
			return fmt.Errorf("model.vocab: id %d has two tokens, one of them %q", id, content)
		}
		piece, ok := fromAlphabet(content)
		if ok {
			b.ids[piece] = id
		} else {
			piece = content
		}
		b.pieces[id], b.known[id] = piece, true
	}
	for i := range 256 {
		id, ok := b.ids[string([]byte{byte(i)})]
		if !ok {
			return fmt.Errorf("model.vocab has no token for the byte 0x%02x (%q): only byte-level vocabularies are supported", i, alphabet[i])
		}
		b.base[i] = id
	}
	for _, a := range list {
		if id, ok := m.Vocab[a.Content]; ok && id != a.ID || !ok && b.known[a.ID] {
			return fmt.Errorf("added_tokens: token %q with id %d is another one in model.vocab", a.Content, a.ID)
		}
		b.pieces[a.ID], b.known[a.ID] = a.Content, true
		if a.Special {
			b.pieces[a.ID] = ""
		}
	}
	return nil
}

func (b *byteLevel) readMerges(m modelPart) error {
	b.whole = m.IgnoreMerges
	b.merges = make(map[uint64]merge, len(m.Merges))
	for rank, raw := range m.Merges {
		left, right, err := mergePair(raw)
		if err != nil {
			return fmt.Errorf("model.merges, entry %d: %w", rank, err)
		}
		var ids [3]kvcache.Token
		for i, content := range []string{left, right, left + right} {
			id, ok := m.Vocab[content]
			if !ok {
				return fmt.Errorf("model.merges, entry %d: model.vocab has no token %q", rank, content)
			}
			ids[i] = id
		}
		b.merges[pair(ids[0], ids[1])] = merge{uint32(rank), ids[2]}
	}
	return nil
}

func mergePair(raw json.RawMessage) (left, right string, err error) {
	if bytes.HasPrefix(raw, []byte("[")) {
		var two []string
		if err := json.Unmarshal(raw, &two); err != nil || len(two) != 2 {
			return "", "", fmt.Errorf("%s is no pair of tokens", raw)
		}
		return two[0], two[1], nil
	}
	var one string
	if err := json.Unmarshal(raw, &one); err != nil {
		return "", "", err
	}
	left, right, ok := strings.Cut(one, " ")
	if !ok || strings.Contains(right, " ") {
		return "", "", fmt.Errorf("%q is no pair of tokens", one)
	}
	return left, right, nil
}

func (b *byteLevel) normalizer(p *normalPart) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.Parts {
			if err := b.normalizer(&p.Parts[i]); err != nil {
				return err
			}
		}
	case "NFC":
		b.forms = append(b.forms, norm.NFC)
	case "NFD":
		b.forms = append(b.forms, norm.NFD)
	case "NFKC":
		b.forms = append(b.forms, norm.NFKC)
	case "NFKD":
		b.forms = append(b.forms, norm.NFKD)
	default:
		return fmt.Errorf("normalizer type %q is not supported, only NFC, NFD, NFKC and NFKD", p.Type)
	}
	return nil
}

// preTokenizer reports whether bytes get their alphabet, as the last part.
func (b *byteLevel) preTokenizer(p *cutPart) (level bool, err error) {
	if p == nil {
		return false, nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.Parts {
			if level {
				return false, fmt.Errorf("pre_tokenizer type %q behind ByteLevel is not supported", p.Parts[i].Type)
			}
			if level, err = b.preTokenizer(&p.Parts[i]); err != nil {
				return false, err
			}
		}
		return level, nil
	case "ByteLevel":
		if p.AddPrefixSpace {
			return false, errors.New("pre_tokenizer.add_prefix_space is not supported")
		}
		if p.UseRegex == nil || *p.UseRegex {
			b.cuts = append(b.cuts, cut{at: regexp2.MustCompile(gpt2Words)})
		}
		return true, nil
	case "Digits":
		digits := `\p{N}+`
		if p.Individual {
			digits = `\p{N}`
		}
		b.cuts = append(b.cuts, cut{at: regexp2.MustCompile(digits)})
		return false, nil
	case "Split":
	default:
		return false, fmt.Errorf("pre_tokenizer type %q is not supported, only Split, Digits and ByteLevel", p.Type)
	}
	var pattern string
	switch {
	case p.Pattern.Regex != nil:
		pattern = *p.Pattern.Regex
	case p.Pattern.String != nil:
		pattern = regexp2.Escape(*p.Pattern.String)
	default:
		return false, errors.New("pre_tokenizer: a Split has no pattern")
	}
	at, err := regexp2.Compile(pattern)
	if err != nil {
		return false, fmt.Errorf("pre_tokenizer pattern: %w", err)
	}
	switch {
	case p.Behavior == "Isolated" && !p.Invert:
		b.cuts = append(b.cuts, cut{at: at})
	case p.Behavior == "Removed" && p.Invert:
		b.cuts = append(b.cuts, cut{at: at, only: true})
	default:
		return false, fmt.Errorf("pre_tokenizer: a Split with behavior %q and invert %t is not supported", p.Behavior, p.Invert)
	}
	return false, nil
}

func (b *byteLevel) postProcessor(p *processorPart) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.Parts {
			if err := b.postProcessor(&p.Parts[i]); err != nil {
				return err
			}
		}
	case "ByteLevel": // concerns offsets alone
	case "TemplateProcessing":
		side, sequences := &b.before, 0
		for _, x := range p.Single {
			if x.SpecialToken == nil {
				side, sequences = &b.after, sequences+1
				continue
			}
			t, ok := p.Tokens[x.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("post_processor: special_tokens has no %q", x.SpecialToken.ID)
			}
			*side = append(*side, t.IDs...)
		}
		if sequences != 1 {
			return fmt.Errorf("post_processor: the template for one text has %d of them", sequences)
		}
	default:
		return fmt.Errorf("post_processor type %q is not supported, only ByteLevel and TemplateProcessing", p.Type)
	}
	return nil
}

func (b *byteLevel) decoder(p *struct{ Type string }) error {
	if p == nil || p.Type != "ByteLevel" {
		return errors.New("decoder is not of type ByteLevel: only byte-level vocabularies are supported")
	}
	return nil
}

// alphabet is the character that stands for each byte in a byte-level
// vocabulary: itself where it is printable Latin-1, else the next one from
// U+0100 on.
var alphabet, fromRune = func() (a [256]rune, from map[rune]byte) {
	from = make(map[rune]byte, 256)
	spare := rune(0x100)
	for i := range a {
		r := rune(i)
		if printable := r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae && r <= 0xff; !printable {
			r = spare
			spare++
		}
		a[i], from[r] = r, byte(i)
	}
	return a, from
}()

// fromAlphabet is the bytes that a token's spelling stands for; false if one of
// its characters is none of the alphabet.
func fromAlphabet(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		c, ok := fromRune[r]
		if !ok {
			return "", false
		}
		out = append(out, c)
	}
	return string(out), true
}
