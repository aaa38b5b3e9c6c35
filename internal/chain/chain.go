// Package chain finds, in the trace of an engine, the requests that went the
// whole way through append-prefill and preemption with offload.
package chain

import (
	"encoding/json"
	"io"
)

// steps are the events of a request that append-prefill admitted, that was
// preempted, saved on the host, restored, and went on, in their order.
var steps = []string{"admit", "preempt", "kv_save", "kv_ready", "kv_restore", "resume", "finish"}

// Complete reads a trace and gives the ids of the requests that went through
// append admission, preemption with a save, the copy to the host, readiness,
// the copy back, and a resumption to at least so many tokens of output, in this
// order. A request that is preempted again begins the part after admission
// anew. What cannot be read is passed over.
func Complete(trace io.Reader, output int) []string {
	at := map[string]int{}
	var done []string
	d := json.NewDecoder(trace)
	for {
		var l struct {
			Event   string `json:"event"`
			Request string `json:"request_id"`
			Route   string `json:"route"`
			Saved   bool   `json:"saved"`
			Failed  string `json:"error"`
			Output  int    `json:"output_tokens"`
			Tokens  int    `json:"computed_tokens"`
		}
		if err := d.Decode(&l); err != nil {
			return done
		}
		n := at[l.Request]
		switch {
		case l.Event == "admit" && l.Route == "append":
			at[l.Request] = 1
		case l.Event == "admit":
			at[l.Request] = 0
		case l.Event == "preempt" && n > 0 && n < len(steps)-1:
			at[l.Request] = 1
			if l.Saved {
				at[l.Request] = 2
			}
		case l.Failed != "":
			if n > 1 {
				at[l.Request] = 1
			}
		case n > 0 && n < len(steps) && l.Event == steps[n]:
			if l.Event == "finish" && l.Output < output {
				continue
			}
			if at[l.Request]++; at[l.Request] == len(steps) {
				done = append(done, l.Request)
			}
		}
	}
}
