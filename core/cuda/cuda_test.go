package cuda

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestResultToErrno(t *testing.T) {
	for _, c := range []struct {
		number int32
		errno  unix.Errno
	}{
		{1, unix.EINVAL}, {2, unix.ENOMEM}, {3, unix.EINVAL}, {4, unix.ENODEV},
		{100, unix.ENODEV}, {101, unix.ENODEV}, {201, unix.EINVAL}, {304, unix.EIO},
		{800, unix.EPERM}, {801, unix.ENOTSUP}, {999, unix.EIO},
		{12345, unix.EIO}, {-7, unix.EIO},
	} {
		r := Result(c.number)
		wrapped := fmt.Errorf("cuX: %w", r)
		require.Equal(t, c.errno, r.Errno(), "%v", r)
		require.ErrorIs(t, wrapped, c.errno)
		require.ErrorIs(t, wrapped, r)
		require.NotErrorIs(t, wrapped, unix.EMLINK)
		var errno unix.Errno
		require.ErrorAs(t, wrapped, &errno)
		require.Equal(t, c.errno, errno)
		require.Contains(t, r.Error(), fmt.Sprint(c.number))
	}
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY (2)", ErrOutOfMemory.Error())
	for r, e := range known {
		require.NotZero(t, e.Errno, "%v", r)
		require.NotEmpty(t, e.Name, "%d", r)
	}
}

// The sizes and offsets of the driver API's structures on 64-bit machines.
func TestLayout(t *testing.T) {
	var p AllocationProp
	var a accessDesc
	for _, c := range []struct {
		what      string
		got, want uintptr
	}{
		{"sizeof CUmemLocation", unsafe.Sizeof(p.Location), 8},
		{"CUmemLocation.id", unsafe.Offsetof(p.Location.ID), 4},
		{"sizeof CUmemAllocationProp", unsafe.Sizeof(p), 32},
		{"requestedHandleTypes", unsafe.Offsetof(p.RequestedHandleTypes), 4},
		{"location", unsafe.Offsetof(p.Location), 8},
		{"win32HandleMetaData", unsafe.Offsetof(p.win32HandleMetaData), 16},
		{"allocFlags.compressionType", unsafe.Offsetof(p.compressionType), 24},
		{"allocFlags.gpuDirectRDMACapable", unsafe.Offsetof(p.gpuDirectRDMACapable), 25},
		{"allocFlags.usage", unsafe.Offsetof(p.usage), 26},
		{"sizeof CUmemAccessDesc", unsafe.Sizeof(a), 12},
		{"CUmemAccessDesc.flags", unsafe.Offsetof(a.flags), 8},
		{"sizeof CUmemGenericAllocationHandle", unsafe.Sizeof(MemHandle(0)), 8},
		{"sizeof CUdevice", unsafe.Sizeof(Device(0)), 4},
	} {
		require.Equal(t, c.want, c.got, c.what)
	}
}

func TestMissingFunctionIsToldWhenItIsNeeded(t *testing.T) {
	d := new(Driver) // a driver without any function
	_, err := d.MemExportRange(1<<16, 1<<16, false)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "cuMemGetHandleForAddressRange")
}

// The arguments of an export. No double shows them.
func TestExportArguments(t *testing.T) {
	type args struct{ addr, size, handleType, flags uintptr }
	var got args
	seen := purego.NewCallback(func(fd, addr, size, handleType, flags uintptr) uintptr {
		got = args{addr, size, handleType, flags}
		return uintptr(ErrUnknown)
	})
	d := new(Driver)
	d.fn[symMemGetHandleForAddressRange] = seen
	_, err := d.MemExportRange(0x10000, 0x3000, false)
	require.ErrorIs(t, err, ErrUnknown)
	require.Equal(t, args{0x10000, 0x3000, 1, 0}, got)
	_, err = d.MemExportRange(0x10000, 0x3000, true)
	require.ErrorIs(t, err, ErrUnknown)
	require.Equal(t, args{0x10000, 0x3000, 1, 1}, got)
}

