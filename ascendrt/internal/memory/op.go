package memory

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// CheckOp checks a call of an operation: tensors and a workspace of at least
// need bytes that lie in device memory, and values for slots that take some.
// find looks an address range up.
func CheckOp(s *opspec.Signature, slots base.Slots, ws ascendrt.View, need int, args []ascendrt.Tensor, find func(addr uint64, n int) (*Alloc, error)) error {
	if err := s.Check(args); err != nil {
		return err
	}
	for i, v := range slots {
		if v != nil && i >= len(s.Ints) {
			return fmt.Errorf("slot %d takes no values: %w", i, ascendrt.ErrInvalid)
		}
	}
	for i := range args {
		n := args[i].Bytes()
		if n == 0 {
			continue
		}
		a, err := find(uint64(args[i].Addr), n)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Params[i].Name, err)
		}
		if a.Host {
			return fmt.Errorf("%s lies in host memory; operations take device memory: %w", s.Params[i].Name, ascendrt.ErrInvalid)
		}
	}
	if need == 0 {
		return nil
	}
	if ws.Len < need {
		return fmt.Errorf("the workspace has %d bytes; %d are needed: %w", ws.Len, need, ascendrt.ErrInvalid)
	}
	if _, err := find(uint64(ws.Addr), need); err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	return nil
}
