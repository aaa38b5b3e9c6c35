package up

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each role may have a device of its own; a Decoder's profile and guards reach
// its command line, and without a profile it admits no append attempts.
func TestCommandsOfRoles(t *testing.T) {
	c := Cluster{Device: "cuda", Prefiller: Engine{Device: "cuda:1"}}
	line := func(c Command) string { return " " + strings.Join(c.Args, " ") + " " }
	require.Contains(t, line(c.PrefillerCommand("p")), " --device cuda:1 ")
	require.Contains(t, line(c.DecoderCommand("d")), " --device cuda ")
	require.Contains(t, line(c.DecoderCommand("d")), `"decoder_append_prefill_profile":"guarded"}}`)
	c.Profile, c.Guards = "plain", `{"governor":true}`
	require.Contains(t, line(c.DecoderCommand("d")), `"decoder_append_prefill_profile":"plain","decoder_append_prefill_guards":{"governor":true}}}`)
	c.Profile = NoAppend
	require.NotContains(t, line(c.DecoderCommand("d")), "--additional-config")
}
