package load

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

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/openai"
)

// maxErrorBody bounds what is read of an error answer, in bytes.
const maxErrorBody = 64 << 10

// Endpoint is the API that carries the turns.
type Endpoint uint8

// The endpoints.
const (
	Chat        Endpoint = iota // /v1/chat/completions, turns of text
	Completions                 // /v1/completions, turns of token ids or a text prompt
)

func (e Endpoint) String() string {
	switch e {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	}
	return fmt.Sprintf("endpoint(%d)", uint8(e))
}

// ParseEndpoint reads the name of an endpoint.
func ParseEndpoint(name string) (Endpoint, error) {
	for _, e := range []Endpoint{Chat, Completions} {
		if e.String() == name {
			return e, nil
		}
	}
	return 0, fmt.Errorf("endpoint %q is neither chat nor completions", name)
}

// NewHTTPClient is a client for load runs: connections are kept for any number
// of concurrent requests, answers arrive uncompressed, redirects are answers.
// CloseIdleConnections ends it.
func NewHTTPClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, ResponseHeaderTimeout: 0},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Server is one OpenAI-compatible server.
type Server struct {
	URL    string // with or without the trailing /v1
	Model  string
	APIKey string // empty: none is sent
	Client *http.Client
}

func (s *Server) endpoint(path string) string {
	base := strings.TrimSuffix(strings.TrimSuffix(s.URL, "/"), "/v1")
	return base + path
}

// FirstModel asks the server for its models and gives the first one's id.
func (s *Server) FirstModel(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.endpoint("/v1/models"), nil)
	if err != nil {
		return "", err
	}
	s.authorize(req)
	resp, err := s.Client.Do(req)
	if err != nil {
		return "", fmt.Errorf("list models: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("list models: %w", err)
	}
	var list openai.ModelList
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("list models: %w", answerError(resp.StatusCode, body))
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("list models: %w", err)
	}
	if len(list.Data) == 0 {
		return "", errors.New("list models: the server serves none")
	}
	return list.Data[0].ID, nil
}

func (s *Server) authorize(req *http.Request) {
	if s.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+s.APIKey)
	}
}

// answerError is the error of an answer whose status is not 200.
func answerError(status int, body []byte) error {
	if e, ok := openai.ParseError(status, body); ok {
		return e
	}
	text := strings.TrimSpace(string(body))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return fmt.Errorf("status %d: %s", status, text)
}

// Call is one streamed request. Body is its JSON; Header is added to the
// request's own headers.
type Call struct {
	Endpoint Endpoint
	Header   http.Header
	Body     any
}

// Do sends the call and fills rec with what it did; since gives the time since
// the start of the workload. Failures are part of the record.
func (s *Server) Do(ctx context.Context, call *Call, since func() time.Duration, rec *measure.Record) {
	err := s.do(ctx, call, since, rec)
	rec.End = since()
	if err != nil {
		rec.Error = err.Error()
	}
}

func (s *Server) do(ctx context.Context, call *Call, since func() time.Duration, rec *measure.Record) error {
	body, err := json.Marshal(call.Body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	path := "/v1/chat/completions"
	if call.Endpoint == Completions {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint(path), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	s.authorize(req)
	for name, values := range call.Header {
		req.Header[name] = values
	}
	rec.Sent = since()
	resp, err := s.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	rec.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if err != nil {
			return fmt.Errorf("status %d: %w", resp.StatusCode, err)
		}
		return answerError(resp.StatusCode, text)
	}
	return readStream(resp.Body, since, rec)
}

// chunk is one event of either endpoint.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          *string         `json:"content"`
			ReasoningContent string          `json:"reasoning_content"`
			ToolCalls        json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		TokenIDs     []int32 `json:"token_ids"`
		FinishReason *string `json:"finish_reason"`
		StopReason   any     `json:"stop_reason"`
	} `json:"choices"`
	Usage *openai.Usage   `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func readStream(body io.Reader, since func() time.Duration, rec *measure.Record) error {
	events := openai.NewReader(body, 0)
	var text strings.Builder
	defer func() { rec.Text = text.String() }()
	for {
		ev, err := events.Next()
		at := since() // the first event repeats the prompt's tokens: parsing it is no part of the server's time
		if errors.Is(err, io.EOF) {
			return errors.New("the stream ended without its end marker")
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if ev.Data == nil {
			continue
		}
		if ev.IsDone() {
			return nil
		}
		var c chunk
		if err := json.Unmarshal(ev.Data, &c); err != nil {
			return fmt.Errorf("event is not JSON: %w", err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return answerError(rec.Status, ev.Data)
		}
		if c.Usage != nil {
			rec.PromptTokens, rec.OutputTokens, rec.CachedTokens = c.Usage.PromptTokens, c.Usage.CompletionTokens, c.Usage.Cached()
		}
		for i := range c.Choices {
			ch := &c.Choices[i]
			piece := ch.Text
			if ch.Delta.Content != nil {
				piece += *ch.Delta.Content
			}
			if piece != "" || len(ch.TokenIDs) > 0 || ch.Delta.ReasoningContent != "" || len(ch.Delta.ToolCalls) > 0 {
				seen(at, rec)
			}
			text.WriteString(piece)
			rec.TokenIDs = append(rec.TokenIDs, ch.TokenIDs...)
			if ch.FinishReason != nil {
				rec.FinishReason = *ch.FinishReason
			}
			if ch.StopReason != nil {
				rec.StopReason = fmt.Sprint(ch.StopReason)
			}
		}
	}
}

// seen notes an event with output.
func seen(at time.Duration, rec *measure.Record) {
	if rec.First == 0 {
		rec.First = at
	} else {
		rec.Gaps = append(rec.Gaps, at-rec.Last)
	}
	rec.Last = at
}
