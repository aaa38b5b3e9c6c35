package eval

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Question is one line of a file.
type Question struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// Read takes the questions of a file; an error names the line.
func Read(r io.Reader) ([]Question, error) {
	var out []Question
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for line := 1; s.Scan(); line++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		var q Question
		if err := json.Unmarshal(s.Bytes(), &q); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if _, ok := Strict(q.Answer); !ok || q.Question == "" {
			return nil, fmt.Errorf("line %d: no question, or an answer without \"#### \" and a number", line)
		}
		out = append(out, q)
	}
	return out, s.Err()
}

// Options say what is asked of whom.
type Options struct {
	URL         string // of the endpoint, with or without /v1
	Key         string // sent as a bearer token; "": none
	Chat        bool   // ask /v1/chat/completions, the whole prompt as the user's message, rather than /v1/completions
	Model       string
	Shots       int // questions, from the first on, that are shown with their answers and not asked
	Limit       int // questions to ask; 0: all
	MaxTokens   int // of an answer; 0: 512
	Concurrency int // requests at a time; 0: 8
	Client      *http.Client
	Observe     func(soFar Result, of int) // called after each answer, by one goroutine at a time; nil: never
}

// Result counts answers.
type Result struct {
	Asked, Strict, Flexible int
	Failed                  int   // requests without an answer
	Err                     error // of one of them
}

// String is one line for people.
func (r Result) String() string {
	share := func(n int) float64 { return 100 * float64(n) / float64(max(r.Asked, 1)) }
	return fmt.Sprintf("%d questions: strict %.2f %% (%d), flexible %.2f %% (%d), %d without an answer",
		r.Asked, share(r.Strict), r.Strict, share(r.Flexible), r.Flexible, r.Failed)
}

// Prompt shows the examples and opens the answer to the question.
func Prompt(examples []Question, question string) string {
	var b strings.Builder
	for _, e := range examples {
		fmt.Fprintf(&b, "Question: %s\nAnswer: %s\n\n", e.Question, e.Answer)
	}
	fmt.Fprintf(&b, "Question: %s\nAnswer:", question)
	return b.String()
}

// Run asks all questions, greedily, and counts. A request that fails is counted;
// the error of Run is about the options or ctx.
func Run(ctx context.Context, questions []Question, o Options) (Result, error) {
	for _, f := range []struct {
		name string
		v    int
	}{{"shots", o.Shots}, {"limit", o.Limit}, {"max tokens", o.MaxTokens}, {"concurrency", o.Concurrency}} {
		if f.v < 0 {
			return Result{}, fmt.Errorf("eval: %s is %d, must not be negative", f.name, f.v)
		}
	}
	if o.Shots >= len(questions) {
		return Result{}, fmt.Errorf("eval: %d questions, of which %d are examples: none is left to ask", len(questions), o.Shots)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 512
	}
	if o.Concurrency == 0 {
		o.Concurrency = 8
	}
	if o.Client == nil {
		o.Client = http.DefaultClient
	}
	examples, ask := questions[:o.Shots], questions[o.Shots:]
	if o.Limit > 0 {
		ask = ask[:min(o.Limit, len(ask))]
	}
	var (
		mu  sync.Mutex
		wg  sync.WaitGroup
		res Result
	)
	next := make(chan Question)
	for range min(o.Concurrency, len(ask)) {
		wg.Go(func() {
			for q := range next {
				text, err := o.ask(ctx, Prompt(examples, q.Question))
				want, _ := Strict(q.Answer)
				strict, isStrict := Strict(text)
				flexible, isFlexible := Flexible(text)
				mu.Lock()
				res.Asked++
				switch {
				case err != nil:
					res.Failed++
					res.Err = err
				default:
					if isStrict && strict == want {
						res.Strict++
					}
					if isFlexible && flexible == want {
						res.Flexible++
					}
				}
				if o.Observe != nil {
					o.Observe(res, len(ask))
				}
				mu.Unlock()
			}
		})
	}
	for _, q := range ask {
		if ctx.Err() != nil {
			break
		}
		next <- q
	}
	close(next)
	wg.Wait()
	return res, ctx.Err()
}

// ask gives the text of one answer.
func (o Options) ask(ctx context.Context, prompt string) (string, error) {
	path := "/v1/completions"
	body := map[string]any{
		"model": o.Model, "max_tokens": o.MaxTokens, "temperature": 0, "stop": []string{"Question:", "\n\nQuestion"},
	}
	if o.Chat {
		path = "/v1/chat/completions"
		body["messages"] = []map[string]string{{"role": "user", "content": prompt}}
	} else {
		body["prompt"] = prompt
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	base := strings.TrimSuffix(strings.TrimSuffix(o.URL, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(raw))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	if o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+o.Key)
	}
	resp, err := o.Client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if raw, err = io.ReadAll(io.LimitReader(resp.Body, 8<<20)); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %.200s", resp.StatusCode, raw)
	}
	var out struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &out); err != nil || len(out.Choices) == 0 {
		return "", fmt.Errorf("no answer in %.200s", raw)
	}
	return out.Choices[0].Text + out.Choices[0].Message.Content, nil
}
