package points

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The tables that points belong to.
const (
	Tails         = "tails"          // prompt tails on FULL graphs
	AppendPrefill = "append-prefill" // ordinary P/D against append-prefill
)

// The arms of append-prefill.
const (
	ArmPD         = "pd"                // ordinary P/D for every turn
	ArmPlain      = "plain"             // append attempts, any prefix, no guard
	ArmGuarded    = "guarded"           // with all guards
	ArmTier       = "guarded_host_tier" // and a host tier
	ArmNoGovernor = "no_governor"       // guarded, without the governor
)

// Arms are all of them, in the order in which they run. The first is what the
// others are compared with.
var Arms = []string{ArmPD, ArmPlain, ArmGuarded, ArmTier, ArmNoGovernor}

// Point is one measurement: what is loaded, how, and which repeat of it. The
// members of the other table are empty.
type Point struct {
	Table  string `json:"table"`
	Model  string `json:"model"`  // as sluice serve names it
	Repeat int    `json:"repeat"` // from 1
	Output int    `json:"output"` // tokens of an answer; of append-prefill at most

	// Of tails.
	Input   int     `json:"input,omitempty"`   // tokens of a prompt
	Rate    float64 `json:"rate,omitempty"`    // requests a second
	Policy  string  `json:"policy,omitempty"`  // of graph classification
	Seconds float64 `json:"seconds,omitempty"` // over which requests arrive

	// Of append-prefill.
	Prompt   int    `json:"prompt,omitempty"` // tokens of the longest first prompt
	Sessions int    `json:"sessions,omitempty"`
	Turns    int    `json:"turns,omitempty"`
	Arm      string `json:"arm,omitempty"`

	Window time.Duration `json:"window_ns,omitempty"` // over which sessions arrive, where a prompt takes as long as in the published run
	Think  time.Duration `json:"think_ns,omitempty"`
}

// Case names the point without its repeat.
func (p *Point) Case() string {
	model := strings.TrimPrefix(p.Model, "random:")
	if p.Table == Tails {
		return fmt.Sprintf("%s/%s/%d-%d/%s/%s/%ss", p.Table, model, p.Input, p.Output, number(p.Rate), p.Policy, number(p.Seconds))
	}
	times := ""
	if p.Window != publishedWindow || p.Think != publishedThink {
		times = fmt.Sprintf("/%v-%v", p.Window, p.Think)
	}
	return fmt.Sprintf("%s/%s/%dx%d%s/%d-%d/%s", p.Table, model, p.Sessions, p.Turns, times, p.Prompt, p.Output, p.Arm)
}

// Key names the point: two points with one key are the same measurement.
func (p *Point) Key() string { return p.Case() + "/" + strconv.Itoa(p.Repeat) }

// Variant is the Decoder that the point loads.
func (p *Point) variant() string {
	if p.Table == Tails {
		return p.Policy
	}
	if p.Arm == ArmPD {
		return ArmPlain // its proxy attempts nothing, and nothing is pinned there
	}
	return p.Arm
}

