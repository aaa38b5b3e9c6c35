package tokenizer

import "github.com/sluice-serving/sluice/kvcache"

// Render writes a conversation for the built-in model in the form
//
//	<|im_start|>role\ncontent<|im_end|>\n
//
// and opens the assistant's next message. Content is copied byte for byte,
// nothing is trimmed, and the newline after a message belongs to the next one's
// side of the boundary; so the prompt of the next turn starts with exactly the
// tokens of this prompt followed by those of the reply, with or without the
// reply's end of sequence.
func Render(messages []Message) []kvcache.Token {
	n := 0
	for _, m := range messages {
		n += len(m.Role) + len(m.Content) + 4
	}
	out := make([]kvcache.Token, 0, n+len("assistant")+2)
	for _, m := range messages {
		out = open(out, m.Role)
		out = Encode(out, m.Content)
		out = append(out, ImEnd, '\n')
	}
	return open(out, "assistant")
}

func open(dst []kvcache.Token, role string) []kvcache.Token {
	dst = append(dst, ImStart)
	dst = Encode(dst, role)
	return append(dst, '\n')
}
