package server

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/internal/testkit/ascend"
	"github.com/sluice-serving/sluice/internal/testkit/device"
	"github.com/sluice-serving/sluice/internal/testkit/identity"
)

// poisonous is the token whose embedding is no number.
const poisonous = 5

// A request whose logits hold a NaN ends with an error; those beside it, and those
// after it that get its blocks, answer as if it had not been.
func TestNaNEndsThatRequestAlone(t *testing.T) {
	d := device.Choose(t)
	c, w := device.Wide()
	if !d.Asked { // emulated: a smaller one
		c = model.Builtin()
		c.Tied = false
		w = model.Generate(c, model.BuiltinScales(), 1, func(int) bool { return true })
	}
	for i := range c.Hidden {
		w[model.EmbedName][poisonous*c.Hidden+i] = float32(math.NaN())
	}
	dir := t.TempDir()
	saveModel(t, dir, c, w, m{"architectures": []string{"Qwen3ForCausalLM"}, "eos_token_id": 0})
	answers := 12
	devices := []string{"host", d.Name}
	if !d.Asked {
		answers = 3
		devices = append(devices, "ascend")
	}
	for _, on := range devices {
		for _, storage := range []string{"float32", "bfloat16"} {
			if !d.Asked && on == d.Name && storage == "bfloat16" {
				continue // emulated: the operator alone is tested in both
			}
			if strings.HasPrefix(on, "ascend") && storage != "bfloat16" {
				continue // it stores nothing else
			}
			t.Run(fmt.Sprintf("%s/%s", on, storage), func(t *testing.T) {
				if on == "ascend" && !d.Asked {
					require.NoError(t, ascend.Open(t).Close(t.Context()))
				}
				n := start(t, engine.Config{Model: dir, Device: on, DType: storage, MaxSeqs: 4, KVBlocks: 12, MaxModelLen: 64, MaxTokens: 64}, Options{})
				body := func(prompt []int32, more m) m {
					return merged(m{"prompt": prompt, "max_tokens": answers, "temperature": 0, "ignore_eos": true, "return_token_ids": true}, more)
				}
				good := []int32{9, 8, 7, 250, 200, 100, 11}
				ask := func() identity.Answer { return n.complete(body(good, nil)).Choices[0].TokenIDs }
				want := ask()
				var wg sync.WaitGroup
				for i, more := range []m{nil, {"logprobs": 1}, {"prompt_logprobs": 1}} { // chosen on the device and by the host, and before there is anything to choose
					wg.Go(func() {
						res, raw := n.post("/v1/completions", body([]int32{9, 8, 7, poisonous, int32(100 + i)}, more))
						if res.StatusCode != http.StatusInternalServerError || !strings.Contains(string(raw), engine.ErrNaN.Error()) {
							t.Errorf("%d %s", res.StatusCode, raw)
						}
					})
					wg.Go(func() {
						if got := ask(); fmt.Sprint(got) != fmt.Sprint(want) {
							t.Errorf("%v beside NaN, %v alone", got, want)
						}
					})
				}
				wg.Wait()
				require.Equal(t, want, ask())
				n.nothingHeld()
			})
		}
	}
}
