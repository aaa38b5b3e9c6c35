package offload

import (
	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// chain is the keys of a request's full blocks, computed as far as asked.
type chain struct {
	prompt    int // a session's continuation changes it, and with it what was generated before
	namespace [32]byte
	hashes    []kvcache.Hash
	names     []kvcache.Hash // the same as events have them
}

// chain is that of a request's tokens.
func (s *Scheduler) chain(r *connector.Request) *chain {
	c := s.chains[r.ID]
	if c == nil || c.prompt != r.Prompt {
		c = &chain{prompt: r.Prompt, namespace: r.Namespace.Digest()}
		s.chains[r.ID] = c
	}
	return c
}

// key is the key of block i in one group; i is a full block of the tokens.
func (s *Scheduler) key(r *connector.Request, group, i int) Key {
	c := s.chain(r)
	c.hashes = s.extend(s.hasher, c.hashes, r, i)
	return Key{Group: uint8(group), Namespace: c.namespace, Hash: [32]byte(c.hashes[i].Bytes())}
}

// extend makes a chain of hashes reach to block i.
func (s *Scheduler) extend(h *kvcache.Hasher, hashes []kvcache.Hash, r *connector.Request, i int) []kvcache.Hash {
	for n := len(hashes); n <= i; n++ {
		parent, at := h.None(), kvcache.First
		if n > 0 {
			parent, at = hashes[n-1], kvcache.Inner
		}
		hashes = append(hashes, h.Block(parent, s.block(r, n), &r.Namespace, at))
	}
	return hashes
}

// block is the tokens of a full block.
func (s *Scheduler) block(r *connector.Request, i int) []kvcache.Token {
	return r.Tokens[i*s.cfg.BlockSize : (i+1)*s.cfg.BlockSize]
}
