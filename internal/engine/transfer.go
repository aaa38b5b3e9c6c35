package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport/faulty"
	"github.com/sluice-serving/sluice/graphs"
)

// Role is the part that an engine plays in disaggregated serving.
type Role string

// The roles, by the names of the configuration.
const (
	RoleNone     Role = ""
	RoleProducer Role = "kv_producer"
	RoleConsumer Role = "kv_consumer"
	RoleBoth     Role = "kv_both"
)

// The connectors, by the names of the configuration. Each has the names of
// vLLM's connectors that do the same as aliases.
const (
	// ConnectorPD hands the KV of prompts from a prefiller to a decoder.
	ConnectorPD = "pd"
	// ConnectorOffload keeps KV of preempted requests and finished turns in host
	// memory, and of turns in files.
	ConnectorOffload = "offload"
	// ConnectorMulti combines others, in the order of kv_connector_extra_config.connectors.
	ConnectorMulti = "multi"
)

// aliases are the names that configurations of vLLM and vllm-ascend use.
var aliases = map[string]string{
	"MultiConnector": ConnectorMulti, "AscendMultiConnector": ConnectorMulti,
	"PreemptOffloadConnector": ConnectorOffload, "RecomputeCPUOffloadConnector": ConnectorOffload,
}

// The transports of the pd connector.
const (
	TransportTCP      = "tcp"
	TransportUCX      = "ucx"
	TransportMooncake = "mooncake"
)

// Whether the pd connector moves device memory by the device where both engines
// are on one host.
const (
	DeviceIPCAuto = "auto" // where it can
	DeviceIPCOff  = "off"
)

var transports = []string{TransportTCP, TransportUCX, TransportMooncake}

// KVTransfer is the value of --kv-transfer-config; the member names are vLLM's.
// Members that this engine has no use for are accepted where they are known.
type KVTransfer struct {
	Connector    string          `json:"kv_connector"`
	Role         Role            `json:"kv_role"`
	EngineID     string          `json:"engine_id"`
	IP           string          `json:"kv_ip"`   // address that peers are told; default 127.0.0.1
	Port         int             `json:"kv_port"` // as Config.KVPort, which wins
	LoadFailure  string          `json:"kv_load_failure_policy"`
	Extra        ConnectorExtra  `json:"kv_connector_extra_config"`
	BufferDevice json.RawMessage `json:"kv_buffer_device"`
	BufferSize   json.RawMessage `json:"kv_buffer_size"`
	Rank         json.RawMessage `json:"kv_rank"`
	ParallelSize json.RawMessage `json:"kv_parallel_size"`
	ModulePath   json.RawMessage `json:"kv_connector_module_path"`
	PermuteLocal json.RawMessage `json:"enable_permute_local_kv"`
}

// ConnectorExtra is kv_connector_extra_config. Each member belongs to one
// connector; with another one it is an error.
type ConnectorExtra struct {
	Connectors []KVTransfer `json:"connectors"` // of multi, in the order in which they are asked

	// Of pd.
	LeaseSeconds  float64   `json:"kv_lease_duration"`      // how long a prefiller keeps blocks unasked; default 30
	LoadSeconds   float64   `json:"kv_load_timeout"`        // deadline of a load; default 60
	Transport     string    `json:"transport"`              // tcp, the default, ucx or mooncake
	Peers         []string  `json:"kv_peers"`               // from whom KV is taken; see pd.ParsePeers
	TLS           *TLSFiles `json:"tls"`                    // nil: none
	Bidirectional bool      `json:"bidirectional_kv_xfer"`  // a decoder keeps its turns' blocks for the next prefiller
	MinReverse    int       `json:"kv_recompute_threshold"` // fewer tokens are computed rather than read back; default 64
	ReverseBlocks int       `json:"kv_offer_blocks"`        // blocks that a decoder keeps so; default half the pool
	DeviceIPC     string    `json:"device_ipc"`             // auto, the default: device memory moves by the device within a host; off: never
	Faults        string    `json:"transport_faults"`       // script of package faulty, for tests
	FaultSeed     uint64    `json:"transport_fault_seed"`

	// Of offload. Of the first three the first that is set counts.
	HostBytesPerRank int64   `json:"cpu_bytes_to_use_per_rank"`
	HostBytes        int64   `json:"cpu_bytes_to_use"`              // of all ranks together
	HostRatio        float64 `json:"offload_host_memory_ratio"`     // host blocks per device block; default 1
	ShareTurns       bool    `json:"enable_offload_prefix_caching"` // keep finished turns too
	Eviction         string  `json:"eviction_policy"`               // lru, the default, or arc
	DeviceCopies     string  `json:"device_copies"`                 // auto, the default, staged, direct, engine or pieces; see offload.Way
	FileDir          string  `json:"file_path"`                     // folder of the file tier; empty: none
	FileBytes        int64   `json:"file_bytes"`                    // its greatest size per rank
	FileFullEvery    int     `json:"file_full_every"`               // every n-th file fails as on a full disk, for tests
}

