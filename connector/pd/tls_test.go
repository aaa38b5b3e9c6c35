package pd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

func secured(t *testing.T, name string, signer, trusted *conformance.Authority) option {
	cert, key := signer.Issue(t, name)
	server, client, err := tcp.MutualTLS(cert, key, trusted.File)
	require.NoError(t, err)
	return func(w *WorkerConfig, _ *SchedulerConfig, _ *connector.Layout) {
		w.ServerTLS, w.ClientTLS = server, client
	}
}

func TestPullOverTLS(t *testing.T) {
	ca, other := conformance.NewAuthority(t), conformance.NewAuthority(t)
	p := newEngine(t, "p-1", Producer, 1, secured(t, "127.0.0.1", ca, ca))
	d := newEngine(t, "d-1", Consumer, 2, secured(t, "127.0.0.1", ca, ca))
	params := p.prefill(1, 9, 1)

	stranger := newEngine(t, "d-2", Consumer, 3, secured(t, "127.0.0.1", other, ca))
	r := remote(1, 9, params)
	stranger.load(r, 1)
	require.Error(t, stranger.failedLoad(r.ID), "its certificate is of another authority")
	plain := newEngine(t, "d-3", Consumer, 3)
	plain.load(r, 1)
	require.Error(t, plain.failedLoad(r.ID))
	require.Equal(t, 1, p.w.Stats().LeasesNow, "nobody but D can release")

	wrong := newEngine(t, "p-2", Producer, 4, secured(t, "10.1.1.1", ca, ca))
	r2 := remote(2, 9, wrong.prefill(1, 9, 1))
	d.load(r2, 10)
	require.ErrorContains(t, d.failedLoad(r2.ID), "certificate is valid for 10.1.1.1, not 127.0.0.1")

	d.load(r, 1)
	ev := d.next()
	require.Equal(t, connector.Received, ev.Kind, "%v", ev.Err)
	require.Equal(t, p.block(0, 2), d.block(0, 2))
}
