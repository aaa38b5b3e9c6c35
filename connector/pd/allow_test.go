package pd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
)

func TestParsePeers(t *testing.T) {
	p, err := ParsePeers([]string{"p0.local", "10.0.0.5:14579", "10.1.0.0/16", "[::1]", "fd00::/8"})
	require.NoError(t, err)
	for host, port := range map[string]int{"p0.local": 1, "10.0.0.5": 14579, "10.1.200.3": 9, "::ffff:10.1.2.3": 9, "::1": 5, "fd12::1": 5} {
		require.NoError(t, p.Allow(Endpoint{EngineID: "p", Host: host, Port: port}), host)
	}
	for host, port := range map[string]int{"p1.local": 1, "10.0.0.5": 14580, "10.2.0.1": 1, "fe80::1": 5, "": 0} {
		var e *PeerError
		require.ErrorAs(t, p.Allow(Endpoint{EngineID: "p", Host: host, Port: port}), &e, host)
		require.Equal(t, host, e.Peer.Host)
		require.ErrorContains(t, e, "kv_peers")
	}
	for _, bad := range []string{"", "10.0.0.0/99", "x/8", "a b"} {
		_, err := ParsePeers([]string{bad})
		require.Error(t, err, "%q", bad)
	}
	all, err := ParsePeers([]string{"*"})
	require.NoError(t, err)
	require.NoError(t, all.Allow(Endpoint{Host: "192.0.2.1"}))
}

// Without TLS and without a list a request cannot name a peer elsewhere, and
// nothing is sent to it; with TLS the certificate decides.
func TestPeersElsewhereAreRefusedByDefault(t *testing.T) {
	p := newEngine(t, "p-1", Producer, 1)
	d := newEngine(t, "d-1", Consumer, 2)
	params := p.prefill(1, 9, 1)
	require.NoError(t, d.w.Allowed(params))
	require.NoError(t, d.w.Allowed(nil))
	require.NoError(t, d.w.Allowed(&Params{DoRemoteDecode: true}))

	elsewhere := params.Clone()
	elsewhere.Host = "localhost" // the same machine, but not the address that was configured
	var e *PeerError
	require.ErrorAs(t, d.w.Allowed(elsewhere), &e)
	r := remote(2, 9, elsewhere)
	d.load(r, 1)
	require.ErrorAs(t, d.failedLoad(r.ID), &e)
	require.Zero(t, d.w.Stats().PeersNow)

	ca := conformance.NewAuthority(t)
	s := newEngine(t, "d-2", Consumer, 3, secured(t, "127.0.0.1", ca, ca))
	require.NoError(t, s.w.Allowed(elsewhere))
	listed := newEngine(t, "d-3", Consumer, 4, func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		peers, err := ParsePeers([]string{"localhost"})
		require.NoError(t, err)
		w.Allow = peers.Allow
	})
	require.NoError(t, listed.w.Allowed(elsewhere))
	require.ErrorAs(t, listed.w.Allowed(params), &e)
}
