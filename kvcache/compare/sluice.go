package compare

import "github.com/sluice-serving/sluice/kvcache"

// Sluice is the cache of this project.
type Sluice struct {
	c   *kvcache.Cache
	seq kvcache.Seq
}

// NewSluice returns a cache of the given number of blocks.
func NewSluice(blocks int) *Sluice {
	c, err := kvcache.New(kvcache.Config{Blocks: blocks + 1, BlockSize: blockSize})
	if err != nil {
		panic(err)
	}
	return &Sluice{c: c}
}

// Match returns how many leading tokens of a prompt are cached.
func (s *Sluice) Match(prompt []Token) int {
	return s.c.Match(kvcache.Namespace{}, prompt, len(prompt)).Tokens
}

// Turn admits a prompt and lets it go.
func (s *Sluice) Turn(prompt []Token) {
	m := s.c.Match(kvcache.Namespace{}, prompt, len(prompt)-1)
	if err := s.c.Attach(&s.seq, kvcache.Namespace{}); err != nil {
		panic(err)
	}
	g, err := s.c.Allocate(&s.seq, &kvcache.Alloc{Tokens: prompt, Hit: m, New: len(prompt) - m.Tokens})
	if err != nil || !g.OK {
		panic("does not fit")
	}
	if err := s.c.Free(&s.seq); err != nil {
		panic(err)
	}
}
