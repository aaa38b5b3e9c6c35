package replay

import (
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// Padding is how rows and tokens beyond the real ones are described.
type Padding uint8

const (
	// PadZeroRows is the default: padded rows are empty and have length 0.
	PadZeroRows Padding = iota
	// PadDummyRows gives every padded token of a graph to a row, for operators
	// whose last row must end at the padded tokens: padded rows of a uniform graph
	// have its width and read the null block; in another graph the first padded
	// row has the rest of the tokens and length 0, and without a padded row the
	// last real one goes on over them, behind its tokens, without writing KV. The
	// tables then need room for MaxTokens more.
	PadDummyRows
)

// What padding holds. Ids and positions only have to be in range: nothing that
// a padded token computes is kept.
const (
	PadSlot  int32 = -1 // no KV is written
	PadBlock int32 = 0  // the null block: a stale id would be read as someone's state
	PadState int32 = 0  // the null state
	PadID    int32 = 0
)

// StaticConfig sizes the static inputs.
type StaticConfig struct {
	MaxTokens  int // padded tokens at most
	MaxReqs    int // padded rows at most
	TableWidth int // block ids per row
	InFlight   int // steps whose inputs may be staged at a time; 0 = 2
	Padding    Padding
	Width      int // decode width, for PadDummyRows
}

// Static is the metadata of a step in device memory, at addresses that never
// change, and pinned images from which it is written. All values are Int32.
type Static struct {
	IDs       ascendrt.Tensor // [T] token ids
	Positions ascendrt.Tensor // [T]
	Slots     ascendrt.Tensor // [T] block*size + offset; negative: not written
	StateOut  ascendrt.Tensor // [T] recurrent state that is kept behind the token; 0: none
	Rows      ascendrt.Tensor // [R] token row whose output the request samples from; negative: none
	StateIn   ascendrt.Tensor // [R] recurrent state that the row starts from; 0: none
	Starts    ascendrt.Tensor // [R+1] first token row of each request
	Lens      ascendrt.Tensor // [R] KV tokens, this step's included
	Table     ascendrt.Tensor // [R,W] block ids

	c      StaticConfig
	buf    ascendrt.Buffer
	words  int
	images []image
	next   int
	host   []int64 // lengths and starts of the staged step
}

// aligned rounds words up to 64 bytes: some runtimes take no tensor elsewhere.
func aligned(words int) int { return (words + 15) / 16 * 16 }

type image struct {
	buf   ascendrt.HostBuffer
	words []int32
	used  []int // by row: ids of its table that may not be padding
	point ascendrt.Point
	busy  bool
}

// Batch is the real part of a step.
type Batch struct {
	IDs, Positions, Slots []int32   // by token
	StateOut              []int32   // by token; nil without recurrent layers
	Query                 []int32   // tokens of each row
	Lens                  []int32   // KV tokens of each row, this step's included
	Sample                []int32   // token row that each row samples from, negative for none; nil = its last
	StateIn               []int32   // by row; nil without recurrent layers
	Tables                [][]int32 // block ids of each row
}

// NewStatic allocates the inputs and fills them with padding. The device stays
// the caller's.
func NewStatic(dev ascendrt.Device, c StaticConfig) (*Static, error) {
	if c.InFlight == 0 {
		c.InFlight = 2
	}
	if c.MaxTokens < 1 || c.MaxReqs < 1 || c.TableWidth < 1 || c.InFlight < 1 {
		return nil, fmt.Errorf("%w: static inputs of %d tokens, %d rows, %d blocks, %d images", ErrShape, c.MaxTokens, c.MaxReqs, c.TableWidth, c.InFlight)
	}
	t, r, w := c.MaxTokens, c.MaxReqs, c.TableWidth
	s := &Static{c: c, words: 4*aligned(t) + 3*aligned(r) + aligned(r+1) + r*w, host: make([]int64, 2*r+1)}
	var err error
	if s.buf, err = dev.Alloc(4*s.words, ascendrt.PlaceDefault); err != nil {
		return nil, fmt.Errorf("static inputs: %w", err)
	}
	off := 0
	vec := func(n int) ascendrt.Tensor {
		t := ascendrt.NewTensor(s.buf.Slice(4*off, 4*n), ascendrt.Int32, n)
		off += aligned(n)
		return t
	}
	s.IDs, s.Positions, s.Slots, s.StateOut = vec(t), vec(t), vec(t), vec(t)
	s.Rows, s.StateIn, s.Lens, s.Starts = vec(r), vec(r), vec(r), vec(r+1)
	s.Table = ascendrt.NewTensor(s.buf.Slice(4*off, 4*r*w), ascendrt.Int32, r, w)
	for range c.InFlight {
		h, err := dev.AllocHost(4 * s.words)
		if err != nil {
			return nil, fmt.Errorf("pinned inputs: %w", err)
		}
		b := h.Bytes()
		img := image{buf: h, words: unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4), used: make([]int, r)}
		for i := range img.used {
			img.used[i] = w // the memory holds anything
		}
		s.images = append(s.images, img)
	}
	return s, nil
}

