package vulkan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var _ backend.Backend = Backend{}

const posixFD = 1

var page = uint64(os.Getpagesize())

func TestMain(m *testing.M) {
	for name, v := range map[string]string{"CUDA_SIM_DEVICES": "2", "VULKAN_SIM_DEVICES": "2"} {
		if _, set := os.LookupEnv(name); !set || os.Getenv("GDR_TEST_CHILD") == "" {
			os.Setenv(name, v)
		}
	}
	os.Exit(m.Run())
}

// installed is the backend with the driver that the environment selects.
func installed() Backend { return Backend{DriverFiles: os.Getenv("VK_DRIVER_FILES")} }

func openSession(t testing.TB) *session {
	s, err := installed().Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s.(*session)
}

func TestAsEveryBackend(t *testing.T) {
	backendtest.Simulated{
		Open:       func(t testing.TB) backend.Session { return openSession(t) },
		Memory:     func(sim *cudatest.Sim) uint64 { addr, _ := sim.VMM(0, 1, posixFD); return addr },
		Attributes: map[backend.Attr]int{backend.AttrPersistentMapping: 1, backend.AttrForcePCIe: 1},
		NoTypes:    []backend.MappingType{backend.Caching, backend.Device, backend.Device + 1},
		Refused: func(sim *cudatest.Sim) []backendtest.Refusal {
			private, _ := sim.VMM(0, 1, 0)
			addr, _ := sim.VMM(0, 2, posixFD)
			return []backendtest.Refusal{
				backendtest.Refuses("plain memory", sim.MemAlloc(0, 1<<20), 4096, unix.ENOTSUP, "gdr_mem_alloc"),
				backendtest.Refuses("memory not to be exported", private, 4096, unix.ENOTSUP, "gdr_mem_alloc"),
				backendtest.Refuses("two chunks", addr+4096, cudatest.VMMChunk, unix.ENOTSUP, "one allocation"),
				backendtest.Refuses("two whole chunks", addr, 2*cudatest.VMMChunk, unix.ENOTSUP, "one allocation"),
				backendtest.Refuses("a byte past the first chunk", addr+page, cudatest.VMMChunk-page+1, unix.ENOTSUP, "one allocation"),
				backendtest.Refuses("more than there is", addr, 1<<40, unix.EINVAL, "past their allocation"),
				backendtest.Refuses("absurdly more", addr, 1<<64-1-addr, unix.EINVAL, "past their allocation"),
			}
		},
	}.Test(t)
}

func TestInstanceIsMadeOnce(t *testing.T) {
	cudatest.Need(t)
	first, err := processInstance()
	require.NoError(t, err)
	again, err := processInstance()
	require.NoError(t, err)
	require.Same(t, first, again)
}

