package executor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

// planner notes what is planned, and lacks one kind.
type planner struct {
	ascendrt.Device
	lacks ascendrt.OpKind
	specs []ascendrt.OpSpec
}

type plannedOp struct{ ascendrt.Op }

func (plannedOp) Workspace() int { return 0 }
func (plannedOp) Close() error   { return nil }

func (p *planner) Plan(s ascendrt.OpSpec) (ascendrt.Op, error) {
	if s.Kind == p.lacks {
		return nil, &ascendrt.Error{Backend: "test", Call: "plan", Command: -1, Class: ascendrt.ErrUnsupported}
	}
	p.specs = append(p.specs, s)
	return plannedOp{}, nil
}

// Where a device has fused operations the choice says whether they are taken and whether
// each of them sums per row; where it lacks one all choices are the named ones.
func TestWhatIsPlanned(t *testing.T) {
	plan := func(o Ops, typ ascendrt.DType, lacks ascendrt.OpKind) (fused bool, specs []ascendrt.OpSpec) {
		c := deviceConfig(model.Builtin(), typ, graphs.ModeNone, 16, 1)
		c.Ops = o
		dev := &planner{lacks: lacks}
		e := &Executor{c: c, dev: dev, maxTokens: 16, maxReqs: 4}
		got, err := e.planOps()
		require.NoError(t, err)
		require.NotEmpty(t, dev.specs)
		return got.fused != nil, dev.specs[len(dev.specs)-len(got.all):]
	}
	perRow := func(specs []ascendrt.OpSpec) (yes, no int) {
		count := func(is bool) {
			if is {
				yes++
			} else {
				no++
			}
		}
		for _, s := range specs {
			switch a := s.Attr.(type) {
			case ascendrt.LinearAttr:
				count(a.PerRow)
			case ascendrt.AttentionAttr:
				count(a.Order == ascendrt.SumPerRow)
			}
		}
		return yes, no
	}
	fused, specs := plan(OpsFused, ascendrt.BFloat16, "")
	yes, no := perRow(specs)
	require.True(t, fused)
	require.Equal(t, [2]int{0, 7}, [2]int{yes, no}, "five products and attention for one token and for more")
	fused, specs = plan(OpsPerRow, ascendrt.BFloat16, "")
	yes, no = perRow(specs)
	require.True(t, fused)
	require.Equal(t, [2]int{7, 0}, [2]int{yes, no})
	fused, named := plan(OpsNamed, ascendrt.BFloat16, "")
	require.False(t, fused)
	for _, s := range named {
		require.NotContains(t, []ascendrt.OpKind{ascendrt.OpFeedEmbedding, ascendrt.OpLinear, ascendrt.OpRotateWrite, ascendrt.OpPick}, s.Kind)
		if a, ok := s.Attr.(ascendrt.AttentionAttr); ok {
			require.Equal(t, ascendrt.SumFixed, a.Order)
		}
	}
	for _, o := range []Ops{OpsFused, OpsPerRow, OpsNamed} {
		for _, lacks := range []ascendrt.OpKind{ascendrt.OpFeedEmbedding, ascendrt.OpLinear, ascendrt.OpRotateWrite, ascendrt.OpPick} {
			fused, specs = plan(o, ascendrt.BFloat16, lacks)
			require.False(t, fused)
			require.Equal(t, named, specs, "%v without %v", o, lacks)
		}
		fused, _ = plan(o, ascendrt.Float32, "")
		require.False(t, fused, o)
	}
}

func TestOpsByName(t *testing.T) {
	for _, o := range []Ops{OpsFused, OpsPerRow, OpsNamed} {
		got, err := ParseOps(o.String())
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	_, err := ParseOps("fast")
	require.EqualError(t, err, `executor: no operations "fast"; there are fused, per-row, named`)
	c := deviceConfig(model.Builtin(), ascendrt.BFloat16, graphs.ModeNone, 16, 1)
	require.NoError(t, c.Validate())
	c.Ops = OpsNamed + 1
	require.ErrorContains(t, c.Validate(), "executor: operations 3; there are fused, per-row, named")
}
