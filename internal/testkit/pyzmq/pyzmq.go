// Package pyzmq finds a Python that speaks ZeroMQ, for tests of what is sent to
// programs that are not ours.
package pyzmq

import (
	"os"
	"os/exec"
	"testing"
)

// Missing says what there is to install.
const Missing = "no python3 with zmq and msgpack (Debian: python3-zmq python3-msgpack)"

// Find gives a Python that has zmq and msgpack: the one of the path, or the
// system's, whose packages are Debian's. Without one it gives "", and fails the
// test where SLUICE_NEED_LIBZMQ is set.
func Find(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import zmq, msgpack").Run() == nil {
			return name
		}
	}
	if os.Getenv("SLUICE_NEED_LIBZMQ") != "" {
		t.Fatal(Missing)
	}
	return ""
}
