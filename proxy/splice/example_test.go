package splice_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/proxy/splice"
)

// A body for a Prefiller: one output token, no stream, the rest as the client
// wrote it.
func Example() {
	body, err := splice.Parse([]byte(`{"model":"m", "max_tokens":512, "seed":1e2, "stream":true}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", body.Apply(nil, splice.Set("max_tokens", []byte("1")), splice.Delete("stream")))
	_, err = splice.Parse([]byte(`{"model":"m",}`))
	fmt.Println(err)
	// Output:
	// {"model":"m", "max_tokens":1, "seed":1e2}
	// malformed JSON at byte 13
}
