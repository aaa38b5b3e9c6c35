package load

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/measure"
)

// An event of an answer, as the engine streams it: what the load generator does
// for each token.
func BenchmarkEvent(b *testing.B) {
	const events = 256
	var text strings.Builder
	for i := range events {
		fmt.Fprintf(&text, `data: {"id":"cmpl-3fd8c1a2b4e5f60718293a4b5c6d7e8f","object":"text_completion","created":1764500000,"model":"random:qwen3-0.6b","choices":[{"index":0,"text":"","logprobs":null,"token_ids":[%d],"finish_reason":null,"stop_reason":null}]}`+"\n\n", 50000+i)
	}
	text.WriteString("data: [DONE]\n\n")
	at := time.Duration(1)
	b.ReportAllocs()
	for b.Loop() {
		rec := new(measure.Record)
		if err := readStream(strings.NewReader(text.String()), func() time.Duration { at += 100; return at }, rec); err != nil {
			b.Fatal(err)
		}
		if len(rec.TokenIDs) != events {
			b.Fatalf("%d tokens", len(rec.TokenIDs))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
}
