package multi_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/multi"
	"github.com/sluice-serving/sluice/kvcache"
)

// tier is the scheduler's side of a connector that has the first tokens of
// every prompt.
type tier struct {
	connector.Base
	tokens int
}

func (t tier) Lookup(_ *connector.Request, local int) connector.Answer {
	return connector.Answer{Tokens: max(0, t.tokens-local), Async: true}
}

// Two connectors make one: the first has the first 8 tokens, the second 20, of
// which it is asked for those behind the first one's.
func Example() {
	s, err := multi.NewScheduler(4, tier{tokens: 8}, tier{tokens: 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &connector.Request{ID: connector.NewRequestID(0, 1), Name: "r", Tokens: make([]kvcache.Token, 32), Prompt: 32}
	fmt.Println(s.Lookup(r, 0).Tokens, "tokens from", len(s.SubConnectors()), "connectors")
	fmt.Println(s.Lookup(r, 12).Tokens, "tokens behind 12 local ones")
	// Output:
	// 20 tokens from 2 connectors
	// 8 tokens behind 12 local ones
}
