package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDsByName(t *testing.T) {
	for _, i := range []IDs{Detect, FileIDs, SessionIDs} {
		got, err := ParseIDs(i.String())
		require.NoError(t, err)
		require.Equal(t, i, got)
	}
	_, err := ParseIDs("global")
	require.ErrorContains(t, err, `ids "global"`)
	require.Equal(t, "IDs(9)", IDs(9).String())
}

func TestResolve(t *testing.T) {
	rows := func(runs ...string) *Trace {
		var b strings.Builder
		for i, r := range runs {
			b.WriteString(`{"session":"` + string(rune('a'+i)) + `","turn":0,"timestamp":0,"think_ms":0,"input_length":128,"output_length":1,"nblocks":2,"hash_runs":` + r + "}\n")
		}
		tr, err := Read(strings.NewReader(b.String()), Strict)
		require.NoError(t, err)
		return tr
	}
	each := rows("[1,2]", "[1,2]", "[1,1,7,1]")
	require.Equal(t, SessionIDs, each.Resolve(Detect), "most number their blocks from 1 on")
	require.Equal(t, FileIDs, each.Resolve(FileIDs), "a choice stands")
	require.Equal(t, FileIDs, rows("[1,2]", "[3,2]", "[1,1,5,1]").Resolve(Detect))
	require.Equal(t, FileIDs, rows("[1,2]").Resolve(Detect), "one session tells nothing")
}

// Recorded agents say by the name of their file where their ids hold.
func TestResolveRecordings(t *testing.T) {
	dir := os.Getenv("SLUICE_REFERENCE")
	if dir == "" {
		t.Skip("SLUICE_REFERENCE names no folder with traces")
	}
	for name, want := range map[string]IDs{"agentic_cc_local_a": SessionIDs, "agentic_cc_global_a": FileIDs} {
		tr, err := Open(filepath.Join(dir, "traces", name+".jsonl.gz"), Strict)
		require.NoError(t, err)
		require.Equal(t, want, tr.Resolve(Detect), name)
	}
}
