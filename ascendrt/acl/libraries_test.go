//go:build cgo && linux

package acl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl/emulated"
	"github.com/sluice-serving/sluice/ascendrt/internal/base/basetest"
)

// What is missing is said with the way to get it.
func TestLibraryProblems(t *testing.T) {
	needEmulation(t)
	dir := t.TempDir()
	broken := filepath.Join(dir, "libascendcl.so")
	require.NoError(t, os.WriteFile(broken, []byte("no library"), 0o644))
	basetest.Child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+broken, "SLUICE_ACL_WANT=libascendcl.so: ")
	basetest.Child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+filepath.Join(dir, "nowhere.so"), "SLUICE_ACL_WANT=cannot open shared object file")
	foreign := make([]byte, 64) // the head of an ELF file of a machine that nobody has
	copy(foreign, "\x7fELF\x02\x01\x01")
	foreign[16], foreign[18], foreign[19] = 3, 0xff, 0x7f
	require.NoError(t, os.WriteFile(broken, foreign, 0o644))
	basetest.Child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+broken, "SLUICE_ACL_WANT=libascendcl.so: ")
	basetest.Child(t, "TestChildUnavailable", "SLUICE_EMU_DEVICES=0", "SLUICE_ACL_WANT=sees 0 devices")
	basetest.Child(t, "TestChildUnavailable", "SLUICE_EMU_FAULTS=aclrtGetDeviceCount:1=507899,aclrtGetDeviceCount:1=507899", "SLUICE_ACL_WANT=507899", "SLUICE_ACL_CLASS=lost")
	basetest.Child(t, "TestChildUnavailable", "SLUICE_EMU_FAULTS=aclInit:1=507033", "SLUICE_ACL_WANT=aclInit: 507033")
}

func TestChildUnavailable(t *testing.T) {
	basetest.IsChild(t)
	_, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	if os.Getenv("SLUICE_ACL_CLASS") == "lost" {
		require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
	} else {
		require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	}
	require.ErrorContains(t, err, os.Getenv("SLUICE_ACL_WANT"))
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Empty(t, r.Devices)
	require.NotEmpty(t, r.Problem)
}

// A library's name may be relative to the working folder; its fellows stand beside
// it in either case.
func TestLibrariesStandBesideTheNamedOne(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("SLUICE_NNOPBASE_LIB", "")
	for name, want := range map[string]string{
		"emu/libascendcl.so":                 "emu/libnnopbase.so",
		"./libascendcl.so":                   "libnnopbase.so",
		filepath.Join(dir, "libascendcl.so"): "libnnopbase.so",
	} {
		t.Setenv("SLUICE_ACL_LIB", name)
		list, _ := candidates(libNNOP)
		require.Equal(t, filepath.Join(dir, want), list[0], name)
	}
	t.Setenv("SLUICE_ACL_LIB", "libascendcl.so") // a name for the loader
	list, _ := candidates(libNNOP)
	for _, path := range list {
		require.NotContains(t, path, dir)
	}
}

// since85 are calls that CANN 8.1 does not have.
var since85 = []string{"aclFinalizeReference", "aclsysGetVersionStr", "aclrtGetDeviceInfo", "aclrtDeviceGetUuid", "aclrtSetStreamAttribute",
	"aclrtGetStreamAvailableNum", "aclrtGetEventAvailNum", "aclrtMemcpyBatchAsync", "aclrtPointerGetAttributes", "aclrtIpcMemGetExportKey",
	"aclrtIpcMemImportByKey", "aclrtIpcMemClose", "aclnnRopeWithSinCosCache", "aclnnRopeWithSinCosCacheGetWorkspaceSize",
	"aclnnScatterPaKvCache", "aclnnScatterPaKvCacheGetWorkspaceSize"}