// TLSFiles name PEM files for mutual TLS between engines.
type TLSFiles struct {
	Cert string `json:"cert"` // certificate of this engine; it names kv_ip
	Key  string `json:"key"`
	CA   string `json:"ca"` // authority that has signed the peers' certificates
}

// ParseKVTransfer reads the value of --kv-transfer-config. Unknown members are errors.
func ParseKVTransfer(s string) (KVTransfer, error) {
	var k KVTransfer
	err := parseStrict("kv-transfer-config", s, &k)
	return k, err
}

// kind is the connector's name without aliases.
func (k KVTransfer) kind() string {
	if name, ok := aliases[k.Connector]; ok {
		return name
	}
	return k.Connector
}

// parts are the connectors that do the work, in their order: those inside
// multi, or the one. Members that only the outer configuration gives hold for
// all of them.
func (k KVTransfer) parts() []KVTransfer {
	switch k.kind() {
	case "":
		return nil
	case ConnectorMulti:
	default:
		return []KVTransfer{k}
	}
	out := slices.Clone(k.Extra.Connectors)
	for i := range out {
		c := &out[i]
		if c.Role == RoleNone {
			c.Role = k.Role
		}
		if c.IP == "" {
			c.IP = k.IP
		}
		if c.Port == 0 {
			c.Port = k.Port
		}
	}
	return out
}

// graphs is what the classification of steps asks of it: the role, and which
// connectors there are.
func (k KVTransfer) graphs() graphs.KVTransfer {
	role, _ := graphs.ParseKVRole(string(k.Role)) // validate has seen it
	out := graphs.KVTransfer{Role: role, Connector: k.kind()}
	if k.kind() == ConnectorMulti {
		for _, c := range k.parts() {
			out.Nested = append(out.Nested, graphs.KVTransfer{Role: role, Connector: c.kind()})
		}
	}
	return out
}

// part is the connector of that kind, nil if there is none.
func (k KVTransfer) part(kind string) *KVTransfer {
	for _, c := range k.parts() {
		if c.kind() == kind {
			return &c
		}
	}
	return nil
}

// deviceIPC says whether device memory may be opened to engines of this host.
func (k KVTransfer) deviceIPC() bool {
	p := k.part(ConnectorPD)
	return p != nil && p.Extra.DeviceIPC != DeviceIPCOff
}

func (k KVTransfer) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kv-transfer-config: "+format, args...))
	}
	switch k.Role {
	case RoleNone:
		if k.Connector != "" {
			bad("kv_role is missing; a connector needs one of %s, %s, %s", RoleProducer, RoleConsumer, RoleBoth)
		}
	case RoleProducer, RoleConsumer, RoleBoth:
		if k.Connector == "" {
			bad("kv_role %q needs a kv_connector", k.Role)
		}
	default:
		bad("unknown kv_role %q (one of %s, %s, %s)", k.Role, RoleProducer, RoleConsumer, RoleBoth)
	}
	switch k.LoadFailure {
	case "", "fail", "recompute":
	default:
		bad("unknown kv_load_failure_policy %q (fail or recompute)", k.LoadFailure)
	}
	if k.kind() == ConnectorMulti && len(k.Extra.Connectors) == 0 {
		bad("%s needs kv_connector_extra_config.connectors, a list of at least one", k.Connector)
	}
	seen := map[string]bool{}
	for _, c := range k.parts() {
		switch kind := c.kind(); {
		case kind == ConnectorMulti:
			bad("a %s inside a %s: list its connectors in the outer one", ConnectorMulti, ConnectorMulti)
			continue
		case kind != ConnectorPD && kind != ConnectorOffload:
			bad("unknown kv_connector %q (known: %s, %s, %s)", c.Connector, ConnectorPD, ConnectorOffload, ConnectorMulti)
			continue
		case seen[kind]:
			bad("two connectors of kind %s", kind)
		case kind == ConnectorPD && c.Role != k.Role:
			bad("kv_role of %s is %q, that of the engine %q; they must be equal", c.Connector, c.Role, k.Role)
		default:
			seen[kind] = true
		}
		if c.LoadFailure != "" && c.LoadFailure != k.LoadFailure {
			bad("kv_load_failure_policy belongs to the outer connector, not to %s", c.Connector)
		}
		c.Extra.validate(c.kind(), bad)
	}
	if k.Connector != "" && k.Role != RoleBoth && !seen[ConnectorPD] && len(errs) == 0 {
		bad("kv_role %q needs the connector %s, itself or in a %s; %s alone has the role %s", k.Role, ConnectorPD, ConnectorMulti, ConnectorOffload, RoleBoth)
	}
	if k.kind() == ConnectorMulti {
		if m := k.Extra.members(); len(m) > 1 || len(m) == 1 && m[0] != "connectors" {
			bad("%s takes kv_connector_extra_config.connectors alone, not %s", k.Connector, strings.Join(m, ", "))
		}
	}
	return errors.Join(errs...)
}

