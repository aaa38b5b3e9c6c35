package scheduler_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// toy is an executor whose model adds one to the last token. Its KV cache is
// one number per slot: the token that the slot holds.
type toy struct {
	blockSize int32
	kv        map[int32]scheduler.Token    // by slot: block·blockSize + offset
	tables    map[uint32][]kvcache.BlockID // by the request's slot
}

func (t *toy) run(p *scheduler.Plan) (res scheduler.Result) {
	for i, id := range p.Requests {
		from, blocks := p.Table(i, 0)
		table := append(t.tables[id.Slot()][:from], blocks...)
		t.tables[id.Slot()] = table
		pos := p.Computed[i]
		for _, tok := range p.Input(i) {
			t.kv[int32(table[pos/t.blockSize])*t.blockSize+pos%t.blockSize] = tok
			pos++
		}
		if p.Samples[i] == 1 {
			last := pos - 1
			res.Tokens = append(res.Tokens, t.kv[int32(table[last/t.blockSize])*t.blockSize+last%t.blockSize]+1)
		}
	}
	return res
}

func Example() {
	cache, err := kvcache.New(kvcache.Config{Blocks: 64, BlockSize: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 64, MaxBatchedTokens: 8}, cache)
	if err != nil {
		fmt.Println(err)
		return
	}
	model := &toy{blockSize: 4, kv: map[int32]scheduler.Token{}, tables: map[uint32][]kvcache.BlockID{}}
	for _, id := range []string{"a", "b"} {
		prompt := []scheduler.Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		if _, err := s.Add(scheduler.Request{ID: id, Prompt: prompt, MaxTokens: 2}); err != nil {
			fmt.Println(err)
		}
	}
	for now := scheduler.Time(0); s.HasWork(); now++ {
		p := s.Plan(now)
		fmt.Print("step ", p.Seq, ":")
		for i, id := range p.Requests {
			fmt.Printf(" slot %d computes %d after %d;", id.Slot(), p.Scheduled[i], p.Computed[i])
		}
		fmt.Println()
		outs, err := s.Apply(p, model.run(p))
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, o := range outs {
			fmt.Printf("  %s %v finish=%q\n", o.ID, o.Tokens, o.Finish.String())
		}
	}
	// Output:
	// step 1: slot 0 computes 8 after 0;
	// step 2: slot 0 computes 2 after 8; slot 1 computes 2 after 8;
	//   a [11] finish=""
	//   b [11] finish=""
	// step 3: slot 0 computes 1 after 10; slot 1 computes 1 after 10;
	//   a [12] finish="length"
	//   b [12] finish="length"
	// step 4:
}
