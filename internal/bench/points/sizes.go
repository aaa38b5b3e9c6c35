package points

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-serving/sluice/internal/up"
)

// BlockSize is the tokens of a KV block of these engines.
const BlockSize = 64

// setup is the engines that a point needs, but for the kind of its Decoder:
// points with one setup share their engines.
type setup struct {
	table, model string
	prompt       int // of append-prefill

	Sizes
	together int // Decoders that run at a time, at most
	length   int // of a prompt with its output
}

// memory is what fits beside the weights of a model, in tokens of KV: one
// device for Prefiller and Decoders, or one for each.
type memory struct {
	prefiller, decoder int // of tails
	together           int
	appendPrefiller    int // of append-prefill, whose Decoder's pool is given
	quarter, whole     int // Decoders that fit beside each other with prompts of a quarter and of the whole length
}

// memories are chosen for devices of 141 GB.
var memories = map[string][2]memory{ // by model: one device, two
	Qwen: {
		{prefiller: 160_000, decoder: 120_000, together: 5, appendPrefiller: 160_000, quarter: 4, whole: 2},
		{prefiller: 400_000, decoder: 160_000, together: 5, appendPrefiller: 400_000, quarter: 4, whole: 4},
	},
	Llama: {
		{prefiller: 100_000, decoder: 220_000, together: 2, appendPrefiller: 100_000, quarter: 3, whole: 1},
		{prefiller: 300_000, decoder: 300_000, together: 2, appendPrefiller: 300_000, quarter: 4, whole: 2},
	},
}

// other is for models that are there to try the presets out.
var other = memory{prefiller: 32_768, decoder: 32_768, together: 5, appendPrefiller: 32_768, quarter: 4, whole: 4}

// The Decoder's pool in the published run's simulation, in tokens: 920 blocks
// of 128 tokens on each of two ranks. There is one rank here, with both.
const publishedPool = 2 * 920 * 128

// setupOf sizes the engines of a point.
func (o *Options) setupOf(p *Point) setup {
	m := other
	if of, ok := memories[p.Model]; ok {
		m = of[0]
		if o.PrefillerDevice != o.DecoderDevice {
			m = of[1]
		}
	}
	s := setup{table: p.Table, model: p.Model, Sizes: Sizes{Seqs: 128, PrefillerStep: 8192, DecoderStep: 2048}, length: 4096}
	if memories[p.Model] != ([2]memory{}) {
		s.length = 8192
	}
	s.PrefillerTokens, s.DecoderTokens, s.together = m.prefiller, m.decoder, m.together
	if p.Table == AppendPrefill {
		s.prompt = p.Prompt
		s.Seqs, s.PrefillerStep = 64, max(p.Prompt, 64)
		s.PrefillerTokens, s.together = m.appendPrefiller, m.quarter
		if p.Prompt > publishedLength/2 {
			s.together, s.length = m.whole, 16384
		}
		s.Quiet = 2 * p.Output // others' answers and some that come meanwhile
		s.DecoderTokens = publishedPool * p.Prompt / publishedLength
		s.Host = 8 << 30 * int64(max(p.Prompt, publishedLength/4)) / (publishedLength / 4)
		if _, known := memories[p.Model]; !known {
			s.Host = 64 << 20
		}
	}
	if o.PrefillerTokens > 0 {
		s.PrefillerTokens = o.PrefillerTokens
	}
	if o.DecoderTokens > 0 {
		s.DecoderTokens = o.DecoderTokens
	}
	return s
}

// longest is the longest sequence of an engine whose pool has that many tokens:
// an engine wants room for one.
func (s *setup) longest(pool int) int { return min(s.length, pool/BlockSize*BlockSize) }

// cluster is the engines of a setup with a Decoder of the given kind.
func (o *Options) cluster(s *setup, variant string) up.Cluster {
	c := up.Cluster{
		Model: s.model,
		Prefiller: up.Engine{
			Device: o.PrefillerDevice, Caching: up.NoCaching, Blocks: s.PrefillerTokens / BlockSize, BlockSize: BlockSize, MaxSeqs: 64,
			StepLimit: s.PrefillerStep, MaxLen: s.longest(s.PrefillerTokens), Workers: o.Workers, Extra: []string{"--enforce-eager"},
			Transfer: transfer("kv_producer", o.Extra, 0),
		},
		Decoder: up.Engine{
			Device: o.DecoderDevice, Blocks: s.DecoderTokens / BlockSize, BlockSize: BlockSize, MaxSeqs: s.Seqs,
			StepLimit: s.DecoderStep, MaxLen: s.longest(s.DecoderTokens), Workers: o.Workers, Transfer: transfer("kv_consumer", o.Extra, 0),
		},
	}
	flags := strings.Fields(o.Flags)
	c.Prefiller.Extra = append(c.Prefiller.Extra, flags...)
	c.Decoder.Extra = append(c.Decoder.Extra, flags...)
	if s.table == Tails {
		c.Profile = up.NoAppend
		c.Decoder.Extra = append(c.Decoder.Extra, "--graph-policy", variant)
		return c
	}
	c.TraceDir = o.Dir
	c.Profile, c.Guards = "guarded", fmt.Sprintf(`{"quiet_steps":%d}`, s.Quiet)
	switch variant {
	case ArmPlain:
		c.Profile, c.Guards = "plain", ""
	case ArmTier:
		c.Decoder.Transfer = transfer("kv_consumer", o.Extra, s.Host)
	case ArmNoGovernor:
		c.Guards = `{"governor":false,"compare_remote_eta":false}` // the comparison asks the governor what an attempt takes
	}
	return c
}

// connector is a --kv-transfer-config.
type connector struct {
	Connector string          `json:"kv_connector"`
	Role      string          `json:"kv_role,omitempty"`
	Extra     json.RawMessage `json:"kv_connector_extra_config,omitempty"`
}

// transfer is the connector of an engine: the one for P/D, beside a host tier if
// it has bytes.
func transfer(role, extra string, host int64) string {
	pd := connector{Connector: "pd", Role: role, Extra: json.RawMessage(extra)}
	if host == 0 {
		return encode(pd)
	}
	pd.Role = ""
	tier := connector{Connector: "offload", Extra: json.RawMessage(fmt.Sprintf(`{"cpu_bytes_to_use":%d,"enable_offload_prefix_caching":true}`, host))}
	return encode(connector{Connector: "multi", Role: role, Extra: json.RawMessage(`{"connectors":[` + encode(tier) + "," + encode(pd) + `]}`)})
}

func encode(c connector) string {
	text, err := json.Marshal(c)
	if err != nil { // Validate has seen the only part that could be no JSON
		panic(err)
	}
	return string(text)
}

// transport names what moves KV between the engines.
func transport(extra string) string {
	var x struct {
		Transport string `json:"transport"`
	}
	if extra == "" || json.Unmarshal([]byte(extra), &x) != nil {
		return "tcp"
	}
	if rest := strings.TrimSpace(extra); x.Transport == "" {
		return rest
	}
	return x.Transport
}
