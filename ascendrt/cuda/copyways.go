//go:build cgo && linux

package cuda

import (
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
)

// blocksWays names, for comparison, another way to copy blocks of regions than
// bestWay: kernel[:groups[:KiB[:warps:stages]]], with the fields of blocksWay.
const blocksWays = "SLUICE_CUDA_COPY_BLOCKS"

//go:embed copyways.cu
var copyWaysSource string

// blocksWay is how a kernel copies blocks of regions within device memory.
type blocksWay struct {
	kernel string // copy_blocks, or of copyways.cu
	groups int    // of threads for each multiprocessor; 0: one for each unit
	part   int    // bytes of a unit
	warps  int    // of a group of copy_bulk, each of which takes units by itself
	stages int    // of part bytes for each of them
}

// usualWay is that of blocks for which a width is asked, or that lie in host memory; and of
// all where bestWay cannot be.
var usualWay = blocksWay{kernel: "copy_blocks", groups: 2, part: listPart}

// bestWay is that of the others.
var bestWay = usualWay

const warpThreads = 32

// takers is how many units a group takes at a time.
func (w blocksWay) takers() int { return max(1, w.warps) }

func (w blocksWay) threads() int {
	if w.warps > 0 {
		return w.warps * warpThreads
	}
	return listThreads
}

// shared is the dynamic shared memory of a group.
func (w blocksWay) shared() int { return w.warps * w.stages * w.part }

// parseWay reads the value of blocksWays. What it does not say is usual.
func parseWay(s string) (blocksWay, error) {
	w := usualWay
	bad := func() (blocksWay, error) {
		return w, invalid("open", fmt.Sprintf("%s=%s: want copy_blocks, copy_once or copy_bulk, [:groups[:KiB]], and of copy_bulk [:warps:stages]", blocksWays, s), ascendrt.ErrInvalid)
	}
	f := strings.Split(s, ":")
	w.kernel = f[0]
	numbers := []*int{&w.groups, &w.part}
	least, most := []int{0, 1}, []int{64, 1024}
	switch w.kernel {
	case "copy_blocks", "copy_once":
	case "copy_bulk":
		w.groups, w.part, w.warps, w.stages = 1, 16<<10, 4, 3
		numbers, least, most = append(numbers, &w.warps, &w.stages), append(least, 1, 2), append(most, 8, 16)
	default:
		return bad()
	}
	if len(f)-1 > len(numbers) {
		return bad()
	}
	for i, x := range f[1:] {
		n, err := strconv.Atoi(x)
		if err != nil || n < least[i] || n > most[i] {
			return bad()
		}
		if *numbers[i] = n; i == 1 {
			w.part = n << 10
		}
	}
	return w, nil
}

// chooseWay takes the choice for a device that is opened, which must be possible.
func (d *device) chooseWay() error {
	s := os.Getenv(blocksWays)
	if s == "" {
		d.lists.way = bestWay
		return nil
	}
	var err error
	if d.lists.way, err = parseWay(s); err != nil {
		return err
	}
	return d.loadWay()
}

// loadWay loads the kernel of the device's way, where it is none of copylist.cu.
func (d *device) loadWay() error {
	l := &d.lists
	if l.way.kernel == usualWay.kernel || l.another != nil {
		return nil
	}
	if l.way.warps > 0 && d.desc.cc < 90 {
		return invalid("load "+l.way.kernel, "it needs compute capability 9.0", ascendrt.ErrUnsupported)
	}
	p := ascendrt.Program{Kind: "cuda-c", Name: "copyways.cu", Data: []byte(copyListSource + copyWaysSource), Options: []string{"--std=c++17"}}
	k, err := l.ways.load(d, p, l.way.kernel)
	if err == nil {
		err = k.allow(l.way.shared())
	}
	if err == nil {
		l.another = k
	}
	return err
}

// wantWay is loadWay at first use, with the usual way in its place.
func (d *device) wantWay() {
	if err := d.loadWay(); err != nil {
		d.log.Info("blocks are copied the usual way", "reason", err)
		d.lists.way = usualWay
	}
}
