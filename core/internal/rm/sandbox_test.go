package rm

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sandboxed has each request, class and control that this package makes. gVisor: its sandbox lets it pass,
// with the capabilities compute and utility.
// [google/gvisor 3c5eee17, pkg/sentry/devices/nvproxy/version.go: the first driverABI, and 545 for 0x288]
var sandboxed = []struct {
	code   uint32
	gVisor bool
	cuda   bool // CUDA does not start without it
}{
	{nrFree, true, true}, {nrControl, true, true}, {nrAlloc, true, true}, {nrMapMemory, true, true}, {nrUnmapMemory, true, true},
	{nrCardInfo, true, true}, {nrRegisterFD, true, true}, {nrVersion, true, true},
	{nrDup, true, false},
	{classRoot, true, true}, {classDevice, true, true}, {classConfidential, true, false},
	{controlGPUIDInfo, true, true}, {controlAttached, true, false}, {controlActiveDevices, true, false}, {controlImportFD, true, false},
	{controlAddressSpace, true, false}, {controlSurfaceInfo, true, false}, {controlConfidential, true, false},
	{controlChipset, false, false}, {controlPageSize, false, false},
}

// The list is that of abi.go, and docs/rm.md has each.
func TestSandboxListIsWhole(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "abi.go", nil, 0)
	require.NoError(t, err)
	made := map[uint32]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && regexp.MustCompile(`^(nr|class|control)[A-Z]`).MatchString(v.Names[0].Name) {
			code, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 0, 32)
			require.NoError(t, err)
			made[uint32(code)] = true
		}
		return true
	})
	page, err := os.ReadFile("../../../docs/rm.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## The requests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[uint32]bool{}
	for _, s := range sandboxed {
		listed[s.code] = true
		require.Regexp(t, fmt.Sprintf(`\b(0x%X|%d)\b`, s.code, s.code), section)
	}
	require.Equal(t, made, listed)
}

// In gVisor memory of each kind is pinned and mapped. Where a sandbox that lets CUDA start refuses one
// request more, it is, too, or gdr_open says so.
func TestSandbox(t *testing.T) {
	for _, without := range sandboxed {
		if without.cuda {
			continue
		}
		w := newWorld(t)
		for _, s := range sandboxed {
			if s.gVisor && s != without {
				w.rm.Pass = append(w.rm.Pass, s.code)
			}
		}
		err := w.rm.probe()
		if without.code == nrDup {
			require.ErrorIs(t, err, unix.ENOTSUP)
			require.ErrorContains(t, err, "gVisor")
			continue
		}
		require.NoError(t, err, "without %#x", without.code)
		for _, a := range []*fakeAlloc{w.cuda.memAlloc(0, 2*mib), w.cuda.vmm(0, true, []uint64{2 * mib}), w.cuda.pool(0, 0, 2*mib)} {
			p := w.pinned(a.start, 2*mib)
			w.cycle(p)
			require.NoError(t, p.Unpin())
		}
		w.end()
	}
}
