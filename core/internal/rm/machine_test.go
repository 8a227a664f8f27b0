package rm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// answering is a driver that only answers questions. Where it has no answer it does not know the question.
type answering struct {
	version  string
	controls map[uint32]func(params uintptr)
}

func (a answering) ioctl(_ int, code uint32, arg unsafe.Pointer) error {
	switch code & 0xff {
	case nrVersion:
		copy((*version)(arg).text[:], a.version)
	case nrControl:
		c := (*controlArgs)(arg)
		if answer := a.controls[c.command]; answer != nil {
			answer(uintptr(c.params))
		} else {
			c.status = statusNotSupported
		}
	default:
		return unix.EINVAL
	}
	return nil
}

func TestCloseWaitsForADeviceObject(t *testing.T) {
	c := &client{ioctl: func(int, uint32, unsafe.Pointer) error { return unix.EBADF }, fd: -1}
	fd, err := unix.Open(t.TempDir(), unix.O_RDONLY, 0)
	require.NoError(t, err)
	file, err := sys.Own(fd)
	require.NoError(t, err)
	c.attach.Lock()
	closed := make(chan error)
	go func() { closed <- c.close() }()
	time.Sleep(10 * time.Millisecond)
	c.gpus.Store(0, &gpu{fd: fd, file: file})
	c.attach.Unlock()
	<-closed
	require.False(t, file.IsStill(fd))
}

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
		{"it says no", 0, "590.48.01", []string{grace, gpu}, backend.Device},
		{"it says no, beside another flag", 1, "595.45.04", []string{grace, gpu}, backend.Device},
		{"the last that cannot say", 0, "589.99", []string{grace, gpu}, backend.WC},
		{"it cannot say: BlueField-3", 0, "580.142", []string{gpu, "0x15b3 0xa2da 0x01"}, backend.Device},
		{"no PCI device is seen", 0, "580.142", nil, backend.Device},
		{"the version is not known", 0, "", []string{grace, gpu}, backend.Device},
		{"it does not answer", -1, "580.142", []string{grace, gpu}, backend.Device},
	} {
		a := answering{version: c.version}
		if c.chipset >= 0 {
			a.controls = map[uint32]func(uintptr){controlChipset: func(p uintptr) { (*chipset)(sys.Pointer(p)).flags = uint32(c.chipset) }}
		}
		client := &client{ioctl: a.ioctl}
		require.Equal(t, c.want, client.bar1TypeOfArm(client.major(), pciTree(t, c.pci...)), c.what)
	}
	require.EqualValues(t, 148, unsafe.Offsetof(chipset{}.flags), "of NV0000_CTRL_SYSTEM_GET_CHIPSET_INFO_PARAMS")
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

// A kernel with pages of 64 KiB: each window is of whole pages, on its pages. The row go/pages
// runs it, on a simulated driver with such pages.
func TestHostPagesOf64KiB(t *testing.T) {
	if os.Getenv("NVRM_SIM_PAGE") == "" {
		t.Skip("needs the simulated driver of the row go/pages")
	}
	hostPage = 1 << 16
	cudatest.UseLibC()
	s, err := Backend{}.Open()
	require.NoError(t, err)
	sim := cudatest.Need(t)
	large, small := sim.MemAlloc(0, 3<<20), sim.MemAlloc(0, 100)
	pieces, _ := sim.VMM(0, 2, 1)
	for _, at := range []struct{ addr, size uint64 }{
		{large, 70000}, {large + 5000, 1}, {large + 2<<20 + 4096, 4096}, {small, 100}, {pieces + 1<<20, 2 << 20},
	} {
		p, err := s.Pin(backend.PinRequest{Addr: at.addr, Size: at.size})
		require.NoError(t, err)
		i, err := p.Info()
		require.NoError(t, err)
		va, _, err := p.Map(i.MappedSize, backend.None)
		require.NoError(t, err)
		cudatest.Bytes(va, int(i.MappedSize))[at.addr-i.VA] = byte(at.size) | 1
		require.Equal(t, []byte{byte(at.size) | 1}, sim.DtoH(0, at.addr, 1))
		require.NoError(t, sys.Munmap(va, uintptr(i.MappedSize)))
		require.NoError(t, p.Unmap())
		require.NoError(t, p.Unpin())
	}
	require.NoError(t, s.Close())
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
}

// Whether a GPU is coherent with the CPU is known before some process has it open.
func TestCoherentDevices(t *testing.T) {
	for _, c := range []struct {
		what   string
		device uint16
		bar1   uint64
		flags  int64 // that the driver says; -1: it does not know the GPU yet
		want   bool
	}{
		{"H100", 0x2330, 1, -1, false},
		{"GH200", 0x2342, 1, -1, true},
		{"GB200", 0x2941, 1, -1, true},
		{"GB300", 0x31C2, 1, -1, true},
		{"GB10", 0x2E12, 0, -1, true},
		{"the device after Grace's", 0x2380, 1, -1, false},
		{"the device after GB200", 0x2980, 1, -1, false},
		{"the device after GB300", 0x3200, 1, -1, false},
		{"a device that no source has, open", 0x3FFF, 1, idATS, true},
		{"GB10, open", 0x2E12, 0, idSOC, true},
		{"a Grace's GPU whose link is down", 0x2342, 1, 0, false},
	} {
		a := answering{}
		if c.flags >= 0 {
			a.controls = map[uint32]func(uintptr){controlGPUIDInfo: func(p uintptr) { (*gpuIDInfo)(sys.Pointer(p)).flags = uint32(c.flags) }}
		}
		card := cardInfo{vendor: 0x10de, bus: 1, device: c.device, fbSize: c.bar1}
		require.Equal(t, c.want, (&client{ioctl: a.ioctl}).isCoherent(card), c.what)
	}
	require.False(t, (&client{ioctl: answering{}.ioctl}).isCoherent(cardInfo{vendor: 0x10de}), "a Tegra's display")
}

