package ascendrt

import (
	"context"
	"log/slog"
	"time"
)

// Backend is one vendor runtime. Its methods may be called from any goroutine.
type Backend interface {
	// Name is "host", "cuda" or "ascend".
	Name() string
	// Probe tells what this machine has. It creates no context on a device,
	// does not panic, and a missing library is a finding in the report, not an
	// error.
	Probe(ctx context.Context) (Report, error)
	// Open opens one device. The caller closes it.
	Open(ordinal int, o OpenOptions) (Device, error)
}

// Report is what Probe found.
type Report struct {
	Libraries []Library
	Devices   []Info
	Missing   []string // absent optional symbols and libraries; the features answer ErrUnsupported
	Problem   string   // why there are no devices, and what to do; "" if there are some
}

// Library is one library of the runtime, found or not.
type Library struct {
	Name    string // soname
	Path    string // where it was loaded from; "" if it was not found
	Version string
	Problem string // the loader's text if it was not found
}

// Info describes a device.
type Info struct {
	Ordinal        int
	Name           string // "NVIDIA H200", "Ascend910B4", "host"
	UUID           string
	Arch           string // "sm_90", "910b", "amd64+avx512"
	TotalMemory    uint64 // bytes
	ComputeUnits   int    // SMs, AI cores, CPU cores
	RuntimeVersion string
	Note           string
}

// OpenOptions are the choices at open. The zero value is good for production.
type OpenOptions struct {
	// MemoryBytes bounds device memory that this Device hands out; 0: what the
	// hardware has (host: the machine's memory).
	MemoryBytes uint64
	// ArenaBytes of device memory are taken once at open; 0: on demand.
	ArenaBytes uint64
	// PinnedBytes bounds pinned host memory; 0: no bound of ours.
	PinnedBytes uint64
	// MaxStreams, MaxEvents and MaxGraphs bound live handles; 0: the runtime's own limit.
	MaxStreams, MaxEvents, MaxGraphs int
	// WaitSpin is how long Wait polls before it sleeps; 0: the backend's choice.
	WaitSpin time.Duration
	// Workers bounds the CPU cores that the host backend uses for one
	// operation; 0: GOMAXPROCS. Results do not depend on it.
	Workers int
	// CacheDir holds compiled programs; "": the user's cache folder.
	CacheDir string
	// Debug makes a backend synchronise after each command, so that an
	// asynchronous fault names its command, and keeps allocation stacks for
	// leak reports.
	Debug Debug
	// Faults injects faults for tests; the grammar is the backend's (host and
	// the emulated Ascend runtime have one). Other backends refuse it.
	Faults string
	// Logger gets leak reports and degradations; nil: silent.
	Logger *slog.Logger
}

// Debug says how much a device checks.
type Debug uint8

const (
	// DebugOff, the default, checks nothing beyond the contract.
	DebugOff Debug = iota
	// DebugSync waits after each command and keeps stacks of allocations.
	DebugSync
)

// String names the level.
func (d Debug) String() string {
	if d == DebugSync {
		return "sync"
	}
	return "off"
}
