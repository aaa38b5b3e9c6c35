//go:build cgo && linux

package acl

import (
	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// module is a loaded binary of kernels, compiled for one chip.
type module struct {
	d    *device
	raw  modulePtr
	ref  ascendrt.Ref
	refs []ascendrt.Ref // of its kernels
	name string
}

type kernel struct {
	fn   funcPtr
	name string
	ref  ascendrt.Ref
}

var (
	_ ascendrt.Module = (*module)(nil)
	_ ascendrt.Kernel = (*kernel)(nil)
)

// LoadProgram takes "ascend-elf" alone: this runtime compiles no source.
func (d *device) LoadProgram(p ascendrt.Program) (ascendrt.Module, error) {
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	if p.Kind != "ascend-elf" || !d.Caps().RawKernels {
		return nil, invalid("load "+p.Name, "programs of kind "+p.Kind+" are not taken: this runtime loads kernels compiled for its chip (ascend-elf), from CANN 8.5 on", ascendrt.ErrUnsupported)
	}
	if len(p.Data) == 0 {
		return nil, invalid("load "+p.Name, "the program is empty", ascendrt.ErrInvalid)
	}
	m := &module{d: d, name: p.Name}
	var err error
	if m.raw, err = d.moduleLoad(p.Data); err != nil {
		return nil, err
	}
	m.ref = d.Refs.Add(m)
	d.Add(base.Modules)
	return m, nil
}

func (m *module) Kernel(fn string) (ascendrt.Kernel, error) {
	d := m.d
	d.Life.Lock()
	defer d.Life.Unlock()
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if m.raw == nil {
		return nil, invalid("kernel "+fn, "the module was closed before", ascendrt.ErrClosed)
	}
	f, err := d.moduleFunc(m.raw, fn)
	if err != nil {
		return nil, err
	}
	k := &kernel{fn: f, name: fn}
	k.ref = d.Refs.Add(k)
	m.refs = append(m.refs, k.ref)
	return k, nil
}

// SetMaxSharedBytes refuses any: kernels of this chip have none.
func (k *kernel) SetMaxSharedBytes(n int) error {
	if n == 0 {
		return nil
	}
	return invalid("kernel "+k.name, "kernels of this chip have no dynamic shared memory", ascendrt.ErrUnsupported)
}

func (k *kernel) Ref() ascendrt.Ref { return k.ref }

func (m *module) Close() error {
	d := m.d
	d.Life.Lock()
	defer d.Life.Unlock()
	if d.Closed() || !d.Refs.Remove(m.ref) {
		return nil
	}
	for _, r := range m.refs {
		d.Refs.Remove(r)
	}
	d.Give(base.Modules)
	if d.LostError() == nil {
		d.moduleFree(m.raw)
	}
	m.raw = nil
	return nil
}