// A process may use some of a machine's GPUs, of which CUDA shows it some.
func TestUsable(t *testing.T) {
	one, two := cuda.PCIAddress{Bus: 1}, cuda.PCIAddress{Bus: 2}
	cards := []cardInfo{{vendor: 0x10de, bus: 1, fbSize: 1}, {vendor: 0x10de, bus: 2, fbSize: 1, minor: 1}}
	for _, c := range []struct {
		what   string
		cards  []cardInfo
		access [2]error
		shown  map[cuda.PCIAddress]bool // nil: CUDA is not initialised
		want   error
		line   string
	}{
		{"two GPUs", cards, [2]error{}, nil, nil, ""},
		{"the first one's node is not ours", cards, [2]error{unix.EACCES}, nil, nil, ""},
		{"the second one is not in the container", cards, [2]error{nil, unix.ENOENT}, nil, nil, ""},
		{"CUDA has the first alone", cards, [2]error{nil, unix.ENOENT}, map[cuda.PCIAddress]bool{one: true}, nil, ""},
		{"CUDA has that one alone", cards, [2]error{nil, unix.ENOENT}, map[cuda.PCIAddress]bool{two: true}, unix.ENOENT, "compute,utility"},
		{"no node is ours", cards, [2]error{unix.EACCES, unix.EACCES}, nil, unix.EACCES, "may not be opened"},
		{"no node", cards, [2]error{unix.ENOENT, unix.ENOENT}, nil, unix.ENOENT, "compute,utility"},
		{"no GPU", nil, [2]error{}, nil, unix.ENODEV, "no GPU"},
	} {
		access := func(path string) error { return c.access[path[len(path)-1]-'0'] }
		err := (&client{ioctl: answering{}.ioctl}).anyUsable(c.cards, access, func() map[cuda.PCIAddress]bool { return c.shown })
		if c.want == nil {
			require.NoError(t, err, c.what)
			continue
		}
		require.ErrorIs(t, err, c.want, c.what)
		require.ErrorContains(t, err, c.line, c.what)
	}
}

func TestStatusToErrno(t *testing.T) {
	for number, errno := range map[uint32]unix.Errno{
		0x1A: unix.ENOMEM, 0x1B: unix.EPERM, 0x1F: unix.EINVAL, 0x20: unix.EINVAL, 0x23: unix.EACCES,
		0x26: unix.ENODEV, 0x2E: unix.EINVAL, 0x31: unix.EINVAL, 0x33: unix.EINVAL, 0x40: unix.EIO,
		0x51: unix.ENOMEM, 0x56: unix.ENOTSUP, 0x57: unix.EINVAL, 0x63: unix.EBUSY, 0x12345: unix.EIO,
		0x03: unix.EAGAIN, 0x0F: unix.ENODEV, 0x10: unix.EAGAIN, 0x11: unix.EAGAIN, 0x17: unix.EIO, 0x22: unix.EIO,
		0x36: unix.ENOTSUP, 0x3F: unix.EIO, 0x62: unix.ENODEV, 0x65: unix.EIO, 0x6E: unix.ENODEV, 0xFFFF: unix.EIO,
	} {
		s := status(number)
		require.Equal(t, errno, s.Unwrap(), "%v", s)
		require.ErrorIs(t, fmt.Errorf("REQUEST: %w", s), errno)
		require.Contains(t, s.Error(), fmt.Sprintf("%#x", number))
	}
}

func TestAccess(t *testing.T) {
	require.NoError(t, access("/dev/null"))
	require.Equal(t, unix.ENOENT, access("/dev/nothing of this name"))
}

// On a machine without the driver the real kernel says so.
func TestOpenWithoutTheDriver(t *testing.T) {
	cudatest.NeedRaw(t)
	if unix.Access(controlPath, unix.F_OK) == nil {
		t.Skipf("%s exists here", controlPath)
	}
	_, err := Backend{}.Open()
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorContains(t, err, "compute,utility")
}

// Why a device node does not open.
func TestExplainOpen(t *testing.T) {
	for errno, line := range map[unix.Errno]string{
		unix.ENOENT: "compute,utility", unix.ENXIO: "compute,utility", unix.ENODEV: "compute,utility", unix.EIO: "compute,utility",
		unix.EACCES: "may not be opened", unix.EPERM: "may not be opened",
		unix.EMFILE: "open /dev/nvidia3", unix.ENOMEM: "open /dev/nvidia3",
	} {
		err := explainOpen("/dev/nvidia3", errno)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, line)
	}
}
