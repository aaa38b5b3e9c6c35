package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
)

// SessionID is the session of the example conversation.
const SessionID = "conversation-001"

// Bounds of an answer of the example conversation.
const (
	maxAnswer  = 4 << 20 // bytes
	maxWaiting = 60 * time.Second
)

const (
	exampleSystem = "You review reports and answer in a few words."
	exampleUser   = "Analyze this report: The north plant ran 21 of 24 hours, its pumps at 83 % of their rated flow. " +
		"Two sensors drifted and were replaced. Scrap fell from 4.1 % to 2.9 %, energy rose by 6 %, and one delivery was late."
	exampleNext   = "Suggest three improvements."
	exampleTokens = 32
)

// Conversation is the first turn of the example session and its follow-up,
// with the reply that really came.
type Conversation struct {
	URL   string // of the proxy
	Body  []byte // of the follow-up, with neither session id nor line end
	Reply string
}

// Converse sends the first turn of the example session through the proxy at
// url and prepares the follow-up.
func Converse(ctx context.Context, url, model string) (*Conversation, error) {
	limit, zero := exampleTokens, 0.0
	req := openai.ChatRequest{
		Model: model, Sampling: openai.Sampling{MaxTokens: &limit, Temperature: &zero},
		Messages: []openai.Message{{Role: "system", Content: exampleSystem}, {Role: "user", Content: exampleUser}},
	}
	reply, err := ask(ctx, url, &req)
	if err != nil {
		return nil, fmt.Errorf("first turn of %s: %w", SessionID, err)
	}
	req.Messages = append(req.Messages, openai.Message{Role: "assistant", Content: openai.Content(reply)}, openai.Message{Role: "user", Content: exampleNext})
	body, err := shellJSON(&req)
	if err != nil {
		return nil, err
	}
	return &Conversation{URL: url, Body: body, Reply: reply}, nil
}

func ask(ctx context.Context, url string, req *openai.ChatRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWaiting)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("X-Session-ID", SessionID)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(post)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		if e, ok := openai.ParseError(resp.StatusCode, answer); ok {
			return "", e
		}
		return "", fmt.Errorf("status %d", resp.StatusCode)
	}
	var chat openai.ChatResponse
	if err := json.Unmarshal(answer, &chat); err != nil {
		return "", fmt.Errorf("answer: %w", err)
	}
	if len(chat.Choices) == 0 {
		return "", errors.New("the answer has no choices")
	}
	return chat.Choices[0].Message.Content, nil
}

// shellJSON is indented JSON that may stand between single quotes of a shell:
// the quote and everything beyond printable ASCII are escaped.
func shellJSON(v any) ([]byte, error) {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, r := range strings.TrimSuffix(plain.String(), "\n") {
		switch {
		case r == '\n' || r >= ' ' && r <= '~' && r != '\'':
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes(), nil
}

// HeaderCurl is the follow-up with the session id in a header.
func (c *Conversation) HeaderCurl() string {
	return fmt.Sprintf("curl -sS %s/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -H 'X-Session-ID: %s' \\\n  -d '%s'", c.URL, SessionID, c.Body)
}

// BodyCurl is the follow-up with the session id in its body, which is in file.
func (c *Conversation) BodyCurl(file string) string {
	return fmt.Sprintf("curl -sS %s/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  --data-binary @%s", c.URL, file)
}

// RequestFile is the follow-up's body with the session id in conversation_id.
func (c *Conversation) RequestFile() []byte {
	rest := bytes.TrimPrefix(c.Body, []byte("{"))
	return append(fmt.Appendf(nil, "{\n  \"conversation_id\": %q,", SessionID), append(rest, '\n')...)
}
