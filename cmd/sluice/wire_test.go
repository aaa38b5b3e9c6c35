package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/kvcache"
)

// What docs/wire.md writes of a refusal and of P's answer is what is sent.
func TestWireIsAsWritten(t *testing.T) {
	raw, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	text := string(raw)

	miss := openai.Miss(openai.MissNoPrefix, 86, 21)
	body, err := json.Marshal(miss)
	require.NoError(t, err)
	written := strings.NewReplacer(strconv.Quote(miss.Message), "…", `"no_prefix"`, "…", ":86", ":N", ":21", ":L").Replace(string(body))
	require.Contains(t, text, "| "+strconv.Itoa(miss.Status)+" with `"+written+"` |")
	require.Contains(t, text, "codes `"+strings.Join([]string{openai.MissNoPrefix, openai.MissBelowMinPrefix, openai.MissSuffixTooLong, openai.MissBusy, openai.MissDraining}, "`, `")+"` |")

	token := 7
	p := pd.Params{
		DoRemotePrefill: true, EngineID: "e", RequestID: "r", Host: "h", Port: 1, Blocks: [][]kvcache.BlockID{{1}}, BlockSize: 16, NumTokens: 9, NumPrompt: 1,
		LastToken: &token, Lease: pd.Lease{Generation: 1}, Mode: "pull", ResidentTokens: &token,
	}
	body, err = json.Marshal(&p)
	require.NoError(t, err)
	var members map[string]any
	require.NoError(t, json.Unmarshal(body, &members))
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(?:kv_transfer_params)?\\.?([a-z_]+)`").FindAllStringSubmatch(text, -1) {
		named[m[1]] = true
	}
	for name := range members {
		require.True(t, named[name], "docs/wire.md does not name the member %s", name)
	}
	lease, err := json.Marshal(p.Lease)
	require.NoError(t, err)
	var parts map[string]any
	require.NoError(t, json.Unmarshal(lease, &parts))
	for name := range parts {
		require.Contains(t, text, strconv.Quote(name))
	}
}
