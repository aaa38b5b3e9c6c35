// Package compare measures the block cache against what a Go author could take
// instead: a map keyed by chained hashes with a container/list for the least
// recently used, and hashicorp/go-immutable-radix. It is a module of its own, so
// that the main one does not depend on them. Run it with
//
//	go test -bench . -benchmem
//
// The three do the same work: find the cached prefix of a prompt by whole blocks,
// hold it, take blocks for the rest, evict the least recently used blocks that
// nobody holds, and let everything go, the last block first. The other two do
// less besides: no copies of one position, no namespaces, no KV groups, no
// fences, no way back for a failed step; the map trusts its hashes.
package compare

import "github.com/sluice-serving/sluice/kvcache"

// Token is a token id.
type Token = kvcache.Token

const blockSize = 16

// Cache is the common ground of the three.
type Cache interface {
	// Match returns how many leading tokens of a prompt are cached.
	Match(prompt []Token) int
	// Turn admits a prompt, of which the last token is always computed, and lets it go at once.
	Turn(prompt []Token)
}
