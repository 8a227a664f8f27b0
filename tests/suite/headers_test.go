// SPDX-License-Identifier: MIT

package suite

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// make builds an object anew after a header changes that it includes by another header, as the
// compiler has said, and the library after each of its own. The row suite/runner has these built before.
func TestHeaders(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	t.Chdir(top)
	build := cmp.Or(os.Getenv("B"), "build")
	// Its status says that something is to be made.
	printed, _ := exec.Command("make", "-npq", "B="+build, "version").Output()
	knows := map[string][]string{}
	for line := range strings.Lines(string(printed)) {
		if target, needs, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			knows[target] = append(knows[target], strings.Fields(needs)...)
		}
	}
	for object, header := range map[string]string{
		"tests/c/abi/badinput.o":       "include/gdrapi_ext.h", // by every.h
		"tests/doubles/cuda_sim_vmm.o": "tests/doubles/cuda_sim.h",
		"tools/copybw.o":               "include/gdrapi.h",
	} {
		require.Contains(t, knows[filepath.Join(build, "obj", object)], header, object)
	}
	library, err := filepath.Glob(build + "/libgdrapi.so.2.*")
	require.NoError(t, err)
	require.Len(t, library, 1)
	for _, pattern := range []string{"include/gdr*.h", "capi/*.h", "capi/*/*.h"} {
		headers, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, h := range headers {
			require.Contains(t, knows[library[0]], h)
		}
	}
}
