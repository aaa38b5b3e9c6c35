// Package abi is the scheduler core as C functions: those that ../include/sluice.h
// declares. A program that imports it defines them; the library is such a
// program with nothing else in it.
//
// shim.c holds the functions that are exported. Each refuses calls after
// fork, which Go code could not survive to report, and hands on to the
// function of the same name in Go. These check what comes from C, enter the
// handle (one call at a time), and speak to the scheduler. What they hand out
// lies in memory of malloc, laid out as the header says: the arrays of plans
// are written there by the scheduler itself.
//
// The files without "C" hold what needs none: handles, the configuration, and
// the connector whose answers are data. They are all that there is without cgo.
package abi