// load names what the answers of two points must agree on: the same prompts.
func (p *Point) load() string {
	q := *p
	q.Arm, q.Policy = "", ""
	return q.Case()
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// Group is points that differ in rate and policy, or in the arm, and whose
// first repeats all come before their second.
type Group struct {
	Model         string
	Input, Output int
	Rates         []float64
	Policies      []string
	Seconds       float64

	Prompt          int // of append-prefill
	Sessions, Turns int
	Window, Think   time.Duration // 0: as published
	Arms            []string
	Repeats         int // at most; 0: as asked for
}

// points lists a group's points.
func (g *Group) points(table string, repeats int) []Point {
	if g.Repeats > 0 {
		repeats = min(repeats, g.Repeats)
	}
	var out []Point
	for r := range repeats {
		p := Point{Table: table, Model: g.Model, Repeat: r + 1, Output: g.Output}
		if table == AppendPrefill {
			p.Prompt, p.Sessions, p.Turns = g.Prompt, g.Sessions, g.Turns
			p.Window, p.Think = cmp.Or(g.Window, publishedWindow), cmp.Or(g.Think, publishedThink)
			for _, arm := range g.Arms {
				p.Arm = arm
				out = append(out, p)
			}
			continue
		}
		p.Input, p.Seconds = g.Input, g.Seconds
		for _, rate := range g.Rates {
			for _, policy := range g.Policies {
				p.Rate, p.Policy = rate, policy
				out = append(out, p)
			}
		}
	}
	return out
}

// List is the points of groups in the order in which they are measured.
func List(table string, groups []Group, repeats int) []Point {
	var out []Point
	seen := map[string]bool{}
	for i := range groups {
		for _, p := range groups[i].points(table, max(repeats, 1)) {
			if key := p.Key(); !seen[key] {
				seen[key] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// Matching keeps the points whose key has all parts of one of the patterns: a
// pattern is words separated by "+", patterns are separated by ",". No pattern
// keeps all.
func Matching(list []Point, patterns string) []Point {
	if patterns == "" {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(p Point) bool {
		key := p.Key() + "/"
		for pattern := range strings.SplitSeq(patterns, ",") {
			all := true
			for word := range strings.SplitSeq(pattern, "+") {
				all = all && strings.Contains(key, strings.TrimSpace(word))
			}
			if all {
				return false
			}
		}
		return true
	})
}

// The models of the published experiments, by their shapes.
const (
	Qwen  = "random:qwen3-0.6b"
	Llama = "random:llama3-8b"
)

// Policies of classification, as the flag of sluice serve names them.
const (
	Strict           = "strict"
	ConsumerOneToken = "consumer-one-token"
	OneNewToken      = "one-new-token"
	Hardened         = "one-new-token-hardened"
	ShapeOnly        = "shape-only"
)

// TailsGroups are the rows of the second proposal, the most telling first:
// every row before and after, then the policies between.
func TailsGroups() []Group {
	pair, between := []string{Strict, Hardened}, []string{ConsumerOneToken, OneNewToken}
	qwen := func(in, out int, policies []string, rates ...float64) Group {
		return Group{Model: Qwen, Input: in, Output: out, Rates: rates, Policies: policies, Seconds: 20}
	}
	llama := func(in, out int, rates ...float64) Group {
		return Group{Model: Llama, Input: in, Output: out, Rates: rates, Policies: pair, Seconds: 20}
	}
	return []Group{
		qwen(1024, 256, pair, 8, 16, 32), qwen(1024, 256, between, 8, 16, 32),
		qwen(1000, 256, pair, 4, 8, 16, 32), qwen(1000, 256, between, 4, 8, 16, 32),
		qwen(4096, 1024, pair, 4, 8, 16), qwen(4096, 1024, between, 4, 8, 16),
		qwen(1024, 256, []string{ShapeOnly}, 8),
		llama(1024, 256, 8, 16, 32), llama(4096, 1024, 4, 8, 16),
	}
}

// The published run of append-prefill: what its times are when one prompt
// takes publishedPrompt at the Prefiller.
const (
	publishedPrompt = 1085 * time.Millisecond
	publishedWindow = 120 * time.Second
	publishedThink  = 10 * time.Second
	publishedLength = 12288 // tokens of the longest first prompt
)

// AppendGroups are the first proposal's experiment with prompts of a quarter
// and of the whole length. The last of them runs once.
func AppendGroups() []Group {
	at := func(model string, prompt, repeats int) Group {
		return Group{Model: model, Prompt: prompt, Output: 9, Sessions: 90, Turns: 3, Arms: Arms, Repeats: repeats}
	}
	return []Group{
		at(Qwen, publishedLength/4, 0), at(Llama, publishedLength/4, 0), at(Qwen, publishedLength, 1), at(Llama, publishedLength, 1),
	}
}
