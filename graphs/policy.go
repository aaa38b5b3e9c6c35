package graphs

import (
	"fmt"
	"strings"
)

// Policy says which prefilling rows may run as decodes in a FULL decode graph.
// Policies change the classification alone: what is scheduled and which tokens
// come out are the same under all safe ones.
type Policy uint8

const (
	// OneNewTokenHardened is the default. A tail computes one prompt token over
	// context and carries no draft, or it is the last prompt token padded to the
	// full decode width with placeholders that can only be rejected. A decode
	// row must compute exactly b new tokens; any other is malformed.
	OneNewTokenHardened Policy = iota
	// Strict lets no prefilling row through.
	Strict
	// ConsumerOneToken lets one-token tails through on the decode side of a P/D
	// pair with a known connector, without speculation.
	ConsumerOneToken
	// OneNewToken lets through every prefilling row with one new token over
	// context, whatever its role, drafts or position in the prompt.
	OneNewToken
	// ShapeOnly looks at query lengths alone. It replays decode graphs over
	// fresh prompts that happen to have the decode width, which corrupts their
	// output: a control arm for measurements, never for serving.
	ShapeOnly
)

var policyNames = [...]string{
	OneNewTokenHardened: "one-new-token-hardened",
	Strict:              "strict",
	ConsumerOneToken:    "consumer-one-token",
	OneNewToken:         "one-new-token",
	ShapeOnly:           "shape-only",
}

// Policies lists all policies, the default first.
func Policies() []Policy {
	return []Policy{OneNewTokenHardened, Strict, ConsumerOneToken, OneNewToken, ShapeOnly}
}

// String returns the name that flags use.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy reads a name as String writes it; case, '-' and '_' do not matter.
func ParsePolicy(s string) (Policy, error) {
	plain := func(s string) string {
		return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
	}
	for p, name := range policyNames {
		if plain(s) == plain(name) {
			return Policy(p), nil
		}
	}
	if plain(s) == "hardened" {
		return OneNewTokenHardened, nil
	}
	return 0, fmt.Errorf("unknown graph policy %q (one of %s)", s, strings.Join(policyNames[:], ", "))
}
