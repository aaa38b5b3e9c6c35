package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The engines by their places in a plan.
const (
	prefillers = 2
	decoders   = 2
	engines    = prefillers + decoders
)

// Ask is one request of a session.
type Ask struct {
	Text      string        `json:"text"`
	MaxTokens int           `json:"max_tokens"`
	Leave     time.Duration `json:"leave"` // the client goes away so long after it has sent; 0: it stays
}

// Kill is one engine's death.
type Kill struct {
	After int           `json:"after"` // requests that were begun before
	Who   int           `json:"who"`   // 0 and 1 the Prefillers, 2 and 3 the Decoders
	Down  time.Duration `json:"down"`  // until it is started again
}

// Plan is everything that is decided in advance.
type Plan struct {
	Seed     uint64  `json:"seed"`
	Sessions [][]Ask `json:"sessions"`
	Kills    []Kill  `json:"kills"`
}

// NewPlan draws a plan. Equal arguments give equal plans.
func NewPlan(seed uint64, requests, kills int) Plan {
	rng := rand.New(rand.NewPCG(seed, 0x51ce))
	p := Plan{Seed: seed}
	for n := 0; n < requests; {
		turns := min(1+rng.IntN(3), requests-n)
		session := make([]Ask, turns)
		for i := range session {
			length := 8 + rng.IntN(11)
			if i > 0 {
				length = 3 + rng.IntN(4)
			}
			a := Ask{Text: sentence(rng, length), MaxTokens: 2 + rng.IntN(15)}
			if rng.IntN(10) == 0 { // one of ten goes away: some before the first token, some after it
				a.Leave = time.Duration(1+rng.IntN(60)) * time.Millisecond
			}
			session[i] = a
		}
		p.Sessions = append(p.Sessions, session)
		n += turns
	}
	for k := range kills { // spread over the run, at a random place of each stretch
		stretch := float64(requests) * 0.9 / float64(kills)
		p.Kills = append(p.Kills, Kill{
			After: int(float64(requests)*0.03 + stretch*(float64(k)+rng.Float64()*0.8)), Who: rng.IntN(engines),
			Down: time.Duration(rng.IntN(400)) * time.Millisecond,
		})
	}
	return p
}

// Requests is how many there are.
func (p *Plan) Requests() int {
	n := 0
	for _, s := range p.Sessions {
		n += len(s)
	}
	return n
}

// Hash is a digest of the plan: runs with equal ones decided the same.
func (p *Plan) Hash() string {
	raw, err := json.Marshal(p)
	if err != nil { // numbers and texts always encode
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

func sentence(rng *rand.Rand, n int) string {
	words := strings.Fields("block lease peer rank token cache turn load save disk wire crash retry queue step graph")
	var b strings.Builder
	fmt.Fprintf(&b, "%c", 'a'+rune(rng.IntN(26))) // most sessions share nothing
	for b.Len() < n {
		b.WriteByte(' ')
		b.WriteString(words[rng.IntN(len(words))])
	}
	return b.String()[:n]
}