func TestOpenWithoutADriver(t *testing.T) {
	cudatest.Need(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, c := range []struct{ what, files, line string }{
		{"no file", filepath.Join(dir, "none.json"), "no NVIDIA Vulkan driver"},
		{"no JSON", write("text.json", "text"), "invalid character"},
		{"no library", write("empty.json", "{}"), "names no library"},
		{"a library that is not there", write("gone.json", `{"ICD":{"library_path":"libgone.so.0"}}`), "libgone"},
		{"a relative path", write("relative.json", `{"ICD":{"library_path":"./libgone.so.0"}}`), dir},
		{"a folder of these", dir, "names no library"},
	} {
		_, err := Backend{DriverFiles: c.files}.Open()
		require.ErrorIs(t, err, unix.ENODEV, c.what)
		require.ErrorContains(t, err, c.line, c.what)
	}
	good := write("good.json", `{"ICD":{"library_path":"libvulkan.so.1"}}`)
	long := func(n int) string {
		return write(fmt.Sprint(n, ".json"), fmt.Sprintf("%-*s", n, `{"ICD":{"library_path":"libvulkan.so.1"}}`))
	}
	require.NoError(t, lookForDriver(long(64<<10)))
	require.ErrorContains(t, lookForDriver(long(64<<10+1)), unix.EFBIG.Error())
	_, err := Backend{DriverFiles: filepath.Join(dir, "none.json") + ":" + good}.Open()
	require.NoError(t, err)
}

func TestPinWithoutADevice(t *testing.T) {
	if !cudatest.InChild(t, "VULKAN_SIM_DEVICES=0") {
		return
	}
	sim := cudatest.Need(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	live := sim.Live()
	require.ErrorIs(t, mapOnce(addr), unix.ENODEV)
	require.Equal(t, live, sim.Live())
}

// Bytes written on one side are read on the other: on each device, in each chunk, at any
// offset, forced to PCIe or not.
func TestBytes(t *testing.T) {
	for _, c := range []struct {
		what   string
		device int
		offset uint64
		flags  uint32
		want   backend.MappingType
	}{
		{"the start", 0, 0, 0, backend.None},
		{"inside", 0, 5 * 4096, 0, backend.WC},
		{"the other device", 1, 64 << 10, 0, backend.None},
		{"forced PCIe", 1, 0, backend.PinForcePCIe, backend.None},
		{"the second chunk", 0, cudatest.VMMChunk + 4096, 0, backend.None},
		{"the end", 0, 2*cudatest.VMMChunk - 2*page, 0, backend.None},
	} {
		t.Run(c.what, func(t *testing.T) {
			sim := cudatest.Need(t)
			s := openSession(t)
			addr, _ := sim.VMM(c.device, 2, posixFD)
			addr += c.offset
			live, fds := sim.Live(), 0

			for range 2 { // the first pin on a GPU makes its device
				backendtest.Life(t, s, c.device, backend.PinRequest{Addr: addr, Flags: c.flags}, c.want, backend.WC, nil)
				require.Equal(t, live, sim.Live())
				if fds != 0 {
					require.Equal(t, fds, cudatest.FDs(t))
				}
				fds = cudatest.FDs(t)
			}
		})
	}
}

// Pins of one allocation, even of one range, have mappings of their own.
func TestPinsOfOneAllocation(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	var vas []uintptr
	var pins []backend.Pin
	for _, offset := range []uint64{0, 0, page, 100 * page} {
		p, err := s.Pin(backend.PinRequest{Addr: addr + offset, Size: 2 * page})
		require.NoError(t, err)
		va, _, err := p.Map(2*page, backend.None)
		require.NoError(t, err)
		require.NotContains(t, vas, va)
		vas, pins = append(vas, va), append(pins, p)
	}
	cudatest.Bytes(vas[2], 1)[0] = 42
	require.Equal(t, byte(42), cudatest.Bytes(vas[0], int(2*page))[page])
	require.NoError(t, pins[2].Unmap())
	require.NoError(t, pins[2].Unpin())
	require.Equal(t, byte(42), cudatest.Bytes(vas[1], int(2*page))[page])
	for i, p := range pins {
		if i != 2 {
			require.NoError(t, p.Unmap())
			require.NoError(t, p.Unpin())
		}
	}
}

func TestMemAllocPins(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	a, err := cuda.Alloc(1, 100)
	require.NoError(t, err)
	p, err := s.Pin(backend.PinRequest{Addr: a.Ptr(), Size: a.Size()})
	require.NoError(t, err)
	va, _, err := p.Map(a.Size(), backend.None)
	require.NoError(t, err)
	sim.HtoD(1, a.Ptr()+a.Size()-10, []byte("still here"))
	require.NoError(t, a.Free())
	require.Equal(t, "still here", string(cudatest.Bytes(va, int(a.Size()))[a.Size()-10:]), "a pin outlives the memory")
	require.NoError(t, p.Unmap())
	require.NoError(t, p.Unpin())
}

func TestPlainMemoryOfAnotherName(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	plain := sim.MemAlloc(0, 1<<20)
	const notSupported = 801
	sim.Fail("cuMemRetainAllocationHandle", notSupported, 1)
	_, err := s.Pin(backend.PinRequest{Addr: plain, Size: 4096})
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "gdr_mem_alloc", "a driver may call plain memory so, too")
}

// Which files may describe a driver: those that the host names, or of the usual folders.
func TestManifests(t *testing.T) {
	usual, own := t.TempDir(), t.TempDir()
	for _, name := range []string{"nvidia_icd.json", "nvidia.json.old", "intel_icd.json", "nvidia"} {
		for _, dir := range []string{usual, own} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
		}
	}
	saved := manifestDirs
	manifestDirs = []string{filepath.Join(usual, "none"), usual}
	t.Cleanup(func() { manifestDirs = saved })
	require.Equal(t, []string{usual + "/nvidia_icd.json"}, manifests(""))
	require.Equal(t, []string{own + "/intel_icd.json", own + "/nvidia_icd.json"}, manifests(own))
	require.Equal(t, []string{"/a/b", own + "/intel_icd.json", own + "/nvidia_icd.json", "c.json"}, manifests("/a/b:"+own+":c.json"))
}

