package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/sluice-serving/sluice/proxy"
	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// A proxy in front of a Prefiller and a Decoder: the first turn of a session
// takes the ordinary route, the second is prefilled on the Decoder that holds
// the first.
func Example() {
	prefiller, decoder := backendtest.New(), backendtest.New()
	for _, b := range []*backendtest.Backend{prefiller, decoder} {
		if err := b.Start(""); err != nil {
			fmt.Println(err)
			return
		}
		defer b.Stop()
	}
	p, err := proxy.New(proxy.Config{
		Prefillers: []string{prefiller.Addr},
		Decoders:   []proxy.Decoder{{Addr: decoder.Addr, Ranks: 2}},
		Append:     true, RouteHeader: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	front := httptest.NewServer(p.Handler())
	defer front.Close()
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"a question"}]}`,
		`{"model":"m","messages":[{"role":"user","content":"a question"},{"role":"assistant","content":"w0 w1 w2 w3 "},{"role":"user","content":"another"}]}`,
	} {
		req, err := http.NewRequest(http.MethodPost, front.URL+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("X-Session-ID", "conversation 7")
		resp, err := front.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		fmt.Println(resp.Status, "by", resp.Header.Get("X-Sluice-Route"))
	}
	// Output:
	// 200 OK by pd; reason=no_owner
	// 200 OK by local; reason=owner
}

// A configuration file names the pools of Decoders and how each refuses; what
// it leaves out has a default.
func ExampleReadFile() {
	file, err := proxy.ReadFile(strings.NewReader(`
append_prefill: true
prefillers: [10.0.0.1:8100]
decoders:
- backend: vllm-ascend
  ranks: 2
  instances: [10.0.0.2:8200]
  refusals: [{status: 409}]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := file.Config()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.Decoders[0].Addr, cfg.Decoders[0].Ranks, cfg.Backend.Name, len(cfg.Backend.Refusals), cfg.Backend.Guard.MaxLocalAttempts)
	_, err = proxy.ReadFile(strings.NewReader("prefillers: []\nretires: 3\n"))
	fmt.Println(err != nil)
	// Output:
	// 10.0.0.2:8200 2 vllm-ascend 1 4
	// true
}
