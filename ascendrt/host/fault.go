package host

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
)

type faultKind uint8

const (
	faultLost faultKind = iota + 1
	faultOOM
	faultLimit
	faultError
	faultDelay
)

type fault struct {
	kind  faultKind
	call  string
	nth   int
	delay time.Duration
}

// faults counts calls and tells when one must fail.
type faults struct {
	mu    sync.Mutex
	list  []fault
	count map[string]int
}

var faultCalls = map[string]bool{"alloc": true, "alloc_host": true, "stream": true, "event": true, "plan": true,
	"submit": true, "capture": true, "command": true}

func parseFaults(s string) (*faults, error) {
	f := &faults{count: map[string]int{}}
	if s == "" {
		return f, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		what, rest, ok := strings.Cut(strings.TrimSpace(part), "@")
		call, nth, ok2 := strings.Cut(rest, ":")
		n, err := strconv.Atoi(nth)
		if !ok || !ok2 || err != nil || n < 1 || !faultCalls[call] {
			return nil, fmt.Errorf("fault %q is not kind@call:n", part)
		}
		e := fault{call: call, nth: n}
		name, value, _ := strings.Cut(what, "=")
		switch name {
		case "lost":
			e.kind = faultLost
		case "oom":
			e.kind = faultOOM
		case "limit":
			e.kind = faultLimit
		case "error":
			e.kind = faultError
		case "delay":
			e.kind = faultDelay
			if e.delay, err = time.ParseDuration(value); err != nil || e.delay < 0 {
				return nil, fmt.Errorf("fault %q: %q is no duration", part, value)
			}
		default:
			return nil, fmt.Errorf("fault %q: unknown kind %q", part, name)
		}
		if call == "command" && e.kind != faultLost && e.kind != faultDelay {
			return nil, fmt.Errorf("fault %q: a command can only be delayed or lose the device", part)
		}
		f.list = append(f.list, e)
	}
	return f, nil
}

// next counts one call and gives the fault that hits it, if any.
func (f *faults) next(call string) (fault, bool) {
	if len(f.list) == 0 {
		return fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[call]++
	for _, e := range f.list {
		if e.call == call && e.nth == f.count[call] {
			return e, true
		}
	}
	return fault{}, false
}

// inject applies the faults of an API call.
func (d *device) inject(call string) error {
	e, ok := d.faults.next(call)
	if !ok {
		return nil
	}
	switch e.kind {
	case faultLost:
		d.Fail(invalid(call, "injected loss", ascendrt.ErrDeviceLost))
		return d.LostError()
	case faultOOM:
		free, total, _ := d.MemInfo()
		return invalid(call, fmt.Sprintf("injected: %d of %d bytes free", free, total), ascendrt.ErrOutOfMemory)
	case faultLimit:
		return invalid(call, "injected limit", ascendrt.ErrResourceLimit)
	case faultDelay:
		time.Sleep(e.delay)
		return nil
	}
	return invalid(call, "injected error", ascendrt.ErrInvalid)
}
