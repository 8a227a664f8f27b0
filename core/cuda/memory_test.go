package cuda

import (
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// with is a driver with one function: fn, which purego makes callable from C.
func with(s symbol, fn any) *Driver {
	d := &Driver{fn: new(functions)}
	d.fn[s] = purego.NewCallback(fn)
	return d
}

// bytesOf is the memory at an address that a caller gave to the driver.
func bytesOf(p uintptr, n int) []byte { return cudatest.Bytes(p, n) }

// A driver before CUDA 12 does not know what one object is mapped to.
func TestMemoryAtOfAnOldDriver(t *testing.T) {
	if !cudatest.InChild(t, "CUDA_SIM_DRIVER_VERSION=11080") {
		return
	}
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 3<<20)
	for range 2 {
		m, err := d.MemoryAt(p)
		require.NoError(t, err)
		require.NotZero(t, m.Context)
		require.NotZero(t, m.ID)
		m.Context, m.ID = 0, 0
		require.Equal(t, MemoryInfo{Legacy: true, Start: p, Size: 3 << 20}, m)
		require.True(t, noMappings.Load())
		_, err = d.MemoryAt(4096)
		require.ErrorIs(t, err, unix.EINVAL)
	}
}

func TestMemoryAt(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(1, 3<<20)
	for _, at := range []uint64{0, 12345, 3<<20 - 1} {
		m, err := d.MemoryAt(p + at)
		require.NoError(t, err)
		require.NotZero(t, m.Context)
		require.NotZero(t, m.ID)
		m.Context, m.ID = 0, 0
		require.Equal(t, MemoryInfo{Ordinal: 1, Legacy: true, Start: p, Size: 3 << 20, Mapping: p, MappingSize: 3 << 20}, m)
		require.Equal(t, p+3<<20, m.End())
	}
	v, free := sim.VMM(0, 2, 0)
	m, err := d.MemoryAt(v + 5)
	require.NoError(t, err)
	require.Equal(t, 0, m.Ordinal)
	require.False(t, m.Legacy)
	require.Equal(t, []uint64{v, v + 2*cudatest.VMMChunk}, []uint64{m.Start, m.End()}, "the reservation")
	require.Equal(t, []uint64{v, v + cudatest.VMMChunk}, []uint64{m.Mapping, m.MappingEnd()}, "one object")
	require.Zero(t, m.Context)
	free()

	managed := sim.Managed(1 << 16)
	for _, c := range []struct {
		what string
		addr uint64
		line string
	}{
		{"managed memory", managed + 8, "cudaMalloc"},
		{"CUDA's host memory", sim.HostAlloc(4096), "host memory"},
		{"Go's memory", uint64(uintptr(unsafe.Pointer(d))), "no CUDA device pointer"},
		{"VMM memory that is gone", v, "no CUDA device pointer"},
		{"nothing", 4096, "no CUDA device pointer"},
		{"the end of the address space", 1<<64 - 1, "no CUDA device pointer"},
	} {
		_, err := d.MemoryAt(c.addr)
		require.ErrorIs(t, err, unix.EINVAL, c.what)
		require.ErrorContains(t, err, c.line, c.what)
	}
	sim.Fail("cuPointerGetAttributes", int(ErrUnknown), 1)
	_, err = d.MemoryAt(p)
	require.ErrorIs(t, err, unix.EIO)
}

func TestMemoryBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	d := load1(t)
	_, err := d.MemoryAt(1 << 20)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	_, _, err = d.MemoryIn(1<<20, 1<<20)
	require.ErrorIs(t, err, ErrNotInitialized)
	_, err = d.DeviceCount()
	require.ErrorIs(t, err, ErrNotInitialized, "nothing above may have called cuInit")
}

// What a driver may answer that no double does.
func TestMemoryOfOtherDrivers(t *testing.T) {
	defer func(was bool) { noMappings.Store(was) }(noMappings.Load())
	noMappings.Store(false)
	fake := &memories{fails: ErrInvalidValue}
	d := with(symPointerGetAttributes, fake.attributes)
	_, err := d.MemoryAt(base)
	require.ErrorIs(t, err, ErrInvalidValue)
	require.False(t, noMappings.Load(), "it refuses the address, not the names")

	for _, ordinal := range []int32{-1, -2} {
		d := with(symPointerGetAttributes, func(n uintptr, names *[10]PointerAttribute, places *[10]unsafe.Pointer, addr uintptr) uintptr {
			*(*int32)(places[0]), *(*int32)(places[1]) = MemoryTypeDevice, ordinal
			return 0
		})
		_, err = d.MemoryAt(base)
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, "no CUDA device pointer")
	}
}

