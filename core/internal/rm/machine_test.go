package rm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
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
		{"the last that cannot say", 0, "589.99", []string{grace, gpu}, backend.WC},
		{"it cannot say: Grace", 0, "580.142", []string{grace, gpu}, backend.WC},
		{"it cannot say: BlueField-3", 0, "580.142", []string{gpu, "0x15b3 0xa2da 0x01"}, backend.Device},
		{"it cannot say: BlueField-3 without crypto", 0, "535.288.01", []string{"0x15b3 0xa2db 0x01", gpu}, backend.Device},
		{"it cannot say: a card of BlueField-3", 0, "580.142", []string{grace, "0x15b3 0xa2dc 0x01", gpu}, backend.WC},
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
	for _, file := range []string{"vendor", "device", "revision"} {
		tree := pciTree(t, gpu, grace)
		require.NoError(t, os.Mkdir(filepath.Join(tree, ".hidden"), 0o755))
		require.True(t, combinesWrites(tree), "what is hidden is no device")
		require.NoError(t, os.Remove(filepath.Join(tree, "0000:01:00.0", file)))
		require.False(t, combinesWrites(tree), "a device without %s", file)
	}
}

// The machines without write-combining are one list, which the module gdrdrv has too.
func TestMachinesAreTheModules(t *testing.T) {
	module, err := os.ReadFile("../../../kmod/mmap.c")
	require.NoError(t, err)
	source, err := os.ReadFile("machine.go")
	require.NoError(t, err)
	var ids, here []string
	for _, row := range regexp.MustCompile(`PCI_DEVICE\((0x\w+), (0x\w+)\)(, .driver_data = 1)?`).FindAllStringSubmatch(string(module), -1) {
		ids = append(ids, row[1]+row[2])
		for revision, want := range []bool{false, row[3] != ""} {
			port := fmt.Sprintf("%s %s 0x%02x", row[1], row[2], revision)
			require.Equal(t, want, combinesWrites(pciTree(t, "0x10de 0x2335 0xa1", port)), port)
		}
	}
	for _, id := range regexp.MustCompile(`"(0x[0-9a-f]{4}0x[0-9a-f]{4})"`).FindAllStringSubmatch(string(source), -1) {
		here = append(here, id[1])
	}
	require.NotEmpty(t, ids)
	require.ElementsMatch(t, ids, here)
}

// A kernel with pages of 64 KiB: each window is of whole pages, on its pages.
func TestHostPagesOf64KiB(t *testing.T) {
	real := hostPage
	t.Cleanup(func() { hostPage = real })
	hostPage = 1 << 16
	for _, w := range []*world{newWorld(t), blind(t)} {
		w.rm.Page = hostPage
		require.NoError(t, w.rm.probe())
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
	require.ErrorIs(t, f.probe(), unix.ENOTSUP, "a mapping would show the neighbours")
	require.Empty(t, f.calls)
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
	w.rm.fail("RM_CONTROL 0xd01", 1, statusGeneric)
	_, _, err = p.Map(2*mib, backend.None)
	require.ErrorIs(t, err, statusGeneric)
	require.Zero(t, g.space.Load())
	w.rm.fail("RM_CONTROL 0xd01", 1, statusNotSupported) // where nobody asks, it is the GPU's
	w.cycle(p)
	require.Equal(t, uint32(spaceVideo), g.space.Load())
	before := w.rm.count("RM_CONTROL 0xd01")
	w.cycle(p)
	require.Equal(t, before, w.rm.count("RM_CONTROL 0xd01"), "asked once for a GPU")
	require.NoError(t, p.Unpin())
	w.end()
}

// 4096 mappings are the host's.
func TestMapsLeft(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	require.NoError(t, err)
	var limit int
	_, err = fmt.Sscan(string(text), &limit)
	require.NoError(t, err)
	require.NoError(t, mapsLeft(limit-4096))
	err = mapsLeft(limit - 4095)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "vm.max_map_count")

	// A buffer in more pages than that is not mapped in parts, and why it is cut is told.
	parts := uint64(limit-4095+31) &^ 31 // whole objects' worth
	if parts > 1<<21 {
		t.Skip("a process may have very many mappings here: ", limit)
	}
	w := newWorld(t, "grace")
	a := w.cuda.vmm(0, false, []uint64{parts * gpuPage})
	w.rm.answered = func(call string, b []byte) {
		if call == "RM_CONTROL 0x410118" {
			order.PutUint64(params(b), gpuPage)
		}
	}
	pin := w.pinned(a.start, a.size)
	held, maps := w.held(), w.rm.count("MAP_MEMORY")
	w.rm.fail("MAP_MEMORY", 1, statusObjectNotFound)
	_, got, err := pin.Map(a.size, backend.None)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorIs(t, err, statusObjectNotFound)
	require.ErrorContains(t, err, fmt.Sprintf("only in %d pieces, and the process may have %d mappings", parts, limit))
	require.Equal(t, backend.None, got)
	require.Equal(t, maps+1, w.rm.count("MAP_MEMORY"))
	require.Equal(t, held, w.held())
	require.NoError(t, pin.Unpin())
	w.end()
}

