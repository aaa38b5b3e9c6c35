package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A scheduler without any code of append attempts makes the plans that ours
// makes with the switch off, history by history; and its tests would tell.
func TestWithoutAppendAttempts(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command: ", err)
	}
	t.Chdir("../..")
	var out bytes.Buffer
	require.NoError(t, without(&out, appendAttempts))
	t.Log(out.String())

	on := appendAttempts
	on.tests = "^TestHistories$/^append-refused$"
	require.ErrorContains(t, without(&out, on), "FAIL: TestHistories/append-refused")
	none := appendAttempts
	none.tests = "^TestNothing$"
	require.ErrorContains(t, without(&out, none), "no test matches")
}

func TestEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.go")
	require.NoError(t, os.WriteFile(path, []byte(`package a

import (
	"math"
	"time"
)

type T struct{ at time.Duration }

func (x T) one() (a, b int, err error) { return int(math.Pi), 2, nil }

func two() { panic("no") }

func kept() int { return 3 }
`), 0o600))
	text, n, err := empty(path, []string{"kept"})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NotContains(t, string(text), "math")
	require.Contains(t, string(text), `"time"`)
	require.Contains(t, string(text), "return *new(int), *new(int), *new(error)")
	require.Contains(t, string(text), "return 3")
	_, _, err = empty(filepath.Join(t.TempDir(), "b.go"), nil)
	require.Error(t, err)
}
