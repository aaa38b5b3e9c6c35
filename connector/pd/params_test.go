package pd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
)

const pullParams = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e1_dp0","remote_request_id":"cmpl-1-p",
"remote_host":"10.0.0.1","remote_port":5600,"remote_block_ids":[[3,4],[0,9]],"remote_block_size":16,"num_prompt_blocks":2,
"remote_num_tokens":30,"last_token_id":7,"remote_blocks_expiry_time":null,"transfer_mode":"pull","unknown":{"x":1},
"remote_lease":{"slot":5,"generation":2,"secret":"000102030405060708090a0b0c0d0e0f"}}`

func TestParamsRoundTrip(t *testing.T) {
	p, err := ParseParams([]byte(pullParams))
	require.NoError(t, err)
	last := 7
	require.Equal(t, &Params{
		DoRemotePrefill: true, EngineID: "e1_dp0", RequestID: "cmpl-1-p", Host: "10.0.0.1", Port: 5600,
		Blocks: [][]kvcache.BlockID{{3, 4}, {0, 9}}, BlockSize: 16, NumPrompt: 2, NumTokens: 30, LastToken: &last, Mode: "pull",
		Lease: Lease{Slot: 5, Generation: 2, Secret: Secret{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	}, p)
	raw, err := json.Marshal(p)
	require.NoError(t, err)
	again, err := ParseParams(raw)
	require.NoError(t, err)
	require.Equal(t, p, again)
	c := p.Clone()
	c.Blocks[0][0] = 99
	require.EqualValues(t, 3, p.Blocks[0][0], "a clone shares nothing")
}

func TestParamsOfTheRouter(t *testing.T) {
	p, err := ParseParams([]byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`))
	require.NoError(t, err)
	require.Equal(t, &Params{DoRemoteDecode: true}, p)
	p, err = ParseParams([]byte(`{"decoder_append_prefill":true,"do_remote_prefill":false,"do_remote_decode":false,"remote_eta_ms":12.5}`))
	require.NoError(t, err)
	require.True(t, p.AppendPrefill)
	require.Equal(t, 12.5, *p.ETAMillis)
	for _, none := range []string{"", "null", "  null\n"} {
		p, err = ParseParams([]byte(none))
		require.NoError(t, err)
		require.Nil(t, p)
	}
	flat, err := ParseParams([]byte(strings.Replace(pullParams, "[[3,4],[0,9]]", "[3,4]", 1)))
	require.NoError(t, err)
	require.Equal(t, [][]kvcache.BlockID{{3, 4}}, flat.Blocks)
}

