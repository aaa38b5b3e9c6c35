package offload

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// Sharing says whether the tier also keeps the KV of finished turns, by
// content.
type Sharing uint8

const (
	// Preempted requests only.
	Preempted Sharing = iota
	// Turns too (enable_offload_prefix_caching).
	Turns
)

func (s Sharing) String() string {
	if s == Turns {
		return "turns"
	}
	return "preempted"
}

// Config configures the scheduler's side.
type Config struct {
	BlockSize int                 // tokens; default 16
	Groups    []kvcache.GroupSpec // KV groups; default one of full attention
	Slots     int                 // host blocks, as the worker has; see Slots
	Workers   int                 // whose reports count, at most 64; default 1
	Sharing   Sharing
	Policy    Policy
	Save      time.Duration // deadline of a save; default 10 s
	Load      time.Duration // deadline of a load; default 30 s
	// Events switches the recording of what becomes matchable in host memory, and
	// of what leaves it; see Scheduler.TakeEvents. The default medium is "CPU". The
	// hashes are those of a cache with the same algorithm and seed.
	Events kvcache.Events
	Files  []Key // what the worker's file tier holds at the start; see Worker.Files
}

func (c Config) withDefaults() Config {
	if c.BlockSize == 0 {
		c.BlockSize = 16
	}
	if len(c.Groups) == 0 {
		c.Groups = make([]kvcache.GroupSpec, 1)
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.Save == 0 {
		c.Save = 10 * time.Second
	}
	if c.Load == 0 {
		c.Load = 30 * time.Second
	}
	return c
}

// Validate reports every value that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.Slots < 1 || c.Slots > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("offload: %d host blocks, want at least 1", c.Slots))
	}
	if c.BlockSize < 0 || c.Workers < 0 || c.Workers > 64 || c.Save < 0 || c.Load < 0 {
		errs = append(errs, fmt.Errorf("offload: block size %d, %d workers (at most 64), deadlines %v and %v", c.BlockSize, c.Workers, c.Save, c.Load))
	}
	if len(c.Groups) > 255 {
		errs = append(errs, fmt.Errorf("offload: %d KV groups", len(c.Groups)))
	}
	if _, err := newJournal(c.Events); err != nil || c.Events.Mode > kvcache.EventsOn {
		errs = append(errs, errors.Join(errors.New("offload: Events"), err))
	}
	if c.Sharing == Turns {
		for i, g := range c.Groups {
			if g.Kind != kvcache.FullAttention {
				errs = append(errs, fmt.Errorf("offload: sharing of turns needs full attention, KV group %d is %v", i, g.Kind))
			}
		}
	}
	return errors.Join(errs...)
}

// Budget is how much host memory a rank's tier may use. The first field that
// is set counts.
type Budget struct {
	BytesPerRank int64   // cpu_bytes_to_use_per_rank
	Bytes        int64   // cpu_bytes_to_use, divided by the ranks
	Ratio        float64 // offload_host_memory_ratio: host blocks per device block; default 1
}

// Slots is the number of host blocks of one rank under a budget.
func Slots(l connector.Layout, b Budget, ranks int) (int, error) {
	size := slotBytes(l)
	if size <= 0 || ranks < 1 {
		return 0, fmt.Errorf("offload: slots of %d bytes for %d ranks", size, ranks)
	}
	if b.BytesPerRank < 0 || b.Bytes < 0 || b.Ratio < 0 || math.IsInf(b.Ratio, 0) || math.IsNaN(b.Ratio) {
		return 0, fmt.Errorf("offload: budget %+v: want values above 0", b)
	}
	switch {
	case b.BytesPerRank > 0:
		return int(max(1, b.BytesPerRank/size)), nil
	case b.Bytes > 0:
		return int(max(1, b.Bytes/int64(ranks)/size)), nil
	case b.Ratio == 0:
		b.Ratio = 1
	}
	return max(1, int(b.Ratio*float64(l.Blocks*len(l.Groups)))), nil
}

// slotBytes is the size of a slot: the largest block of any group.
func slotBytes(l connector.Layout) int64 {
	n := 0
	for _, g := range l.Groups {
		n = max(n, g.BlockBytes)
	}
	return int64(n)
}
