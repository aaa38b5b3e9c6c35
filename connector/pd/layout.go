package pd

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

// identity is what two engines tell each other in the handshake.
type identity struct {
	EngineID  string        `json:"engine_id"`
	Model     string        `json:"model"`
	DType     string        `json:"dtype"`
	BlockSize int           `json:"block_size"`
	Groups    []groupInfo   `json:"groups"`
	Regions   []regionInfo  `json:"regions"`
	Transport transportInfo `json:"transport"`
	LeaseMS   int64         `json:"lease_ms"`
}

type groupInfo struct {
	Kind       string `json:"kind"`
	Layers     int    `json:"layers"`
	BlockBytes int    `json:"block_bytes"`
}

// regionInfo describes one tensor. Blocks lie one after the other.
type regionInfo struct {
	Group      int                  `json:"group"`
	Layer      int                  `json:"layer"`
	Name       string               `json:"name"`
	BlockBytes int                  `json:"block_bytes"`
	Memory     transport.Descriptor `json:"memory"`
}

type transportInfo struct {
	Name     string             `json:"name"`
	Address  string             `json:"address"`
	Instance transport.Instance `json:"instance"`
}

// MismatchError says why two engines do not understand each other's KV.
type MismatchError struct {
	What         string
	Ours, Theirs string
	Peer         string // engine id
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("peer %s has another %s: ours %s, theirs %s", e.Peer, e.What, e.Ours, e.Theirs)
}

// compare reports the first difference that matters for the bytes of a block.
func compare(ours, theirs *identity) error {
	differ := func(what string, a, b any) error {
		return &MismatchError{What: what, Ours: fmt.Sprint(a), Theirs: fmt.Sprint(b), Peer: theirs.EngineID}
	}
	switch {
	case ours.Model != theirs.Model:
		return differ("model fingerprint", ours.Model, theirs.Model)
	case ours.DType != theirs.DType:
		return differ("KV dtype", ours.DType, theirs.DType)
	case ours.BlockSize != theirs.BlockSize:
		return differ("block size", ours.BlockSize, theirs.BlockSize)
	case len(ours.Groups) != len(theirs.Groups):
		return differ("number of KV groups", len(ours.Groups), len(theirs.Groups))
	case ours.Transport.Name != theirs.Transport.Name:
		return differ("transport", ours.Transport.Name, theirs.Transport.Name)
	}
	for g := range ours.Groups {
		if a, b := ours.Groups[g], theirs.Groups[g]; a != b {
			return differ(fmt.Sprintf("layout of KV group %d", g), a, b)
		}
	}
	if a, b := len(ours.Regions), len(theirs.Regions); a != b {
		return differ("number of KV tensors", a, b)
	}
	for i := range ours.Regions {
		a, b := ours.Regions[i], theirs.Regions[i]
		if a.Group != b.Group || a.Layer != b.Layer || a.Name != b.Name || a.BlockBytes != b.BlockBytes {
			return differ("KV tensor", a.shape(), b.shape())
		}
	}
	return nil
}

// check reports an identity that cannot be, of a peer that is to be written to.
func (id *identity) check() error {
	if len(id.Groups) > 255 || len(id.Regions) > 1<<16 {
		return fmt.Errorf("peer with %d KV groups and %d tensors", len(id.Groups), len(id.Regions))
	}
	return nil
}

func (r regionInfo) shape() string {
	return fmt.Sprintf("group %d layer %d %q of %d bytes a block", r.Group, r.Layer, r.Name, r.BlockBytes)
}

func (g groupInfo) String() string {
	return fmt.Sprintf("%s, %d layers, %d bytes a block", g.Kind, g.Layers, g.BlockBytes)
}

// register makes the engine's regions addressable and fills the identity.
// Regions are ordered by group, layer and name, so equal layouts give equal
// lists.
func (id *identity) register(t transport.Transport, l connector.Layout, regions []connector.Region) error {
	if l.Blocks <= 0 || l.BlockSize <= 0 || len(l.Groups) == 0 || len(regions) == 0 {
		return fmt.Errorf("pd: layout of %d blocks of %d tokens, %d groups, %d regions", l.Blocks, l.BlockSize, len(l.Groups), len(regions))
	}
	id.Model, id.DType, id.BlockSize = l.Model, l.DType, l.BlockSize
	id.Groups = id.Groups[:0]
	for _, g := range l.Groups {
		id.Groups = append(id.Groups, groupInfo{g.Kind, g.Layers, g.BlockBytes})
	}
	for _, r := range regions {
		if r.Group < 0 || r.Group >= len(l.Groups) || r.BlockBytes <= 0 || r.Memory == nil {
			return fmt.Errorf("pd: region %q of layer %d: group %d of %d, %d bytes a block", r.Name, r.Layer, r.Group, len(l.Groups), r.BlockBytes)
		}
		d, err := t.Register(memoryOf(r, l.Blocks), int64(r.BlockBytes))
		if err != nil {
			return fmt.Errorf("pd: region %q of layer %d: %w", r.Name, r.Layer, err)
		}
		id.Regions = append(id.Regions, regionInfo{r.Group, r.Layer, r.Name, r.BlockBytes, d})
	}
	slices.SortFunc(id.Regions, func(a, b regionInfo) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Name, b.Name))
	})
	for i := 1; i < len(id.Regions); i++ {
		if a, b := id.Regions[i-1], id.Regions[i]; a.Group == b.Group && a.Layer == b.Layer && a.Name == b.Name {
			return fmt.Errorf("pd: two regions are %s", a.shape())
		}
	}
	return nil
}

// memory gives a region of the engine a size.
type memory struct {
	connector.Memory
	size int64
}

func (m memory) Size() int64 { return m.size }

// Unwrap is the engine's memory, for transports that look for more in it.
func (m memory) Unwrap() any { return m.Memory }

// mapped is memory that the CPU can address.
type mapped struct {
	memory
	raw []byte
}

func (m mapped) Bytes() []byte { return m.raw }

func memoryOf(r connector.Region, blocks int) transport.Memory {
	m := memory{r.Memory, int64(blocks) * int64(r.BlockBytes)}
	if h, ok := r.Memory.(connector.HostMemory); ok {
		if raw := h.Bytes(); int64(len(raw)) >= m.size {
			return mapped{m, raw[:m.size]}
		}
	}
	return m
}
