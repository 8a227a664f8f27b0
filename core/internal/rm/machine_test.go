package rm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/tests/doubles/nvrm"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pciTree is a folder of PCI devices, each "vendor device revision".
func pciTree(t *testing.T, devices ...string) string {
	dir := t.TempDir()
	for i, d := range devices {
		at := filepath.Join(dir, fmt.Sprintf("0000:%02x:00.0", i))
		require.NoError(t, os.Mkdir(at, 0o755))
		var id [3]string
		_, err := fmt.Sscan(d, &id[0], &id[1], &id[2])
		require.NoError(t, err)
		for j, file := range []string{"vendor", "device", "revision"} {
			require.NoError(t, os.WriteFile(filepath.Join(at, file), []byte(id[j]+"\n"), 0o644))
		}
	}
	return dir
}

// On arm64 some drivers map BAR1 as Device memory and answer that it is write-combined.
func TestBAR1TypeOfArm(t *testing.T) {
	const gpu, grace = "0x10de 0x2335 0xa1", "0x10de 0x22b2 0x00"
	for _, c := range []struct {
		what    string
		chipset int64
		version string
		pci     []string
		want    backend.MappingType
	}{
		{"it says so", 2, "590.48.01", []string{gpu}, backend.WC},
		{"it says so, and newer", 3, "611.10", nil, backend.WC},
		{"it says no", 0, "590.48.01", []string{grace, gpu}, backend.Device},
		{"it says no, beside another flag", 1, "595.45.04", []string{grace, gpu}, backend.Device},
		{"it cannot say: Grace", 0, "580.142", []string{grace, gpu}, backend.WC},
		{"it cannot say: BlueField-3", 0, "580.142", []string{gpu, "0x15b3 0xa2da 0x01"}, backend.Device},
		{"it cannot say: BlueField-3 without crypto", 0, "535.288.01", []string{"0x15b3 0xa2db 0x01", gpu}, backend.Device},
		{"it cannot say: a card of BlueField-3", 0, "580.142", []string{grace, "0x15b3 0xa2dc 0x01", gpu}, backend.WC},
		{"it cannot say: Altra, revision 0", 0, "570.211.01", []string{"0x1def 0xe100 0x00", gpu}, backend.Device},
		{"it cannot say: Altra, revision 4", 0, "570.211.01", []string{"0x1def 0xe100 0x04", gpu}, backend.WC},
		{"no PCI device is seen", 0, "580.142", nil, backend.Device},
		{"the version is not known", 0, "", []string{grace, gpu}, backend.Device},
		{"it does not answer", -1, "580.142", []string{grace, gpu}, backend.Device},
	} {
		f := newRM(t)
		f.Chipset, f.VersionText = uint32(c.chipset), c.version
		if c.chipset < 0 {
			f.fail("RM_CONTROL 0x104", 1, statusNotSupported)
		}
		client, err := newClient(f)
		require.NoError(t, err)
		require.Equal(t, c.want, client.bar1TypeOfArm(client.major(), pciTree(t, c.pci...)), c.what)
		require.NoError(t, client.close())
	}
	require.False(t, combinesWrites("/nowhere"))
}

// A kernel with pages of 64 KiB: each window is of whole pages, on its pages.
func TestHostPagesOf64KiB(t *testing.T) {
	real := hostPage
	t.Cleanup(func() { hostPage = real })
	hostPage = 1 << 16
	for _, w := range []*world{newWorld(t), blind(t)} {
		w.rm.Page = hostPage
		a, small := w.cuda.memAlloc(0, 3*mib), w.cuda.memAlloc(0, 100)
		v := w.cuda.vmm(0, true, []uint64{2 * mib, 2 * mib})
		for _, at := range []struct{ addr, size uint64 }{
			{a.start, 70000}, {a.start + 5000, 1}, {a.start + 2*mib + 4096, 4096}, {small.start, 100},
			{v.start + mib, 2 * mib},
		} {
			p := w.pinned(at.addr, at.size)
			w.cycle(p)
			require.NoError(t, p.Unpin())
		}
		w.end()
	}
	hostPage = 1 << 17
	f := newRM(t)
	require.ErrorIs(t, probe(f, f.access, f.shows), unix.ENOTSUP, "a mapping would show the neighbours")
	require.Empty(t, f.calls)
}

