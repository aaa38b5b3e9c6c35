package graphs

import (
	"fmt"
	"strings"
)

// Mode is how one step runs. The numeric order is the order of agreement: ranks
// and pipeline stages that disagree take the smallest.
type Mode uint8

const (
	None      Mode = iota // eager, nothing replayed, nothing padded
	Piecewise             // graphs between the attention calls
	Full                  // one graph over the whole forward pass
)

// String returns the name that configuration and metrics use.
func (m Mode) String() string {
	switch m {
	case None:
		return "NONE"
	case Piecewise:
		return "PIECEWISE"
	case Full:
		return "FULL"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// ModeConfig is what the operator asks for: the mode of decode batches and the
// mode of all others.
type ModeConfig uint8

const (
	ModeFullAndPiecewise ModeConfig = iota // default: FULL for decode batches, PIECEWISE for others
	ModeNone                               // no graphs: every step is eager
	ModePiecewise                          // PIECEWISE for every batch
	ModeFull                               // one kind of FULL graph for every batch
	ModeFullDecodeOnly                     // FULL for decode batches, NONE for others
)

var modeConfigNames = [...]string{
	ModeFullAndPiecewise: "FULL_AND_PIECEWISE",
	ModeNone:             "NONE",
	ModePiecewise:        "PIECEWISE",
	ModeFull:             "FULL",
	ModeFullDecodeOnly:   "FULL_DECODE_ONLY",
}

// String returns the name that flags and configuration files use.
func (m ModeConfig) String() string {
	if int(m) < len(modeConfigNames) {
		return modeConfigNames[m]
	}
	return fmt.Sprintf("ModeConfig(%d)", uint8(m))
}

// ParseModeConfig reads a name as String writes it, in any case.
func ParseModeConfig(s string) (ModeConfig, error) {
	for m, name := range modeConfigNames {
		if strings.EqualFold(s, name) {
			return ModeConfig(m), nil
		}
	}
	return 0, fmt.Errorf("unknown graph mode %q (one of %s)", s, strings.Join(modeConfigNames[:], ", "))
}

// Decode is the mode of batches whose rows are all decodes or tails.
func (m ModeConfig) Decode() Mode {
	switch m {
	case ModePiecewise:
		return Piecewise
	case ModeFull, ModeFullDecodeOnly, ModeFullAndPiecewise:
		return Full
	}
	return None
}

// Mixed is the mode of all other batches.
func (m ModeConfig) Mixed() Mode {
	switch m {
	case ModePiecewise, ModeFullAndPiecewise:
		return Piecewise
	case ModeFull:
		return Full
	}
	return None
}

// SeparateDecode reports whether decode batches have graphs of their own.
func (m ModeConfig) SeparateDecode() bool {
	return m == ModeFullDecodeOnly || m == ModeFullAndPiecewise
}

// Has reports whether graphs of mode g are captured at all.
func (m ModeConfig) Has(g Mode) bool { return m.Decode() == g || m.Mixed() == g }
