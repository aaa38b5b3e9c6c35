package offload

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/connector"
)

// Move is one copy between a region of the engine's KV and the tier's memory.
type Move struct {
	Region int   // index into the regions given to Register
	Offset int64 // in the region
	Host   int64 // in the tier's memory
	Bytes  int
}

// Mover copies for a Worker. Save and Load are called from several goroutines
// on ranges that do not overlap; they return when the bytes are there, or when
// none of them can still be touched.
type Mover interface {
	// Alloc gives the tier's memory. Called once, before any copy.
	Alloc(bytes int64) ([]byte, error)
	// Save copies from the regions to the tier's memory.
	Save(ctx context.Context, moves []Move) error
	// Load copies from the tier's memory to the regions.
	Load(ctx context.Context, moves []Move) error
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

func (m *memoryMover) Save(ctx context.Context, moves []Move) error {
	for _, v := range moves {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := m.regions[v.Region].Memory.ReadAt(m.host[v.Host:v.Host+int64(v.Bytes)], v.Offset)
		if n < v.Bytes {
			return fmt.Errorf("read %d bytes of region %q: %d: %w", v.Bytes, m.regions[v.Region].Name, n, orShort(err))
		}
	}
	return nil
}

func (m *memoryMover) Load(ctx context.Context, moves []Move) error {
	for _, v := range moves {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := m.regions[v.Region].Memory.WriteAt(m.host[v.Host:v.Host+int64(v.Bytes)], v.Offset)
		if err != nil || n < v.Bytes {
			return fmt.Errorf("write %d bytes of region %q: %d: %w", v.Bytes, m.regions[v.Region].Name, n, orShort(err))
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
