//go:build !invariants

// Package invariants says at compile time whether the numbered invariants of
// each package are checked after every operation. Build with -tags invariants
// to check them; tests of a package may also call its check directly.
package invariants

// Enabled is true in builds with the tag "invariants". It is a constant, so
// that the compiler drops the checks where it is false.
const Enabled = false
