package join

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A first turn through the Prefiller, a hit, and a miss that fell back.
const good = `{"event":"route","request_id":"a-t0","session":"a","route":"pd","decoder":"h:1","rank":1,"reason":"no_owner","legs":[{"leg":"p","request_id":"a-t0-p","status":200,"output":1},{"leg":"d","request_id":"a-t0-d","status":200,"output":4}]}
{"event":"admit","request_id":"a-t0-p","rank":0,"route":"local","prompt_tokens":40,"cached_tokens":0}
{"event":"kv_read","request_id":"a-t0-d","rank":1,"blocks":3,"bytes":300,"peer":"p"}
{"event":"admit","request_id":"a-t0-d","rank":1,"route":"remote","prompt_tokens":40,"cached_tokens":0}
{"event":"note","request_id":"a-t0-d","whatever":1}
{"event":"route","request_id":"a-t1","session":"a","route":"local","decoder":"h:1","rank":1,"reason":"hit","legs":[{"leg":"local","request_id":"a-t1-local","status":200,"output":4}]}
{"event":"admit","request_id":"a-t1-local","rank":1,"route":"append","prompt_tokens":60,"cached_tokens":48}
{"event":"finish","request_id":"a-t1-local","output_tokens":4,"finish_reason":"length"}

{"event":"route","request_id":"a-t2","session":"a","route":"fallback","decoder":"h:1","rank":1,"reason":"refused:no_prefix","fallback_ms":2.5,"legs":[{"leg":"local","request_id":"a-t2-local","status":412,"output":0},{"leg":"p","request_id":"a-t2-p","status":200,"output":1},{"leg":"d","request_id":"a-t2-d","status":200,"output":4}]}
{"event":"refuse","request_id":"a-t2-local","rank":1,"reason":"no_prefix","prompt_tokens":80,"cached_tokens":0}
{"event":"kv_read","request_id":"a-t2-d","rank":1,"blocks":5,"bytes":500,"peer":"p"}
{"event":"admit","request_id":"a-t2-d","rank":1,"route":"remote","prompt_tokens":80,"cached_tokens":0}
{"event":"admit","request_`

func rows(t *testing.T, trace string) []Row {
	t.Helper()
	tr := &Traces{Engines: map[string]*Engine{}}
	require.NoError(t, tr.Read(strings.NewReader(trace)))
	return tr.Rows([]string{"a-t0", "a-t1", "a-t2"}, func(id string) bool { return id != "a-t0" })
}

var expect = Expect{AppendPrefill: true, BytesPerBlock: 100}

func TestRowsThatHoldTogether(t *testing.T) {
	rs := rows(t, good)
	require.Empty(t, Check(rs, expect))
	require.Equal(t, 3, rs[0].Read.Blocks)
	require.True(t, rs[1].Hit())
	require.Equal(t, 48, rs[1].Admission.CachedTokens)
	require.True(t, rs[2].Fallback())
	require.Equal(t, "no_prefix", rs[2].Refusal.Reason)
	require.InDelta(t, 2.5, rs[2].FallbackMs, 0)

	var out bytes.Buffer
	require.NoError(t, Write(&out, rs))
	require.Equal(t, 3, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), `"kv_read":null`)
}

func TestEveryContradictionIsFound(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"no route line":        {`"event":"route","request_id":"a-t1"`, `"event":"route","request_id":"b-t1"`, "a-t1: the proxy wrote no route line"},
		"hit not admitted":     {`"event":"admit","request_id":"a-t1-local"`, `"event":"admit","request_id":"x"`, "a-t1: the hit has no scheduler admission"},
		"hit on nothing":       {`"cached_tokens":48`, `"cached_tokens":0`, "no cached token"},
		"hit as plain prefill": {`"route":"append"`, `"route":"local"`, `admitted as "local"`},
		"hit on nothing told":  {`"cached_tokens":48`, `"cached_tokens":0,"external_tokens":48`, "48 tokens from outside, of which a host tier restored 0"},
		"hit on another rank":  {`"a-t1-local","rank":1`, `"a-t1-local","rank":0`, "rank 0 admitted"},
		"hit that read KV":     {`"kv_read","request_id":"a-t2-d"`, `"kv_read","request_id":"a-t1-local"`, "a-t1: the hit read 5 blocks"},
		"miss with output":     {`"status":412,"output":0`, `"status":412,"output":3`, "the refused attempt had output"},
		"miss without refusal": {`"event":"refuse"`, `"event":"note"`, "no scheduler refusal"},
		"reasons differ":       {`"refused:no_prefix"`, `"refused:busy"`, `noted "refused:busy"`},
		"admitted and refused": {`"request_id":"a-t1-local","rank"`, `"request_id":"a-t2-local","rank"`, "a-t2: the refused attempt was admitted"},
		"two fallbacks":        {`{"leg":"p","request_id":"a-t2-p"`, `{"leg":"p","request_id":"q"},{"leg":"p","request_id":"a-t2-p"`, "2 p legs"},
		"failed read":          {`"bytes":500`, `"error":"lease lost","bytes":500`, "lease lost"},
		"bytes":                {`"bytes":500`, `"bytes":501`, "501 bytes were read for 5 blocks"},
		"hit that went to P":   {`"leg":"local","request_id":"a-t1-local"`, `"leg":"p","request_id":"a-t1-local"`, "1 p legs, not 0"},
		"unknown route":        {`"route":"local","decoder"`, `"route":"teleport","decoder"`, "teleport"},
		"first turn, no read":  {`"kv_read","request_id":"a-t0-d"`, `"kv_read","request_id":"x"`, "the first turn read no KV"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, good, tc.old)
			wrong := Check(rows(t, strings.Replace(good, tc.old, tc.new, 1)), expect)
			require.NotEmpty(t, wrong)
			require.Contains(t, strings.Join(wrong, "\n"), tc.want)
		})
	}
	wrong := Check(rows(t, good), Expect{BytesPerBlock: 100})
	require.Contains(t, strings.Join(wrong, "\n"), "only follow-ups with append-prefill")
}

// A hit may rest on what a host tier has brought back.
func TestAHitMayBeRestored(t *testing.T) {
	const restore = `{"event":"kv_restore","request_id":"a-t1-local","rank":1,"blocks":3,"bytes":300,"tokens":48}` + "\n"
	restored := restore + strings.Replace(good, `"cached_tokens":48`, `"cached_tokens":0,"external_tokens":48`, 1)
	require.NotEqual(t, restore+good, restored)
	require.Empty(t, Check(rows(t, restored), expect))
}

func TestHitsAndFallbacksAreTheFollowUps(t *testing.T) {
	plain := strings.Replace(good, `"route":"local","decoder":"h:1","rank":1,"reason":"hit","legs":[{"leg":"local","request_id":"a-t1-local","status":200,"output":4}]`,
		`"route":"pd","decoder":"h:1","rank":1,"reason":"no_owner","legs":[]`, 1)
	require.Contains(t, strings.Join(Check(rows(t, plain), expect), "\n"), "0 hits and 1 fallbacks are not the 2 follow-ups")
}

func TestTraceFilesWithBrokenLines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p.trace")
	require.NoError(t, os.WriteFile(path, []byte("{\"event\":\"note\"}\nnot json\n"), 0o600))
	_, err := ReadFiles(path)
	require.ErrorContains(t, err, "line 2")
	_, err = ReadFiles(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
