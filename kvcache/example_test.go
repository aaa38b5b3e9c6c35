package kvcache_test

import (
	"fmt"
	"os"

	"github.com/sluice-serving/sluice/kvcache"
)

// Two turns of a conversation. The second finds what the first has left.
func Example() {
	cache, err := kvcache.New(kvcache.Config{Blocks: 17, BlockSize: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	ns := kvcache.Namespace{Salt: "tenant-7"}
	turn := func(prompt, answer []kvcache.Token) {
		hit := cache.Match(ns, prompt, len(prompt)-1) // the last token is always computed
		var seq kvcache.Seq
		if err := cache.Attach(&seq, ns); err != nil {
			fmt.Println(err)
			return
		}
		grant, err := cache.Allocate(&seq, &kvcache.Alloc{Tokens: prompt, Hit: hit, New: len(prompt) - hit.Tokens})
		if err != nil || !grant.OK {
			fmt.Println("no room:", grant.Shortage, err)
			return
		}
		fmt.Printf("%d of %d tokens are cached, blocks %v\n", hit.Tokens, len(prompt), seq.Table(0))
		tokens := prompt
		for _, t := range answer {
			tokens = append(tokens, t)
			if seq.Covers(len(tokens), 0) {
				continue // the step needs nothing from the cache
			}
			if grant, err = cache.Allocate(&seq, &kvcache.Alloc{Tokens: tokens, Computed: len(tokens) - 1, New: 1}); err != nil || !grant.OK {
				fmt.Println("no room:", grant.Shortage, err)
				return
			}
		}
		if err := cache.Free(&seq); err != nil {
			fmt.Println(err)
		}
	}
	first := []kvcache.Token{1, 2, 3, 4, 5, 6}
	answer := []kvcache.Token{7, 8, 9}
	turn(first, answer)
	turn(append(append(first, answer...), 10, 11), []kvcache.Token{12})
	if err := cache.Dump(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0 of 6 tokens are cached, blocks [1 2]
	// 8 of 11 tokens are cached, blocks [1 2 3]
	// free 13 cached 3 held 0 of 16
	// namespace salt="tenant-7"
	//   [1 2 3 4]:1  [5 6 7 8]:2  [9 10 11 12]:3
}

// A follow-up turn is expected soon: its prefix is leased, so that other
// requests take blocks without a lease first.
func ExampleCache_Lease() {
	cache, err := kvcache.New(kvcache.Config{Blocks: 9, BlockSize: 4, LeaseShare: 0.5,
		OnEvict: func(e kvcache.Eviction) { fmt.Println(e) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	const second = kvcache.Time(1e9)
	run := func(prompt []kvcache.Token, deadline kvcache.Time) {
		seq, err := cache.Open(kvcache.Namespace{})
		if err != nil {
			fmt.Println(err)
			return
		}
		if grant, err := cache.Allocate(seq, &kvcache.Alloc{Tokens: prompt, New: len(prompt)}); err != nil || !grant.OK {
			fmt.Println("no room:", grant.Shortage, err)
		}
		if deadline > 0 {
			_, result, err := cache.Lease(seq, deadline)
			fmt.Println("lease", result, err)
		}
		if err := cache.Free(seq); err != nil {
			fmt.Println(err)
		}
	}
	run([]kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8}, 120*second)
	run([]kvcache.Token{11, 12, 13, 14, 15, 16, 17, 18}, 0)
	run([]kvcache.Token{21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44}, 0)
	fmt.Println(cache.Match(kvcache.Namespace{}, []kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8}, -1).Tokens, "tokens of the first are left")
	// Output:
	// lease granted <nil>
	// block 4 of group 0 at depth 1: plain, last copy, release 3 was the oldest
	// block 3 of group 0 at depth 0: plain, last copy, release 4 was the oldest
	// 8 tokens of the first are left
}
