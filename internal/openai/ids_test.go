package openai

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// However a list of ids is written, it is read as encoding/json reads it.
func FuzzPromptIDs(f *testing.F) {
	for _, s := range []string{`[1,2,3]`, `[1, 20, 300]`, `[999999999,1000000000,2147483647]`, `[2147483648]`, `[-1]`, `[01]`, `[0,00]`, `[1,]`, `[1 ,2]`, `[1,  2]`, `[ 1]`, `[1e3]`, `[1`, `[1]]`, `[`, `[]`, `null`, `[1,null]`, `[[1]]`, ` [1]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var want []*int32
		err := json.Unmarshal(in, &want)
		got, ok := ParseIDs(in)
		require.Equal(t, err == nil && want != nil && !slices.Contains(want, nil), ok, "%q", in)
		if !ok {
			require.Nil(t, got)
			return
		}
		require.Len(t, got, len(want))
		for i := range got {
			require.Equal(t, *want[i], got[i], "%q", in)
		}
		if len(got) == 0 || slices.Min(got) < 0 || slices.Max(got) > 999_999_999 {
			return
		}
		again, ok := parseIDs(AppendIDs(nil, got))
		require.True(t, ok)
		require.Equal(t, got, again)
	})
}

func TestAppendIDs(t *testing.T) {
	for _, list := range [][]int32{{}, {0}, {1, 2147483647, -3, 151935}} {
		want, err := json.Marshal(list)
		require.NoError(t, err)
		require.Equal(t, string(want), string(AppendIDs(nil, list)))
	}
}

// An event that is given its prompt in JSON has the bytes of one that was encoded
// whole, whatever its strings look like.
func TestSendPrompt(t *testing.T) {
	prompt := []int32{5, 151935, 0}
	for _, text := range []string{"", `a`, `"prompt_token_ids":[-1]`, `\"prompt_token_ids\":[-1]`, "\n\n"} {
		completion := func(p []int32) CompletionResponse {
			return CompletionResponse{ID: text, Model: text, Choices: []CompletionChoice{{Text: text, TokenIDs: []int32{7}, PromptTokenIDs: p}}, Usage: NewUsage(3, 1, 0)}
		}
		chat := func(p []int32) ChatChunk {
			return ChatChunk{ID: text, Choices: []ChatChunkChoice{{Delta: Delta{Content: &text}}}, PromptTokenIDs: p, KVTransferParams: json.RawMessage(`{}`)}
		}
		want, got := httptest.NewRecorder(), httptest.NewRecorder()
		whole, parts := NewStream(want), NewStream(got)
		list := AppendIDs(nil, prompt)
		require.NoError(t, whole.Send(completion(prompt)))
		require.NoError(t, parts.SendPrompt(completion(PromptToCome), list))
		require.NoError(t, whole.Send(chat(prompt)))
		require.NoError(t, parts.SendPrompt(chat(PromptToCome), list))
		require.NoError(t, whole.Send(chat(nil)))
		require.NoError(t, parts.SendPrompt(chat(nil), nil))
		require.Equal(t, want.Body.String(), got.Body.String())
		require.Equal(t, want.Header(), got.Header())
	}
}

// BenchmarkFirstEvent is the first event of an answer whose prompt has that many
// tokens: whole, and with the ids made before.
func BenchmarkFirstEvent(b *testing.B) {
	for _, n := range []int{1, 12_288} {
		prompt := make([]int32, n)
		for i := range prompt {
			prompt[i] = 100_000 + int32(i)
		}
		event := func(p []int32) CompletionResponse {
			return CompletionResponse{ID: "cmpl-d", Object: ObjectCompletion, Model: "m", Choices: []CompletionChoice{{TokenIDs: []int32{7}, PromptTokenIDs: p}}}
		}
		list := AppendIDs(nil, prompt)
		for name, send := range map[string]func(*Stream) error{
			"whole": func(s *Stream) error { return s.Send(event(prompt)) },
			"ahead": func(s *Stream) error { return s.SendPrompt(event(PromptToCome), list) },
		} {
			b.Run(name+"/"+strconv.Itoa(n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					w := httptest.NewRecorder()
					w.Body = nil
					if err := send(NewStream(w)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPromptIDs is a request of 12,288 token ids, decoded and encoded.
func BenchmarkPromptIDs(b *testing.B) {
	ids := make([]int32, 12_288)
	for i := range ids {
		ids[i] = 100_000 + int32(i)
	}
	body, err := json.Marshal(&CompletionRequest{Model: "m", Prompt: TokenPrompt(ids)})
	require.NoError(b, err)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var q CompletionRequest
			if err := json.Unmarshal(body, &q); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(&CompletionRequest{Model: "m", Prompt: TokenPrompt(ids)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
