package selftest

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is the host backend with faults.
type faulty struct {
	host.Backend
	faults string
}

func (f faulty) Open(i int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	o.Faults = f.faults
	return f.Backend.Open(i, o)
}

func TestDoctorOnHost(t *testing.T) {
	var out strings.Builder
	failed, err := Doctor(context.Background(), &out, []ascendrt.Backend{host.Backend{}})
	require.NoError(t, err)
	require.Zero(t, failed, out.String())
	for _, s := range []string{"open", "copy", "operation", "the host's bits", "graph", "event timing", "nothing left"} {
		require.Contains(t, out.String(), s)
	}
}

// Each failure says what to do about it.
func TestDoctorSaysWhatToDo(t *testing.T) {
	for faults, want := range map[string]string{
		"lost@command:2":  "restart",
		"oom@alloc:1":     "smaller budget",
		"limit@stream:1":  "exhausted",
		"error@capture:1": "report it",
		"lost@submit:1":   "restart",
		"nonsense":        "report it",
	} {
		var out strings.Builder
		failed, err := Doctor(context.Background(), &out, []ascendrt.Backend{faulty{faults: faults}})
		require.NoError(t, err)
		require.Positive(t, failed, faults)
		require.Contains(t, out.String(), want, faults)
	}
}

// none is a backend whose library is missing.
type none struct{ host.Backend }

func (none) Probe(context.Context) (ascendrt.Report, error) {
	return ascendrt.Report{Problem: "libnone.so: not found: install none", Libraries: []ascendrt.Library{{Name: "libnone.so", Problem: "not found"}}}, nil
}

func TestListNamesWhatIsMissing(t *testing.T) {
	var out strings.Builder
	require.NoError(t, List(context.Background(), &out, []ascendrt.Backend{host.Backend{}, none{}}))
	require.Contains(t, out.String(), "host:0")
	require.Contains(t, out.String(), "libnone.so  not loaded: not found")
	require.Contains(t, out.String(), "install none")
	out.Reset()
	failed, err := Doctor(context.Background(), &out, []ascendrt.Backend{none{}})
	require.NoError(t, err)
	require.Zero(t, failed)
	require.Contains(t, out.String(), "no device: libnone.so")
}
