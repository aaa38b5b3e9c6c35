// Package basetest shows what every backend must keep to when it uses package
// base, and what cannot be seen through ascendrt.Device alone.
package basetest

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// StreamBeingOpened begins to close a fresh device while a stream is half open:
// the close must find it. c is the device's core; ended tells whether a stream's
// own resources are gone.
func StreamBeingOpened(t *testing.T, d ascendrt.Device, c *base.Core, ended func(ascendrt.Stream) bool) {
	t.Helper()
	_, err := d.NewEvent(ascendrt.EventOrder) // a handle to stand at
	require.NoError(t, err)
	held, release := make(chan struct{}), make(chan struct{})
	go c.Refs.Each(func(any) {
		select {
		case held <- struct{}{}:
			<-release
		case <-release:
		}
	})
	<-held // no handle can be added now
	type result struct {
		s   ascendrt.Stream
		err error
	}
	opened := make(chan result, 1)
	go func() {
		s, err := d.NewStream(ascendrt.StreamOptions{})
		opened <- result{s, err}
	}()
	for counted := 0; counted == 0; runtime.Gosched() {
		var l ascendrt.Live
		c.FillLive(&l)
		counted = l.Streams
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close(context.Background()) }()
	for c.Life.TryRLock() { // until the close waits, or is over
		c.Life.RUnlock()
		if len(closed) > 0 {
			break
		}
		runtime.Gosched()
	}
	close(release)
	r := <-opened
	require.NoError(t, <-closed)
	require.NoError(t, r.err)
	require.True(t, ended(r.s), "the close missed the stream")
	_, _, err = r.s.Submit(&ascendrt.Commands{})
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	require.NoError(t, r.s.Close())
	require.Zero(t, d.Live(), "handles left")
}
