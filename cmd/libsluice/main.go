// Command libsluice is the scheduler core as a C library: libsluice.so and
// libsluice.a with the functions that include/sluice.h declares. It is built
// with -buildmode=c-shared or c-archive (make lib), never run. Without cgo it
// builds as an empty command.
package main

import _ "github.com/sluice-serving/sluice/cmd/libsluice/abi"

func main() {}
