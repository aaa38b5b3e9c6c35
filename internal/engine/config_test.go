package engine

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/internal/engine/executor"
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
	require.ErrorContains(t, err, `kv-transfer-config: there is no member "kv_conector"; did you mean "kv_connector"?`)
}

func TestValidate(t *testing.T) {
	require.NoError(t, Config{}.Validate())
	require.NoError(t, Config{KVBlocks: 10, MaxModelLen: 80, BlockSize: 8, StepLines: -1, DumpDir: t.TempDir()}.Validate())
	appends := Additional{Scheduler: SchedulerOptions{DecoderAppendPrefill: true}}
	role := func(r Role) KVTransfer { return KVTransfer{Connector: ConnectorPD, Role: r} }
	for text, c := range map[string]Config{
		"unknown model":           {Model: "llama"},
		`device "tpu": there are`: {Device: "tpu"},
		"block-size is -1":        {BlockSize: -1},
		"num-kv-blocks is -5":     {KVBlocks: -5},
		"num-kv-blocks is 1, must be at least 256: what one sequence of max-model-len 4096 takes in blocks of 16": {KVBlocks: 1},
		"num-kv-blocks is 9, must be at least 10":                   {KVBlocks: 9, MaxModelLen: 73, BlockSize: 8},
		"num-kv-blocks is 2048, must be at least 4096":              {BlockSize: 1},
		"step-lines is -5, must be within -1 to":                    {StepLines: -5},
		"step-lines is 2000000":                                     {StepLines: 2000000},
		"watermark is 1, must be at least 0 and below 1":            {Watermark: 1},
		"watermark is NaN":                                          {Watermark: math.NaN()},
		"dump-dir is /no/such/folder, must be a folder that exists": {DumpDir: "/no/such/folder"},
		"dump-dir is config.go, must be a folder that exists":       {DumpDir: "config.go"},
		"max-num-seqs is 100000":                                    {MaxSeqs: 100000},
		"max-model-len is 9000":                                     {MaxModelLen: 9000},
		"data-parallel-size is 300":                                 {DataParallel: 300},
		"kv-port is 70000":                                          {KVPort: 70000},
		"global-cache-hit-threshold is 2":                           {CacheHitThreshold: 2},
		"drain-timeout is -1ns":                                     {DrainTimeout: -1},
		`unknown kv_connector "Nixl"`:                               {KVTransfer: KVTransfer{Connector: "Nixl", Role: RoleBoth}},
		"kv_role is missing":                                        {KVTransfer: KVTransfer{Connector: ConnectorPD}},
		`unknown kv_role "kv_x"`:                                    {KVTransfer: role("kv_x")},
		"needs a kv_connector":                                      {KVTransfer: KVTransfer{Role: RoleConsumer}},
		"unknown kv_load_failure_policy":                            {KVTransfer: KVTransfer{LoadFailure: "ignore"}},
		`needs kv_role kv_consumer, not ""`:                         {Additional: appends},
		`needs kv_role kv_consumer, not "kv`:                        {Additional: appends, KVTransfer: role(RoleBoth)},
		`unknown dtype "fp8"`:                                       {DType: "fp8"},
		"block-size is 64, must be 128":                             {Device: "ascend", BlockSize: 64},
		"attention on Ascend takes bfloat16":                        {Device: "ascend:1", DType: "float32"},
		"needs prefix caching":                                      {Additional: appends, KVTransfer: role(RoleConsumer), NoPrefix: true},
		"unknown decoder_append_prefill_profile":                    {Additional: Additional{Scheduler: SchedulerOptions{AppendProfile: "bold"}}},
		"recompute_scheduler_enable needs":                          {Additional: Additional{Scheduler: SchedulerOptions{Recompute: true}}},
	} {
		require.ErrorContains(t, c.Validate(), text)
	}
	for _, c := range []struct {
		cfg   Config
		block int
		typ   ascendrt.DType
	}{
		{Config{}, 16, ascendrt.Float32}, {Config{DType: "bfloat16"}, 16, ascendrt.BFloat16},
		{Config{Device: "ascend:3"}, 128, ascendrt.BFloat16}, {Config{Device: "cuda"}, 16, ascendrt.BFloat16},
		{Config{Device: "cuda", DType: "float32", BlockSize: 32}, 32, ascendrt.Float32},
	} {
		d := c.cfg.withDefaults()
		require.Equal(t, c.block, d.BlockSize)
		require.Equal(t, c.typ, d.storage())
	}
	for _, c := range []struct {
		cfg  Config
		ops  executor.Ops
		warn int
	}{
		{Config{}, executor.OpsFused, 0}, {Config{BatchInvariant: true}, executor.OpsPerRow, 0}, {Config{NamedOperations: true}, executor.OpsNamed, 0},
		{Config{BatchInvariant: true, NamedOperations: true}, executor.OpsNamed, 1},
	} {
		require.NoError(t, c.cfg.Validate())
		require.Equal(t, c.ops, c.cfg.ops())
		require.Len(t, c.cfg.withDefaults().Warnings(), c.warn)
	}
	producer := Config{Additional: appends, KVTransfer: role(RoleProducer), NoPrefix: true}
	require.NoError(t, producer.Validate())
	require.NotEmpty(t, producer.Warnings(), "on a prefiller the switch has no effect, and that is said")
	require.False(t, producer.appendPrefill())
	require.Len(t, Config{Model: "x", Device: "y", BlockSize: -1}.Validate().(interface{ Unwrap() []error }).Unwrap(), 3, "all faults at once")
}

