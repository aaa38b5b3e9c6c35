//go:build cgo && linux

package acl

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// An external event is a flag: its record is consumed by one wait.
func TestExternalEventIsConsumed(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	e, err := d.NewEvent(ascendrt.EventExternal)
	require.NoError(t, err)
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e) }) // never recorded
	submit(t, s, func(c *ascendrt.Commands) { c.Record(e) })
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done)
	var c ascendrt.Commands
	c.Record(e)
	_, _, err = s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "recorded twice")
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e) })
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e); c.Record(e); c.WaitEvent(e); c.Record(e); c.WaitEvent(e) })
	_, err = d.NewEvent(ascendrt.EventIPC)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)

	// A record never overtakes the wait before it, on whatever streams they are.
	other, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x, err := d.Alloc(1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var last ascendrt.Point
	for range 50 {
		c.Reset()
		c.Record(e)
		_, _, err = s.Submit(&c)
		require.NoError(t, err)
		c.Reset()
		c.Fill(x.View(), 1)
		c.WaitEvent(e)
		last, _, err = other.Submit(&c)
		require.NoError(t, err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	require.NoError(t, last.Wait(ctx))
}

// Events may be closed while work and graphs still name them: the runtime's
// event ends behind them.
func TestEventsOutliveTheirClose(t *testing.T) {
	needEmulation(t)
	before := emulatedObjects()
	d := openDevice(t, ascendrt.OpenOptions{Faults: "delay=3000"})
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	other, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	e, err := d.NewEvent(ascendrt.EventOrder)
	require.NoError(t, err)
	flag, err := d.NewEvent(ascendrt.EventExternal)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.WaitEvent(flag)
	c.Fill(x.View(), 9)
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	require.NoError(t, err)
	c.Reset()
	c.Fill(x.View(), 1)
	c.Record(e)
	c.OnStream(other)
	c.WaitEvent(e)
	c.Record(flag)
	c.OnStream(s)
	c.Graph(g)
	p, _, err := s.Submit(&c)
	require.NoError(t, err)
	require.NoError(t, e.Close())
	require.NoError(t, flag.Close())
	require.NoError(t, p.Wait(context.Background()))
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 2) })
	require.NoError(t, g.Close())
	require.NoError(t, d.Close(context.Background()))
	require.Equal(t, before, emulatedObjects())
}
