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

// NewHTTPClient is a client for load runs: connections, of HTTP/1.1, are kept for any
// number of concurrent requests and know when something has come on them, answers
// arrive uncompressed, redirects are answers. CloseIdleConnections ends it.
func NewHTTPClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 1024, DisableCompression: true, ResponseHeaderTimeout: 0},
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

	encoded []byte // Body, as soon as encode was called
}

// encode makes the request's body. A prompt of many token ids takes its time, which
// is best taken before the request is due.
func (c *Call) encode() (err error) {
	if c.encoded == nil {
		c.encoded, err = json.Marshal(c.Body)
	}
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	return nil
}

// Do sends the call and fills rec with what it did; the record's times are since
// start, that of the workload. Failures are part of the record.
func (s *Server) Do(ctx context.Context, call *Call, start time.Time, rec *measure.Record) {
	if err := s.do(ctx, call, start, rec); err != nil {
		rec.End, rec.Error = time.Since(start), err.Error()
	}
}

func (s *Server) do(ctx context.Context, call *Call, start time.Time, rec *measure.Record) error {
	if err := call.encode(); err != nil {
		return err
	}
	path := "/v1/chat/completions"
	if call.Endpoint == Completions {
		path = "/v1/completions"
	}
	came := arrival{start: start}
	req, err := http.NewRequestWithContext(came.trace(ctx), http.MethodPost, s.endpoint(path), bytes.NewReader(call.encoded))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	s.authorize(req)
	for name, values := range call.Header {
		req.Header[name] = values
	}
	rec.Sent = time.Since(start)
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
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return fmt.Errorf("the server compressed its answer with %q", coding)
	}
	if err := readStream(resp.Body, came.last, rec); err != nil {
		return err
	}
	// What is left is the end of the body. A connection whose answer was not read to
	// it is closed, and the next request would wait for another one.
	late := time.AfterFunc(maxEnd, func() { _ = resp.Body.Close() })
	defer late.Stop()
	_, _ = io.Copy(io.Discard, resp.Body) // the answer is complete
	return nil
}

// maxEnd is how long an answer may stay open behind its end marker.
const maxEnd = time.Second
