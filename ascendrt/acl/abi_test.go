//go:build cgo && linux

package acl

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// notEmulated are calls of abi.h that the emulation leaves out: binaries of
// kernels for a chip that it is not.
var notEmulated = []string{"aclrtBinaryLoadFromData", "aclrtBinaryGetFunction", "aclrtBinaryUnLoad", "aclrtLaunchKernelWithHostArgs"}

// declared gives the symbols of one table of abi.h.
func declared(t *testing.T, header, table string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(header, "#define "+table+"(X)")
	require.True(t, ok, table)
	var out []string
	first := regexp.MustCompile(`\tX\((?:\d, )?\d+, (\w+),`)
	for line := range strings.Lines(rest) {
		for _, m := range first.FindAllStringSubmatch(line, -1) {
			out = append(out, m[1])
			if table == "SL_ACLNN_OPS" {
				out = append(out, m[1]+"GetWorkspaceSize")
			}
		}
		if !strings.HasSuffix(strings.TrimRight(line, "\n"), "\\") {
			break
		}
	}
	require.NotEmpty(t, out, table)
	return out
}

// The emulated libraries export the vendor's names that abi.h declares, each
// library its own, and nothing else but names of the emulation.
func TestEmulationExportsTheVendorsNames(t *testing.T) {
	needEmulation(t)
	header, err := os.ReadFile("abi.h")
	require.NoError(t, err)
	dir := filepath.Dir(libraries[libACL].Path)
	for lib, table := range map[string]string{"libascendcl.so": "SL_ACL_SYMS", "libnnopbase.so": "SL_NNOP_SYMS", "libopapi.so": "SL_ACLNN_OPS", "libhccl.so": "SL_HCCL_SYMS"} {
		f, err := elf.Open(filepath.Join(dir, lib))
		require.NoError(t, err)
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		var exported []string
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF && !strings.HasPrefix(s.Name, "sluice_emu_") {
				exported = append(exported, s.Name)
			}
		}
		want := slices.DeleteFunc(declared(t, string(header), table), func(s string) bool { return slices.Contains(notEmulated, s) })
		slices.Sort(want)
		slices.Sort(exported)
		require.Equal(t, want, exported, lib)
	}
}
