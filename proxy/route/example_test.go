package route_test

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/proxy/route"
)

// Two turns of one session: the first is placed and binds its owner, the second
// is attempted there.
func Example() {
	r := route.New(route.Config{Append: true})
	for _, name := range []string{"d1:8200", "d2:8200"} {
		if err := r.AddDecoder(route.DecoderSpec{Name: name, Ranks: 2}); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := r.AddPrefiller("p1:8100"); err != nil {
		fmt.Println(err)
		return
	}
	now := time.Unix(0, 0)
	q := route.Query{HasSession: true, Session: route.KeyOf("tenant", "conversation 7"), Bytes: 4000, Eligible: true}

	turn, d := r.Begin(now, q)
	fmt.Println(d.Route, d.Reason)
	prefiller, _ := r.Prefiller(now, turn)
	target, _ := r.Decoder(now, turn)
	fmt.Println(prefiller, "then", target.Decoder, "rank", target.Rank)
	r.Prefilled(now.Add(time.Second), turn) // a second for 4000 bytes
	r.Output(now.Add(2*time.Second), turn)
	r.Finish(now.Add(3*time.Second), turn, route.Outcome{Result: route.Completed, PromptTokens: 1000, OutputTokens: 50})

	q.Bytes = 6000
	turn, d = r.Begin(now.Add(10*time.Second), q)
	fmt.Println(d.Route, d.Reason, d.Target.Decoder, "rank", d.Target.Rank, "instead of", d.RemoteETA)
	r.Finish(now.Add(11*time.Second), turn, route.Outcome{Result: route.Completed, PromptTokens: 1500, CachedTokens: 1040})
	// Output:
	// pd no_owner
	// p1:8100 then d1:8200 rank 0
	// local owner d1:8200 rank 0 instead of 500ms
}