// A library's path is as in the manifest, or beside it; a bare name is the loader's to find.
func TestLibraryOfAManifest(t *testing.T) {
	dir := t.TempDir()
	load := func(library string) error {
		path := filepath.Join(dir, "nvidia_icd.json")
		require.NoError(t, os.WriteFile(path, []byte(`{"ICD": {"library_path": "`+library+`"}}`), 0o666))
		return loadDriver(path)
	}
	for library, part := range map[string]string{
		"./libnone_a.so":        dir + "/libnone_a.so",
		"../libnone_b.so":       filepath.Dir(dir) + "/libnone_b.so",
		"/nowhere/libnone_c.so": "/nowhere/libnone_c.so",
		"libnone_d.so":          "libnone_d.so",
	} {
		err := load(library)
		require.ErrorContains(t, err, part)
		if !strings.Contains(library, "/") {
			require.NotContains(t, err.Error(), dir)
		}
	}
	require.ErrorIs(t, load(""), unix.EINVAL)
	require.NoError(t, load("libc.so.6"), "found by the loader")
}

// CUDA has this GPU, but Vulkan does not.
func TestNoVulkanForTheGPU(t *testing.T) {
	if !cudatest.InChild(t, "VULKAN_SIM_DEVICES=1") {
		return
	}
	sim := cudatest.Need(t)
	s := openSession(t)
	addr, _ := sim.VMM(1, 1, posixFD)
	live := sim.Live()
	_, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
	require.ErrorIs(t, err, unix.ENODEV)
	require.ErrorContains(t, err, "VK_DRIVER_FILES")
	require.Equal(t, live, sim.Live())
}

// Each CUDA call on the way to a pinned buffer fails once.
func TestPinUndoesEveryCUDAFailure(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: page}) // makes the Vulkan device
	require.NoError(t, err)
	require.NoError(t, p.Unpin())
	live, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range []struct {
		name string
		nth  int
	}{
		{"cuPointerGetAttribute", 1}, {"cuDeviceGet", 1}, {"cuDeviceGet", 2}, {"cuDeviceGet", 3},
		{"cuDevicePrimaryCtxRetain", 1}, {"cuCtxPushCurrent_v2", 1},
		{"cuMemRetainAllocationHandle", 1}, {"cuMemGetAllocationPropertiesFromHandle", 1}, {"cuDeviceGetUuid", 1},
		{"cuMemGetAddressRange_v2", 2}, {"cuMemExportToShareableHandle", 1},
	} {
		sim.Fail(c.name, int(cuda.ErrNotPermitted), c.nth)
		_, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
		require.ErrorIs(t, err, unix.EPERM, "%s, call %d", c.name, c.nth)
		require.ErrorContains(t, err, c.name)
		sim.Heal(c.name)
		require.Zero(t, sim.Current(), c.name)
		require.Equal(t, live, sim.Live(), c.name)
		require.Equal(t, fds, cudatest.FDs(t), c.name)
	}
}

