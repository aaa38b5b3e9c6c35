package kvcache

import (
	"errors"
	"math"
)

// Limits of a Config.
const (
	// MaxBlocks is the largest pool, the null block included.
	MaxBlocks = 4<<20 + 1
	// MaxBlockSize is the largest block, in tokens.
	MaxBlockSize = 1024
	// MaxGroups is the largest number of KV groups.
	MaxGroups = 16
	// DefaultBlockSize is the block size in tokens when Config.BlockSize is 0.
	DefaultBlockSize = 16
	// DefaultLeaseShare is the share of the pool that leases may cover when Config.LeaseShare is 0.
	DefaultLeaseShare = 0.5
)

// Config describes a cache. Only Blocks has no default.
type Config struct {
	// Blocks is the number of physical blocks, the null block included; 2 to MaxBlocks.
	Blocks int
	// BlockSize is the number of tokens in a block, 1 to MaxBlockSize. 0 means DefaultBlockSize.
	BlockSize int
	// Groups lists the KV groups; all take their blocks from the one pool. None means one full-attention group.
	Groups []GroupSpec
	// Caching switches prefix caching; on by default.
	Caching Caching
	// MaxInFlight is the largest number of tokens of one sequence that may be
	// planned and not applied at a time (the step budget times the number of
	// steps in flight). It enters the admission cap of sliding-window groups.
	// 0 means unlimited: the whole-sequence gate then assumes that nothing leaves the window.
	MaxInFlight int
	// LeaseShare is the share of the usable pool that leases may cover, 0 to 1. 0 means DefaultLeaseShare.
	LeaseShare float64
	// Seed varies the placement of tree nodes in the child table, so that a
	// client cannot aim for one bucket. It never changes a result.
	Seed uint64
	// Events switches the recording of KV events; off by default.
	Events Events
	// OnEvict, if not nil, is called for each eviction, inside the call that
	// needed the block. It must not call the cache.
	OnEvict func(Eviction)
}

// Validate reports every fault of the configuration, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Blocks < 2 || c.Blocks > MaxBlocks {
		errs = append(errs, &RangeError{"Config.Blocks", c.Blocks, 2, MaxBlocks})
	}
	if c.BlockSize < 0 || c.BlockSize > MaxBlockSize {
		errs = append(errs, &RangeError{"Config.BlockSize", c.BlockSize, 1, MaxBlockSize})
	}
	if len(c.Groups) > MaxGroups {
		errs = append(errs, &RangeError{"len(Config.Groups)", len(c.Groups), 0, MaxGroups})
	}
	for i, g := range c.Groups {
		switch g.Kind {
		case FullAttention:
		case SlidingWindow:
			if g.Window < 1 {
				errs = append(errs, &RangeError{"GroupSpec.Window", g.Window, 1, math.MaxInt32})
			}
		default:
			errs = append(errs, &UnsupportedGroupError{i, g.Kind})
		}
	}
	if c.Caching > CachingOff {
		errs = append(errs, &RangeError{"Config.Caching", int(c.Caching), 0, int(CachingOff)})
	}
	if c.MaxInFlight < 0 {
		errs = append(errs, &RangeError{"Config.MaxInFlight", c.MaxInFlight, 0, math.MaxInt32})
	}
	if !(c.LeaseShare >= 0 && c.LeaseShare <= 1) {
		errs = append(errs, errors.New("kvcache: Config.LeaseShare is not within 0 to 1"))
	}
	errs = append(errs, c.Events.validate())
	return errors.Join(errs...)
}
