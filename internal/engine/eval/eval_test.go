package eval

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExtraction(t *testing.T) {
	for _, x := range []struct{ text, strict, flexible string }{
		{"He has 3 + 4 = 7 apples.\n#### 7", "7", "7"},
		{"#### 1,234", "1234", "1234"},
		{"#### $5.50", "5.5", "5.5"},
		{"#### -12.", "-12", "-12"},
		{"####18 and more 99", "18", "99"},
		{"The answer is 72.", "", "72"},
		{"so $1,000.00 in all.", "", "1000"},
		{"007 or 0.50", "", "0.5"},
		{"-0", "", "0"},
		{"no number here", "", ""},
		{"#### many", "", ""},
		{"#### many, then\n#### 8", "8", "8"},
		{"#### 1\n\n#### 2", "1", "2"},
		{"####\n3", "3", "3"},
		{"### 4", "", "4"},
		{"#### .5", "0.5", "0.5"},
		{"$-3.20 is -$3.2", "", "-3.2"},
		{"#### $-3.20", "-3.2", "-3.2"},
		{"it costs 10% of 250,", "", "250"},
		{"1,000,000.", "", "1000000"},
		{"#### 100.00 dollars", "100", "100"},
		{"the 2nd of 5 apples", "", "5"},
		{"#### 0.10", "0.1", "0.1"},
		{"#### 000", "0", "0"},
	} {
		s, ok := Strict(x.text)
		require.Equal(t, x.strict, s, x.text)
		require.Equal(t, x.strict != "", ok)
		f, ok := Flexible(x.text)
		require.Equal(t, x.flexible, f, x.text)
		require.Equal(t, x.flexible != "", ok)
	}
}

const lines = `{"question":"a","answer":"one\n#### 1"}

{"question":"b","answer":"#### 2"}
{"question":"c","answer":"#### 3"}
{"question":"d","answer":"#### 4"}
`

func TestRunCounts(t *testing.T) {
	qs, err := Read(strings.NewReader(lines))
	require.NoError(t, err)
	require.Len(t, qs, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Prompt string `json:"prompt"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || !strings.HasPrefix(q.Prompt, "Question: a\nAnswer: one\n#### 1\n\nQuestion: ") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		text := map[string]string{"b": " #### 2", "c": " it is 3"}[strings.TrimSuffix(q.Prompt[strings.LastIndex(q.Prompt, ": ")+2:], "\nAnswer:")]
		if text == "" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"text": text}}})
	}))
	defer srv.Close()
	var asked []int
	r, err := Run(t.Context(), qs, Options{URL: srv.URL + "/", Model: "m", Shots: 1, Concurrency: 2, Client: srv.Client(), Observe: func(soFar Result, of int) {
		asked = append(asked, soFar.Asked, of)
	}})
	require.NoError(t, err)
	require.Equal(t, []int{1, 3, 2, 3, 3, 3}, asked)
	require.ErrorContains(t, r.Err, "status 500")
	r.Err = nil
	require.Equal(t, Result{Asked: 3, Strict: 1, Flexible: 2, Failed: 1}, r)
	require.Equal(t, "3 questions: strict 33.33 % (1), flexible 66.67 % (2), 1 without an answer", r.String())
	r, err = Run(t.Context(), qs, Options{URL: srv.URL, Shots: 1, Limit: 1, Client: srv.Client()})
	require.NoError(t, err)
	require.Equal(t, 1, r.Asked)
	_, err = Run(t.Context(), qs, Options{Shots: 4})
	require.ErrorContains(t, err, "none is left")
	_, err = Run(t.Context(), qs, Options{Limit: -1})
	require.ErrorContains(t, err, "limit is -1")
}

func TestChatEndpointWithAKey(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Messages []struct{ Role, Content string }
		}
		err := json.NewDecoder(r.Body).Decode(&q)
		if err != nil || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer k" || len(q.Messages) != 1 || q.Messages[0].Role != "user" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"content": "#### 2"}}}})
	}))
	defer srv.Close()
	qs, err := Read(strings.NewReader(lines))
	require.NoError(t, err)
	for _, url := range []string{srv.URL, srv.URL + "/v1/"} {
		r, err := Run(t.Context(), qs, Options{URL: url, Key: "k", Chat: true, Client: srv.Client()})
		require.NoError(t, err)
		require.Equal(t, Result{Asked: 4, Strict: 1, Flexible: 1}, r)
	}
}

func TestFilesThatAreNone(t *testing.T) {
	_, err := Read(strings.NewReader("{\"question\":\"a\",\"answer\":\"#### 1\"}\n{"))
	require.ErrorContains(t, err, "line 2")
	_, err = Read(strings.NewReader(`{"question":"a","answer":"seven"}`))
	require.ErrorContains(t, err, "line 1: no question")
}
