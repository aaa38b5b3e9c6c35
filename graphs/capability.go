package graphs

import (
	"errors"
	"fmt"
)

// Capability says for which batches an attention kernel can be recorded into a
// FULL graph. The order is by strength.
type Capability uint8

const (
	CaptureNever         Capability = iota // no batch: it runs outside of graphs
	CaptureSingleToken                     // uniform decode of one token per row
	CaptureUniform                         // uniform decode of any width
	CaptureAlways                          // any batch
	numCapabilityClasses = iota
)

var capabilityNames = [numCapabilityClasses]string{"never", "uniform single-token decode", "uniform batch", "always"}

// String names the capability.
func (c Capability) String() string {
	if int(c) < len(capabilityNames) {
		return capabilityNames[c]
	}
	return fmt.Sprintf("Capability(%d)", uint8(c))
}

// Backend describes the attention of a model with respect to graphs.
type Backend struct {
	Capabilities []Capability // of each kind of attention in the model; the weakest counts
	Piecewise    bool         // the model can run as pieces
	SplitPoint   bool         // attention is where the pieces end
	Recurrent    bool         // some layers keep recurrent state in KV blocks
	KVBlocks     int          // blocks of the pool; 0 = not known yet, as while profiling
	KVLayerwise  bool         // a KV connector works layer by layer and needs attention outside graphs
}

// capability is the weakest of all kinds; a model without attention has none to
// restrict it.
func (b Backend) capability() Capability {
	c := CaptureAlways
	for _, x := range b.Capabilities {
		c = min(c, x)
	}
	return c
}

// ErrMode is the sentinel of a mode that the backend cannot run.
var ErrMode = errors.New("graphs: mode not possible")

// Resolve narrows the asked mode to what the backend can run. Notes say, one
// sentence each, what was changed and why. An error means that no change would
// keep what was asked for.
func (c Config) Resolve(b Backend) (ModeConfig, []string, error) {
	var (
		mode  = c.Mode
		able  = b.capability()
		notes []string
		note  = func(to ModeConfig, why string) {
			notes = append(notes, fmt.Sprintf("graph mode %v becomes %v: %s", mode, to, why))
			mode = to
		}
		pieces = func() ModeConfig {
			if b.Piecewise {
				return ModePiecewise
			}
			return ModeNone
		}
	)
	if mode == ModeNone {
		return ModeNone, nil, nil
	}
	if c.Trim == AdaptiveDrafts && mode != ModeFullAndPiecewise {
		note(ModeFullAndPiecewise, "drafts that are trimmed on the device need decode graphs for any width")
	}
	if b.KVLayerwise && mode.Has(Full) {
		note(pieces(), "the KV connector works layer by layer, with waits that a graph cannot contain")
	}
	if mode.Mixed() == Full {
		switch {
		case able == CaptureNever:
			return 0, notes, fmt.Errorf("%w: %v asked for, the attention backend captures %v; use PIECEWISE", ErrMode, mode, able)
		case able < CaptureAlways && b.SplitPoint:
			note(ModeFullAndPiecewise, "the attention backend captures "+able.String()+" only")
		case able < CaptureAlways:
			note(ModeFullDecodeOnly, "the attention backend captures "+able.String()+" only")
		}
	}
	if mode.Decode() == Full && able == CaptureNever {
		note(pieces(), "the attention backend cannot be captured")
	}
	if mode.Decode() == Full && c.DecodeWidth() > 1 && able < CaptureUniform {
		to := ModeNone
		if b.SplitPoint {
			to = ModePiecewise
		}
		note(to, fmt.Sprintf("decode rows have %d tokens, the attention backend captures %v only", c.DecodeWidth(), able))
	}
	if mode.Mixed() == Piecewise && !b.Piecewise {
		to := ModeNone
		if mode == ModeFullAndPiecewise {
			to = ModeFullDecodeOnly
		}
		note(to, "the model does not run as pieces")
	}
	if mode.Has(Full) && able == CaptureNever {
		return 0, notes, fmt.Errorf("%w: %v with an attention backend that captures %v", ErrMode, mode, able)
	}
	if mode.Has(Full) && b.Recurrent && b.KVBlocks > 0 && c.MaxNumSeqs > b.KVBlocks {
		return 0, notes, fmt.Errorf("%w: %v for %d rows of recurrent state, but the pool has %d blocks; lower the number of rows or enlarge the pool",
			ErrMode, mode, c.MaxNumSeqs, b.KVBlocks)
	}
	return mode, notes, nil
}
