package wire_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/sluice-serving/sluice/proxy/wire"
)

// A body in two ranges, sent with one write.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, body)
	}))
	defer server.Close()
	pool := wire.New(wire.Config{})
	defer pool.CloseIdle()
	answer, err := pool.Do(context.Background(), &wire.Request{
		Method: http.MethodPost, Addr: server.Listener.Addr().String(), Path: "/v1/completions",
		Body: [][]byte{[]byte(`{"prompt":"hello"`), []byte(`,"max_tokens":1}`)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Close()
	text, err := io.ReadAll(answer)
	fmt.Printf("%d %s %v\n", answer.Status, text, err)
	// Output:
	// 200 /v1/completions {"prompt":"hello","max_tokens":1} <nil>
}
