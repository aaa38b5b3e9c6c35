package host

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

const name = "host"

// Backend is the host runtime.
type Backend struct{}

var _ ascendrt.Backend = Backend{}

// Name is "host".
func (Backend) Name() string { return name }

// Probe finds one device: the CPU.
func (Backend) Probe(context.Context) (ascendrt.Report, error) {
	return ascendrt.Report{Devices: []ascendrt.Info{info()}}, nil
}

func info() ascendrt.Info {
	return ascendrt.Info{
		Name: "host", Arch: runtime.GOARCH + "+" + arith.Level(), TotalMemory: totalMemory(),
		ComputeUnits: runtime.NumCPU(), RuntimeVersion: runtime.Version(),
	}
}

// totalMemory is the machine's memory in bytes, 8 GiB where it cannot be read.
func totalMemory() uint64 {
	const unknown = 8 << 30
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return unknown
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return unknown
}

// Open opens the CPU; ordinal is 0. Any number of devices may be open at a
// time, each with memory and goroutines of its own.
func (Backend) Open(ordinal int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	if ordinal != 0 {
		return nil, invalid("open", "ordinal "+strconv.Itoa(ordinal)+": the host has one device, number 0", ascendrt.ErrUnavailable)
	}
	f, err := parseFaults(o.Faults)
	if err != nil {
		return nil, invalid("open", err.Error(), ascendrt.ErrInvalid)
	}
	d := &device{faults: f, info: info(), closing: make(chan struct{}), abandoned: make(chan struct{})}
	d.Core.Init(name, o)
	if o.MemoryBytes != 0 {
		d.info.TotalMemory = o.MemoryBytes
	}
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	d.pool = newPool(workers)
	return d, nil
}

func invalid(call, text string, class error) error {
	return &ascendrt.Error{Backend: name, Call: call, Text: text, Command: -1, Class: class}
}

// spin is how long Wait polls before it sleeps: not at all unless asked for,
// since the streams need the cores that a poll would take.
func (d *device) spin() time.Duration { return d.Options.WaitSpin }
