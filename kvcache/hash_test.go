package kvcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// reference computes a block's hash with a CBOR library in canonical mode.
func reference(t testing.TB, parent []byte, toks []Token, extra []any) []byte {
	mode, err := cbor.CanonicalEncOptions().EncMode()
	require.NoError(t, err)
	var keys any
	if len(extra) > 0 {
		keys = extra
	}
	b, err := mode.Marshal([]any{parent, toks, keys})
	require.NoError(t, err)
	return b
}

func noneHash(t testing.TB, seed string) []byte {
	b, err := cbor.Marshal(seed)
	require.NoError(t, err)
	sum := sha256.Sum256(b)
	return sum[:]
}

// The bytes that are hashed are those of a CBOR library, for every length of
// number and text, and so are the hashes.
func TestHashIsCanonicalCBOR(t *testing.T) {
	cases := []struct {
		name  string
		toks  []Token
		ns    Namespace
		at    Place
		extra []any
	}{
		{"plain", []Token{1, 2, 3, 4}, Namespace{}, First, nil},
		{"every length of a number", []Token{0, 23, 24, 255, 256, 65535, 65536, math.MaxInt32}, Namespace{}, Inner, nil},
		{"negative", []Token{-1, -24, -25, -256, -257, math.MinInt32}, Namespace{}, Inner, nil},
		{"adapter", []Token{7}, Namespace{LoRA: LoRA{ID: 3, Name: "sql"}}, Inner, []any{"sql"}},
		{"adapter and salt, first", []Token{7}, Namespace{LoRA: LoRA{Name: "sql"}, Salt: "s"}, First, []any{"sql", "s"}},
		{"salt, inner", []Token{7}, Namespace{Salt: "s"}, Inner, nil},
		{"text beyond ASCII", []Token{7}, Namespace{Salt: "größe ‰ 名"}, First, []any{"größe ‰ 名"}},
		{"long text", []Token{7}, Namespace{Salt: string(bytes.Repeat([]byte("x"), 300))}, First, []any{string(bytes.Repeat([]byte("x"), 300))}},
		{"1,024 tokens", randomTokens(1, 1024), Namespace{}, Inner, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, seed := range []string{"0", "42", "a long seed text, longer than twenty-three bytes"} {
				h, err := NewHasher(SHA256CBOR, seed, SharedScope)
				require.NoError(t, err)
				none := noneHash(t, seed)
				require.Equal(t, none, h.None().Bytes())
				want := reference(t, none, c.toks, c.extra)
				got := h.Block(Hash{}, c.toks, &c.ns, c.at)
				require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(h.buf), "bytes under the hash")
				sum := sha256.Sum256(want)
				require.Equal(t, sum[:], got.Bytes())

				x, err := NewHasher(XXH3CBOR, seed, PrivateScope)
				require.NoError(t, err)
				b, err := cbor.Marshal(seed)
				require.NoError(t, err)
				n := xxh3.Hash128(b).Bytes()
				require.Equal(t, n[:], x.None().Bytes())
				f := xxh3.Hash128(reference(t, n[:], c.toks, c.extra)).Bytes()
				require.Equal(t, f[:], x.Block(Hash{}, c.toks, &c.ns, c.at).Bytes())
			}
		})
	}
}

// Values computed in Python with hashlib over CBOR encoded by hand, apart from
// this code and from its library: the hash of the seed "0", then the blocks 0…15 and 16…31.
var knownHashes = []string{
	"4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
	"d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
	"fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
}

func TestHashKnownValues(t *testing.T) {
	h, err := NewHasher(SHA256CBOR, "0", SharedScope)
	require.NoError(t, err)
	hs := h.Chain(nil, &Namespace{}, span(0, 39), 16)
	require.Len(t, hs, 2)
	for i, want := range knownHashes {
		require.Equal(t, want, append([]Hash{h.None()}, hs...)[i].String())
	}
	low := hs[1].Bytes()[24:]
	require.Equal(t, hex.EncodeToString(low), hex.EncodeToString(cborUint64(hs[1].Uint64())))
}

func cborUint64(v uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(v >> (56 - 8*i))
	}
	return b
}

// The chain follows vLLM, where a salt and an adapter's name are mixed in
// without a tag and collide in the first block. The digest of a namespace does not.
func TestNamespaceDigest(t *testing.T) {
	salt, lora := Namespace{Salt: "x"}, Namespace{LoRA: LoRA{Name: "x"}}
	h, err := NewHasher(SHA256CBOR, "0", SharedScope)
	require.NoError(t, err)
	require.Equal(t, h.Block(Hash{}, span(0, 16), &salt, First), h.Block(Hash{}, span(0, 16), &lora, First))

	seen := map[[sha256.Size]byte]Namespace{}
	for _, ns := range []Namespace{
		{}, salt, lora, {Tenant: "x"}, {Media: "x"}, {Variant: "x"}, {LoRA: LoRA{ID: 1}}, {LoRA: LoRA{ID: -1}}, {LoRA: LoRA{ID: 1, Name: "x"}},
		{LoRA: LoRA{ID: 2, Name: "x"}}, {Tenant: "x", Salt: "y"}, {Tenant: "xy"}, {Salt: "xy"}, {Salt: "xysalt"},
	} {
		d := ns.Digest()
		require.NotContains(t, seen, d, "%v and %v", seen[d], ns)
		seen[d] = ns
	}
}

func TestHasherRefuses(t *testing.T) {
	_, err := NewHasher(XXH3CBOR, "0", SharedScope)
	require.ErrorIs(t, err, ErrSharedHash)
	var re *RangeError
	_, err = NewHasher(9, "0", SharedScope)
	require.ErrorAs(t, err, &re)
	_, err = NewHasher(SHA256CBOR, "0", 9)
	require.ErrorAs(t, err, &re)
	_, err = New(Config{Blocks: 8, Events: Events{Mode: EventsOn, Algorithm: XXH3CBOR}})
	require.ErrorIs(t, err, ErrSharedHash)
}

func TestHasherDoesNotAllocate(t *testing.T) {
	h, err := NewHasher(SHA256CBOR, "0", SharedScope)
	require.NoError(t, err)
	toks, ns := randomTokens(1, 16), Namespace{Salt: "x"}
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Block(Hash{}, toks, &ns, First) }))
}

func BenchmarkHash(b *testing.B) {
	toks := randomTokens(1, 16)
	for _, alg := range []HashAlgorithm{SHA256CBOR, XXH3CBOR} {
		b.Run(alg.String(), func(b *testing.B) {
			h, err := NewHasher(alg, "0", PrivateScope)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				toks[0] = Token(rand.Uint32() & 0xffff)
				h.Block(Hash{}, toks, &Namespace{}, Inner)
			}
		})
	}
}
