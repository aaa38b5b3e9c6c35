package executor

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// Config sizes an executor. Every field is required unless its comment says otherwise.
type Config struct {
	Model     model.Config
	Blocks    int // blocks of the KV pool, the null block included
	BlockSize int // tokens per block
	MaxSeqs   int // rows of a step
	MaxTokens int // tokens of a step
	MaxLen    int // tokens of a sequence, prompt and output
	InFlight  int // steps submitted and not yet waited for; 0 means 1
	Graphs    graphs.Config
}

// Validate joins all errors.
func (c Config) Validate() error {
	errs := []error{c.Model.Validate()}
	least := func(what string, v, least int) {
		if v < least {
			errs = append(errs, fmt.Errorf("executor: %s is %d, must be at least %d", what, v, least))
		}
	}
	least("blocks", c.Blocks, 2)
	least("block size", c.BlockSize, 1)
	least("sequences", c.MaxSeqs, 1)
	least("tokens of a step", c.MaxTokens, 1)
	least("sequence length", c.MaxLen, 1)
	least("steps in flight", c.InFlight, 0)
	if c.MaxLen > c.Model.MaxPositions {
		errs = append(errs, fmt.Errorf("executor: sequence length %d exceeds the model's %d positions", c.MaxLen, c.Model.MaxPositions))
	}
	return errors.Join(errs...)
}

// BlockBytes is the size of one KV block over all layers.
func (c Config) BlockBytes() int { return c.BlockSize * c.Model.KVBytesPerToken() }

// tableWidth is the number of block ids in a row of the block table.
func (c Config) tableWidth() int { return (c.MaxLen + c.BlockSize - 1) / c.BlockSize }