// Staged is an image that waits for its upload.
type Staged struct {
	s       *Static
	img     *image
	t, r    int
	Lengths []int64 // of the padded rows
	Starts  []int64 // their first tokens, and the end of the last one
}

// Stage writes one step with its padding into a free image.
func (s *Static) Stage(b Batch, dec graphs.Decision) (Staged, error) {
	n, t, r := len(b.Query), int(dec.PaddedTokens), int(dec.PaddedReqs)
	var total int32
	for _, q := range b.Query {
		total += q
	}
	switch {
	case n != int(dec.Reqs) || int(total) != int(dec.Tokens) || n > r || int(total) > t:
		return Staged{}, fmt.Errorf("%w: %d rows and %d tokens, decided for %d and %d", ErrShape, n, total, dec.Reqs, dec.Tokens)
	case t > s.c.MaxTokens || r > s.c.MaxReqs:
		return Staged{}, fmt.Errorf("%w: %d tokens and %d rows, room for %d and %d", ErrShape, t, r, s.c.MaxTokens, s.c.MaxReqs)
	case len(b.IDs) != int(total) || len(b.Positions) != int(total) || len(b.Slots) != int(total) || len(b.Lens) != n || len(b.Tables) != n,
		b.StateOut != nil && len(b.StateOut) != int(total), b.StateIn != nil && len(b.StateIn) != n, b.Sample != nil && len(b.Sample) != n:
		return Staged{}, fmt.Errorf("%w: arrays of different lengths", ErrShape)
	}
	img := &s.images[s.next]
	if img.busy && !img.point.Done() {
		return Staged{}, ErrBusy
	}
	img.busy = false
	s.next = (s.next + 1) % len(s.images)

	s.fill(img, s.IDs, b.IDs, t, PadID)
	s.fill(img, s.Positions, b.Positions, t, 0)
	s.fill(img, s.Slots, b.Slots, t, PadSlot)
	s.fill(img, s.StateOut, b.StateOut, t, PadState)
	s.fill(img, s.StateIn, b.StateIn, r, PadState)
	s.fill(img, s.Rows, b.Sample, r, -1)
	s.fill(img, s.Lens, b.Lens, r, 0)
	starts, lens, rows, table := s.at(img, s.Starts), s.at(img, s.Lens), s.at(img, s.Rows), s.at(img, s.Table)
	end := int32(0)
	for i := range r {
		starts[i] = end
		switch {
		case i < n:
			end += b.Query[i]
			if b.Sample == nil {
				rows[i] = end - 1
			}
		case s.c.Padding != PadDummyRows:
		case dec.Key.Uniform > 0:
			end += dec.Key.Uniform
			lens[i] = dec.Key.Uniform
		case dec.Mode == graphs.Full:
			end = int32(t)
		}
		row := table[i*s.c.TableWidth : (i+1)*s.c.TableWidth]
		used := 0
		if i < n {
			if len(b.Tables[i]) > len(row) {
				return Staged{}, fmt.Errorf("%w: row %d has %d blocks, room for %d", ErrShape, i, len(b.Tables[i]), len(row))
			}
			used = copy(row, b.Tables[i])
		}
		for j := used; j < img.used[i]; j++ {
			row[j] = PadBlock
		}
		img.used[i] = used
	}
	if s.c.Padding == PadDummyRows && dec.Mode == graphs.Full && int(end) < t {
		lens[r-1] += int32(t) - end
		end = int32(t)
	}
	starts[r] = end
	g := Staged{s: s, img: img, t: t, r: r, Lengths: s.host[:r], Starts: s.host[s.c.MaxReqs:][:r+1]}
	for i := range r {
		g.Lengths[i], g.Starts[i] = int64(lens[i]), int64(starts[i])
	}
	g.Starts[r] = int64(end)
	return g, nil
}

