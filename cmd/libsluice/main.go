// Command libsluice is the scheduler core as a C library: libsluice.so and
// libsluice.a with the functions that include/sluice.h declares. It is built
// with -buildmode=c-shared or c-archive (make lib), never run.
//
// shim.c holds the functions that are exported. Each refuses calls after
// fork, which Go code could not survive to report, and hands on to the
// function of the same name in the files abi_*.go. These check what comes from
// C, enter the handle (one call at a time), and speak to the scheduler. What
// they hand out lies in memory of malloc, laid out as the header says: the
// arrays of plans are written there by the scheduler itself.
//
// The files without "C" hold what needs none: handles, the configuration, and
// the connector whose answers are data. Without cgo the command builds as an
// empty one.
package main

func main() {}
