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
// usualWay: kernel[:groups[:KiB[:warps:stages]]], with the fields of blocksWay.
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

var usualWay = blocksWay{kernel: "copy_blocks", groups: 2, part: listPart}

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

// parseWay reads the value of blocksWays. Nothing is the usual way.
func parseWay(s string) (blocksWay, error) {
	w := usualWay
	if s == "" {
		return w, nil
	}
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

// chooseWay takes the choice for a device that is opened, and compiles the kernel of another way.
func (d *device) chooseWay() error {
	l := &d.lists
	var err error
	if l.way, err = parseWay(os.Getenv(blocksWays)); err != nil || l.way.kernel == usualWay.kernel {
		return err
	}
	if l.way.warps > 0 && d.desc.cc < 90 {
		return invalid("open", blocksWays+": copy_bulk needs compute capability 9.0", ascendrt.ErrUnsupported)
	}
	p := ascendrt.Program{Kind: "cuda-c", Name: "copyways.cu", Data: []byte(copyListSource + copyWaysSource), Options: []string{"--std=c++17"}}
	if l.another, err = l.ways.load(d, p, l.way.kernel); err != nil {
		return err
	}
	return l.another.allow(l.way.shared())
}