func TestEveryFunctionHasAName(t *testing.T) {
	seen := map[string]bool{}
	for i, name := range names {
		require.NotEmpty(t, name, i)
		require.False(t, seen[name], name)
		seen[name] = true
	}
}

func load1(t *testing.T) *Driver {
	d, err := Load()
	require.NoError(t, err)
	return d
}

func TestDoubleHasEveryFunction(t *testing.T) {
	cudatest.NeedRaw(t)
	d := load1(t)
	for i, fn := range d.fn {
		require.NotZero(t, fn, names[i])
	}
}

func TestBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	d := load1(t)
	v, err := d.Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, v, 10000)
	_, err = d.DeviceCount()
	require.ErrorIs(t, err, ErrNotInitialized)
	_, err = d.DeviceOf(1 << 20)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	_, err = d.DeviceCount()
	require.ErrorIs(t, err, ErrNotInitialized, "nothing above may have called cuInit")
}

func TestDeviceOf(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(1, 1<<20)
	ordinal, err := d.DeviceOf(p + 12345)
	require.NoError(t, err)
	require.Equal(t, 1, ordinal)
	for _, addr := range []uint64{1, 4096, math.MaxUint64, uint64(uintptr(unsafe.Pointer(d)))} {
		_, err = d.DeviceOf(addr)
		require.ErrorIs(t, err, unix.EINVAL, "%#x", addr)
		require.ErrorContains(t, err, "device pointer")
	}
	sim.Fail("cuPointerGetAttribute", int(ErrUnknown), 1)
	_, err = d.DeviceOf(p)
	require.ErrorIs(t, err, unix.EIO)
}

func TestWithDevice(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	before := sim.Live()

	t.Run("borrows the primary context", func(t *testing.T) {
		sim := cudatest.Need(t)
		ran := false
		require.NoError(t, d.WithDevice(1, func() error {
			ran = true
			require.NotZero(t, sim.Current())
			return nil
		}))
		require.True(t, ran)
		require.Zero(t, sim.Current())
	})
	t.Run("leaves it to end", func(t *testing.T) {
		sim := cudatest.Need(t)
		require.False(t, sim.PrimaryActive(1))
		require.NoError(t, d.WithDevice(1, func() error {
			require.True(t, sim.PrimaryActive(1))
			return nil
		}))
		require.False(t, sim.PrimaryActive(1))
	})
	t.Run("names the lack of descriptors", func(t *testing.T) {
		cudatest.WithoutDescriptors(t, func() {
			err := d.WithDevice(1, func() error { return nil })
			require.ErrorIs(t, err, unix.EMFILE)
		})
	})
	t.Run("gives it back after an error", func(t *testing.T) {
		sim := cudatest.Need(t)
		require.ErrorIs(t, d.WithDevice(0, func() error { return unix.EMLINK }), unix.EMLINK)
		require.Zero(t, sim.Current())
	})
	t.Run("keeps the thread's own", func(t *testing.T) {
		sim := cudatest.Need(t)
		leave := sim.WithContext(1)
		own := sim.Current()
		require.NoError(t, d.WithDevice(1, func() error {
			require.Equal(t, own, sim.Current())
			return nil
		}))
		require.Equal(t, own, sim.Current())
		leave()
	})
	t.Run("sets another device's aside", func(t *testing.T) {
		sim := cudatest.Need(t)
		leave := sim.WithContext(0)
		own := sim.Current()
		require.NoError(t, d.WithDevice(1, func() error {
			require.NotEqual(t, own, sim.Current())
			require.True(t, sim.PrimaryActive(1))
			return nil
		}))
		require.Equal(t, own, sim.Current())
		leave()
	})
	for _, name := range []string{"cuCtxGetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"} {
		t.Run(name+" fails", func(t *testing.T) {
			sim := cudatest.Need(t)
			sim.Fail(name, int(ErrOutOfMemory), 1)
			err := d.WithDevice(0, func() error { t.Error("fn ran"); return nil })
			require.ErrorIs(t, err, unix.ENOMEM)
			sim.Heal(name)
			require.Zero(t, sim.Current())
		})
	}
	t.Run("the pop fails", func(t *testing.T) {
		sim := cudatest.Need(t)
		sim.Fail("cuCtxPopCurrent_v2", int(ErrInvalidContext), 1)
		require.NoError(t, d.WithDevice(0, func() error { return nil }))
		require.Zero(t, sim.Current())
	})
	require.Equal(t, before, sim.Live())
}

