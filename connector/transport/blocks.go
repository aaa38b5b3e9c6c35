package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// RegionPair is a region of each side, whose units have the same size.
type RegionPair struct {
	Local, Remote RegionID
	Bytes         int64 // of a unit on both sides
}

// Blocks is a transfer of whole units: of each pair of regions, unit Remote[i] to
// unit Local[i] where they are read, Local[i] to Remote[i] where they are written. It is
// as long as one region has units, not as the product.
type Blocks struct {
	Regions       []RegionPair
	Local, Remote []int32 // units; of those that receive none twice
}

// BlockReader is implemented by peers that read blocks without a list of pieces.
type BlockReader interface {
	// ReadBlocks is Read for Blocks. Failed of a TransferError are indexes into
	// the lists of units. The slices are not kept after the return.
	ReadBlocks(ctx context.Context, c Capability, b Blocks) error
}

// ReadBlocks reads blocks from any peer, from one that is no BlockReader piece by
// piece. It is as BlockReader.ReadBlocks.
func ReadBlocks(ctx context.Context, p Peer, c Capability, b Blocks) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Local) == 0 || len(b.Regions) == 0 {
		return nil
	}
	if r, ok := p.(BlockReader); ok {
		return r.ReadBlocks(ctx, c, b)
	}
	return ReadPieces(ctx, p, c, b)
}

// BlockWriter is implemented by peers that write blocks without a list of pieces.
type BlockWriter interface {
	// WriteBlocks is Write for Blocks. Failed of a TransferError are indexes into
	// the lists of units. The slices are not kept after the return.
	WriteBlocks(ctx context.Context, c Capability, b Blocks) error
}

// WriteBlocks writes blocks to any peer, to one that is no BlockWriter piece by piece.
// It is as BlockWriter.WriteBlocks.
func WriteBlocks(ctx context.Context, p Peer, c Capability, b Blocks) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Local) == 0 || len(b.Regions) == 0 {
		return nil
	}
	if w, ok := p.(BlockWriter); ok {
		return w.WriteBlocks(ctx, c, b)
	}
	return WritePieces(ctx, p, c, b)
}

// Check reports what no transfer can be.
func (b Blocks) Check() error {
	if len(b.Local) != len(b.Remote) {
		return fmt.Errorf("blocks: %d local units for %d remote ones", len(b.Local), len(b.Remote))
	}
	for _, list := range [][]int32{b.Local, b.Remote} {
		if len(list) > 0 && slices.Min(list) < 0 {
			return fmt.Errorf("blocks: %w: unit %d", ErrRegion, slices.Min(list))
		}
	}
	for _, r := range b.Regions {
		if r.Bytes <= 0 {
			return fmt.Errorf("blocks: %w: units of %d bytes", ErrRegion, r.Bytes)
		}
	}
	return nil
}

// row is a run of positions whose units lie one after the other on both sides.
type row struct{ first, count int }

// maxRow bounds a row, since it fails as a whole.
const maxRow = 64

func (b Blocks) rows() (out []row) {
	for i, from := range b.Remote {
		if n := len(out); n > 0 {
			x := &out[n-1]
			if x.count < maxRow && b.Local[i-1]+1 == b.Local[i] && b.Remote[i-1]+1 == from {
				x.count++
				continue
			}
		}
		out = append(out, row{i, 1})
	}
	return out
}

// ReadPieces is ReadBlocks by a list of segments: those of each region, neighbours
// joined.
func ReadPieces(ctx context.Context, p Peer, c Capability, b Blocks) error {
	return b.pieces(func(segs []Segment) error { return p.Read(ctx, c, segs) })
}

// WritePieces is WriteBlocks by a list of segments, likewise.
func WritePieces(ctx context.Context, p Peer, c Capability, b Blocks) error {
	return b.pieces(func(segs []Segment) error { return p.Write(ctx, c, segs) })
}

// pieces moves the segments and names what failed of them by its units.
func (b Blocks) pieces(move func([]Segment) error) error {
	rows := b.rows()
	segs := make([]Segment, 0, len(rows)*len(b.Regions))
	for _, r := range b.Regions {
		for _, x := range rows {
			segs = append(segs, Segment{
				Local: r.Local, Remote: r.Remote, Length: int64(x.count) * r.Bytes,
				LocalOffset: int64(b.Local[x.first]) * r.Bytes, RemoteOffset: int64(b.Remote[x.first]) * r.Bytes,
			})
		}
	}
	err := move(segs)
	var te *TransferError
	if !errors.As(err, &te) {
		return err
	}
	bad := make([]bool, len(b.Local))
	for _, s := range te.Failed {
		x := rows[s%len(rows)]
		for i := x.first; i < x.first+x.count; i++ {
			bad[i] = true
		}
	}
	out := &TransferError{Err: err}
	for i, f := range bad {
		if f {
			out.Failed = append(out.Failed, i)
		}
	}
	return out
}