// Each Vulkan call fails once, in a process of its own: an instance is made only once in
// a process.
func TestEveryVulkanFailure(t *testing.T) {
	for _, c := range []struct {
		name   string
		result int
		want   unix.Errno
		kept   int // Vulkan objects that stay after the failure
	}{
		{"vkCreateInstance", -9, unix.ENODEV, 0},
		{"vkEnumeratePhysicalDevices", -1, unix.ENOMEM, 0},
		{"vkEnumerateDeviceExtensionProperties", -2, unix.ENOMEM, 0},
		{"vkCreateDevice", -7, unix.ENOTSUP, 1},
		{"vkAllocateMemory", -10, unix.ENOMEM, 2},
		{"vkAllocateMemory", -1000072003, unix.ENOTSUP, 2},
		{"vkMapMemory", -5, unix.ENOMEM, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !cudatest.InChild(t) {
				return
			}
			sim := cudatest.Need(t)
			vk := cudatest.NeedVulkan(t)
			addr, _ := sim.VMM(0, 1, posixFD)
			live, fds := sim.Live(), cudatest.FDs(t)
			vk.Fail(c.name, c.result, 1)
			err := mapOnce(addr)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.name)
			require.Equal(t, c.kept, vk.Live())
			require.Equal(t, live, sim.Live())
			require.Equal(t, fds, cudatest.FDs(t))
			require.NoError(t, mapOnce(addr), "the next attempt goes through")
			require.Equal(t, 2, vk.Live(), "the instance and the device stay")
			require.Equal(t, live, sim.Live())
			require.Equal(t, fds, cudatest.FDs(t))
		})
	}
}

// A mapping that does not begin on a page is unmapped again.
func TestMisalignedMapping(t *testing.T) {
	if !cudatest.InChild(t) { // the functions belong to the process
		return
	}
	sim := cudatest.Need(t)
	vk := cudatest.NeedVulkan(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	require.NoError(t, mapOnce(addr))
	live, kept := sim.Live(), vk.Live()
	a, err := loadAPI()
	require.NoError(t, err)
	mapMemory, unmapMemory := a.fn[symMapMemory], a.fn[symUnmapMemory]
	var mapped, unmapped int
	a.fn[symMapMemory] = purego.NewCallback(func(dev, m, offset, size, flags uintptr, va *uintptr) uintptr {
		mapped++
		r, _, _ := purego.SyscallN(mapMemory, dev, m, offset, size, flags, uintptr(unsafe.Pointer(va)))
		*va += 8
		return r
	})
	a.fn[symUnmapMemory] = purego.NewCallback(func(dev, m uintptr) {
		unmapped++
		purego.SyscallN(unmapMemory, dev, m)
	})
	err = mapOnce(addr)
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorContains(t, err, "not aligned to a page")
	require.Equal(t, []int{1, 1}, []int{mapped, unmapped})
	require.Equal(t, live, sim.Live())
	require.Equal(t, kept, vk.Live())
}

// mapOnce makes a mapping and undoes all.
func mapOnce(addr uint64) error {
	s, err := installed().Open()
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
	if err != nil {
		return err
	}
	defer p.Unpin()
	if _, _, err := p.Map(page, backend.None); err != nil {
		return err
	}
	return p.Unmap()
}

// The list of devices may grow between the two calls that read it.
func TestEnumerateAsksAgain(t *testing.T) {
	have, calls := 1, 0
	got, err := enumerate[uint64](func(n *uint32, first *uint64) error {
		calls++
		if first == nil {
			*n = uint32(have)
			have = 2
			return nil
		}
		if int(*n) < have {
			return incomplete
		}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, 4, calls)

	_, err = enumerate[uint64](func(n *uint32, first *uint64) error { return errDeviceLost })
	require.ErrorIs(t, err, errDeviceLost)
}

// With a new session, so that the GPU's device is made on the way.
func TestManyThreads(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	sim := cudatest.Need(t)
	vk := cudatest.NeedVulkan(t)
	const threads = 16
	addr, _ := sim.VMM(0, 1, posixFD)
	live := sim.Live()
	cudatest.Together(threads, func(i int) {
		s, err := installed().Open()
		if err != nil {
			t.Errorf("thread %d: %v", i, err)
			return
		}
		for n := range 50 {
			if err := cudatest.Cycle(s, addr+uint64(i)*page, page, byte(n)); err != nil {
				t.Errorf("thread %d: %v", i, err)
				return
			}
		}
	})
	require.Equal(t, live, sim.Live())
	require.Equal(t, 2, vk.Live(), "one instance and one device")
}

func TestCallsLeaveNothingBehind(t *testing.T) {
	sim := cudatest.Need(t)
	vk := cudatest.NeedVulkan(t)
	s := openSession(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	require.NoError(t, cudatest.Cycle(s, addr, page, 1))
	live := vk.Live()
	cudatest.Flat(t, func() { require.NoError(t, cudatest.Cycle(s, addr, page, 1)) })
	require.Equal(t, live, vk.Live())
}