func TestSetSyncMemops(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 4096)
	set := func() {
		require.NoError(t, d.WithDevice(0, func() error {
			d.SetSyncMemops(p)
			return nil
		}))
	}
	set()
	v, err := d.PointerAttribute(SyncMemops, p)
	require.NoError(t, err)
	require.Equal(t, 1, v)

	// This memory has no such setting, so the context's is set.
	leave := sim.WithContext(0)
	defer leave()
	flags := func() (flags uint32) {
		sim.Must("cuCtxGetFlags", uintptr(unsafe.Pointer(&flags)))
		return flags
	}
	require.Zero(t, flags()&ctxSyncMemops)
	sim.Fail("cuPointerSetAttribute", int(ErrUnknown), 1)
	set()
	require.Zero(t, flags()&ctxSyncMemops, "only NOT_SUPPORTED means that the memory has none")
	sim.Fail("cuPointerSetAttribute", int(ErrNotSupported), 1)
	set()
	require.NotZero(t, flags()&ctxSyncMemops)
}

func TestAlloc(t *testing.T) {
	sim := cudatest.Need(t)
	before, fds := sim.Live(), cudatest.FDs(t)
	for _, device := range []int{0, 1} {
		for _, size := range []uint64{1, 65536, 2 << 20, 2<<20 + 1} {
			a, err := Alloc(device, size)
			require.NoError(t, err)
			const granule = 2 << 20 // of the simulated driver
			require.Equal(t, (size+granule-1)&^(granule-1), a.Size(), "no more than the next granule")
			require.Zero(t, a.Ptr()%(64<<10))
			d := load1(t)
			ordinal, err := d.DeviceOf(a.Ptr())
			require.NoError(t, err)
			require.Equal(t, device, ordinal)

			h, err := d.MemRetainAllocationHandle(a.Ptr())
			require.NoError(t, err)
			prop, err := d.MemGetAllocationProperties(h)
			require.NoError(t, err)
			require.EqualValues(t, HandleTypePosixFD, prop.RequestedHandleTypes)
			require.Equal(t, Location{Type: LocationDevice, ID: int32(device)}, prop.Location)
			rdma, err := d.DeviceAttribute(RDMAWithVMMSupported, Device(device))
			require.NoError(t, err)
			require.EqualValues(t, rdma, prop.gpuDirectRDMACapable)
			require.NoError(t, d.MemRelease(h))

			last := a.Ptr() + a.Size() - 8
			sim.HtoD(device, last, []byte("in place"))
			require.Equal(t, "in place", string(sim.DtoH(device, last, 8)))
			require.NoError(t, a.Free())
			_, err = d.DeviceOf(a.Ptr())
			require.ErrorIs(t, err, unix.EINVAL)
		}
	}
	require.Equal(t, before, sim.Live())
	require.Equal(t, fds, cudatest.FDs(t))
}

func TestAllocRefusesBadInput(t *testing.T) {
	sim := cudatest.Need(t)
	before := sim.Live()
	for _, c := range []struct {
		device int
		size   uint64
		want   unix.Errno
	}{
		{0, 0, unix.EINVAL},
		{0, math.MaxUint64, unix.EINVAL},
		{0, 1<<47 + 1, unix.EINVAL},
		{-1, 4096, unix.ENODEV},
		{64, 4096, unix.ENODEV},
		{math.MaxInt32, 4096, unix.ENODEV},
	} {
		_, err := Alloc(c.device, c.size)
		require.ErrorIs(t, err, c.want, "device %d, %d bytes", c.device, c.size)
	}
	require.Equal(t, before, sim.Live())
}

