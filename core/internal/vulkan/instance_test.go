package vulkan

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// recorded is a loader that notes its calls. A call whose name is in refused fails.
type recorded struct {
	api
	calls   []string
	refused map[string]Result
	devices []fakeDevice // their handles are 100, 101, ...
	memory  uintptr      // where memory is mapped
}

type fakeDevice struct {
	kind       uint32 // VkPhysicalDeviceType
	extensions []string
	types      []uint32
}

func (r *recorded) note(format string, args ...any) uintptr {
	call := fmt.Sprintf(format, args...)
	r.calls = append(r.calls, call)
	return uintptr(uint32(r.refused[call]))
}

func recorder(devices ...fakeDevice) *recorded {
	r := &recorded{devices: devices}
	of := func(pd uint64) fakeDevice { return r.devices[pd-100] }
	for s, fn := range map[symbol]any{
		symCreateInstance: func(_ *instanceCreateInfo, _ uintptr, h *uint64) uintptr {
			*h = 7
			return r.note("create")
		},
		symDestroyInstance: func(h uint64, _ uintptr) { r.note("destroy %d", h) },
		symEnumeratePhysicalDevices: func(h uint64, n *uint32, list *[8]uint64) uintptr {
			*n = uint32(len(r.devices))
			for i := range r.devices {
				if list != nil {
					list[i] = uint64(100 + i)
				}
			}
			return r.note("devices %d", h)
		},
		symEnumerateDeviceExtensionProperties: func(pd uint64, _ uintptr, n *uint32, list *[8]extensionProperties) uintptr {
			*n = uint32(len(of(pd).extensions))
			for i, name := range of(pd).extensions {
				if list != nil {
					copy(list[i].extensionName[:], name+"\x00rest")
				}
			}
			return r.note("extensions %d", pd)
		},
		symGetPhysicalDeviceProperties2: func(pd uint64, props *physicalDeviceProperties2) {
			props.deviceType = of(pd).kind
			(*physicalDeviceIDProperties)(props.next).deviceUUID[0] = byte(pd)
			(*physicalDeviceIDProperties)(props.next).deviceUUID[15] = byte(pd)
		},
		symGetPhysicalDeviceMemoryProperties: func(pd uint64, props *memoryProperties) {
			props.typeCount = uint32(len(of(pd).types))
			for i, flags := range of(pd).types {
				props.types[i].propertyFlags = flags
			}
		},
		symMapMemory: func(dev, m, offset, size, flags uint64, va *uintptr) uintptr {
			*va = r.memory
			return r.note("map %d %d %d %d %d", dev, m, offset, size, flags)
		},
		symUnmapMemory: func(dev, m uint64) { r.note("unmap %d %d", dev, m) },
		symFreeMemory:  func(dev, m uint64, _ uintptr) { r.note("free %d %d", dev, m) },
	} {
		r.fn[s] = purego.NewCallback(fn)
	}
	return r
}

const (
	discrete = 2
	mappable = memoryDeviceLocal | memoryHostVisible | memoryHostCoherent
)

var good = fakeDevice{discrete, []string{"VK_KHR_swapchain", externalMemoryFd}, []uint32{0, memoryDeviceLocal, mappable}}

// Each GPU that can do all is found, with its own properties, and no other one.
func TestUsableGPUs(t *testing.T) {
	renderer, other, coarse := good, good, good
	renderer.kind = physicalDeviceTypeCPU
	other.extensions = []string{"VK_KHR_external_memory", externalMemoryFd + "2"}
	coarse.types = []uint32{memoryDeviceLocal, mappable | memoryHostCached}
	early := good
	early.types = []uint32{mappable}
	early.extensions = []string{externalMemoryFd}
	for _, c := range []struct {
		what    string
		devices []fakeDevice
		want    []int
		types   []uint32
	}{
		{"one", []fakeDevice{good}, []int{0}, []uint32{2}},
		{"two", []fakeDevice{good, early}, []int{0, 1}, []uint32{2, 0}},
		{"behind others", []fakeDevice{renderer, other, coarse, early, good}, []int{3, 4}, []uint32{0, 2}},
		{"before others", []fakeDevice{good, renderer, other, coarse}, []int{0}, []uint32{2}},
		{"a renderer", []fakeDevice{renderer}, nil, nil},
		{"no extension", []fakeDevice{other, {kind: discrete, types: good.types}}, nil, nil},
		{"no memory to map", []fakeDevice{coarse, coarse, coarse}, nil, nil},
		{"none", nil, nil, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := recorder(c.devices...)
			got, err := usableGPUs(&r.api, 7)
			if c.want == nil {
				require.ErrorIs(t, err, unix.ENODEV)
				require.ErrorContains(t, err, fmt.Sprintf("none of the %d Vulkan devices has %s", len(c.devices), externalMemoryFd))
				return
			}
			require.NoError(t, err)
			require.Len(t, got, len(c.want))
			for i, g := range got {
				pd := physicalDeviceHandle(100 + c.want[i])
				require.Equal(t, &gpu{
					api: &r.api, physical: pd, uuid: [16]byte{0: byte(pd), 15: byte(pd)}, memoryType: c.types[i],
				}, g)
			}
		})
	}
}

