package kvcache

import (
	"slices"

	"github.com/google/btree"
)

// awaited is a run of releases, numbered without a gap, whose blocks somebody
// is expected back for. It ends at its deadline; its blocks then count as
// plain ones of the age that they have.
type awaited struct {
	first, last uint64 // numbers of releases, both included
	until       Time
	live        bool
}

// awaitKey is an entry of the order of awaited blocks: whoever is expected last
// gives way first, and of those the one let go last.
type awaitKey struct {
	until   Time
	release uint64
	block   BlockID
}

func (k awaitKey) less(o awaitKey) bool {
	if k.until != o.until {
		return k.until > o.until
	}
	return k.release > o.release
}

type dueAwaited struct {
	until Time
	first uint64
}

// awaitBook keeps the runs of awaited releases. There are at most as many as
// blocks in the pool: beyond that the one that is due first ends.
type awaitBook struct {
	runs    []awaited // ascending
	ended   int       // runs that are not live
	dueRuns *btree.BTreeG[dueAwaited]
	await   *btree.BTreeG[awaitKey] // evictable blocks of live runs
	scratch []awaitKey
}

func (a *awaitBook) init() {
	*a = awaitBook{
		dueRuns: btree.NewG(16, func(x, y dueAwaited) bool {
			if x.until != y.until {
				return x.until < y.until
			}
			return x.first < y.first
		}),
		await: btree.NewG(32, awaitKey.less),
	}
}

// find returns the index of the run that a release belongs to, -1 when its run has ended.
func (a *awaitBook) find(release uint64) int {
	i, _ := slices.BinarySearchFunc(a.runs, release, func(r awaited, release uint64) int {
		if r.last < release {
			return -1
		}
		return 1
	})
	if i < len(a.runs) && a.runs[i].live && a.runs[i].first <= release {
		return i
	}
	return -1
}

// awaitKeyOf returns the place of an awaited block in the order; not ok when
// nobody is expected any more.
func (c *Cache) awaitKeyOf(id BlockID, b *block) (awaitKey, bool) {
	release := b.stamp & (1<<stampBits - 1)
	i := c.find(release)
	if i < 0 {
		return awaitKey{}, false
	}
	return awaitKey{c.runs[i].until, release, id}, true
}

// beginRun opens a run of releases from the next one on.
func (c *Cache) beginRun(until Time) {
	if len(c.runs)-c.ended >= c.usable() {
		d, _ := c.dueRuns.Min()
		c.endRun(d)
	}
	if c.ended > 16 && c.ended > len(c.runs)/2 {
		c.runs = slices.DeleteFunc(c.runs, func(r awaited) bool { return !r.live })
		c.ended = 0
	}
	r := awaited{first: c.releases + 1, last: ^uint64(0), until: until, live: true}
	c.runs = append(c.runs, r)
	c.dueRuns.ReplaceOrInsert(dueAwaited{until, r.first})
}

// closeRun ends the run opened last at the release before the next one.
func (c *Cache) closeRun() {
	r := &c.runs[len(c.runs)-1]
	if r.last = c.releases; r.last < r.first { // nothing was released
		c.dueRuns.Delete(dueAwaited{r.until, r.first})
		c.runs = c.runs[:len(c.runs)-1]
	}
}

// endRun ends a run: its evictable blocks move to the plain order. The others
// do when they become evictable.
func (c *Cache) endRun(d dueAwaited) {
	c.dueRuns.Delete(d)
	r := &c.runs[c.find(d.first)]
	c.scratch = c.scratch[:0]
	c.await.AscendRange(awaitKey{until: r.until, release: r.last}, awaitKey{until: r.until, release: r.first - 1}, func(k awaitKey) bool {
		c.scratch = append(c.scratch, k)
		return true
	})
	r.live = false
	c.ended++
	for _, k := range c.scratch {
		c.await.Delete(k)
		b := &c.blocks[k.block]
		b.state &^= blockAwaited
		c.enqueue(k.block, b, blockQueued)
	}
}

// expireRuns ends every run whose deadline is not after now.
func (c *Cache) expireRuns(now Time) {
	for {
		d, ok := c.dueRuns.Min()
		if !ok || d.until > now {
			return
		}
		c.epoch++
		c.endRun(d)
	}
}
