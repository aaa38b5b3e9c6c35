package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// HashAlgorithm names a chain hash.
type HashAlgorithm uint8

const (
	// SHA256CBOR is SHA-256 over the canonical CBOR encoding (RFC 8949, 4.2.1) of the
	// array [parent hash, [token ids], extra keys or null]. It equals vLLM's
	// sha256_cbor byte for byte when the seeds are equal. It is the default.
	SHA256CBOR HashAlgorithm = iota
	// XXH3CBOR is the 128-bit xxh3 of the same bytes: fast, and not collision
	// resistant, so NewHasher refuses it where keys are shared between tenants.
	XXH3CBOR
)

// String returns vLLM's name of the algorithm.
func (a HashAlgorithm) String() string {
	switch a {
	case SHA256CBOR:
		return "sha256_cbor"
	case XXH3CBOR:
		return "xxhash_cbor"
	}
	return fmt.Sprintf("HashAlgorithm(%d)", uint8(a))
}

// Scope says who may present a hash as a key.
type Scope uint8

const (
	// SharedScope: a host tier or a transport serves several tenants by these
	// keys. It is the default, since it is the strict choice.
	SharedScope Scope = iota
	// PrivateScope: the hashes key nothing that tenants share.
	PrivateScope
)

// A Hash is a chain hash: it names a block together with everything before it.
// The zero value is no hash.
type Hash struct {
	sum [32]byte
	n   uint8
}

// Bytes returns the digest, 32 or 16 bytes.
func (h Hash) Bytes() []byte { return h.sum[:h.n] }

// Uint64 returns the low 64 bits of the digest read as one big-endian number:
// the short form in vLLM's events.
func (h Hash) Uint64() uint64 {
	if h.n < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(h.sum[h.n-8 : h.n])
}

// IsZero reports whether h is no hash.
func (h Hash) IsZero() bool { return h.n == 0 }

// String returns the digest in hexadecimal digits.
func (h Hash) String() string { return fmt.Sprintf("%x", h.sum[:h.n]) }

// A Hasher computes chain hashes on demand. It belongs to one goroutine.
type Hasher struct {
	alg  HashAlgorithm
	none Hash
	buf  []byte
}

// NewHasher returns a hasher. The seed is the text that vLLM takes from
// PYTHONHASHSEED; the chain starts from the hash of that text. XXH3CBOR in
// SharedScope is ErrSharedHash.
func NewHasher(alg HashAlgorithm, seed string, scope Scope) (*Hasher, error) {
	switch {
	case alg > XXH3CBOR:
		return nil, &RangeError{"HashAlgorithm", int(alg), 0, int(XXH3CBOR)}
	case scope > PrivateScope:
		return nil, &RangeError{"Scope", int(scope), 0, int(PrivateScope)}
	case alg == XXH3CBOR && scope == SharedScope:
		return nil, ErrSharedHash
	}
	h := &Hasher{alg: alg}
	h.buf = appendText(h.buf, seed)
	h.none = h.sum()
	return h, nil
}

// None returns the parent of a sequence's first block.
func (h *Hasher) None() Hash { return h.none }

// Block returns the hash of one block: its parent's hash, its tokens, and the
// keys that ns adds; at says whether it is the sequence's first block, where the
// salt enters. A zero parent stands for None.
func (h *Hasher) Block(parent Hash, tokens []Token, ns *Namespace, at Place) Hash {
	if parent.IsZero() {
		parent = h.none
	}
	b := append(h.buf[:0], 0x83) // array of three
	b = appendHead(b, 2, uint64(parent.n))
	b = append(b, parent.sum[:parent.n]...)
	b = appendHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		if t >= 0 {
			b = appendHead(b, 0, uint64(t))
		} else {
			b = appendHead(b, 1, uint64(-1-int64(t)))
		}
	}
	keys := extraKeys(ns, at)
	n := 0
	for _, k := range keys {
		if k != "" {
			n++
		}
	}
	if n == 0 {
		b = append(b, 0xf6) // null
	} else {
		b = appendHead(b, 4, uint64(n))
		for _, k := range keys {
			if k != "" {
				b = appendText(b, k)
			}
		}
	}
	h.buf = b
	return h.sum()
}

// Place says where a block stands in its sequence.
type Place uint8

const (
	// Inner is a block after the first.
	Inner Place = iota
	// First is the block that holds the sequence's first token.
	First
)

// extraKeys returns what vLLM mixes into a block's hash besides its tokens, in
// its order: the adapter's name in every block, the salt in the first. Fields of
// a namespace that vLLM does not know enter the first block behind the salt.
func extraKeys(ns *Namespace, at Place) [5]string {
	keys := [5]string{ns.LoRA.Name}
	if at == First {
		keys[1], keys[2], keys[3], keys[4] = ns.Media, ns.Salt, ns.Tenant, ns.Variant
	}
	return keys
}

// ExtraKeys returns what enters a block's hash besides its tokens, in order; nil when nothing does.
func ExtraKeys(ns *Namespace, at Place) []string {
	var out []string
	for _, k := range extraKeys(ns, at) {
		if k != "" {
			out = append(out, k)
		}
	}
	return out
}

// Chain appends to dst the hash of every full block of tokens.
func (h *Hasher) Chain(dst []Hash, ns *Namespace, tokens []Token, blockSize int) []Hash {
	parent, at := h.none, First
	for len(tokens) >= blockSize {
		parent = h.Block(parent, tokens[:blockSize], ns, at)
		dst = append(dst, parent)
		tokens, at = tokens[blockSize:], Inner
	}
	return dst
}

func (h *Hasher) sum() (out Hash) {
	if h.alg == XXH3CBOR {
		s := xxh3.Hash128(h.buf).Bytes()
		out.n = uint8(copy(out.sum[:], s[:]))
		return out
	}
	out.sum = sha256.Sum256(h.buf)
	out.n = sha256.Size
	return out
}

// appendHead appends a CBOR head with the shortest argument.
func appendHead(b []byte, major byte, n uint64) []byte {
	m := major << 5
	switch {
	case n < 24:
		return append(b, m|byte(n))
	case n < 1<<8:
		return append(b, m|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, m|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, m|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, m|27), n)
}

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, 3, uint64(len(s))), s...)
}

// Digest returns the identity of a namespace for use outside the process:
// SHA-256 over its fields, each with its name and its length, so that no two
// namespaces share a digest. Block hashes alone do not have this property: they
// follow vLLM, where a salt and an adapter's name are mixed in without a tag.
func (ns *Namespace) Digest() [sha256.Size]byte {
	var b []byte
	b = append(b, 0xa6) // map of six
	for _, f := range [...]struct{ name, value string }{
		{"tenant", ns.Tenant}, {"salt", ns.Salt}, {"lora_name", ns.LoRA.Name}, {"media", ns.Media}, {"variant", ns.Variant},
	} {
		b = appendText(appendText(b, f.name), f.value)
	}
	b = appendText(b, "lora_id")
	if id := ns.LoRA.ID; id >= 0 {
		b = appendHead(b, 0, uint64(id))
	} else {
		b = appendHead(b, 1, uint64(-1-id))
	}
	return sha256.Sum256(b)
}
