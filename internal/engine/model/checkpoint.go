package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Checkpoint is a model in a folder: config.json, and its tensors in one or
// several safetensors files, mapped into memory. Its tensors are valid until
// Close.
type Checkpoint struct {
	Config Config
	Type   Storage // of most tensors
	EOS    []int   // ids that end an answer, as the configuration names them

	dir     string
	files   []mapped
	tensors map[string]stored
}

type mapped struct {
	name  string
	bytes []byte
	close func() error
}

// stored is where one tensor lies.
type stored struct {
	file  string
	typ   Storage
	shape []int
	raw   []byte
}

// FileError reports a file of a checkpoint that cannot be used.
type FileError struct {
	File   string
	Reason string
	Err    error // of the system; nil if the content is at fault
}

func (e *FileError) Error() string {
	s := "checkpoint file " + e.File + ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *FileError) Unwrap() error { return e.Err }

// Open reads the folder's configuration, maps its tensors and checks that they
// are those of the architecture, each with its shape. All that is wrong with the
// tensors is joined. Close releases the mappings.
func Open(dir string) (*Checkpoint, error) {
	c := &Checkpoint{dir: dir, tensors: map[string]stored{}}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Checkpoint) open() error {
	raw, err := os.ReadFile(filepath.Join(c.dir, "config.json"))
	if err != nil {
		return &FileError{"config.json", "cannot be read", err}
	}
	if c.Config, c.EOS, err = parseConfig(raw); err != nil {
		return &FileError{File: "config.json", Reason: err.Error()}
	}
	c.Config.Name = filepath.Base(filepath.Clean(c.dir))
	names, err := c.fileNames()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := c.load(n); err != nil {
			return err
		}
	}
	return c.check()
}

// fileNames are the safetensors files, those of the index if there is one.
func (c *Checkpoint) fileNames() ([]string, error) {
	const index, single = "model.safetensors.index.json", "model.safetensors"
	raw, err := os.ReadFile(filepath.Join(c.dir, index))
	if errors.Is(err, os.ErrNotExist) {
		return []string{single}, nil
	}
	if err != nil {
		return nil, &FileError{index, "cannot be read", err}
	}
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &x); err != nil {
		return nil, &FileError{File: index, Reason: err.Error()}
	}
	seen := map[string]bool{}
	for tensor, f := range x.Map {
		if f == "" || f != filepath.Base(f) {
			return nil, &FileError{File: index, Reason: fmt.Sprintf("tensor %s lies in %q, which is no file of the folder", tensor, f)}
		}
		seen[f] = true
	}
	if len(seen) == 0 {
		return nil, &FileError{File: index, Reason: "it names no file"}
	}
	names := make([]string, 0, len(seen))
	for f := range seen {
		names = append(names, f)
	}
	sort.Strings(names)
	return names, nil
}

// mostHeader bounds the header of a safetensors file.
const mostHeader = 100 << 20

func (c *Checkpoint) load(name string) error {
	m, err := mapFile(filepath.Join(c.dir, name))
	if err != nil {
		return &FileError{name, "cannot be mapped", err}
	}
	m.name = name
	c.files = append(c.files, m)
	bad := func(format string, args ...any) error {
		return &FileError{File: name, Reason: fmt.Sprintf(format, args...)}
	}
	if len(m.bytes) < 8 {
		return bad("it has %d bytes, less than a header", len(m.bytes))
	}
	n := binary.LittleEndian.Uint64(m.bytes)
	if n > mostHeader || n > uint64(len(m.bytes)-8) {
		return bad("its header is said to have %d bytes; the file has %d", n, len(m.bytes))
	}
	header, data := m.bytes[8:8+n], m.bytes[8+n:]
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return bad("its header is no JSON object: %v", err)
	}
	for tensor, raw := range entries {
		if tensor == "__metadata__" {
			continue
		}
		var e struct {
			Type    string   `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets []uint64 `json:"data_offsets"`
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		if err := d.Decode(&e); err != nil {
			return bad("tensor %s: %v", tensor, err)
		}
		s := stored{file: name, shape: e.Shape}
		switch e.Type {
		case "F32":
			s.typ = F32
		case "BF16":
			s.typ = BF16
		case "F16":
			s.typ = F16
		default:
			return bad("tensor %s is stored as %q; F32, BF16 and F16 are read", tensor, e.Type)
		}
		elements := 1
		for _, v := range e.Shape {
			if v < 0 || v > 0 && elements > math.MaxInt/8/v {
				return bad("tensor %s has the shape %v", tensor, e.Shape)
			}
			elements *= v
		}
		if len(e.Offsets) != 2 || e.Offsets[0] > e.Offsets[1] || e.Offsets[1] > uint64(len(data)) {
			return bad("tensor %s lies at %v of %d bytes: the file is truncated or its header is wrong", tensor, e.Offsets, len(data))
		}
		if got := e.Offsets[1] - e.Offsets[0]; got != uint64(elements*s.typ.Size()) {
			return bad("tensor %s of shape %v and type %s has %d bytes, not %d", tensor, e.Shape, e.Type, got, elements*s.typ.Size())
		}
		if other, twice := c.tensors[tensor]; twice {
			return bad("tensor %s lies in %s as well", tensor, other.file)
		}
		s.raw = data[e.Offsets[0]:e.Offsets[1]]
		c.tensors[tensor] = s
	}
	return nil
}

// check compares the tensors with those of the architecture.
func (c *Checkpoint) check() error {
	var errs []error
	count := map[Storage]int{}
	known := map[string]bool{}
	for _, t := range c.Config.Tensors() {
		known[t.Name] = true
		if _, err := c.Get(t.Name, t.Shape...); err != nil {
			errs = append(errs, err)
			continue
		}
		count[c.tensors[t.Name].typ]++
	}
	var extra []string
	for name := range c.tensors {
		redundant := strings.HasSuffix(name, ".rotary_emb.inv_freq") || name == HeadName && c.Config.Tied
		if !known[name] && !redundant {
			extra = append(extra, name)
		}
	}
	sort.Strings(extra)
	for _, name := range extra {
		errs = append(errs, &FileError{File: c.tensors[name].file, Reason: "tensor " + name + " is not of this architecture"})
	}
	for _, t := range []Storage{F32, BF16, F16} {
		if count[t] > count[c.Type] {
			c.Type = t
		}
	}
	return errors.Join(errs...)
}

// Get gives a tensor as it is stored.
func (c *Checkpoint) Get(name string, shape ...int) (Data, error) {
	if c.tensors == nil {
		return Data{}, ErrClosed
	}
	s, ok := c.tensors[name]
	if !ok {
		return Data{}, &TensorError{Tensor: name, Want: shape, Reason: "is missing from " + c.dir}
	}
	if !slices.Equal(s.shape, shape) {
		return Data{}, &TensorError{Tensor: name, File: s.file, Want: shape, Reason: fmt.Sprintf("has shape %v", s.shape)}
	}
	return Data{Type: s.typ, Raw: s.raw}, nil
}

// Close releases the mappings. It may be called twice.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.close())
	}
	c.files, c.tensors = nil, nil
	return errors.Join(errs...)
}
