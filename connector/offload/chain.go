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
}

// key is the key of block i in one group; i is a full block of the tokens.
func (s *Scheduler) key(r *connector.Request, group, i int) Key {
	c := s.chains[r.ID]
	if c == nil || c.prompt != r.Prompt {
		c = &chain{prompt: r.Prompt, namespace: r.Namespace.Digest()}
		s.chains[r.ID] = c
	}
	for len(c.hashes) <= i {
		n := len(c.hashes)
		parent, at := s.hasher.None(), kvcache.First
		if n > 0 {
			parent, at = c.hashes[n-1], kvcache.Inner
		}
		c.hashes = append(c.hashes, s.hasher.Block(parent, r.Tokens[n*s.cfg.BlockSize:(n+1)*s.cfg.BlockSize], &r.Namespace, at))
	}
	return Key{Group: uint8(group), Namespace: c.namespace, Hash: [32]byte(c.hashes[i].Bytes())}
}
