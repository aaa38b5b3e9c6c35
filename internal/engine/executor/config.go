package executor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// Ops are the operations that compute a model stored as bfloat16 where a device has
// fused ones. Without them, and for Float32, they are the named ones whatever is chosen.
type Ops uint8

const (
	OpsFused  Ops = iota // the fastest: a row's bits may depend on what else is in its step
	OpsPerRow            // fused ones that sum per row: its bits depend neither on other rows nor on how it is cut into steps
	OpsNamed             // those of docs/numerics.md: the same bits on every device
)

var opsNames = [...]string{"fused", "per-row", "named"}

// String names them.
func (o Ops) String() string { return opsNames[min(o, OpsNamed)] }

// ParseOps reads a name.
func ParseOps(s string) (Ops, error) {
	for i, name := range opsNames {
		if s == name {
			return Ops(i), nil
		}
	}
	return 0, fmt.Errorf("executor: no operations %q; there are %s", s, strings.Join(opsNames[:], ", "))
}

// Config sizes an executor. Every field is required unless its comment says otherwise.
type Config struct {
	Model     model.Config
	Type      ascendrt.DType // storage of weights, activations and cache: Float32 (default) or BFloat16
	Blocks    int            // blocks of the KV pool, the null block included; 0: what fits the device's free memory
	BlockSize int            // tokens per block
	MaxSeqs   int            // rows of a step
	MaxTokens int            // tokens of a step
	MaxLen    int            // tokens of a sequence, prompt and output
	InFlight  int            // steps submitted and not yet waited for; 0 means 1
	Graphs    graphs.Config
	KV        ascendrt.Placement    // of the KV pool; PlaceShareable: another process may be given it
	Group     ascendrt.Communicator // ranks among which the experts lie; nil: all lie here. Each submits the same steps, see SubmitIdle
	Ops       Ops                   // which operations compute
	Sampler   Sampler               // chooses tokens that are not the most likely ones; nil: there are none
	Scorer    Scorer                // reads the logits of prompts; nil: nobody does

	// Capturing is told of every key whose graphs were captured, of all; it may be nil.
	Capturing func(done, all int)
}

// Validate joins all errors.
func (c Config) Validate() error {
	errs := []error{c.Model.Validate()}
	least := func(what string, v, least int) {
		if v < least {
			errs = append(errs, fmt.Errorf("executor: %s is %d, must be at least %d", what, v, least))
		}
	}
	if c.Type != 0 && c.Type != ascendrt.Float32 && c.Type != ascendrt.BFloat16 {
		errs = append(errs, fmt.Errorf("executor: storage type %v; float32 and bfloat16 exist", c.Type))
	}
	if c.Ops > OpsNamed {
		errs = append(errs, fmt.Errorf("executor: operations %d; there are %s", c.Ops, strings.Join(opsNames[:], ", ")))
	}
	if c.Blocks != 0 {
		least("blocks", c.Blocks, 2)
	}
	least("block size", c.BlockSize, 1)
	least("sequences", c.MaxSeqs, 1)
	least("tokens of a step", c.MaxTokens, 1)
	least("sequence length", c.MaxLen, 1)
	least("steps in flight", c.InFlight, 0)
	if c.MaxLen > c.Model.MaxPositions {
		errs = append(errs, fmt.Errorf("executor: sequence length %d exceeds the model's %d positions", c.MaxLen, c.Model.MaxPositions))
	}
	return errors.Join(append(errs, c.validateDrafts(), c.validateExperts())...)
}

// BlockBytes is the size of one KV block over all layers.
func (c Config) BlockBytes() int { return 2 * c.Model.Layers * c.regionBytes() }

// regionBytes is the size of one block in one region: the keys or the values of a layer.
func (c Config) regionBytes() int { return c.BlockSize * c.Model.KVWidth() * c.storage().Size() }

// storage is Type with its default.
func (c Config) storage() ascendrt.DType {
	if c.Type == 0 {
		return ascendrt.Float32
	}
	return c.Type
}

// tableWidth is the number of block ids in a row of the block table that a sequence may have.
func (c Config) tableWidth() int { return (c.MaxLen + c.BlockSize - 1) / c.BlockSize }