// Each call of a new instance fails, and no instance is left.
func TestNewInstanceIsUndone(t *testing.T) {
	saved := loadAPI
	defer func() { loadAPI = saved }()
	for _, c := range []struct {
		fails string
		want  unix.Errno
		line  string
		calls []string
	}{
		{"load", unix.EMLINK, "", nil},
		{"create", unix.ENODEV, "no Vulkan driver starts; " + installHint, []string{"create"}},
		{"devices 7", unix.ENODEV, "vkEnumeratePhysicalDevices", []string{"create", "devices 7", "destroy 7"}},
		{"extensions 100", unix.ENODEV, "vkEnumerateDeviceExtensionProperties", []string{"create", "devices 7", "devices 7", "extensions 100", "destroy 7"}},
		{"no device", unix.ENODEV, "none of the 0", []string{"create", "devices 7", "destroy 7"}},
		{"", 0, "", []string{"create", "devices 7", "devices 7", "extensions 100", "extensions 100"}},
	} {
		r := recorder(good)
		if c.fails == "no device" {
			r = recorder()
		}
		r.refused = map[string]Result{c.fails: errIncompatibleDriver}
		loadAPI = func() (*api, error) {
			if c.fails == "load" {
				return nil, unix.EMLINK
			}
			return &r.api, nil
		}
		i, err := newInstance()
		require.Equal(t, c.calls, r.calls, c.fails)
		if c.want == 0 {
			require.NoError(t, err)
			require.Same(t, &r.api, i.api)
			require.Len(t, i.gpus, 1)
			continue
		}
		require.Nil(t, i)
		require.ErrorIs(t, err, c.want, c.fails)
		require.ErrorContains(t, err, c.line)
	}
}

func TestFindByUUID(t *testing.T) {
	a, b := &gpu{uuid: [16]byte{15: 1}}, &gpu{uuid: [16]byte{15: 2}}
	i := &instance{gpus: []*gpu{a, b}}
	for uuid, want := range map[[16]byte]*gpu{{15: 1}: a, {15: 2}: b, {0: 1}: nil} {
		got, err := i.find(uuid)
		require.Same(t, want, got)
		if want == nil {
			require.ErrorIs(t, err, unix.ENODEV)
			require.ErrorContains(t, err, fmt.Sprintf("%x", uuid))
			continue
		}
		require.NoError(t, err)
	}
}

// A mapping's calls, with their arguments and in their order.
func TestMappingCalls(t *testing.T) {
	r := recorder()
	two, err := unix.Mmap(-1, 0, int(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(two)
	at := uintptr(unsafe.Pointer(&two[0]))
	fresh := func() *pin {
		r.calls, r.refused, r.memory = nil, nil, at
		return &pin{gpu: &gpu{api: &r.api}, device: 3, memory: 5, offset: 4 * page, size: 2 * page, page: page}
	}
	mapped := fmt.Sprintf("map 3 5 %d %d 0", 4*page, 2*page)

	p := fresh()
	va, typ, err := p.Map(2*page, backend.WC)
	require.NoError(t, err)
	require.Equal(t, at, va)
	require.Equal(t, backend.WC, typ)
	require.Contains(t, cudatest.VMFlags(t, va), "dc", "no child inherits it")
	_, _, err = p.Map(page, backend.WC)
	require.ErrorIs(t, err, unix.EINVAL, "mapped already")
	require.NoError(t, p.Unmap())
	require.Equal(t, []string{mapped, "unmap 3 5", "free 3 5"}, r.calls)
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)
	require.Len(t, r.calls, 3)

	p = fresh()
	r.memory = at + 8
	_, typ, err = p.Map(2*page, backend.None)
	require.ErrorIs(t, err, unix.EIO)
	require.Equal(t, backend.None, typ)
	require.Equal(t, []string{mapped, "unmap 3 5"}, r.calls)
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)

	p = fresh()
	r.refused = map[string]Result{mapped: errMemoryMapFailed}
	_, _, err = p.Map(2*page, backend.None)
	require.ErrorIs(t, err, errMemoryMapFailed)
	require.Equal(t, []string{mapped}, r.calls)
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)
}

// The next mapping imports the memory again. That fails, and the pin stays as it is.
func TestMapAgain(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
	require.NoError(t, err)
	again := func() {
		t.Helper()
		_, _, err := p.Map(page, backend.None)
		require.NoError(t, err)
		require.NoError(t, p.Unmap())
	}
	again()
	sim.Fail("cuMemExportToShareableHandle", int(cuda.ErrNotPermitted), 1)
	va, typ, err := p.Map(page, backend.None)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorContains(t, err, "cuMemExportToShareableHandle")
	require.Zero(t, va)
	require.Equal(t, backend.None, typ)
	sim.Heal("cuMemExportToShareableHandle")
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)
	again()

	sim.Fail("cuMemRelease", int(cuda.ErrUnknown), 1)
	require.ErrorIs(t, p.Unpin(), unix.EIO)
	sim.Heal("cuMemRelease")
	require.NoError(t, p.(*pin).cuda.MemRelease(p.(*pin).allocation))
}

