package pd_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/kvcache"
)

// memory is KV that lies on the Go heap.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m[off:]), nil }
func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// engine makes both sides of a connector over a pool of six blocks of four
// bytes.
func engine(id string, role pd.Role, kv memory) (*pd.Scheduler, *pd.Worker, error) {
	w, err := pd.NewWorker(pd.WorkerConfig{EngineID: id})
	if err != nil {
		return nil, nil, err
	}
	layout := connector.Layout{Model: "m", DType: "fp32", BlockSize: 4, Blocks: 6, Groups: []connector.LayoutGroup{{Kind: "full_attention", Layers: 1, BlockBytes: 4}}}
	if err := w.Register(layout, []connector.Region{{Name: "kv", BlockBytes: 4, Memory: kv}}); err != nil {
		return nil, nil, err
	}
	s, err := pd.NewScheduler(pd.SchedulerConfig{Role: role, Self: w.Endpoint(), BlockSize: 4})
	return s, w, err
}

// P has computed a prompt of eight tokens into its blocks 1 and 2; D reads them
// into its blocks 3 and 4.
func Example() {
	from, to := memory("....aaaabbbb............"), memory("........................")
	p, pw, err := engine("p", pd.Producer, from)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pw.Close()
	d, dw, err := engine("d", pd.Consumer, to)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dw.Close()
	prompt := make([]kvcache.Token, 8)

	atP := &connector.Request{ID: connector.NewRequestID(0, 1), Name: "at-p", Tokens: prompt, Prompt: 8, Params: &pd.Params{DoRemoteDecode: true}}
	p.Added(atP)
	hold := p.Finished(atP, connector.Tables{{1, 2}}, connector.End{Reason: connector.EndLength, Computed: 8, Output: 1})
	if err := pw.Submit(p.Ops(1, nil)...); err != nil { // before the answer leaves
		fmt.Println(err)
		return
	}

	atD := &connector.Request{ID: connector.NewRequestID(0, 1), Name: "at-d", Tokens: prompt, Prompt: 8, Params: hold.Params, Route: connector.RemotePrefill}
	d.Added(atD)
	fmt.Println("offered:", d.Lookup(atD, 0).Tokens, "tokens")
	d.Allocated(atD, connector.Tables{{3, 4}}, 0, 8)
	if err := dw.Submit(d.Ops(1, nil)...); err != nil {
		fmt.Println(err)
		return
	}
	ev := <-dw.Events()
	d.Completed(ev)
	fmt.Println(ev.Kind, string(to))
	fmt.Println("P is told:", (<-pw.Events()).Kind)
	// Output:
	// offered: 8 tokens
	// received ............aaaabbbb....
	// P is told: sent
}
