// Package signals holds guard.h, which the C side of the device backends includes.
// They import it, since a build looks at no header outside of a package: so they
// are built again when it changes.
package signals

import _ "embed"

// Header is the text of guard.h.
//
//go:embed guard.h
var Header string