// Where BAR1 has no range that is large enough, drivers before 565 map parts. Later ones
// do that themselves, so what they refuse stays refused.
func TestPartsWhereBAR1IsInPieces(t *testing.T) {
	for _, c := range []struct {
		version string
		windows int
		err     error
	}{
		{"535.288.01", 1 + 3, nil},
		{"560.35.03", 1 + 3, nil},
		{"565.57.01", 1, unix.ENOMEM},
		{"", 1, unix.ENOMEM},
	} {
		for _, s := range []status{statusInsufficient, statusNoMemory} {
			w := newWorld(t)
			w.rm.VersionText = c.version
			a := w.cuda.memAlloc(0, 5*mib)
			p := w.pinned(a.start, 5*mib)
			before := w.rm.count("MAP_MEMORY")
			w.rm.fail("MAP_MEMORY", 1, s)
			va, _, err := p.Map(5*mib, backend.None)
			require.ErrorIs(t, err, c.err, c.version)
			require.Equal(t, c.windows, w.rm.count("MAP_MEMORY")-before, c.version)
			if err == nil {
				w.checkBytes(va, a.start, 5*mib)
				require.NoError(t, p.Unmap())
			}
			before = w.rm.count("MAP_MEMORY")
			w.rm.fail("MAP_MEMORY", 1, s)
			_, _, err = p.Map(2*mib, backend.None)
			require.ErrorIs(t, err, unix.ENOMEM, "there are no smaller parts")
			require.Equal(t, 1, w.rm.count("MAP_MEMORY")-before)
			require.NoError(t, p.Unpin())
			w.end()
		}
	}
}

// Device memory is in the GPU or the system's. Anything else is refused, and is not
// remembered.
func TestAddressSpaces(t *testing.T) {
	w := newWorld(t)
	a := w.cuda.memAlloc(0, 2*mib)
	p := w.pinned(a.start, 2*mib)
	g := p.gpu
	g.space.Store(0)
	w.rm.GPUs[0].Space = 4
	_, _, err := p.Map(2*mib, backend.None)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "address space 4")
	w.rm.GPUs[0].Space = spaceVideo
	w.cycle(p)
	require.Equal(t, uint32(spaceVideo), g.space.Load())
	before := w.rm.count("RM_CONTROL 0xd01")
	w.cycle(p)
	require.Equal(t, before, w.rm.count("RM_CONTROL 0xd01"), "asked once for a GPU")
	require.NoError(t, p.Unpin())
	w.end()
}

// Whether PCIe can be forced is known of a GPU that was pinned on.
func TestForcePCIeAttributeAfterAPin(t *testing.T) {
	for _, ats := range []bool{false, true} {
		w := newWorld(t)
		gpu := w.rm.GPUs[0]
		if ats {
			gpu.Flags, gpu.Answer = nvrm.IDATS, nvrm.MapAnswer(answerCoherent.mapping, answerCoherent.cache)
		}
		a := w.cuda.memAlloc(0, 2*mib)
		p := w.pinned(a.start, 2*mib)
		v, err := w.Attribute(backend.AttrForcePCIe)
		require.NoError(t, err)
		require.Equal(t, ats, v == 0)
		q, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1, Flags: backend.PinForcePCIe})
		if ats {
			require.ErrorIs(t, err, unix.EINVAL)
		} else {
			require.NoError(t, err)
			require.NoError(t, q.Unpin())
		}
		require.NoError(t, p.Unpin())
		w.end()
	}
}

func TestMapsLeft(t *testing.T) {
	require.NoError(t, mapsLeft(1))
	err := mapsLeft(1 << 40)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "vm.max_map_count")
}
