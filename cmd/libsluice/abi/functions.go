package abi

// #include "sluice.h"
import "C"

import "unsafe"

// Functions are the exported functions that a loop of steps calls, by their
// names in C: for programs in Go that compare calls from C with their own.
func Functions() map[string]unsafe.Pointer {
	return map[string]unsafe.Pointer{
		"sluice_new":   unsafe.Pointer(C.sluice_new),
		"sluice_free":  unsafe.Pointer(C.sluice_free),
		"sluice_add":   unsafe.Pointer(C.sluice_add),
		"sluice_plan":  unsafe.Pointer(C.sluice_plan),
		"sluice_apply": unsafe.Pointer(C.sluice_apply),
	}
}
