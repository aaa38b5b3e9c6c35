// Package backends lists the device runtimes of the project, for programs that
// choose one by name.
package backends

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

// All gives every backend, host first.
func All() []ascendrt.Backend {
	return []ascendrt.Backend{host.Backend{}, cuda.Backend{}, acl.Backend{}}
}

// Find gives the backend and the ordinal of "name" or "name:ordinal".
func Find(device string) (ascendrt.Backend, int, error) {
	name, number, numbered := strings.Cut(device, ":")
	ordinal := 0
	if numbered {
		var err error
		if ordinal, err = strconv.Atoi(number); err != nil || ordinal < 0 {
			return nil, 0, fmt.Errorf("device %q: %q is no ordinal: %w", device, number, ascendrt.ErrInvalid)
		}
	}
	var names []string
	for _, b := range All() {
		if b.Name() == name {
			return b, ordinal, nil
		}
		names = append(names, b.Name())
	}
	return nil, 0, fmt.Errorf("device %q: there are %s: %w", device, strings.Join(names, ", "), ascendrt.ErrInvalid)
}
