package demo

import (
	"time"

	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/up"
)

// Params says what is run and what must come out.
type Params struct {
	Conversations workload.Conversations
	Cluster       up.Cluster
	Alone         up.Engine // the engine without any cache
	Dir           string    // for logs, traces, the join files and the report
	Model         string    // that requests name

	ServiceTime time.Duration // that the workload's times suppose for one first prompt at the Prefiller

	HitShare     float64 // least share of follow-ups that must hit
	MinFallbacks int
	MaxMemory    int64 // bytes of all processes together
}

// Default is the run of `make run`: sized so that the Prefiller is the
// bottleneck, and that a session that pauses for long finds its KV evicted.
// A session occupies about 165 blocks at its end, so a rank of the Decoder
// holds a little over four; between the second turn of a session with a long
// pause and its third, about twelve others pass over the same rank.
func Default() Params {
	return Params{
		Conversations: workload.Conversations{
			Name: "append-prefill-demo", Seed: 20261123, Content: workload.Text,
			Sessions: 30, Turns: 3, First: workload.Range{Low: 2200, High: 2600}, Next: workload.Range{Low: 30, High: 60},
			Arrival: 7 * time.Second, Think: 200 * time.Millisecond, MaxTokens: 32,
			LongPauses: 10, LongPause: 8 * time.Second, LongTurn: 2,
		},
		Cluster: up.Cluster{
			Port:      9000,
			Prefiller: up.Engine{Caching: up.NoCaching, MaxSeqs: 1, StepLimit: 512, MaxLen: 4096, Workers: 1},
			Decoder:   up.Engine{Ranks: 2, Blocks: 720, MaxSeqs: 16, StepLimit: 256, MaxLen: 4096, Workers: 1, Extra: []string{"--enable-kv-noise"}},
		},
		Alone:        up.Engine{Caching: up.NoCaching, Blocks: 4096, MaxSeqs: 16, StepLimit: 512, MaxLen: 4096},
		Model:        "builtin",
		ServiceTime:  200 * time.Millisecond,
		HitShare:     0.6,
		MinFallbacks: 2,
		MaxMemory:    1 << 30,
	}
}

// arm is one run of the workload.
type arm struct {
	name      string
	title     string
	routing   up.Routing
	prefiller up.Caching
}

// The arms in the order in which they run. The first is the baseline.
var arms = []arm{
	{"pd", "ordinary P/D", up.OrdinaryPD, up.NoCaching},
	{"append", "append-prefill", up.AppendPrefill, up.NoCaching},
	{"pd_p_cache", "P/D, P reuses prefixes", up.OrdinaryPD, up.PrefixCaching},
}

// The places of the arms that are compared.
const (
	baseline = 0
	feature  = 1
)
