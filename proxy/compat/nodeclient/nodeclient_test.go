// Package nodeclient drives the proxy with the official OpenAI client for Node.
package nodeclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/compat"
)

func TestNodeClient(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed")
	}
	if _, err := os.Stat("node_modules/openai"); err != nil {
		t.Skip("the client is not installed: run npm ci in proxy/compat/nodeclient")
	}
	s := compat.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "client.mjs", s.URL)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	require.NoError(t, err, problems.String())
	got := map[string]json.RawMessage{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var l struct {
			Name  string
			Value json.RawMessage
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l))
		got[l.Name] = l.Value
	}
	has := func(name string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			require.True(t, strings.Contains(string(got[name]), p), "%s: %s lacks %s", name, got[name], p)
		}
	}
	has("chat", backendtest.Text(4), `"completion_tokens":4`)
	has("stream", backendtest.Text(4), `"cached_tokens":96`)
	has("completion", backendtest.Text(3))
	has("tools", "weather", "Bern")
	has("models", "fake")
	has("status400", `"kind":"BadRequestError"`, `"status":400`, "too long")
	has("status500", `"status":502`, "boom")
	has("status503", `"status":503`)
	has("cut", `"kind":"APIError"`)
	has("cancel", "cancelled")
	compat.Idle(t, s)
}
