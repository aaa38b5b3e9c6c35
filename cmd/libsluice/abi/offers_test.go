package abi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// offered is a connector with one request of n tokens.
func offered(cfg connectorConfig, workers, n int) (*offers, *connector.Request) {
	c := newOffers(cfg, 4, workers)
	r := &connector.Request{ID: connector.NewRequestID(0, 1), Tokens: make([]kvcache.Token, n)}
	c.Added(r)
	return c, r
}

func TestLookup(t *testing.T) {
	for _, x := range []struct {
		name  string
		offer offer
		local int
		want  connector.Answer
	}{
		{"nothing", offer{}, 0, connector.Answer{}},
		{"not known", offer{kind: offerPending, timeout: time.Second}, 0, connector.Answer{Pending: true, Timeout: time.Second}},
		{"asynchronous", offer{kind: offerTokens, upTo: 12, async: true}, 4, connector.Answer{Tokens: 8, Async: true}},
		{"all of it, asynchronous", offer{kind: offerTokens, upTo: 20, async: true}, 0, connector.Answer{Tokens: 20, Async: true}},
		{"all of it, into the step", offer{kind: offerTokens, upTo: 20}, 0, connector.Answer{Tokens: 19}},
		{"local alone is more", offer{kind: offerTokens, upTo: 8, async: true}, 12, connector.Answer{Async: true}},
		{"local is shorter than promised", offer{kind: offerTokens, upTo: 12, async: true, beyond: 8}, 4, connector.Answer{Pending: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, r := offered(connectorConfig{}, 1, 20)
			require.True(t, c.set(r.ID, x.offer))
			require.Equal(t, x.want, c.Lookup(r, x.local))
			require.Equal(t, x.local, c.local(r.ID))
		})
	}
	c, r := offered(connectorConfig{Lookup: lookupAsk}, 1, 20)
	require.True(t, c.Lookup(r, 0).Pending)
	other := &connector.Request{ID: connector.NewRequestID(5, 1)}
	require.Equal(t, connector.Answer{}, c.Lookup(other, 0))
	require.False(t, c.set(other.ID, offer{}))
}

// TestOfferIsUsedUp: once, unless it can be repeated; what follows is the default.
func TestOfferIsUsedUp(t *testing.T) {
	c, r := offered(connectorConfig{Lookup: lookupAsk}, 1, 20)
	c.set(r.ID, offer{kind: offerTokens, upTo: 8, async: true})
	c.Allocated(r, nil, 8, 0) // nothing was loaded
	require.Equal(t, 8, c.Lookup(r, 0).Tokens)
	c.Allocated(r, nil, 0, 8)
	require.True(t, c.Lookup(r, 0).Pending)
	c.set(r.ID, offer{kind: offerTokens, upTo: 8, async: true, repeat: true})
	c.Allocated(r, nil, 0, 8)
	require.Equal(t, 8, c.Lookup(r, 0).Tokens)
}

func TestSave(t *testing.T) {
	tables := connector.Tables{{3, 5, 7}, {0, 6, 8}}
	c, r := offered(connectorConfig{}, 1, 20)
	require.False(t, c.Preempting(r, tables, 8), "not configured")

	c, r = offered(connectorConfig{Preempted: preemptedSave}, 2, 20)
	require.False(t, c.Preempting(r, tables, 0), "nothing computed")
	require.False(t, c.Preempting(r, connector.Tables{{0, 0}}, 8), "no blocks")
	require.True(t, c.Preempting(r, tables, 7))
	require.True(t, c.Preempting(r, tables, 7), "asked twice it saves once")
	require.Equal(t, []transfer{{saveBlocks, r.ID, 7, connector.Tables{{3, 5}, {0, 6}}}}, c.take())
	require.Empty(t, c.take())
	require.True(t, c.Recovering(r.ID))
	require.True(t, c.Lookup(r, 4).Pending)
	saved := connector.Event{Kind: connector.Saved, Request: r.ID}
	c.Completed(saved)
	c.Completed(saved) // of the same worker
	saved.Worker = 7
	c.Completed(saved) // of none
	require.True(t, c.Lookup(r, 4).Pending, "the second worker is missing")
	saved.Worker = 1
	c.Completed(saved)
	require.Equal(t, connector.Answer{Tokens: 3, Async: true}, c.Lookup(r, 4))
	require.True(t, c.Recovering(r.ID))
	c.Allocated(r, nil, 4, 3)
	require.False(t, c.Recovering(r.ID))

	require.True(t, c.Preempting(r, tables, 8))
	c.Completed(connector.Event{Kind: connector.Failed, Request: r.ID})
	require.False(t, c.Recovering(r.ID))
	require.Equal(t, connector.Answer{}, c.Lookup(r, 4))

	require.True(t, c.Preempting(r, tables, 8))
	require.True(t, c.ResetCache())
	require.False(t, c.Recovering(r.ID))
}

func TestHold(t *testing.T) {
	tables := connector.Tables{{3, 5}}
	for _, x := range []struct {
		name   string
		hold   bool
		reason connector.EndReason
		tables connector.Tables
		want   bool
	}{
		{"held", true, connector.EndLength, tables, true},
		{"not asked for", false, connector.EndStop, tables, false},
		{"aborted", true, connector.EndAbort, tables, false},
		{"without blocks", true, connector.EndStop, nil, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, r := offered(connectorConfig{}, 1, 20)
			c.hold(r.ID, x.hold)
			require.Equal(t, x.want, c.Finished(r, x.tables, connector.End{Reason: x.reason, Computed: 6}).Delay)
			var want []transfer
			if x.want {
				want = []transfer{{sendBlocks, r.ID, 6, tables}}
			}
			require.ElementsMatch(t, want, c.take())
			require.Empty(t, c.requests)
		})
	}
	require.True(t, newOffers(connectorConfig{Delivery: deliveryRequired}, 4, 1).RequiresDelivery())
}