func TestParamsErrorsSayWhatIsWrong(t *testing.T) {
	for in, want := range map[string]string{
		`[]`:                             "kv_transfer_params: want an object, got a list []",
		`"x"`:                            `kv_transfer_params: want an object, got a string "x"`,
		`{`:                              "kv_transfer_params: want an object, got malformed JSON",
		`{"do_remote_decode":"yes"}`:     `kv_transfer_params.do_remote_decode: want true or false, got a string "yes"`,
		`{"do_remote_decode":1}`:         "kv_transfer_params.do_remote_decode: want true or false, got a number 1",
		`{"remote_port":"5600"}`:         `kv_transfer_params.remote_port: want an integer, got a string "5600"`,
		`{"remote_port":5600.5}`:         "kv_transfer_params.remote_port: want an integer, got a number 5600.5",
		`{"remote_port":70000}`:          "kv_transfer_params.remote_port: want an integer from 1 to 65535, got 70000",
		`{"remote_host":["h"]}`:          `kv_transfer_params.remote_host: want a string, got a list ["h"]`,
		`{"remote_engine_id":5}`:         "kv_transfer_params.remote_engine_id: want a string, got a number 5",
		`{"remote_block_ids":"none"}`:    `kv_transfer_params.remote_block_ids: want a list of block ids per KV group, got a string "none"`,
		`{"remote_block_ids":[[1,"2"]]}`: `kv_transfer_params.remote_block_ids: want a list of block ids per KV group, got a list [[1,"2"]]`,
		`{"remote_block_ids":[[1,-2]]}`:  "kv_transfer_params.remote_block_ids: want a list of block ids per KV group, got block -2 in group 0",
		`{"remote_block_ids":[[1e12]]}`:  "kv_transfer_params.remote_block_ids: want a list of block ids per KV group, got a list [[1e12]]",
		`{"last_token_id":{}}`:           "kv_transfer_params.last_token_id: want an integer, got an object",
		`{"remote_eta_ms":true}`:         "kv_transfer_params.remote_eta_ms: want a number, got a boolean true",
		`{"remote_lease":"x"}`:           `kv_transfer_params.remote_lease: want an object {"slot","generation","secret"}, got a string "x"`,
		`{"do_virtual":true}`:            "kv_transfer_params.do_virtual: want false: KV that was not computed is never used, got true",
		`{"do_remote_prefill":true,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_block_ids":[[1]]}`: "kv_transfer_params.remote_lease: want a value, as do_remote_prefill is true, got none",
		strings.Replace(pullParams, `"pull"`, `"shove"`, 1):                                                          `kv_transfer_params.transfer_mode: want "pull" or "push", got "shove"`,
		`{"do_remote_prefill":true,"transfer_mode":"push","remote_engine_id":"e","remote_host":"h","remote_port":1}`: `kv_transfer_params.transfer_id: want a value, as transfer_mode is "push", got none`,
		strings.Replace(pullParams, `000102`, `zz0102`, 1):                                                           "kv_transfer_params.remote_lease: want",
	} {
		_, err := ParseParams([]byte(in))
		require.ErrorContains(t, err, want, "%s", in)
		var pe *ParamError
		require.ErrorAs(t, err, &pe)
	}
	_, err := ParseParams([]byte(`{"do_remote_prefill":true,"remote_port":"x"}`))
	require.ErrorContains(t, err, "remote_port")
	_, err = ParseParams([]byte(`{"do_remote_prefill":true}`))
	for _, f := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids", "remote_lease"} {
		require.ErrorContains(t, err, f, "all that lacks is named")
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	p, err := ParseParams([]byte(pullParams))
	require.NoError(t, err)
	require.Equal(t, "0001…", p.Lease.Secret.String())
}

func FuzzParseParams(f *testing.F) {
	f.Add([]byte(pullParams))
	f.Add([]byte(`{"remote_block_ids":[[1,2],[]],"last_token_id":-1}`))
	f.Add([]byte(`{"remote_engine_id":"0"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := ParseParams(raw)
		if err != nil || p == nil {
			return
		}
		out, err := json.Marshal(p)
		require.NoError(t, err)
		again, err := ParseParams(out)
		require.NoError(t, err, "%s", out)
		if p.EngineID != "" {
			require.Equal(t, p.Lease, again.Lease)
			require.Equal(t, len(p.Blocks), len(again.Blocks))
		}
	})
}

func TestUnitsOf(t *testing.T) {
	b := func(x ...kvcache.BlockID) []kvcache.BlockID { return x }
	for _, c := range []struct {
		name          string
		ours, theirs  []kvcache.BlockID
		local, remote []int32
	}{
		{"nothing", nil, nil, []int32{}, []int32{}},
		{"all", b(6, 5, 4), b(9, 11, 10), []int32{6, 5, 4}, []int32{9, 11, 10}},
		{"a hole", b(4, 5, 6), b(9, 0, 11), []int32{4, 6}, []int32{9, 11}},
		{"only holes", b(4, 5), b(0, 0), []int32{}, []int32{}},
		{"the peer names more", b(4), b(9, 10), []int32{4}, []int32{9}},
	} {
		require.Equal(t, transport.Blocks{Local: c.local, Remote: c.remote}, unitsOf(c.ours, c.theirs), c.name)
	}
}
