package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A member that is misspelled or of another type is named as it was written,
// with what was meant, at any depth.
func TestMembersThatAreWrong(t *testing.T) {
	for _, c := range []struct {
		parse      func(string) error
		text, want string
	}{
		{transferOf, `{"kv_conector":"pd"}`, `there is no member "kv_conector"; did you mean "kv_connector"?`},
		{transferOf, `{"kv_connector_extra_config":{"connectors":[{"kv_connector_extra_config":{"kv_peer":["*"]}}]}}`, `there is no member "kv_peer"; did you mean "kv_peers"?`},
		{transferOf, `{"kv_connector_extra_config":{"tls":{"zert":"x"}}}`, `there is no member "zert"; did you mean "cert"?`},
		{transferOf, `{"kv_connector_extra_config":{"kv_peers":"*"}}`, `kv_connector_extra_config.kv_peers is a JSON string, must be an array`},
		{transferOf, `{"kv_connector_extra_config":{"file_bytes":1.5}}`, `kv_connector_extra_config.file_bytes is a JSON number 1.5, must be a whole number`},
		{additionalOf, `{"scheduler_config":{"decoder_append_prefil_enable":true}}`, `did you mean "decoder_append_prefill_enable"?`},
		{additionalOf, `{"scheduler_config":{"decoder_append_prefill_enable":"yes"}}`, `scheduler_config.decoder_append_prefill_enable is a JSON string, must be true or false`},
		{additionalOf, `{"x":1}`, `there is no member "x"; there are `},
		{additionalOf, `[]`, `additional-config: `},
		{additionalOf, `{`, `unexpected EOF`},
	} {
		require.ErrorContains(t, c.parse(c.text), c.want, c.text)
	}
}

func transferOf(s string) error   { _, err := ParseKVTransfer(s); return err }
func additionalOf(s string) error { _, err := ParseAdditional(s); return err }

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"governer", "governor", 1}, {"abc", "abc", 0}, {"ab", "ba", 2}} {
		require.Equal(t, c.want, editDistance(c.a, c.b), "%s %s", c.a, c.b)
	}
}