func TestTransferConfigs(t *testing.T) {
	read := func(s string) (KVTransfer, error) {
		k, err := ParseKVTransfer(s)
		if err != nil {
			return k, err
		}
		return k, Config{KVTransfer: k}.Validate()
	}
	k, err := read(`{"kv_connector":"MultiConnector","kv_role":"kv_consumer","kv_ip":"10.0.0.1","kv_port":9000,"kv_connector_extra_config":{"connectors":[
		{"kv_connector":"PreemptOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":1000,"enable_offload_prefix_caching":true,"file_path":"/x","file_bytes":5,"device_copies":"engine"}},
		{"kv_connector":"pd","kv_role":"kv_consumer","kv_connector_extra_config":{"kv_peers":["10.0.0.0/8"],"transport":"tcp","bidirectional_kv_xfer":true,"tls":{"cert":"a","key":"b","ca":"c"}}}]}}`)
	require.NoError(t, err)
	require.Len(t, k.parts(), 2)
	require.Equal(t, "10.0.0.1", k.part(ConnectorPD).IP, "what the outer configuration says holds for all")
	require.EqualValues(t, 1000, k.part(ConnectorOffload).Extra.HostBytes)
	require.Nil(t, KVTransfer{}.part(ConnectorPD))
	pdWith := func(extra string) string {
		return `{"kv_connector":"pd","kv_role":"kv_consumer","kv_connector_extra_config":{` + extra + `}}`
	}
	offloadWith := func(extra string) string {
		return `{"kv_connector":"offload","kv_role":"kv_both","kv_connector_extra_config":{` + extra + `}}`
	}
	multiOf := func(list string) string {
		return `{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[` + list + `]}}`
	}
	for s, text := range map[string]string{
		pdWith(`"transport":"rdma"`):                                      `unknown transport "rdma" (one of tcp, ucx, mooncake)`,
		pdWith(`"kv_peers":["10.0.0.0/99"]`):                              "kv_peers: peer",
		pdWith(`"tls":{"cert":"a"}`):                                      "tls needs the files cert, key and ca",
		pdWith(`"transport":"ucx","tls":{"cert":"a","key":"b","ca":"c"}`): "tls needs the transport tcp",
		pdWith(`"transport_faults":"read?2 fly"`):                         "transport_faults",
		pdWith(`"cpu_bytes_to_use":5`):                                    "cpu_bytes_to_use is not a member of the connector pd",
		pdWith(`"kv_lease_duration":-1`):                                  "must not be negative",
		pdWith(`"connectors":[]`):                                         "connectors is not a member of the connector pd",
		offloadWith(`"kv_peers":["x"]`):                                   "kv_peers is not a member of the connector offload",
		offloadWith(`"cpu_bytes_to_use":-5`):                              "must be above 0",
		offloadWith(`"offload_host_memory_ratio":-1`):                     "must be above 0",
		offloadWith(`"eviction_policy":"mru"`):                            "eviction_policy",
		offloadWith(`"device_copies":"fast"`):                             `device_copies: offload: "fast" is no way to copy; there are auto, staged`,
		pdWith(`"device_copies":"engine"`):                                "device_copies is not a member of the connector pd",
		offloadWith(`"file_bytes":5`):                                     "needs a file_path",
		offloadWith(`"file_path":"/x"`):                                   "file_path needs file_bytes",
		offloadWith(`"file_path":"/x","file_bytes":9`):                    "needs enable_offload_prefix_caching",
		offloadWith(`"file_path":"/x","file_bytes":9,"enable_offload_prefix_caching":true,"file_full_every":-1`): "file_full_every",
		`{"kv_connector":"offload","kv_role":"kv_consumer"}`:                                                     "needs the connector pd",
		multiOf(``):                           "a list of at least one",
		multiOf(`{"kv_connector":"offload"}`): "needs the connector pd",
		multiOf(`{"kv_connector":"pd"},{"kv_connector":"pd"}`):           "two connectors of kind pd",
		multiOf(`{"kv_connector":"multi"}`):                              "a multi inside a multi",
		multiOf(`{"kv_connector":"Nixl"}`):                               `unknown kv_connector "Nixl"`,
		multiOf(`{"kv_connector":"pd","kv_role":"kv_producer"}`):         "they must be equal",
		multiOf(`{"kv_connector":"pd","kv_load_failure_policy":"fail"}`): "belongs to the outer connector",
		`{"kv_connector":"multi","kv_role":"kv_consumer","kv_connector_extra_config":{"transport":"tcp","connectors":[{"kv_connector":"pd"}]}}`: "takes kv_connector_extra_config.connectors alone",
	} {
		_, err := read(s)
		require.ErrorContains(t, err, text, s)
	}
	require.ErrorContains(t, Config{Runner: 3}.Validate(), "model-runner is 3")
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
