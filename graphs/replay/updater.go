package replay

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Updater orders the replacement of host values with launches. Update i may
// not run before launch i-1 has finished where the runtime replaces values of
// a running graph, and launch i may not be submitted before update i. Sets
// whose launches share a stream, such as those of a model and of its drafter,
// share one Updater: with two, the updates of one could overtake the other's
// and wait for an event that never comes.
type Updater struct {
	overtakes bool // an update reaches launches that already run
	updated   uint64
	launched  uint64
	last      ascendrt.Point
}

// NewUpdater makes the updater of a device.
func NewUpdater(dev ascendrt.Device) *Updater {
	return &Updater{overtakes: dev.Caps().GraphUpdate == ascendrt.UpdateTaskGroup}
}

// begin waits until update i, the one before the next launch, may run.
func (u *Updater) begin(ctx context.Context) error {
	if !u.overtakes {
		return nil
	}
	if err := u.last.Wait(ctx); err != nil {
		return fmt.Errorf("wait for launch %d before the next update: %w", u.launched, err)
	}
	return nil
}

// update replaces all values of a graph for the next launch. It asserts the
// order that begin has waited for.
func (u *Updater) update(g ascendrt.Graph, slots []ascendrt.Slot) error {
	if u.overtakes && !u.last.Done() {
		return fmt.Errorf("%w: update %d before launch %d has finished", ErrOrder, u.launched+1, u.launched)
	}
	if err := g.Update(slots); err != nil {
		return fmt.Errorf("update %d values before launch %d: %w", len(slots), u.launched+1, err)
	}
	u.updated = u.launched + 1
	return nil
}

// check asserts that the next launch of a graph with host values has its own.
func (u *Updater) check() error {
	if u.updated != u.launched+1 {
		return fmt.Errorf("%w: launch %d with the values of launch %d", ErrOrder, u.launched+1, u.updated)
	}
	return nil
}

// submitted counts a launch, with host values or without.
func (u *Updater) submitted(p ascendrt.Point) {
	u.launched++
	u.last = p
}
