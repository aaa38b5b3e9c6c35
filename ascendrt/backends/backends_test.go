package backends

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

func TestFind(t *testing.T) {
	require.Equal(t, "host", All()[0].Name())
	for _, c := range []struct {
		device, name string
		ordinal      int
	}{
		{"host", "host", 0}, {"cuda", "cuda", 0}, {"cuda:3", "cuda", 3}, {"ascend", "ascend", 0}, {"ascend:12", "ascend", 12},
	} {
		b, n, err := Find(c.device)
		require.NoError(t, err)
		require.Equal(t, c.name, b.Name())
		require.Equal(t, c.ordinal, n)
	}
	for device, text := range map[string]string{
		"": "there are host, cuda, ascend", "tpu": "there are host, cuda, ascend", "Host": "there are", "cuda:": `"" is no ordinal`,
		"cuda:-1": "no ordinal", "cuda:1:2": "no ordinal", "ascend:x": `"x" is no ordinal`,
	} {
		_, _, err := Find(device)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, device)
		require.ErrorContains(t, err, text)
	}
}

// Every backend says what this machine has, and what to do where it has nothing.
func TestProbe(t *testing.T) {
	for _, b := range All() {
		r, err := b.Probe(t.Context())
		require.NoError(t, err, b.Name())
		if len(r.Devices) == 0 {
			require.NotEmpty(t, r.Problem, b.Name())
		}
		if b.Name() == "host" {
			require.Len(t, r.Devices, 1)
		}
	}
}
