package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestCompare: both sides step, whatever is collected meanwhile.
func TestCompare(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	for _, with := range []string{"plain", "graphs"} {
		got, err := compare(with, 16, 10, with == "graphs")
		require.NoError(t, err)
		require.Len(t, got.here, 10)
		require.Len(t, got.there, 10)
	}
}

// TestVariablesThatWereNotInitialized: a C program hands over the address of a
// variable that it has not set. On its stack lies what the Go runtime left
// there, addresses of memory that is no more among it, and the collector must
// not look at them.
func TestVariablesThatWereNotInitialized(t *testing.T) {
	c, err := startC("plain", 256)
	require.NoError(t, err)
	defer c.stop()
	gone := uintptr(unsafe.Pointer(unsafe.SliceData(make([]byte, 64<<20)))) + 32<<20
	runtime.GC()
	runtime.GC() // its span is free now
	c.stain(gone)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC() // marks nearly all the time
			}
		}
	}()
	for range 200 {
		_, err = c.steps(turn)
		if err != nil {
			break
		}
	}
	close(stop)
	<-stopped
	require.NoError(t, err)
}