// members are the names of the members that are set.
func (x ConnectorExtra) members() []string {
	var out []string
	for _, m := range []struct {
		name string
		set  bool
	}{
		{"connectors", x.Connectors != nil},
		{"kv_lease_duration", x.LeaseSeconds != 0}, {"kv_load_timeout", x.LoadSeconds != 0}, {"transport", x.Transport != ""},
		{"kv_peers", x.Peers != nil}, {"tls", x.TLS != nil}, {"bidirectional_kv_xfer", x.Bidirectional},
		{"kv_recompute_threshold", x.MinReverse != 0}, {"kv_offer_blocks", x.ReverseBlocks != 0},
		{"device_ipc", x.DeviceIPC != ""}, {"transport_faults", x.Faults != ""}, {"transport_fault_seed", x.FaultSeed != 0},
		{"cpu_bytes_to_use_per_rank", x.HostBytesPerRank != 0}, {"cpu_bytes_to_use", x.HostBytes != 0},
		{"offload_host_memory_ratio", x.HostRatio != 0}, {"enable_offload_prefix_caching", x.ShareTurns},
		{"eviction_policy", x.Eviction != ""}, {"device_copies", x.DeviceCopies != ""}, {"file_path", x.FileDir != ""}, {"file_bytes", x.FileBytes != 0}, {"file_full_every", x.FileFullEvery != 0},
	} {
		if m.set {
			out = append(out, m.name)
		}
	}
	return out
}

// ofPD are the members of pd; all others but connectors are of offload.
var ofPD = []string{
	"kv_lease_duration", "kv_load_timeout", "transport", "kv_peers", "tls", "bidirectional_kv_xfer",
	"kv_recompute_threshold", "kv_offer_blocks", "device_ipc", "transport_faults", "transport_fault_seed",
}

// validate reports what is wrong for a connector of that kind.
func (x ConnectorExtra) validate(kind string, bad func(string, ...any)) {
	for _, m := range x.members() {
		if m == "connectors" || slices.Contains(ofPD, m) != (kind == ConnectorPD) {
			bad("%s is not a member of the connector %s", m, kind)
		}
	}
	if x.LeaseSeconds < 0 || x.LoadSeconds < 0 {
		bad("kv_lease_duration is %v s and kv_load_timeout %v s, must not be negative", x.LeaseSeconds, x.LoadSeconds)
	}
	if x.Transport != "" && !slices.Contains(transports, x.Transport) {
		bad("unknown transport %q (one of %s)", x.Transport, strings.Join(transports, ", "))
	}
	if d := x.DeviceIPC; d != "" && d != DeviceIPCAuto && d != DeviceIPCOff {
		bad("unknown device_ipc %q (one of %s, %s)", d, DeviceIPCAuto, DeviceIPCOff)
	}
	if _, err := pd.ParsePeers(x.Peers); err != nil {
		bad("kv_peers: %v", err)
	}
	if t := x.TLS; t != nil && (t.Cert == "" || t.Key == "" || t.CA == "") {
		bad("tls needs the files cert, key and ca")
	}
	if x.MinReverse < 0 || x.ReverseBlocks < 0 {
		bad("kv_recompute_threshold is %d and kv_offer_blocks %d, must not be negative", x.MinReverse, x.ReverseBlocks)
	}
	if _, err := faulty.Parse(x.Faults, x.FaultSeed); err != nil {
		bad("transport_faults: %v", err)
	}
	if x.HostBytesPerRank < 0 || x.HostBytes < 0 || x.HostRatio < 0 || math.IsNaN(x.HostRatio) || math.IsInf(x.HostRatio, 0) {
		bad("cpu_bytes_to_use_per_rank %d, cpu_bytes_to_use %d and offload_host_memory_ratio %v must be above 0 and finite", x.HostBytesPerRank, x.HostBytes, x.HostRatio)
	}
	if _, err := offload.ParsePolicy(x.Eviction); err != nil {
		bad("eviction_policy: %v", err)
	}
	if _, err := offload.ParseWay(x.DeviceCopies); err != nil {
		bad("device_copies: %v", err)
	}
	if x.FileDir != "" && x.FileBytes <= 0 {
		bad("file_path needs file_bytes, the greatest size of the files of one rank, above 0")
	}
	if x.FileFullEvery < 0 {
		bad("file_full_every is %d, must not be negative", x.FileFullEvery)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
