package kvcache

import "github.com/google/btree"

// evictKey is an entry of the plain eviction order. Stamps are unique.
type evictKey struct {
	stamp uint64
	block BlockID
}

// evictOrder is the plain eviction order: a B-tree, and in front of it the one
// entry that was last found to come before all of the tree. Taking a chain of blocks
// from its end to its beginning enters each block as the new first one, which
// then never reaches the tree.
type evictOrder struct {
	front evictKey // block NullBlock: none
	tree  *btree.BTreeG[evictKey]
}

func newEvictOrder() evictOrder {
	return evictOrder{tree: btree.NewWithFreeListG(32,
		func(a, b evictKey) bool { return a.stamp < b.stamp }, btree.NewFreeListG[evictKey](1<<12))}
}

func (o *evictOrder) insert(k evictKey) {
	first := o.front
	if first.block == NullBlock {
		var ok bool
		if first, ok = o.tree.Min(); ok && first.stamp < k.stamp {
			o.tree.ReplaceOrInsert(k)
			return
		}
		o.front = k
		return
	}
	if k.stamp < first.stamp {
		o.front, k = k, first
	}
	o.tree.ReplaceOrInsert(k)
}

func (o *evictOrder) remove(k evictKey) {
	if o.front.block == k.block {
		o.front = evictKey{}
		return
	}
	o.tree.Delete(k)
}

// takeFirst removes and returns the first entry.
func (o *evictOrder) takeFirst() (evictKey, bool) {
	if k := o.front; k.block != NullBlock {
		o.front = evictKey{}
		return k, true
	}
	return o.tree.DeleteMin()
}

func (o *evictOrder) has(k evictKey) bool {
	if o.front.block == k.block {
		return o.front == k
	}
	e, ok := o.tree.Get(k)
	return ok && e == k
}

func (o *evictOrder) len() int {
	n := o.tree.Len()
	if o.front.block != NullBlock {
		n++
	}
	return n
}

// valid reports whether the front entry comes before the tree.
func (o *evictOrder) valid() bool {
	m, ok := o.tree.Min()
	return o.front.block == NullBlock || !ok || o.front.stamp < m.stamp
}
