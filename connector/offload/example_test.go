package offload_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/kvcache"
)

// memory is KV that lies on the Go heap.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m[off:]), nil }
func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// A running request gives its two blocks up and gets them back, in other
// blocks of the device. A scheduler makes the calls of the first side, an engine
// those of the second.
func Example() {
	kv := memory("....aaaabbbb............")
	layout := connector.Layout{Model: "m", DType: "fp32", BlockSize: 4, Blocks: 6, Groups: []connector.LayoutGroup{{Kind: "full_attention", Layers: 1, BlockBytes: 4}}}
	w, err := offload.NewWorker(offload.WorkerConfig{Slots: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	if err := w.Register(layout, []connector.Region{{Name: "kv", BlockBytes: 4, Memory: kv}}); err != nil {
		fmt.Println(err)
		return
	}
	s, err := offload.NewScheduler(offload.Config{BlockSize: 4, Slots: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &connector.Request{ID: connector.NewRequestID(0, 1), Name: "r", Tokens: make([]kvcache.Token, 8), Prompt: 8}

	fmt.Println("saved:", s.Preempting(r, connector.Tables{{1, 2}}, 8))
	if err := w.Submit(s.Ops(1, nil)...); err != nil { // the copy is complete when it returns
		fmt.Println(err)
		return
	}
	copy(kv[4:], "xxxxxxxx") // the blocks are somebody else's now
	s.Completed(<-w.Events())

	fmt.Println("offered:", s.Lookup(r, 0).Tokens, "tokens")
	s.Allocated(r, connector.Tables{{4, 5}}, 0, 8)
	if err := w.Submit(s.Ops(2, nil)...); err != nil {
		fmt.Println(err)
		return
	}
	ev := <-w.Events()
	s.Completed(ev)
	fmt.Println(ev.Kind, string(kv))
	// Output:
	// saved: true
	// offered: 8 tokens
	// received ....xxxxxxxx....aaaabbbb
}
