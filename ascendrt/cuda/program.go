//go:build cgo && linux

package cuda

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

//go:embed kernels.cu
var kernelSource string

// kernel is an entry point of a module.
type kernel struct {
	d      *device
	name   string
	fn     funcPtr
	params int // bytes of parameters, 0 if the driver cannot tell
	ref    ascendrt.Ref
	mu     sync.Mutex
	shared int // dynamic shared memory that was allowed
}

var _ ascendrt.Kernel = (*kernel)(nil)

func (k *kernel) Ref() ascendrt.Ref { return k.ref }

// SetMaxSharedBytes allows launches with up to n bytes of dynamic shared memory.
func (k *kernel) SetMaxSharedBytes(n int) error {
	if err := k.d.Enter(); err != nil {
		return err
	}
	defer k.d.Leave()
	if _, ok := handles.Lookup[*kernel](&k.d.Refs, k.ref); !ok {
		return invalid("kernel", "its module was closed before", ascendrt.ErrClosed)
	}
	return k.d.funcShared(k.fn, n)
}

// allow raises the limit of one of our own kernels; it never lowers it.
func (k *kernel) allow(n int) error {
	const always = 48 << 10
	k.mu.Lock()
	defer k.mu.Unlock()
	if n <= always || n <= k.shared {
		return nil
	}
	if err := k.d.funcShared(k.fn, n); err != nil {
		return err
	}
	k.shared = n
	return nil
}

// kernels are our own, compiled at the first Plan.
type kernels struct {
	mu     sync.Mutex
	module modulePtr
	byName map[string]*kernel
}

func (s *kernels) get(d *device, fn string) (*kernel, error) {
	return s.load(d, ascendrt.Program{Kind: "cuda-c", Name: "kernels.cu", Data: []byte(kernelSource), Options: []string{"--fmad=false", "--std=c++17"}}, fn)
}

// load gives a kernel of the module, which it compiles at the first call.
func (s *kernels) load(d *device, p ascendrt.Program, fn string) (*kernel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.byName[fn]; k != nil {
		return k, nil
	}
	if s.module == nil {
		cubin, err := d.compile(p)
		if err != nil {
			return nil, err
		}
		if err := d.Alive(); err != nil { // a Close that comes later waits for the lock
			return nil, err
		}
		if s.module, err = d.moduleLoad(cubin); err != nil {
			return nil, err
		}
		s.byName = map[string]*kernel{}
	}
	f, params, err := d.moduleFunc(s.module, fn)
	if err != nil {
		return nil, err
	}
	k := &kernel{d: d, name: fn, fn: f, params: params}
	s.byName[fn] = k
	return k, nil
}

func (s *kernels) close(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.module != nil {
		d.moduleFree(s.module)
		s.module = nil
	}
}

// module is a program of the caller.
type module struct {
	d       *device
	raw     modulePtr
	ref     ascendrt.Ref
	mu      sync.Mutex
	kernels map[string]*kernel
	cleanup runtime.Cleanup
}

var _ ascendrt.Module = (*module)(nil)

// LoadProgram takes "cuda-c" source, compiled for this device, or a "cubin".
func (d *device) LoadProgram(p ascendrt.Program) (ascendrt.Module, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	image := p.Data
	switch {
	case p.Kind != "cuda-c" && p.Kind != "cubin":
		return nil, invalid("load program", "kind "+p.Kind+": this device takes cuda-c and cubin", ascendrt.ErrUnsupported)
	case len(p.Data) == 0:
		return nil, invalid("load program", p.Name+" is empty", ascendrt.ErrInvalid)
	case p.Kind == "cuda-c":
		var err error
		if image, err = d.compile(p); err != nil {
			return nil, err
		}
	case len(p.Data) < 64 || string(p.Data[:4]) != "\x7fELF":
		return nil, invalid("load program", p.Name+" is no cubin", ascendrt.ErrInvalid)
	}
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	raw, err := d.moduleLoad(image)
	if err != nil {
		return nil, err
	}
	m := &module{d: d, raw: raw, kernels: map[string]*kernel{}}
	m.ref = d.Refs.Add(m.raw)
	m.cleanup = runtime.AddCleanup(m, d.Leaks.Report, handles.Dropped{What: "module"})
	d.Add(base.Modules)
	return m, nil
}

func (m *module) Kernel(fn string) (ascendrt.Kernel, error) {
	d := m.d
	if err := d.Enter(); err != nil {
		return nil, err
	}
	defer d.Leave()
	if _, ok := handles.Lookup[modulePtr](&d.Refs, m.ref); !ok {
		return nil, invalid("kernel", "the module was closed before", ascendrt.ErrClosed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.kernels[fn]; k != nil {
		return k, nil
	}
	f, params, err := d.moduleFunc(m.raw, fn)
	if err != nil {
		return nil, err
	}
	k := &kernel{d: d, name: fn, fn: f, params: params}
	k.ref = d.Refs.Add(k)
	m.kernels[fn] = k
	return k, nil
}

// Close unloads the program once the device has finished what was submitted so
// far, since any of it may run its kernels.
func (m *module) Close() error {
	d := m.d
	d.Life.Lock()
	defer d.Life.Unlock()
	if d.Closed() || !d.Refs.Remove(m.ref) {
		return nil
	}
	m.cleanup.Stop()
	m.mu.Lock()
	for _, k := range m.kernels {
		d.Refs.Remove(k.ref)
	}
	m.mu.Unlock()
	d.Give(base.Modules)
	if d.LostError() == nil {
		d.Later(d.frontier(), func() { d.moduleFree(m.raw) })
	}
	return nil
}

// frontier is the point of every stream behind all that was submitted.
func (d *device) frontier() []ascendrt.Point {
	var out []ascendrt.Point
	for _, s := range d.streams.All() {
		out = append(out, ascendrt.Point{Stream: s, Seq: s.seq.Load()})
	}
	return out
}

// compiles makes concurrent compilations of one program one.
var compiles singleflight.Group

// compile gives the cubin of a source, from the disk cache if it is there.
func (d *device) compile(p ascendrt.Program) ([]byte, error) {
	if err := need("compile "+p.Name, libNVRTC); err != nil {
		return nil, err
	}
	opts := append([]string{fmt.Sprintf("--gpu-architecture=sm_%d", d.desc.cc)}, p.Options...)
	h := sha256.New()
	fmt.Fprintf(h, "nvrtc %d\n%s\n%s\n", use(libNVRTC).number, strings.Join(opts, "\x00"), p.Name)
	h.Write(p.Data)
	key := hex.EncodeToString(h.Sum(nil))
	v, err, _ := compiles.Do(d.Options.CacheDir+"\x00"+key, func() (any, error) {
		var path string
		if d.Options.CacheDir != "" {
			path = filepath.Join(d.Options.CacheDir, key+".cubin")
			if cubin, err := os.ReadFile(path); err == nil && len(cubin) > 64 && string(cubin[:4]) == "\x7fELF" {
				return cubin, nil
			}
		}
		cubin, err := nvrtc(p, opts)
		if err == nil && path != "" {
			if werr := writeCache(path, cubin); werr != nil {
				d.log.Warn("compiled kernels could not be cached", "path", path, "error", werr)
			}
		}
		return cubin, err
	})
	if err != nil {
		return nil, err
	}
	return v.([]byte), nil
}

// writeCache puts the file in place whole: another process may read it meanwhile.
func writeCache(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".cubin-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
