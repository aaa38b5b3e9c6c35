package executor

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/kvcache"
)

// NoRoomError reports a device whose free memory holds no sequence of the
// longest length.
type NoRoomError struct {
	MaxLen     int    // tokens of the longest sequence
	Need, Have int    // blocks
	BlockBytes int    // bytes of a block over all layers
	Free       uint64 // bytes that the device has left
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("executor: a sequence of %d tokens needs %d kv blocks of %d bytes; the device's free %d bytes hold %d: shorten the longest sequence",
		e.MaxLen, e.Need, e.BlockBytes, e.Free, e.Have)
}

func (e *NoRoomError) Unwrap() error { return ascendrt.ErrOutOfMemory }

// spareBytes stay free for graphs, libraries and the copies of connectors, and
// with them a thirtieth of the device's memory.
const spareBytes = 1 << 30

// fitBlocks is how many blocks of the KV pool fit into what the device has left.
// It is called when everything else that a step needs has been allocated.
func (e *Executor) fitBlocks() (int, error) {
	free, total, err := e.dev.MemInfo()
	if err != nil {
		return 0, fmt.Errorf("free memory of the device: %w", err)
	}
	spare := uint64(spareBytes) + total/30
	have := 0
	if free > spare {
		have = int(min((free-spare)/uint64(e.c.BlockBytes()), kvcache.MaxBlocks))
	}
	if need := e.c.tableWidth() + 1; have < need {
		return 0, &NoRoomError{e.c.MaxLen, need, have, e.c.BlockBytes(), free}
	}
	return have, nil
}

// PoolBlocks is the number of blocks of the KV pool, the null block included.
func (e *Executor) PoolBlocks() int { return e.c.Blocks }