// smallBuffers is n buffers of 512 bytes, and a function that frees one.
func smallBuffers(t *testing.T, sim *cudatest.Sim, n int) (addrs []uint64, free func(uint64)) {
	leave := sim.WithContext(0)
	live := map[uint64]bool{}
	for range n {
		var p uint64
		sim.Must("cuMemAlloc_v2", uintptr(unsafe.Pointer(&p)), 512)
		addrs = append(addrs, p)
		live[p] = true
	}
	free = func(p uint64) {
		sim.Must("cuMemFree_v2", uintptr(p))
		delete(live, p)
	}
	t.Cleanup(func() {
		for p := range live {
			free(p)
		}
		leave()
	})
	return addrs, free
}

// A range may begin or end beside a buffer on the same GPU page.
func TestMemoryIn(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	addrs, free := smallBuffers(t, sim, 4)
	p := addrs[2]
	for _, gone := range []int{0, 1, 3} {
		free(addrs[gone])
	}
	const gpuPage = 1 << 16
	page := p &^ (gpuPage - 1)
	for _, c := range []struct {
		what       string
		addr, size uint64
		at         uint64 // 0: not found
	}{
		{"the buffer", p, 512, p},
		{"a part", p + 100, 4, p + 100},
		{"from the first byte of the GPU page on", page, gpuPage, p},
		{"from just before", p - 1, 2, p},
		{"far past the end", p - 256, 1 << 30, p},
		{"up to it", p - 256, 256, 0},
		{"behind it", p + 512, gpuPage - (p - page) - 512, 0},
		{"the pages behind", page + gpuPage, 1 << 20, 0},
	} {
		if c.addr < page {
			continue // the buffer is the page's first
		}
		m, at, err := d.MemoryIn(c.addr, c.size)
		if c.at == 0 {
			require.ErrorIs(t, err, unix.EINVAL, c.what)
			continue
		}
		require.NoError(t, err, c.what)
		require.Equal(t, c.at, at, c.what)
		require.Equal(t, []uint64{p, 512}, []uint64{m.Start, m.Size}, c.what)
		require.True(t, m.Legacy, c.what)
	}

	// VMM memory has no neighbours on its pages.
	v, _ := sim.VMM(0, 1, 0)
	_, at, err := d.MemoryIn(v, 1)
	require.NoError(t, err)
	require.Equal(t, v, at)
	_, _, err = d.MemoryIn(v-4096, 8192)
	require.ErrorIs(t, err, unix.EINVAL)

	sim.Fail("cuPointerGetAttributes", int(ErrUnknown), 1)
	_, _, err = d.MemoryIn(p, 1)
	require.ErrorIs(t, err, unix.EIO, "only what is no memory is searched")
}

// sameNumber is a cuDeviceGet whose devices have the numbers of their ordinals.
var sameNumber = purego.NewCallback(func(dev *Device, ordinal int32) uintptr { *dev = Device(ordinal); return 0 })

func TestPCIAddress(t *testing.T) {
	for _, c := range []struct {
		text string
		want PCIAddress
		name string
	}{
		{"0000:1B:00.0", PCIAddress{0, 0x1b, 0}, "0000:1b:00.0"},
		{"0000:8d:1f.0", PCIAddress{0, 0x8d, 0x1f}, "0000:8d:1f.0"},
		{"00010000:FF:02.0", PCIAddress{0x10000, 0xff, 2}, "10000:ff:02.0"},
	} {
		d := with(symDeviceGetPCIBusID, func(text uintptr, n int32, dev int32) uintptr {
			require.EqualValues(t, 3, dev)
			copy(bytesOf(text, int(n)), c.text+"\x00garbage")
			return 0
		})
		d.fn[symDeviceGet] = sameNumber
		got, err := d.PCIAddress(3)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got)
		require.Equal(t, c.name, got.String())
	}
	for _, bad := range []string{"", "x", "0000", "0000:1b", "0000:1bb:00", "0000:zz:00.0", "0123456789012345678901234567890123"} {
		d := with(symDeviceGetPCIBusID, func(text uintptr, n int32, _ int32) uintptr {
			copy(bytesOf(text, int(n)), bad)
			return 0
		})
		d.fn[symDeviceGet] = sameNumber
		_, err := d.PCIAddress(0)
		require.ErrorIs(t, err, unix.EIO, bad)
	}
}

func TestPCIAddressesDiffer(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	seen := map[PCIAddress]bool{}
	n, err := d.DeviceCount()
	require.NoError(t, err)
	for i := range n {
		p, err := d.PCIAddress(i)
		require.NoError(t, err)
		require.False(t, seen[p], "%v", p)
		seen[p] = true
	}
	sim.Fail("cuDeviceGetPCIBusId", int(ErrInvalidDevice), 1)
	_, err = d.PCIAddress(0)
	require.ErrorIs(t, err, unix.ENODEV)
}