// Whether a GPU is coherent with the CPU is known before it is pinned on, and with what programs
// that count on forced PCIe are told: the version, and the attribute.
func TestCoherentMachine(t *testing.T) {
	for _, c := range []struct {
		what   string
		kinds  []nvrm.Machine
		device uint16 // of the last GPU, in place of its own
		open   bool   // some process has the GPUs open
		want   bool
	}{
		{"PCIe", []nvrm.Machine{"pcie", "pcie"}, 0, false, false},
		{"PCIe, open", []nvrm.Machine{"pcie", "pcie"}, 0, true, false},
		{"Grace", []nvrm.Machine{"grace"}, 0, false, true},
		{"Grace in the driver's mode, open", []nvrm.Machine{"cdmm"}, 0, true, true},
		{"GB200", []nvrm.Machine{"pcie", "grace"}, 0x2941, false, true},
		{"GB300", []nvrm.Machine{"grace"}, 0x31C2, false, true},
		{"a device that no source has", []nvrm.Machine{"grace"}, 0x3FFF, false, false},
		{"a device that no source has, open", []nvrm.Machine{"grace"}, 0x3FFF, true, true},
		{"the device before Grace's", []nvrm.Machine{"pcie"}, 0x233F, false, false},
		{"the device after Grace's", []nvrm.Machine{"pcie"}, 0x2380, false, false},
		{"a Grace's GPU whose link is down", []nvrm.Machine{"pcie"}, 0x2342, true, false},
		{"GB10", []nvrm.Machine{"gb10"}, 0, false, true},
		{"GB10, open", []nvrm.Machine{"gb10"}, 0, true, true},
		{"a Tegra's display beside a GPU", []nvrm.Machine{"tegra", "pcie"}, 0, true, false},
	} {
		w := newWorld(t, c.kinds...)
		last := w.rm.GPUs[len(w.rm.GPUs)-1]
		if c.device != 0 {
			last.Device = c.device
		}
		if c.open {
			for _, g := range w.rm.GPUs {
				fd, err := w.rm.open(node(g))
				require.NoError(t, err)
				require.NoError(t, w.rm.close(fd))
			}
		}
		coherent, err := probe(w.rm, w.rm.access, w.rm.shows)
		require.NoError(t, err)
		require.Equal(t, c.want, coherent, c.what)

		s := w.session
		s.onCoherent = coherent
		told := func(coherent bool) {
			major, minor := s.Version()
			require.Equal(t, [2]int{2, map[bool]int{false: backend.Minor, true: 4}[coherent]}, [2]int{major, minor}, c.what)
			forces, err := s.Attribute(backend.AttrForcePCIe)
			require.NoError(t, err)
			if coherent || runtime.GOARCH != "arm64" {
				require.Equal(t, map[bool]int{false: 1, true: 0}[coherent], forces, c.what)
			}
		}
		told(c.want)
		a := w.cuda.memAlloc(len(c.kinds)-1, 4096)
		p, err := w.Pin(backend.PinRequest{Addr: a.start, Size: 1})
		require.NoError(t, err)
		told(c.want || last.Flags != 0)
		require.NoError(t, p.Unpin())
		w.end()
	}
}

// What one entry of the driver's list says.
func TestCheckOfACard(t *testing.T) {
	none := func(uint32) bool { return false }
	for _, c := range []struct {
		card    cardInfo
		divided bool
		access  error
		want    error
	}{
		{cardInfo{vendor: 0x10de, bus: 1, fbSize: 1}, false, nil, nil},
		{cardInfo{vendor: 0x10de, bus: 1}, false, nil, nil}, // GB10
		{cardInfo{vendor: 0x10de, slot: 1}, false, nil, nil},
		{cardInfo{vendor: 0x10de, domain: 1}, false, nil, nil},
		{cardInfo{vendor: 0x10de, fbSize: 1}, false, nil, nil},
		{cardInfo{vendor: 0x10de}, false, nil, errTegraDisplay},
		{cardInfo{bus: 1, fbSize: 1}, false, nil, errTegraDisplay},
		{cardInfo{vendor: 0x10de, bus: 1}, true, unix.EACCES, unix.ENOTSUP},
		{cardInfo{vendor: 0x10de, bus: 1}, false, unix.EACCES, unix.EACCES},
	} {
		c.card.minor = 12
		divided := none
		if c.divided {
			divided = func(uint32) bool { return true }
		}
		asked := "/dev/nvidia12"
		err := c.card.check(divided, func(path string) error { asked = path; return c.access })
		require.ErrorIs(t, err, c.want, "%+v", c)
		require.Equal(t, "/dev/nvidia12", asked)
	}
}
