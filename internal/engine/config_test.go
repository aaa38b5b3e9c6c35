package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseConfigs(t *testing.T) {
	k, err := ParseKVTransfer(`{"kv_connector":"pd","kv_role":"kv_consumer","engine_id":"d","kv_ip":"127.0.0.1","kv_port":14579,
		"kv_buffer_size":1e9,"kv_rank":null,"kv_parallel_size":1,"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"kv_lease_duration":12.5}}`)
	require.NoError(t, err)
	require.Equal(t, RoleConsumer, k.Role)
	require.Equal(t, 12.5, k.Extra.LeaseSeconds)
	a, err := ParseAdditional(`{"scheduler_config":{"decoder_append_prefill_enable":true,"recompute_scheduler_enable":true}}`)
	require.NoError(t, err)
	require.Equal(t, Additional{Scheduler: SchedulerOptions{DecoderAppendPrefill: true, Recompute: true}}, a)
	require.NoError(t, Config{KVTransfer: k, Additional: a}.Validate())
	a, err = ParseAdditional("")
	require.NoError(t, err)
	require.Zero(t, a)
	for _, bad := range []string{
		`{"scheduler_config":{"decoder_append_prefil_enable":true}}`, `{"sheduler_config":{}}`, `{"scheduler_config":{"decoder_append_prefill_enable":"yes"}}`,
		`{"scheduler_config":{"decoder_append_prefill_enable":1}}`, `{"scheduler_config":[]}`, `{`, `{} {}`, `5`,
	} {
		_, err := ParseAdditional(bad)
		require.ErrorContains(t, err, "additional-config", bad)
	}
	_, err = ParseKVTransfer(`{"kv_conector":"pd"}`)
	require.ErrorContains(t, err, `kv-transfer-config: json: unknown field "kv_conector"`)
}

func TestValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	appends := Additional{Scheduler: SchedulerOptions{DecoderAppendPrefill: true}}
	role := func(r Role) KVTransfer { return KVTransfer{Connector: ConnectorPD, Role: r} }
	for text, c := range map[string]Config{
		"unknown model":                          {Model: "llama"},
		"unknown device":                         {Device: "tpu"},
		"block-size is -1":                       {BlockSize: -1},
		"num-kv-blocks is -5":                    {KVBlocks: -5},
		"max-num-seqs is 100000":                 {MaxSeqs: 100000},
		"max-model-len is 9000":                  {MaxModelLen: 9000},
		"data-parallel-size is 300":              {DataParallel: 300},
		"kv-port is 70000":                       {KVPort: 70000},
		"global-cache-hit-threshold is 2":        {CacheHitThreshold: 2},
		"drain-timeout is -1ns":                  {DrainTimeout: -1},
		`unknown kv_connector "Nixl"`:            {KVTransfer: KVTransfer{Connector: "Nixl", Role: RoleBoth}},
		"kv_role is missing":                     {KVTransfer: KVTransfer{Connector: ConnectorPD}},
		`unknown kv_role "kv_x"`:                 {KVTransfer: role("kv_x")},
		"needs a kv_connector":                   {KVTransfer: KVTransfer{Role: RoleConsumer}},
		"unknown kv_load_failure_policy":         {KVTransfer: KVTransfer{LoadFailure: "ignore"}},
		`needs kv_role kv_consumer, not ""`:      {Additional: appends},
		`needs kv_role kv_consumer, not "kv`:     {Additional: appends, KVTransfer: role(RoleBoth)},
		"needs prefix caching":                   {Additional: appends, KVTransfer: role(RoleConsumer), NoPrefix: true},
		"unknown decoder_append_prefill_profile": {Additional: Additional{Scheduler: SchedulerOptions{AppendProfile: "bold"}}},
		"recompute_scheduler_enable needs":       {Additional: Additional{Scheduler: SchedulerOptions{Recompute: true}}},
	} {
		require.ErrorContains(t, c.Validate(), text)
	}
	producer := Config{Additional: appends, KVTransfer: role(RoleProducer), NoPrefix: true}
	require.NoError(t, producer.Validate())
	require.NotEmpty(t, producer.Warnings(), "on a prefiller the switch has no effect, and that is said")
	require.False(t, producer.appendPrefill())
	require.Len(t, Config{Model: "x", Device: "y", BlockSize: -1}.Validate().(interface{ Unwrap() []error }).Unwrap(), 3, "all faults at once")
}

func TestAppendRefusalNames(t *testing.T) {
	for _, r := range []AppendRefusal{RefuseStatus, RefuseInBand} {
		got, err := ParseAppendRefusal(r.String())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	_, err := ParseAppendRefusal("200")
	require.Error(t, err)
}
