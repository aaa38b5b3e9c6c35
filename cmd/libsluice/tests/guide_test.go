package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuide runs the commands of the page about the library, in a folder that
// has what they name, and looks for what they print.
func TestGuide(t *testing.T) {
	for _, tool := range []string{"bash", "cc", "pkg-config", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the guide's commands need %s: %v", tool, err)
		}
	}
	text, err := os.ReadFile("../../../docs/libsluice.md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n```text\n(.*?)^```$").FindSubmatch(text)
	require.NotNil(t, found)
	commands, isThere := strings.CutPrefix(string(found[1]), "make lib\n")
	require.True(t, isThere)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	require.NoError(t, os.Symlink(library(t), filepath.Join(dir, "build", "libsluice"))) // what make lib gives
	require.NoError(t, os.Symlink(filepath.Join(root, "cmd"), filepath.Join(dir, "cmd")))
	cmd := exec.Command("bash", "-ec", commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	want := strings.TrimSpace(string(found[2]))
	require.Equal(t, 2, strings.Count(string(out), want), "the program in C and the one in Python say %q: %s", want, out)
}
