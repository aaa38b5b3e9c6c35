package tokenizer

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

func TestTextSurvivesEncodeDecode(t *testing.T) {
	for _, s := range []string{"", "plain", "naïve – 漢字 🙂", "line\nline\ttab", "<|im_end|>"} {
		require.Equal(t, s, Decode(Builtin{}, Encode(nil, s)))
	}
	for _, tok := range Encode(nil, "<|im_start|><|im_end|><|endoftext|>") {
		require.Less(t, tok, EndOfText, "text never spells a special token")
	}
}

func TestDecoderNeverSplitsACharacter(t *testing.T) {
	var d Decoder
	var parts []string
	for _, tok := range Encode(nil, "é漢🙂x") {
		if s := d.Push(tok); s != "" {
			require.True(t, utf8.ValidString(s))
			parts = append(parts, s)
		}
	}
	require.Equal(t, []string{"é", "漢", "🙂", "x"}, parts)
	require.Empty(t, d.Flush())
}

func TestBytesThatAreNoText(t *testing.T) {
	require.Equal(t, "a\ufffdb", Decode(Builtin{}, []kvcache.Token{'a', 0xff, 'b'}))
	require.Equal(t, "\ufffd", Decode(Builtin{}, []kvcache.Token{0xe6}), "an unfinished character at the end")
	require.Equal(t, "\ufffda", Decode(Builtin{}, []kvcache.Token{0xe6, ImEnd, 'a'}), "a special token ends an unfinished character")
	require.Equal(t, "ab", Decode(Builtin{}, []kvcache.Token{'a', EOS, 'b'}), "special tokens have no text")
}

// The prompt of a turn followed by the reply is exactly how the next turn's
// prompt begins, whether the reply ended by itself or by its limit.
func TestNextTurnExtendsThisOne(t *testing.T) {
	history := []Message{{Role: "system", Content: "You are terse. "}, {Role: "user", Content: " Analyse:\n漢字"}}
	prompt := Render(history)
	for _, reply := range [][]kvcache.Token{Encode(nil, "x Y~z "), append(Encode(nil, "done"), EOS), {EOS}} {
		next := Render(append(history[:2:2], Message{Role: "assistant", Content: Decode(Builtin{}, reply)}, Message{Role: "user", Content: "more"}))
		whole := append(append([]kvcache.Token(nil), prompt...), reply...)
		require.Equal(t, whole, next[:len(whole)])
	}
}

func TestSpeakableTokensAreText(t *testing.T) {
	n := 0
	for v := range Vocab {
		if Speakable(v) {
			n++
			require.True(t, Valid(kvcache.Token(v)))
			if v != int(EOS) {
				require.Equal(t, Encode(nil, Decode(Builtin{}, []kvcache.Token{kvcache.Token(v)})), []kvcache.Token{kvcache.Token(v)})
			}
		}
	}
	require.Equal(t, 96, n)
	require.False(t, Valid(-1))
	require.False(t, Valid(Vocab))
}
