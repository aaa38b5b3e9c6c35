package pd

import (
	"encoding/base64"
	"fmt"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// prefix names the tokens that kept blocks hold: the digest of the namespace,
// then the chain hash of every block, the last one of what tokens it has. The
// prompt of a next turn need not go on from them, as clients rewrite
// histories, and then only as much is read as both have in common.
//
// Sixteen bytes of a SHA-256 are kept of each.
type prefix [][prefixSize]byte

const (
	prefixSize = 16
	maxPrefix  = 1 << 20 // elements
)

// prefixOf names the first n tokens of a request.
func (s *Scheduler) prefixOf(r *connector.Request, n int) prefix {
	out := make(prefix, 0, 1+ceilDiv(n, s.cfg.BlockSize))
	digest := r.Namespace.Digest()
	out = append(out, [prefixSize]byte(digest[:]))
	s.chain(r, n, func(h [prefixSize]byte) bool {
		out = append(out, h)
		return true
	})
	return out
}

// chain gives the hashes of the first n tokens, block by block, until yield
// returns false.
func (s *Scheduler) chain(r *connector.Request, n int, yield func([prefixSize]byte) bool) {
	parent, at := s.hasher.None(), kvcache.First
	for from := 0; from < n; from += s.cfg.BlockSize {
		parent = s.hasher.Block(parent, r.Tokens[from:min(from+s.cfg.BlockSize, n)], &r.Namespace, at)
		at = kvcache.Inner
		if !yield([prefixSize]byte(parent.Bytes())) {
			return
		}
	}
}

// common is how many of the n tokens that p names the request's prompt begins
// with. Of a last block that is not full all tokens count or none.
func (s *Scheduler) common(p prefix, r *connector.Request, n int) int {
	digest := r.Namespace.Digest()
	if len(p) != 1+ceilDiv(n, s.cfg.BlockSize) || p[0] != [prefixSize]byte(digest[:]) {
		return 0
	}
	if n > r.Prompt { // the last block that the prompt reaches into is another one there
		n = r.Prompt / s.cfg.BlockSize * s.cfg.BlockSize
	}
	equal := 0
	s.chain(r, n, func(h [prefixSize]byte) bool {
		if h != p[1+equal/s.cfg.BlockSize] {
			return false
		}
		equal = min(equal+s.cfg.BlockSize, n)
		return true
	})
	return equal
}

// String is base64.
func (p prefix) String() string {
	raw := make([]byte, 0, len(p)*prefixSize)
	for i := range p {
		raw = append(raw, p[i][:]...)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func parsePrefix(text string) (prefix, error) {
	if len(text) > base64.StdEncoding.EncodedLen(maxPrefix*prefixSize) {
		return nil, fmt.Errorf("%d characters", len(text))
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	if len(raw)%prefixSize != 0 {
		return nil, fmt.Errorf("%d bytes", len(raw))
	}
	p := make(prefix, len(raw)/prefixSize)
	for i := range p {
		p[i] = [prefixSize]byte(raw[i*prefixSize:])
	}
	return p, nil
}
