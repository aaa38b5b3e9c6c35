package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// How far it is goes to standard error, plain where that is no terminal; the
// result alone goes to standard output.
func TestEvalShowsHowFarItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "q.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"question":"a","answer":"#### 1"}`+"\n"+`{"question":"b","answer":"#### 2"}`+"\n"), 0o600))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"text":"#### 2"}]}`)
	}))
	defer srv.Close()
	var out, errs bytes.Buffer
	root := newRootCmd()
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs([]string{"eval", "--url", srv.URL, "--model", "m", "--file", file, "--shots", "0"})
	require.NoError(t, root.ExecuteContext(t.Context()))
	require.Equal(t, "2 questions: strict 50.00 % (1), flexible 50.00 % (1), 0 without an answer\n", out.String())
	require.Regexp(t, `^ask m at http://\S+\n  2 of 2 done, 0 failed, \d+\.\d s\n$`, errs.String())
}
