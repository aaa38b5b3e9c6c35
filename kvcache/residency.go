package kvcache

import (
	"math/bits"
	"sort"
)

// Residency says how long evicted blocks had stayed in the cache since nobody
// held them: the distance that a reuse could have had and still hit.
type Residency struct {
	// Evictions is the number of evicted blocks, the sum of Releases.
	Evictions uint64
	// Releases counts them by the number of blocks released after their own last
	// release: bucket 0 those with none, bucket i those with 2^(i-1) to 2^i - 1.
	Releases [40]uint64
	// Milliseconds counts them by time, in the same buckets of milliseconds. It
	// stays empty unless Tick is called, and is exact to the distance of two ticks.
	Milliseconds [40]uint64
}

// residency gathers a Residency. Times are not kept by block: a sparse log of
// (releases so far, time) finds the time of a release by its number.
type residency struct {
	Residency
	log   []tick
	now   Time
	every uint64 // releases between two entries of the log
}

type tick struct {
	releases uint64
	at       Time
}

const tickLog = 1024

// Tick tells the cache what time it is, for the residency histogram and
// nothing else; once a step is often enough.
func (c *Cache) Tick(now Time) {
	r := &c.residency
	r.now = now
	if r.every == 0 {
		r.every = uint64(c.usable()/tickLog) + 1
	}
	if n := len(r.log); n > 0 && c.releases-r.log[n-1].releases < r.every {
		return
	}
	if len(r.log) == 4*tickLog { // the pool holds fewer releases than the younger half spans, but for long-kept blocks
		r.log = r.log[:copy(r.log, r.log[2*tickLog:])]
	}
	r.log = append(r.log, tick{c.releases, now})
}

// Residency returns the histogram since New.
func (c *Cache) Residency() Residency { return c.residency.Residency }

// note enters an eviction of a block that was released as the number release of all releases.
func (r *residency) note(release, releases uint64) {
	r.Evictions++
	r.Releases[min(bits.Len64(releases-release), len(r.Releases)-1)]++
	if len(r.log) == 0 {
		return
	}
	i := sort.Search(len(r.log), func(i int) bool { return r.log[i].releases >= release })
	at := r.now
	if i < len(r.log) {
		at = r.log[i].at
	}
	ms := uint64(max(r.now-at, 0)) / 1e6
	r.Milliseconds[min(bits.Len64(ms), len(r.Milliseconds)-1)]++
}
