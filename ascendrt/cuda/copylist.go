//go:build cgo && linux

package cuda

import (
	_ "embed"
	mathbits "math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// A copy engine takes a microsecond or so for each copy, in which the memory moves
// hundreds of kilobytes. A batch of many small copies within device memory is
// therefore one kernel, which reads the list of them from device memory: KV comes
// and goes so, block by block.

const (
	listLeast   = 32        // copies; fewer are the engine's
	listLargest = 512 << 10 // bytes of one copy; larger ones are the engine's
	listPart    = 32 << 10  // bytes that a block of threads copies at a time
	listThreads = 256
	listWords   = 3 // of a copy: destination, source, bytes
	listAlign   = 16

	smallLargest = 64 << 10 // bytes of a copy to or from the host that a kernel makes
	smallPart    = 4 << 10  // bytes of it for a block of threads

	// pinnedLists leaves the lists in pinned memory, for comparison.
	pinnedLists = "SLUICE_CUDA_PINNED_LISTS"
)

//go:embed copylist.cu
var copyListSource string

// copyLists is the kernels, once they are wanted, and the lists that they may still read.
type copyLists struct {
	once    sync.Once
	pinned  bool
	program kernels
	kernel  atomic.Pointer[kernel] // of a list of pieces
	small   atomic.Pointer[kernel] // of one small piece
	blocks  atomic.Pointer[kernel] // of blocks of regions

	mu    sync.Mutex
	inUse []usedList
	free  []usedList // ready for the next ones
	kept  int        // bytes of those in free
}

type usedList struct {
	until  ascendrt.Point
	host   arena.Piece
	device arena.Piece // zero: the kernel reads that of the host
}

func (l usedList) giveBack(d *device) {
	d.arenas.Pinned.Put(l.host)
	if l.device.Len > 0 {
		d.arenas.Device.Put(l.device)
	}
}

// settle gives back the lists whose kernels have run.
func (l *copyLists) settle(d *device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := l.inUse[:0]
	for _, u := range l.inUse {
		if u.until.Done() {
			l.keep(d, u)
		} else {
			keep = append(keep, u)
		}
	}
	clear(l.inUse[len(keep):])
	l.inUse = keep
}

// To take memory from the driver and to give it back waits for the device, so lists
// are kept for the next ones.
const (
	listMemory = 16 << 10 // bytes of a list at least
	listsKept  = 8 << 20  // bytes at most
)

// keep makes a list ready for another use. The lock is held.
func (l *copyLists) keep(d *device, u usedList) {
	if l.kept+u.host.Len > listsKept {
		u.giveBack(d)
		return
	}
	l.kept += u.host.Len
	l.free = append(l.free, u)
}

// take gives memory for a list of n bytes.
func (l *copyLists) take(d *device, n int) (usedList, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := -1
	for i, u := range l.free {
		if u.host.Len >= n && (best < 0 || u.host.Len < l.free[best].host.Len) {
			best = i
		}
	}
	if best >= 0 {
		u := l.free[best]
		l.free = slices.Delete(l.free, best, best+1)
		l.kept -= u.host.Len
		return u, nil
	}
	n = 1 << mathbits.Len(uint(max(n, listMemory)-1))
	var u usedList
	var err error
	if u.host, err = d.arenas.Pinned.Get(n); err != nil {
		return u, err
	}
	if !l.pinned {
		if u.device, err = d.arenas.Device.Get(n); err != nil {
			d.arenas.Pinned.Put(u.host)
			return u, err
		}
	}
	return u, nil
}

// wantLists loads the kernels, which may be to compile them. Without them every batch is the copy engine's.
func (d *device) wantLists() {
	d.lists.once.Do(func() {
		d.lists.pinned = os.Getenv(pinnedLists) != ""
		p := ascendrt.Program{Kind: "cuda-c", Name: "copylist.cu", Data: []byte(copyListSource), Options: []string{"--std=c++17"}}
		list, err := d.lists.program.load(d, p, "copy_list")
		if err == nil {
			var blocks, small *kernel
			if blocks, err = d.lists.program.load(d, p, "copy_blocks"); err == nil {
				small, err = d.lists.program.load(d, p, "copy_small")
			}
			if err == nil {
				d.lists.small.Store(small)
				d.lists.blocks.Store(blocks)
				d.lists.kernel.Store(list)
			}
		}
		if err != nil {
			d.log.Info("many small copies stay with the copy engine", "reason", err)
		}
	})
}

// blocksKernel is the kernel that copies blocks of regions, nil without one.
func (d *device) blocksKernel() *kernel {
	d.wantLists()
	return d.lists.blocks.Load()
}

// byKernel makes a small copy between device and pinned memory with a kernel. What a
// step uploads and downloads would stand in a copy engine's queue behind the large
// copies of others.
func (t *translator) byKernel(to, from *memory.Alloc, dst, src uint64, n int) (bool, error) {
	if n > smallLargest || to.Host == from.Host || (dst|src)%listAlign != 0 || t.Mode != base.Submitting {
		return false, nil
	}
	t.d.wantLists()
	if t.d.lists.small.Load() == nil {
		return false, nil
	}
	return true, t.smallKernel(dst, src, n)
}

// smallKernel launches the kernel of small copies, which has been loaded.
func (t *translator) smallKernel(dst, src uint64, n int) error {
	return t.launch(t.d.lists.small.Load(), [3]int{(n + smallPart - 1) / smallPart, 1, 1}, listThreads, 0, dst, src, uint64(n), smallPart)
}

// fits tells whether a copy can be one of a list.
func fits(to, from *memory.Alloc, dst, src, n uint64) bool {
	return !to.Host && !from.Host && (dst|src|n)%listAlign == 0 && n <= listLargest
}

// list translates copies that all fit. It reports false if they are the copy
// engine's.
func (t *translator) list(c *copies) (bool, error) {
	n := len(c.dst)
	if n < listLeast || t.Mode != base.Submitting {
		return false, nil
	}
	t.d.wantLists()
	k := t.d.lists.kernel.Load()
	if k == nil {
		return false, nil
	}
	words, ok := t.table(listWords * n)
	if !ok {
		return false, nil
	}
	most := uint64(0)
	for i := range n {
		words[listWords*i], words[listWords*i+1], words[listWords*i+2] = c.dst[i], c.src[i], c.size[i]
		most = max(most, c.size[i])
	}
	parts := (most + listPart - 1) / listPart
	units := uint64(n) * parts
	grid := [3]int{int(min(units, uint64(max(1, 2*t.d.info.ComputeUnits)))), 1, 1}
	return true, t.launch(k, grid, listThreads, 0, t.send(words), units, parts, listPart)
}

// endLists gives the lists back when the kernels that read them have run; the
// zero point: at once.
func (t *translator) endLists(p ascendrt.Point) {
	if len(t.lists) == 0 {
		return
	}
	l := &t.d.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range t.lists {
		x.until = p
		l.inUse = append(l.inUse, x)
	}
	t.lists = t.lists[:0]
}
