package offload

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/connector"
)

// Copies are blocks of one KV group: Blocks[i] of the engine, in all regions of the
// group, and slot Slots[i] of the tier. They are as long as there are blocks, not as
// the product with the regions.
type Copies struct {
	Parts         []Part
	SlotBytes     int64   // from one slot of the tier to the next
	Blocks, Slots []int32 // pair by pair; none twice on the side that is written
	Urgent        bool    // the engine's step waits for it
}

// Part is a region's place in a slot.
type Part struct {
	Region int   // index into the regions given to Register
	Bytes  int   // of a block in it
	Offset int64 // in the slot
}

// bytes are those of one block.
func (c Copies) bytes() (n int) {
	for _, p := range c.Parts {
		n += p.Bytes
	}
	return n
}

// sub is a run of the blocks.
func (c Copies) sub(first, last int) Copies {
	c.Blocks, c.Slots = c.Blocks[first:last], c.Slots[first:last]
	return c
}

// move is one copy between a region of the engine's KV and the tier's memory.
type move struct {
	region int
	offset int64 // in the region
	host   int64 // in the tier's memory
	bytes  int
}

// moves are the pieces, block by block, for movers without a better way.
func (c Copies) moves(yield func(move) bool) {
	for i, b := range c.Blocks {
		for _, p := range c.Parts {
			if !yield(move{p.Region, int64(b) * int64(p.Bytes), int64(c.Slots[i])*c.SlotBytes + p.Offset, p.Bytes}) {
				return
			}
		}
	}
}

// Mover copies for a Worker. Save and Load are called from several goroutines
// on ranges that do not overlap; they return when the bytes are there, or when
// none of them can still be touched. The slices are not kept.
type Mover interface {
	// Alloc gives the tier's memory. Called once, before any copy.
	Alloc(bytes int64) ([]byte, error)
	// Save copies from the regions to the tier's memory.
	Save(ctx context.Context, c Copies) error
	// Load copies from the tier's memory to the regions.
	Load(ctx context.Context, c Copies) error
	// Close frees the memory. No copy is in progress.
	Close() error
}

// memoryMover copies by the CPU.
type memoryMover struct {
	regions []connector.Region
	host    []byte
}

var _ Mover = (*memoryMover)(nil)

func (m *memoryMover) Alloc(bytes int64) ([]byte, error) {
	m.host = make([]byte, bytes)
	return m.host, nil
}

func (m *memoryMover) Save(ctx context.Context, c Copies) error {
	for v := range c.moves {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := m.regions[v.region].Memory.ReadAt(m.host[v.host:v.host+int64(v.bytes)], v.offset)
		if n < v.bytes {
			return fmt.Errorf("read %d bytes of region %q: %d: %w", v.bytes, m.regions[v.region].Name, n, orShort(err))
		}
	}
	return nil
}

func (m *memoryMover) Load(ctx context.Context, c Copies) error {
	for v := range c.moves {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := m.regions[v.region].Memory.WriteAt(m.host[v.host:v.host+int64(v.bytes)], v.offset)
		if err != nil || n < v.bytes {
			return fmt.Errorf("write %d bytes of region %q: %d: %w", v.bytes, m.regions[v.region].Name, n, orShort(err))
		}
	}
	return nil
}

func (m *memoryMover) Close() error {
	m.host = nil
	return nil
}

func orShort(err error) error {
	if err == nil {
		return errShort
	}
	return err
}
