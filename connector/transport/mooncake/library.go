//go:build cgo && linux

package mooncake

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/sluice-serving/sluice/connector/transport"
)

const (
	soname   = "libtransfer_engine.so"
	variable = "SLUICE_MOONCAKE_LIB"
)

// load opens the library at the first call and keeps it for the life of the
// process. Its error is a *transport.UnavailableError.
var load = sync.OnceValue(func() error {
	name := os.Getenv(variable)
	if name == "" {
		name = soname
	}
	return loadFrom(name)
})

func loadFrom(name string) error {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	list := (*[2]*C.char)(C.calloc(2, C.size_t(unsafe.Sizeof(cname))))
	defer C.free(unsafe.Pointer(list))
	list[0] = cname
	lib := (*C.smk_lib)(C.calloc(1, C.sizeof_smk_lib))
	defer C.free(unsafe.Pointer(lib))
	if C.smk_load(&list[0], lib) == 0 {
		return nil
	}
	return &transport.UnavailableError{Transport: "mooncake", Reason: fmt.Sprintf(
		"%s: build Mooncake's Transfer Engine with -DBUILD_SHARED_LIBS=ON and install it, or set %s to its %s",
		C.GoString(&lib.problem[0]), variable, soname,
	)}
}

// Error is a call of the Transfer Engine that failed. What it knows about the
// cause it writes to its own log.
type Error struct {
	Call string // "transfer" is a task that ended without success
	Code int    // as the library has it; of a transfer its state
}

func (e *Error) Error() string { return fmt.Sprintf("mooncake: %s: code %d", e.Call, e.Code) }

func errorOf(e *C.smk_err) error { return &Error{C.GoString(e.call), int(e.code)} }