// Each call on the way fails once. Nothing may be left.
func TestAllocUndoesEveryFailure(t *testing.T) {
	sim := cudatest.Need(t)
	load1(t)
	before, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range []struct {
		name string
		nth  int
	}{
		{"cuInit", 1}, {"cuDeviceGet", 1},
		{"cuDeviceGetAttribute", 1}, {"cuDeviceGetAttribute", 2}, {"cuDeviceGetAttribute", 3},
		{"cuMemGetAllocationGranularity", 1}, {"cuMemCreate", 1}, {"cuMemAddressReserve", 1},
		{"cuMemMap", 1}, {"cuMemSetAccess", 1},
	} {
		sim.Fail(c.name, int(ErrNotPermitted), c.nth)
		_, err := Alloc(0, 1<<20)
		require.ErrorIs(t, err, unix.EPERM, "%s, call %d", c.name, c.nth)
		require.ErrorContains(t, err, c.name)
		sim.Heal(c.name)
		require.Equal(t, before, sim.Live(), c.name)
	}
	require.Equal(t, fds, cudatest.FDs(t))
}

// The dma-buf is of the right allocation, on each device. Each call on the way fails
// once.
func TestAllocationExport(t *testing.T) {
	sim := cudatest.Need(t)
	for device := range 2 {
		a, err := Alloc(device, 1<<20)
		require.NoError(t, err)
		fds := cudatest.FDs(t)
		for _, pcie := range []bool{false, true} {
			fd, err := a.Export(pcie)
			require.NoError(t, err)
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
			require.NoError(t, unix.Close(fd))
		}
		for _, name := range []string{"cuDeviceGet", "cuDeviceGetAttribute", "cuMemGetHandleForAddressRange"} {
			sim.Fail(name, int(ErrNotPermitted), 1)
			_, err := a.Export(false)
			require.ErrorIs(t, err, unix.EPERM)
			require.ErrorContains(t, err, name)
			sim.Heal(name)
		}
		require.Equal(t, fds, cudatest.FDs(t))
		require.NoError(t, a.Free())
		_, err = a.Export(false)
		require.ErrorIs(t, err, unix.EINVAL, "memory that is gone")
	}
}

func TestAllocationExportWithoutDMABufs(t *testing.T) {
	if !cudatest.InChild(t, "CUDA_SIM_DMABUF=0,0,0") {
		return
	}
	a, err := Alloc(0, 1<<20)
	require.NoError(t, err)
	_, err = a.Export(false)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "open kernel modules")
}

func TestFreeGoesOnAfterAFailure(t *testing.T) {
	sim := cudatest.Need(t)
	a, err := Alloc(0, 1<<20)
	require.NoError(t, err)
	before := sim.Live()
	sim.Fail("cuMemRelease", int(ErrUnknown), 1)
	require.ErrorIs(t, a.Free(), unix.EIO)
	require.Less(t, sim.Live(), before, "the address range went")
	require.NoError(t, a.driver.MemRelease(a.handle))
}

func TestOutOfDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	a, err := Alloc(0, 1<<20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Free()) })
	d := a.driver
	h, err := d.MemRetainAllocationHandle(a.Ptr())
	require.NoError(t, err)
	defer func() { require.NoError(t, d.MemRelease(h)) }()

	var full error
	cudatest.WithoutDescriptors(t, func() { _, full = d.MemExport(h) })
	require.ErrorIs(t, full, unix.EMFILE)
	require.ErrorContains(t, full, "RLIMIT_NOFILE")

	sim.Fail("cuMemExportToShareableHandle", int(ErrOperatingSystem), 1)
	_, err = d.MemExport(h)
	require.ErrorIs(t, err, unix.EIO, "with descriptors left it is the driver's own error")

	fd, err := d.MemExport(h)
	require.NoError(t, err)
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
}