// Vulkan may be out of descriptors where CUDA had the last one. It is given back.
func TestImportWithoutDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	vk := cudatest.NeedVulkan(t)
	s := openSession(t)
	addr, _ := sim.VMM(0, 1, posixFD)
	require.NoError(t, cudatest.Cycle(s, addr, page, 1))
	last, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	live, kept := sim.Live(), vk.Live()
	vk.Fail("vkAllocateMemory", int(errTooManyObjects), 1)
	cudatest.WithoutDescriptors(t, func() {
		require.NoError(t, sys.Close(last))
		_, err = s.Pin(backend.PinRequest{Addr: addr, Size: page})
		last, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
	})
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, fmt.Sprintf("importing %d bytes of CUDA memory into Vulkan: vkAllocateMemory", cudatest.VMMChunk))
	require.Equal(t, []int{live, kept}, []int{sim.Live(), vk.Live()})
	require.NoError(t, sys.Close(last))
}

// What a failed pin cannot give back is told.
func TestLostReference(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	private, free := sim.VMM(0, 1, 0)
	live := sim.Live()
	sim.Fail("cuMemRelease", int(cuda.ErrUnknown), 1)
	lines := cudatest.Lines(t, func() {
		_, err := s.Pin(backend.PinRequest{Addr: private, Size: page})
		require.ErrorIs(t, err, unix.ENOTSUP)
	})
	require.Regexp(t, fmt.Sprintf("^WARN: a reference to the GPU memory at %#x is lost: cuMemRelease: .*\n$", private), lines)
	sim.Heal("cuMemRelease")
	h, err := s.cuda.MemRetainAllocationHandle(private)
	require.NoError(t, err)
	require.NoError(t, s.cuda.MemRelease(h))
	require.NoError(t, s.cuda.MemRelease(h))
	require.Equal(t, live, sim.Live())
	require.Empty(t, cudatest.Lines(t, func() {
		_, err = s.Pin(backend.PinRequest{Addr: private, Size: page})
		require.ErrorIs(t, err, unix.ENOTSUP)
	}))
	free()
}

// Open fails as what it needs fails.
func TestOpenWithoutALibrary(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	saved := loadAPI
	loadAPI = func() (*api, error) { return nil, unix.EMLINK }
	var failure error = unix.EXDEV
	find := func(names []string) []uintptr { return make([]uintptr, len(names)) }
	cuda.UseLoader(cuda.Loader{Load: func() error { return failure }, Find: find})
	for _, want := range []error{unix.EXDEV, unix.EMLINK} {
		s, err := installed().Open()
		require.Nil(t, s)
		require.ErrorIs(t, err, want)
		failure = nil
	}
	loadAPI = saved
	_, err := Backend{DriverFiles: "/nowhere"}.Open()
	require.ErrorIs(t, err, unix.ENODEV)
	_, err = installed().Open()
	require.NoError(t, err)
}

// A driver that was found is not looked for again: it stays loaded.
func TestFoundDriverStays(t *testing.T) {
	file := t.TempDir() + "/nvidia_icd.json"
	require.ErrorIs(t, lookForDriver(file), unix.ENODEV)
	require.NoError(t, os.WriteFile(file, []byte(`{"ICD": {"library_path": "libc.so.6"}}`), 0o666))
	require.NoError(t, lookForDriver(file), "a failure is not kept")
	require.NoError(t, os.Remove(file))
	require.NoError(t, lookForDriver(file))
	require.ErrorIs(t, lookForDriver(file+"x"), unix.ENODEV)
}

// Between the count and the list there may be more elements, or fewer.
func TestEnumerate(t *testing.T) {
	for _, c := range []struct {
		what   string
		counts []uint32 // of the answers, by turns a count and a list
		want   []int32
		calls  int
	}{
		{"none", []uint32{0}, nil, 1},
		{"as many", []uint32{2, 2}, []int32{1, 2}, 2},
		{"fewer", []uint32{3, 2}, []int32{1, 2}, 2},
		{"more", []uint32{1, 2, 2, 2}, []int32{1, 2}, 4},
	} {
		calls := 0
		got, err := enumerate[int32](func(n *uint32, first *int32) error {
			have := c.counts[calls]
			calls++
			room := *n
			if first == nil {
				*n = have
				return nil
			}
			*n = min(room, have)
			for i := range *n {
				unsafe.Slice(first, room)[i] = int32(i) + 1
			}
			if room < have {
				return incomplete
			}
			return nil
		})
		require.NoError(t, err, c.what)
		require.Equal(t, c.want, got, c.what)
		require.Equal(t, c.calls, calls, c.what)
	}
	for _, at := range []int{1, 2} {
		calls := 0
		_, err := enumerate[int32](func(n *uint32, _ *int32) error {
			*n = 1
			if calls++; calls == at {
				return errOutOfHostMemory
			}
			return nil
		})
		require.ErrorIs(t, err, unix.ENOMEM)
		require.Equal(t, at, calls)
	}
}
