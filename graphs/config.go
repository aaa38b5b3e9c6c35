package graphs

import (
	"errors"
	"fmt"
)

// Bonus is the number of tokens that a step samples beyond accepted drafts.
type Bonus uint8

const (
	OneBonus Bonus = iota // default: ordinary decoding
	NoBonus               // some diffusion models
)

// Tokens is b, 1 or 0.
func (b Bonus) Tokens() int {
	if b == NoBonus {
		return 0
	}
	return 1
}

// DraftTrim says whether drafts are trimmed per request on the device before
// they are verified.
type DraftTrim uint8

const (
	FixedDrafts    DraftTrim = iota // default: every row verifies what was scheduled
	AdaptiveDrafts                  // rows keep fewer; decode graphs take any width up to D
)

// LoRAConfig describes the adapters of a deployment.
type LoRAConfig struct {
	Max   int       // adapters per batch; 0 = none
	Cases LoRACases // which numbers of active adapters get graphs of their own
}

// LoRACases says how graphs are specialised by the number of active adapters.
type LoRACases uint8

const (
	LoRAByCount LoRACases = iota // default: none, powers of two up to Max, and Max+1
	LoRAOneCase                  // Max+1 alone
)

// Config describes a deployment. The zero value of a field means the default
// that its comment states.
type Config struct {
	Mode   ModeConfig // default FULL_AND_PIECEWISE
	Policy Policy     // default OneNewTokenHardened

	MaxNumSeqs          int // R, rows per step at most; required
	MaxNumBatchedTokens int // B, tokens per step at most; required

	K      int       // speculative tokens per row, 0 = no speculation
	Bonus  Bonus     // default one token
	Widths []int     // decode widths with FULL graphs; nil = K+b alone. More than one with a K that varies
	Trim   DraftTrim // default FixedDrafts

	Ladder LadderConfig
	LoRA   LoRAConfig

	PCP int        // ranks that share one prompt's tokens (prefill context parallelism); 0 = 1
	KV  KVTransfer // role and connector; read by ConsumerOneToken alone
}

// ConfigError reports one field that cannot be used.
type ConfigError struct {
	Field   string
	Problem string
}

func (e *ConfigError) Error() string { return "graphs: " + e.Field + ": " + e.Problem }

// Bounds of configuration values. Their products fit an int32, and no ladder
// takes more memory or time to build than a device has graphs.
const (
	maxTokens = 1 << 20
	maxSeqs   = 1 << 16
	maxDrafts = 1 << 10
	maxKeys   = 1 << 13
)

// Validate reports all fields that cannot be used, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	in := func(field string, v, lo, hi int) {
		if v < lo || v > hi {
			bad(field, "%d is not in %d..%d", v, lo, hi)
		}
	}
	in("Mode", int(c.Mode), 0, len(modeConfigNames)-1)
	in("Policy", int(c.Policy), 0, len(policyNames)-1)
	in("MaxNumSeqs", c.MaxNumSeqs, 1, maxSeqs)
	in("MaxNumBatchedTokens", c.MaxNumBatchedTokens, 1, maxTokens)
	in("K", c.K, 0, maxDrafts)
	in("PCP", c.PCP, 0, 1<<10)
	in("LoRA.Max", c.LoRA.Max, 0, 1<<12)
	if c.K == 0 && c.Bonus == NoBonus {
		bad("Bonus", "a decode step without drafts and without a bonus token computes nothing")
	}
	for i, w := range c.Widths {
		in(fmt.Sprintf("Widths[%d]", i), w, 1, maxDrafts+1)
	}
	if c.PCP > 1 && c.Mode == ModeFull {
		bad("Mode", "FULL cannot be used with context parallelism of degree %d: query lengths differ per rank", c.PCP)
	}
	errs = append(errs, c.Ladder.validate()...)
	if len(errs) == 0 && c.Mode != ModeNone {
		l, err := newLadder(c)
		if err != nil {
			errs = append(errs, err)
		} else if n := c.keyBound(l); n > maxKeys {
			bad("Ladder", "%d sizes in %d variants are more than %d graphs", len(l.Sizes)+len(l.Requests), n/(len(l.Sizes)+len(l.Requests)), maxKeys)
		}
	}
	return errors.Join(errs...)
}

// keyBound is at least the number of graphs.
func (c Config) keyBound(l Ladder) int {
	return (len(l.Sizes) + len(l.Requests)) * len(c.loraCases()) * (1 + len(c.widths()))
}

// DecodeWidth is D, the query length of a decode row with all its drafts.
func (c Config) DecodeWidth() int { return c.K + c.Bonus.Tokens() }

func (c Config) pcp() int { return max(c.PCP, 1) }

// widths returns the decode widths, ascending and without doubles.
func (c Config) widths() []int32 {
	if len(c.Widths) == 0 {
		return []int32{int32(c.DecodeWidth())}
	}
	return ascending(c.Widths)
}

// loraCases returns the numbers of active adapters that have graphs, ascending.
func (c Config) loraCases() []int32 {
	if c.LoRA.Max == 0 {
		return []int32{0}
	}
	if c.LoRA.Cases == LoRAOneCase {
		return []int32{int32(c.LoRA.Max + 1)}
	}
	cases := []int{0, c.LoRA.Max + 1}
	for n := 1; n <= c.LoRA.Max; n *= 2 {
		cases = append(cases, n)
	}
	return ascending(cases)
}
