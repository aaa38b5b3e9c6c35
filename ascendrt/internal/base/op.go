package base

import "github.com/sluice-serving/sluice/ascendrt"

// NewOp makes the caller's handle of a planned operation, which records name by
// its Ref: state is what a translator finds there.
func (c *Core) NewOp(state any, spec ascendrt.OpSpec, workspace int, slots []ascendrt.SlotInfo) ascendrt.Op {
	c.Add(Ops)
	return &op{core: c, ref: c.Refs.Add(state), spec: spec, workspace: workspace, slots: slots}
}

type op struct {
	core      *Core
	ref       ascendrt.Ref
	spec      ascendrt.OpSpec
	workspace int
	slots     []ascendrt.SlotInfo
}

var _ ascendrt.Op = (*op)(nil)

func (o *op) Spec() ascendrt.OpSpec      { return o.spec }
func (o *op) Workspace() int             { return o.workspace }
func (o *op) Slots() []ascendrt.SlotInfo { return o.slots }
func (o *op) Ref() ascendrt.Ref          { return o.ref }

func (o *op) Close() error {
	if o.core.Closed() || !o.core.Refs.Remove(o.ref) {
		return nil
	}
	o.core.Give(Ops)
	return nil
}
