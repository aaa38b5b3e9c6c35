package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

func TestGeneratedTokens(t *testing.T) {
	require.EqualValues(t, 9756, tok(1, 0))
	require.EqualValues(t, 26083, tok(1, 3))
	require.EqualValues(t, 29222, tok(500001, 0))
	require.Equal(t, "fd1f0f4381eb0395", digest([]scheduler.Token{1, 2, 3}))
}

func TestHistories(t *testing.T) {
	dir := os.Getenv("SLUICE_REFERENCE")
	if dir == "" {
		t.Skip("SLUICE_REFERENCE names no folder with recorded histories")
	}
	files, err := filepath.Glob(filepath.Join(dir, "oracle", "newer-017e9f4", "*.jsonl.gz"))
	require.NoError(t, err)
	require.Len(t, files, 34)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			h, err := Read(f)
			require.NoError(t, err)
			d, err := Replay(h)
			require.NoError(t, err)
			if d != nil {
				t.Fatal(d)
			}
		})
	}
}
