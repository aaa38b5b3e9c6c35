package publish_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/kvcache/publish"
)

// After each applied step the engine publishes what the cache has noted.
func Example() {
	cache, err := kvcache.New(kvcache.Config{Blocks: 9, BlockSize: 4, Events: kvcache.Events{Mode: kvcache.EventsOn, Seed: "0"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := []kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8, 9}
	var seq kvcache.Seq
	if err := cache.Attach(&seq, kvcache.Namespace{}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := cache.Allocate(&seq, &kvcache.Alloc{Tokens: prompt, New: len(prompt)}); err != nil {
		fmt.Println(err)
		return
	}
	events := cache.TakeEvents(cache.EventMark(), nil)
	fmt.Println(len(events), "event:", events[0].Kind, "of", len(events[0].Tokens), "tokens")
	if err := p.Publish(events); err != nil { // queued: a slow subscriber holds nobody up
		fmt.Println(err)
		return
	}
	if err := p.Close(); err != nil { // sends what is queued
		fmt.Println(err)
		return
	}
	fmt.Println(p.Stats().Batches, "batch sent")
	// Output:
	// 1 event: BlockStored of 8 tokens
	// 1 batch sent
}
