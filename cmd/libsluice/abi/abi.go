package abi

// #cgo CFLAGS: -I${SRCDIR}/../include
// #include "sluice.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/scheduler"
)

// objects are all that C holds handles of.
var objects = newHandles()

// fault is a failure with the status that C gets.
type fault struct {
	status C.int
	text   string
}

func (f *fault) Error() string { return f.text }

func faultf(status C.int, format string, args ...any) error {
	return &fault{status, fmt.Sprintf(format, args...)}
}

// statusOf is the status of an error.
func statusOf(err error) C.int {
	var (
		f       *fault
		request *scheduler.RequestError
		long    *scheduler.TooLongError
		never   *scheduler.NeverFitsError
		result  *scheduler.ResultError
	)
	switch {
	case err == nil:
		return C.SLUICE_OK
	case errors.As(err, &f):
		return f.status
	case errors.As(err, &request):
		return C.SLUICE_E_REQUEST
	case errors.As(err, &long):
		return C.SLUICE_E_TOO_LONG
	case errors.As(err, &never):
		return C.SLUICE_E_NEVER_FITS
	case errors.As(err, &result):
		return C.SLUICE_E_RESULT
	}
	for _, s := range [...]struct {
		err    error
		status C.int
	}{
		{scheduler.ErrDuplicate, C.SLUICE_E_DUPLICATE}, {scheduler.ErrUnknown, C.SLUICE_E_UNKNOWN},
		{scheduler.ErrForeignPlan, C.SLUICE_E_FOREIGN_PLAN}, {scheduler.ErrStalePlan, C.SLUICE_E_STALE_PLAN},
		{scheduler.ErrPlanOrder, C.SLUICE_E_PLAN_ORDER}, {scheduler.ErrTooManyPlans, C.SLUICE_E_PLANS},
		{scheduler.ErrBusy, C.SLUICE_E_CACHE_BUSY},
	} {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return C.SLUICE_E_ARGUMENT
}

// enter finds the object of a handle and keeps other calls out of it. On any
// status but SLUICE_OK there is nothing to leave.
func enter(h C.sluice_handle) (*object, C.int) {
	o := objects.get(handle(h))
	if o == nil {
		return nil, C.SLUICE_E_HANDLE
	}
	if !o.busy.CompareAndSwap(false, true) {
		if o.freed.Load() {
			return nil, C.SLUICE_E_HANDLE
		}
		o.note("another thread is using the handle")
		return nil, C.SLUICE_E_BUSY
	}
	if o.broken {
		o.busy.Store(false)
		return nil, C.SLUICE_E_BROKEN
	}
	return o, C.SLUICE_OK
}

// enterScheduler is enter for handles of schedulers.
func enterScheduler(h C.sluice_handle) (*object, C.int) {
	if kind(handle(h)>>56) != schedulerKind {
		return nil, C.SLUICE_E_HANDLE
	}
	return enter(h)
}

// leave lets other calls in. It is deferred: a panic marks the object as
// broken and ends here.
func (o *object) leave(status *C.int) {
	if p := recover(); p != nil {
		o.broken = true
		o.note(fmt.Sprintf("a broken invariant: %v", p))
		*status = C.SLUICE_E_BROKEN
	}
	o.busy.Store(false)
}

// fail keeps an error's text and is its status.
func (o *object) fail(err error) C.int {
	if err == nil {
		return C.SLUICE_OK
	}
	o.note(err.Error())
	return statusOf(err)
}

// missing is the fault of an argument that is NULL.
func (o *object) missing(argument string) C.int {
	return o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s is NULL", argument))
}

// sized checks a structure's struct_size.
func (o *object) sized(name string, got C.uint32_t, want uintptr) C.int {
	if uintptr(got) == want {
		return C.SLUICE_OK
	}
	return o.fail(faultf(C.SLUICE_E_SIZE, "%s: struct_size is %d, the library's structure has %d bytes", name, uint32(got), want))
}

// view is an array of C's as a slice, for reading during the call. The pointer
// is not looked at where size is 0: C may have left anything in its place.
func view[G any, P any](o *object, name string, data **P, size C.size_t) ([]G, C.int) {
	if size == 0 {
		return nil, C.SLUICE_OK
	}
	if *data == nil {
		return nil, o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s is NULL, but said to have %d entries", name, uint64(size)))
	}
	if size > 1<<31-1 {
		return nil, o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s is said to have %d entries", name, uint64(size)))
	}
	return unsafe.Slice((*G)(unsafe.Pointer(*data)), int(size)), C.SLUICE_OK
}

// hand stores a pointer to C memory in a variable of C's. It is stored as a
// number: for a pointer the garbage collector would look at what the variable
// held before, and in an uninitialized one that can be anything.
func hand[T any](to **T, p *T) { *(*uintptr)(unsafe.Pointer(to)) = uintptr(unsafe.Pointer(p)) }

// copyText writes a text into C's buffer, cut to its size, and is the size that
// all of it takes.
func copyText(to *C.char, size C.size_t, text string) C.size_t {
	if to != nil && size > 0 {
		b := unsafe.Slice((*byte)(unsafe.Pointer(to)), int(min(size, C.size_t(len(text)+1))))
		b[copy(b[:len(b)-1], text)] = 0
	}
	return C.size_t(len(text) + 1)
}

//export sluiceGoLastError
func sluiceGoLastError(h C.sluice_handle, text *C.char, size C.size_t, needed *C.size_t) C.int {
	status := C.int(C.SLUICE_OK)
	said := "no live object has this handle: it was freed, is of another kind or process, or never was one"
	if o := objects.get(handle(h)); o != nil {
		said = o.lastError()
	} else {
		status = C.SLUICE_E_HANDLE
	}
	n := copyText(text, size, said)
	if needed != nil {
		*needed = n
	}
	return status
}