// offset is the position of a tensor in the image, in words.
func (s *Static) offset(t ascendrt.Tensor) int { return int(t.Addr-s.buf.Addr()) / 4 }

func (s *Static) at(img *image, t ascendrt.Tensor) []int32 {
	return img.words[s.offset(t) : s.offset(t)+t.View.Len/4]
}

func (s *Static) fill(img *image, t ascendrt.Tensor, values []int32, n int, pad int32) {
	w := s.at(img, t)[:n]
	for i := copy(w, values); i < n; i++ {
		w[i] = pad
	}
}

// wholeCopy is the most bytes that are copied as one block: more copies cost more
// than the bytes that nobody reads. The tables stand last, so that those of the
// step's rows may be in it.
const wholeCopy = 128 << 10

// Upload appends the copies of the staged step to the device.
func (g Staged) Upload(c *ascendrt.Commands) {
	s := g.s
	part := func(t ascendrt.Tensor, n int) {
		c.Copy(t.View.Slice(0, 4*n), g.img.buf.Slice(4*s.offset(t), 4*n))
	}
	head := 4 * s.offset(s.Table)
	if all := head + 4*g.r*s.c.TableWidth; all <= wholeCopy {
		c.Copy(s.buf.Slice(0, all), g.img.buf.Slice(0, all))
		return
	}
	part(s.Table, g.r*s.c.TableWidth)
	if head <= wholeCopy {
		c.Copy(s.buf.Slice(0, head), g.img.buf.Slice(0, head))
		return
	}
	for _, t := range []ascendrt.Tensor{s.IDs, s.Positions, s.Slots, s.StateOut} {
		part(t, g.t)
	}
	for _, t := range []ascendrt.Tensor{s.Rows, s.StateIn, s.Lens} {
		part(t, g.r)
	}
	part(s.Starts, g.r+1)
}

// Submitted says behind which point the image may be written again.
func (g Staged) Submitted(p ascendrt.Point) { g.img.point, g.img.busy = p, true }

// Dummy stages the batch that a graph is captured with, or that a rank without
// work runs: no KV written, the null block everywhere, at the same addresses as
// any real step.
func (s *Static) Dummy(shape Shape, query []int32) (Staged, error) {
	total := shape.Tokens
	b := Batch{
		IDs: make([]int32, total), Positions: make([]int32, total), Slots: make([]int32, total),
		Query: query, Lens: query, Tables: make([][]int32, len(query)),
	}
	for i := range b.Slots {
		b.Slots[i] = PadSlot
	}
	return s.Stage(b, graphs.Decision{
		Tokens: int32(total), PaddedTokens: int32(total), Reqs: int32(len(query)), PaddedReqs: int32(len(query)), Key: shape.Key,
	})
}

// Close frees the memory behind the last submitted step.
func (s *Static) Close() error {
	var last ascendrt.Point
	for _, img := range s.images {
		if img.busy {
			last = img.point
		}
		if err := img.buf.FreeAfter(img.point); err != nil {
			return err
		}
	}
	s.images = nil
	return s.buf.FreeAfter(last)
}
