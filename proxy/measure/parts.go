//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// prefillMark makes a direct call one that the backend answers as a Prefiller.
const prefillMark = `,"kv_transfer_params":{"do_remote_decode":true}`

// latency compares the two routes at concurrency 1 with the same calls sent
// directly; rounds of both are interleaved, so that a busy machine hits both. It
// does so twice: with processors that may sleep between the calls, and with
// processors that are kept awake.
func latency(o options) error {
	if err := latencyWhile(o, ""); err != nil {
		return err
	}
	stop, err := keepAwake()
	if err != nil {
		return err
	}
	defer stop()
	return latencyWhile(o, ", processors kept awake")
}

func latencyWhile(o options, how string) error {
	b, err := setUp(o)
	if err != nil {
		return err
	}
	defer b.stop()
	body := chatBody(o.body, "")
	var clients [4]*client
	for i, c := range []struct {
		addr, body string
		headers    []string
	}{
		{b.d.addr, body, nil},
		{b.p.addr, chatBody(o.body, prefillMark), nil},
		{b.proxy.addr, body, []string{"X-Session-ID", "s"}},
		{b.proxy.addr, body, nil},
	} {
		if clients[i], err = dial(c.addr, c.body, c.headers...); err != nil {
			return err
		}
		defer clients[i].close()
	}
	d, p, local, pd := clients[0], clients[1], clients[2], clients[3]
	var directOne, directTwo, viaLocal, viaPD []time.Duration
	timed := func(into *[]time.Duration, calls ...*client) error {
		began := time.Now()
		for _, c := range calls {
			if err := c.do(); err != nil {
				return err
			}
		}
		*into = append(*into, time.Since(began))
		return nil
	}
	for i := range o.requests + 50 {
		if i == 50 { // the first calls warm connections and caches
			directOne, directTwo, viaLocal, viaPD = nil, nil, nil, nil
		}
		if err := errors.Join(timed(&directOne, d), timed(&viaLocal, local), timed(&directTwo, p, d), timed(&viaPD, pd)); err != nil {
			return err
		}
	}
	for _, row := range []struct {
		name        string
		direct, via []time.Duration
	}{{"local route, concurrency 1, p50", directOne, viaLocal}, {"P/D route (two legs), concurrency 1, p50", directTwo, viaPD}} {
		slices.Sort(row.direct)
		slices.Sort(row.via)
		a, v := quantile(row.direct, .5), quantile(row.via, .5)
		fmt.Printf("| %s%s | %s | %s | %s |\n", row.name, how, micros(a), micros(v), signed(micros(v-a)))
	}
	return nil
}

// throughput is P/D requests per second at concurrency 16.
func throughput(o options) error {
	b, err := setUp(o)
	if err != nil {
		return err
	}
	defer b.stop()
	const width = 16
	var done [2]int // requests, direct and through the proxy
	rate := func(done *int, dialAll func() ([]*client, error)) (float64, error) {
		var count atomic.Int64
		var group sync.WaitGroup
		var failed error
		var once sync.Once
		stop := time.Now().Add(time.Duration(o.seconds) * time.Second)
		began := time.Now()
		for range width {
			clients, err := dialAll()
			if err != nil {
				return 0, err
			}
			group.Go(func() {
				for time.Now().Before(stop) {
					for _, c := range clients {
						if err := c.do(); err != nil {
							once.Do(func() { failed = err })
							return
						}
					}
					count.Add(1)
				}
				for _, c := range clients {
					c.close()
				}
			})
		}
		group.Wait()
		*done = int(count.Load())
		return float64(*done) / time.Since(began).Seconds(), failed
	}
	body, marked := chatBody(o.body, ""), chatBody(o.body, prefillMark)
	before := b.work()
	direct, err := rate(&done[0], func() ([]*client, error) {
		p, err := dial(b.p.addr, marked)
		if err != nil {
			return nil, err
		}
		d, err := dial(b.d.addr, body)
		return []*client{p, d}, err
	})
	if err != nil {
		return err
	}
	between := b.work()
	via, err := rate(&done[1], func() ([]*client, error) {
		c, err := dial(b.proxy.addr, body)
		return []*client{c}, err
	})
	if err != nil {
		return err
	}
	fmt.Printf("| P/D requests per second, concurrency %d | %.0f | %.0f | %.2f |\n", width, direct, via, via/direct)
	b.rows("request", before, between, done[0], done[1])
	return nil
}
