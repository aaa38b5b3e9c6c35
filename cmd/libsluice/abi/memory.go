package abi

// #include <stdlib.h>
// #include "sluice.h"
import "C"

import (
	"unsafe"

	"github.com/sluice-serving/sluice/scheduler"
)

// memory is memory of malloc, and how much of it is out.
type memory struct{ bytes int }

var _ scheduler.Allocator = (*memory)(nil)

// Alloc implements scheduler.Allocator. C.malloc does not return without memory.
func (m *memory) Alloc(size int) []byte {
	m.bytes += size
	return unsafe.Slice((*byte)(C.malloc(C.size_t(size))), size)
}

// Free implements scheduler.Allocator.
func (m *memory) Free(b []byte) {
	m.bytes -= len(b)
	C.free(unsafe.Pointer(unsafe.SliceData(b)))
}

// plain are the types that arrays in C memory have.
type plain interface {
	~int32 | ~uint8 | ~uint64 | ~int64 | C.sluice_output_t
}

// array is a list that lies in C memory and grows.
type array[T plain] []T

// need makes room for n elements in all. What is there is kept.
func (a *array[T]) need(m *memory, n int) {
	if n <= cap(*a) {
		return
	}
	n = max(n, 2*cap(*a), 16)
	var one T
	b := m.Alloc(n * int(unsafe.Sizeof(one)))
	grown := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)[:len(*a)]
	copy(grown, *a)
	a.free(m)
	*a = grown
}

// add appends.
func (a *array[T]) add(m *memory, v ...T) {
	a.need(m, len(*a)+len(v))
	*a = append(*a, v...)
}

func (a *array[T]) free(m *memory) {
	if c := cap(*a); c > 0 {
		var one T
		m.Free(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(*a))), c*int(unsafe.Sizeof(one))))
	}
	*a = nil
}

// at is where C finds a list.
func at[C any, T any](s []T) *C { return (*C)(unsafe.Pointer(unsafe.SliceData(s))) }