// An older release works without what it lacks; one that lacks what nothing
// works without is refused, with the symbol and the release that has it.
func TestOlderLibraries(t *testing.T) {
	needEmulation(t)
	build := func(hide ...string) string {
		dir, err := emulated.Build(emulated.Options{Hide: hide})
		require.NoError(t, err)
		return "SLUICE_ACL_LIB=" + emulated.Library(dir)
	}
	basetest.Child(t, "TestChild81", build(since85...))
	basetest.Child(t, "TestChildUnavailable", build("aclrtSynchronizeEventWithTimeout"), "SLUICE_ACL_WANT=is too old: aclrtSynchronizeEventWithTimeout (CANN 8.1) and 0 more required calls are absent")
}

func TestChild81(t *testing.T) {
	basetest.IsChild(t)
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Empty(t, r.Problem)
	require.Contains(t, strings.Join(r.Missing, "\n"), "aclrtMemcpyBatchAsync (CANN 8.5) is absent")
	d, s := open(t, ascendrt.OpenOptions{})
	c := d.Caps()
	require.False(t, c.BatchCopy || c.IPCMemory || c.RawKernels)
	require.True(t, c.Graphs)
	require.Equal(t, ascendrt.UpdateTaskGroup, c.GraphUpdate)
	require.Equal(t, -1, d.Limits().StreamsFree, "unknown")
	x, err := d.Alloc(64, ascendrt.PlaceShareable)
	require.NoError(t, err)
	_, err = d.Export(x)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.ErrorContains(t, err, "aclrtIpcMemGetExportKey")
	h, err := d.AllocHost(64)
	require.NoError(t, err)
	h.Bytes()[9] = 7
	submit(t, s, func(c *ascendrt.Commands) {
		c.CopyBatch([]ascendrt.View{x.Slice(0, 8), x.Slice(8, 8)}, []ascendrt.View{h.Slice(0, 8), h.Slice(8, 8)})
		c.Copy(h.Slice(32, 16), x.Slice(0, 16))
	})
	require.Equal(t, byte(7), h.Bytes()[41], "one by one instead")
	_, err = d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpKVScatter, Type: ascendrt.BFloat16, Attr: ascendrt.ScatterAttr{KVHeads: 1, HeadDim: 16, BlockSize: 128}})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.ErrorContains(t, err, "aclnnScatterPaKvCache")
	require.NoError(t, fill(d, s))
	require.NoError(t, capture(d, s))
}

// The runtime's limits, made small.
func TestRuntimeLimits(t *testing.T) {
	needEmulation(t)
	basetest.Child(t, "TestChildLimits", "SLUICE_EMU_STREAMS=3", "SLUICE_EMU_EVENTS=2", "SLUICE_EMU_MEMORY=100000000")
}

func TestChildLimits(t *testing.T) {
	basetest.IsChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	require.Equal(t, 2, d.Limits().StreamsFree)
	require.Equal(t, 2, d.Limits().EventsFree)
	_, err := d.Alloc(200_000_000, ascendrt.PlaceDefault)
	e := vendor(t, err, ascendrt.ErrOutOfMemory, 207001)
	require.Contains(t, e.Text, "of 100000000 bytes free")
	a, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	b, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	_, err = d.NewStream(ascendrt.StreamOptions{})
	vendor(t, err, ascendrt.ErrResourceLimit, 207008)
	// A graph takes a stream of its own: the shape runs eagerly then.
	vendor(t, capture(d, s), ascendrt.ErrResourceLimit, 207008)
	require.NoError(t, fill(d, s), "the stream does not capture any more")
	require.NoError(t, a.Close())
	require.NoError(t, capture(d, s))
	for range 2 {
		_, err := d.NewEvent(ascendrt.EventExternal)
		require.NoError(t, err)
	}
	_, err = d.NewEvent(ascendrt.EventExternal)
	vendor(t, err, ascendrt.ErrResourceLimit, 207007)
	require.NoError(t, b.Close())
}

func TestShareMemory(t *testing.T) {
	needEmulation(t)
	d, s := open(t, ascendrt.OpenOptions{})
	basetest.ShareMemory(t, d, s, "TestChildShare")
}

func TestChildShare(t *testing.T) {
	basetest.IsChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	basetest.SharedMemory(t, d, s)
}
