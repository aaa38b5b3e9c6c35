package abi

// #include "sluice.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/scheduler"
)

// setting checks an enumeration's value and hands it to a setter.
func setting(h C.sluice_handle, name string, v, end C.int, set func(*core) error) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if v < 0 || v > end {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s is %d, which is none", name, int(v)))
	}
	return o.fail(set(o.core))
}

//export sluiceGoSetPause
func sluiceGoSetPause(h C.sluice_handle, pause C.int) C.int {
	return setting(h, "pause", pause, C.SLUICE_PAUSE_ALL, func(k *core) error { k.s.SetPause(scheduler.Pause(pause)); return nil })
}

//export sluiceGoSetThrottle
func sluiceGoSetThrottle(h C.sluice_handle, throttle C.int) C.int {
	return setting(h, "throttle", throttle, 1, func(k *core) error { k.s.SetThrottle(scheduler.Throttle(throttle)); return nil })
}

//export sluiceGoDrain
func sluiceGoDrain(h C.sluice_handle) C.int {
	return setting(h, "", 0, 0, func(k *core) error { k.s.Drain(); return nil })
}

//export sluiceGoResetCache
func sluiceGoResetCache(h C.sluice_handle, preempt C.int) C.int {
	return setting(h, "preempt", preempt, 1, func(k *core) error { return k.s.ResetCache(scheduler.Reset(preempt)) })
}

//export sluiceGoCheck
func sluiceGoCheck(h C.sluice_handle) C.int {
	return setting(h, "", 0, 0, func(k *core) error {
		if err := k.s.Check(); err != nil {
			return faultf(C.SLUICE_E_BROKEN, "%s", err)
		}
		return nil
	})
}

//export sluiceGoFlushRecording
func sluiceGoFlushRecording(h C.sluice_handle) C.int {
	return setting(h, "", 0, 0, func(k *core) error {
		if k.rec == nil {
			return faultf(C.SLUICE_E_ABSENT, "the configuration has no recording")
		}
		if err := k.rec.flush(); err != nil {
			return faultf(C.SLUICE_E_IO, "recording: %s", err)
		}
		return nil
	})
}

//export sluiceGoPropose
func sluiceGoPropose(h C.sluice_handle, c *C.sluice_proposal_t) C.int {
	return setting(h, "", 0, 0, func(k *core) error {
		if c == nil {
			return faultf(C.SLUICE_E_ARGUMENT, "proposal is NULL")
		}
		p := k.s.Propose()
		c.cap, c.wants = C.int32_t(p.Cap), C.int32_t(p.Wants)
		return nil
	})
}

//export sluiceGoSetAgreement
func sluiceGoSetAgreement(h C.sluice_handle, c *C.sluice_agreement_t) C.int {
	return setting(h, "", 0, 0, func(k *core) error {
		if c == nil || c.cap < 0 || c.chunk&^1 != 0 {
			return faultf(C.SLUICE_E_ARGUMENT, "agreement is NULL or has a number that is out of range")
		}
		k.s.SetAgreement(scheduler.Agreement{Cap: int32(c.cap), Chunk: c.chunk == 1})
		return nil
	})
}

//export sluiceGoAgree
func sluiceGoAgree(proposals *C.sluice_proposal_t, size C.size_t, out *C.sluice_agreement_t) C.int {
	if out == nil || proposals == nil && size > 0 || size > 1<<20 {
		return C.SLUICE_E_ARGUMENT
	}
	given := unsafe.Slice(proposals, int(size))
	list := make([]scheduler.Proposal, len(given))
	for i := range given {
		if given[i].cap < 0 || given[i].wants&^1 != 0 {
			return C.SLUICE_E_ARGUMENT
		}
		list[i] = scheduler.Proposal{Cap: int32(given[i].cap), Wants: scheduler.Want(given[i].wants)}
	}
	a := scheduler.Agree(list)
	out.cap, out.chunk = C.int32_t(a.Cap), 0
	if a.Chunk {
		out.chunk = 1
	}
	return C.SLUICE_OK
}

//export sluiceGoQueue
func sluiceGoQueue(h C.sluice_handle, queue C.int, ids *C.sluice_request_id, capacity C.size_t, size *C.size_t) C.int {
	return setting(h, "queue", queue, C.SLUICE_QUEUE_SKIPPED, func(k *core) error {
		if size == nil || ids == nil && capacity > 0 {
			return faultf(C.SLUICE_E_ARGUMENT, "ids or size is NULL")
		}
		q := k.s.Queues()
		names := [...][]string{q.Running, q.Waiting, q.Skipped}[queue]
		*size = C.size_t(len(names))
		out := unsafe.Slice((*connector.RequestID)(ids), int(min(capacity, *size)))
		for i := range out {
			out[i], _ = k.s.Lookup(names[i])
		}
		return nil
	})
}

//export sluiceGoDump
func sluiceGoDump(h C.sluice_handle, to *C.char, size C.size_t, needed *C.size_t) C.int {
	return setting(h, "", 0, 0, func(k *core) error {
		n := copyText(to, size, k.s.Dump())
		if needed != nil {
			*needed = n
		}
		return nil
	})
}

//export sluiceGoReplay
func sluiceGoReplay(path *C.char, out *C.sluice_replayed_t, said *C.char, size C.size_t) (status C.int) {
	refuse := func(status C.int, format string, args ...any) C.int {
		copyText(said, size, fmt.Sprintf(format, args...))
		return status
	}
	defer func() {
		if p := recover(); p != nil {
			status = refuse(C.SLUICE_E_BROKEN, "a broken invariant: %v", p)
		}
	}()
	switch {
	case path == nil || out == nil:
		return refuse(C.SLUICE_E_ARGUMENT, "path or replayed is NULL")
	case uintptr(out.struct_size) != unsafe.Sizeof(*out):
		return refuse(C.SLUICE_E_SIZE, "replayed: struct_size is %d, the library's structure has %d bytes", uint32(out.struct_size), unsafe.Sizeof(*out))
	}
	f, err := os.Open(text(path))
	if err != nil {
		return refuse(C.SLUICE_E_IO, "%s", err)
	}
	defer func() { _ = f.Close() }() // read only
	sum, err := scheduler.Replay(f)
	if err != nil {
		return refuse(C.SLUICE_E_IO, "%s", err)
	}
	out.lines, out.plans, out.outputs, out.diverged = C.int64_t(sum.Lines), C.int64_t(sum.Plans), C.int64_t(sum.Outputs), 0
	copyText(said, size, "")
	if sum.Divergence != nil {
		out.diverged = 1
		copyText(said, size, sum.Divergence.String())
	}
	return C.SLUICE_OK
}
