package dmabuf

import (
	"os"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var _ backend.Backend = Backend{}

// The devices of these tests.
const (
	plain    = 0 // exports dma-bufs
	coherent = 1 // exports dma-bufs, and the CPU may cache its memory
	mute     = 2 // exports no dma-bufs
)

func TestMain(m *testing.M) {
	for name, v := range map[string]string{
		"CUDA_SIM_DRIVER_VERSION": "13030",
		"CUDA_SIM_DEVICES":        "3",
		"CUDA_SIM_DMABUF":         "1,1,0",
		"CUDA_SIM_COHERENT":       "0,1,0",
	} {
		if _, set := os.LookupEnv(name); !set || os.Getenv("GDR_TEST_CHILD") == "" {
			os.Setenv(name, v)
		}
	}
	os.Exit(m.Run())
}

var page = uint64(os.Getpagesize())

func openSession(t *testing.T) backend.Session {
	s, err := Backend{}.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestOpenBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	s := openSession(t)
	major, minor := s.Version()
	require.Equal(t, []int{2, 6}, []int{major, minor})
	_, err := s.Pin(backend.PinRequest{Addr: 1 << 20, Size: 4096})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	cu, err := cuda.Load()
	require.NoError(t, err)
	_, err = cu.DeviceCount()
	require.ErrorIs(t, err, cuda.ErrNotInitialized, "the backend may not call cuInit")
}

func TestOpenRefuses(t *testing.T) {
	t.Run("an old driver", func(t *testing.T) {
		if !cudatest.InChild(t, "CUDA_SIM_DRIVER_VERSION=13020") {
			return
		}
		_, err := Backend{}.Open()
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.ErrorContains(t, err, "13.2")
	})
	t.Run("devices that export nothing", func(t *testing.T) {
		if !cudatest.InChild(t, "CUDA_SIM_DMABUF=0,0,0") {
			return
		}
		s, err := Backend{}.Open()
		require.NoError(t, err, "before cuInit that is not known")
		require.NoError(t, s.Close())
		sim := cudatest.Need(t)
		_, err = Backend{}.Open()
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.Zero(t, sim.Current())
	})
	t.Run("a driver that fails", func(t *testing.T) {
		sim := cudatest.Need(t)
		for _, name := range []string{"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"} {
			sim.Fail(name, int(cuda.ErrNotPermitted), 1)
			_, err := Backend{}.Open()
			require.ErrorIs(t, err, unix.EPERM, name)
			sim.Heal(name)
		}
	})
}

func TestAttributes(t *testing.T) {
	cudatest.Need(t)
	s := openSession(t)
	for a := backend.AttrPersistentMapping; a <= backend.AttrDMABufMmap; a++ {
		v, err := s.Attribute(a)
		require.NoError(t, err)
		require.Equal(t, 1, v)
	}
	for _, a := range []backend.Attr{0, 4, -1} {
		_, err := s.Attribute(a)
		require.ErrorIs(t, err, unix.EINVAL)
	}
}

// For each type, bytes written on one side are read on the other.
func TestBytesAndMappingTypes(t *testing.T) {
	for _, c := range []struct {
		what   string
		device int
		flags  uint32
		want   backend.MappingType
		got    backend.MappingType
		err    error
	}{
		{"default", plain, 0, backend.None, backend.WC, nil},
		{"forced PCIe", plain, backend.PinForcePCIe, backend.None, backend.WC, nil},
		{"coherent", coherent, 0, backend.None, backend.Caching, nil},
		{"coherent, forced PCIe", coherent, backend.PinForcePCIe, backend.None, backend.WC, nil},
		{"the type it has", plain, 0, backend.WC, backend.WC, nil},
		{"the type it has, coherent", coherent, 0, backend.Caching, backend.Caching, nil},
		{"another type", plain, 0, backend.Caching, 0, unix.EINVAL},
		{"another type, coherent", coherent, 0, backend.WC, 0, unix.EINVAL},
		{"device type", plain, 0, backend.Device, 0, unix.EINVAL},
	} {
		t.Run(c.what, func(t *testing.T) {
			sim := cudatest.Need(t)
			s := openSession(t)
			addr := sim.MemAlloc(c.device, 4*page)
			live, fds := sim.Live(), cudatest.FDs(t)
			p, err := s.Pin(backend.PinRequest{Addr: addr + page, Size: page + 100, Flags: c.flags})
			require.NoError(t, err)
			require.EqualValues(t, c.flags, sim.ExportFlags(), "the driver is asked for PCIe, too")
			require.Equal(t, fds+1, cudatest.FDs(t), "one descriptor a pin")

			info, err := p.Info()
			require.NoError(t, err)
			require.Equal(t, backend.Info{VA: addr + page, MappedSize: 2 * page, PageSize: uint32(page)}, info)
			flag, err := p.CallbackFlag()
			require.NoError(t, err)
			require.Zero(t, flag)

			va, got, err := p.Map(2*page, c.want)
			require.ErrorIs(t, err, c.err)
			if c.err == nil {
				require.Equal(t, c.got, got)
				require.Contains(t, cudatest.VMFlags(t, va), "dc", "not for forked children")
				checkBytes(t, sim, c.device, addr+page, va)
				_, _, err = p.Map(page, backend.None)
				require.ErrorIs(t, err, unix.EINVAL, "mapped already")
				require.NoError(t, p.Unmap())
				require.True(t, cudatest.Faults(va))
			}
			require.ErrorIs(t, p.Unmap(), unix.EINVAL)
			require.NoError(t, p.Unpin())
			require.Error(t, p.Unpin())
			require.Equal(t, fds, cudatest.FDs(t))
			require.Equal(t, live, sim.Live())
		})
	}
}

func checkBytes(t *testing.T, sim *cudatest.Sim, device int, addr uint64, va uintptr) {
	m := cudatest.Bytes(va, int(2*page))
	sim.HtoD(device, addr+3, []byte("from the host"))
	require.Equal(t, "from the host", string(m[3:16]))
	copy(m[page+50:], "from the CPU")
	require.Equal(t, "from the CPU", string(sim.DtoH(device, addr+page+50, 12)))
}

func TestSyncMemopsIsSet(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 4096)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
	require.NoError(t, err)
	cu, err := cuda.Load()
	require.NoError(t, err)
	v, err := cu.PointerAttribute(cuda.SyncMemops, addr)
	require.NoError(t, err)
	require.Equal(t, 1, v)
	require.NoError(t, p.Unpin())
}

func TestUnalignedBuffer(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 4*page)
	p, err := s.Pin(backend.PinRequest{Addr: addr + page + 256, Size: page})
	require.NoError(t, err)
	info, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, backend.Info{VA: addr + page, MappedSize: 2 * page, PageSize: uint32(page)}, info)
	require.NoError(t, p.Unpin())
}

func TestPinRefusesBadInput(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 1<<20)
	silent := sim.MemAlloc(mute, 1<<20)
	live, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range []struct {
		what string
		req  backend.PinRequest
		want unix.Errno
		line string
	}{
		{"host memory", backend.PinRequest{Addr: uint64(cudatest.Address(&page)), Size: 8}, unix.EINVAL, "no CUDA device pointer"},
		{"no memory", backend.PinRequest{Addr: 4096, Size: 4096}, unix.EINVAL, "no CUDA device pointer"},
		{"the end of the address space", backend.PinRequest{Addr: 1<<64 - 8192, Size: 8191}, unix.EINVAL, "no CUDA device pointer"},
		{"more than the allocation", backend.PinRequest{Addr: addr, Size: 1 << 40}, unix.EINVAL, "cuMemGetHandleForAddressRange"},
		{"absurdly more", backend.PinRequest{Addr: addr, Size: 1<<64 - 1 - addr}, unix.EINVAL, "end of the address space"},
		{"a device that exports nothing", backend.PinRequest{Addr: silent, Size: 4096}, unix.ENOTSUP, "cannot export dma-bufs"},
	} {
		_, err := s.Pin(c.req)
		require.ErrorIs(t, err, c.want, c.what)
		require.ErrorContains(t, err, c.line, c.what)
		require.Equal(t, live, sim.Live(), c.what)
		require.Equal(t, fds, cudatest.FDs(t), c.what)
	}
}

func TestMapRefusesBadSizes(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 4*page)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
	require.NoError(t, err)
	for _, size := range []uint64{0, 2 * page, 1 << 63} {
		_, _, err := p.Map(size, backend.None)
		require.ErrorIs(t, err, unix.EINVAL, "%d", size)
	}
	require.NoError(t, p.Unpin())
}

// Each CUDA call on the way to a pinned buffer fails once: with a context of the thread's
// own, and without one. The caller gets the errno, and nothing is left.
func TestPinUndoesEveryFailure(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(coherent, 4*page)
	live, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range []struct {
		name string
		nth  int
	}{
		{"cuPointerGetAttributes", 1}, {"cuDeviceGet", 1}, {"cuDeviceGetAttribute", 1}, {"cuDeviceGetAttribute", 2},
		{"cuDeviceGetAttribute", 3},
		{"cuCtxPushCurrent_v2", 1},
		{"cuMemGetHandleForAddressRange", 1},
	} {
		cu, err := cuda.Load()
		require.NoError(t, err)
		s := &session{cuda: cu, devices: map[int]device{}}
		sim.Fail(c.name, int(cuda.ErrNotPermitted), c.nth)
		_, err = s.Pin(backend.PinRequest{Addr: addr, Size: page})
		require.ErrorIs(t, err, unix.EPERM, "%s, call %d", c.name, c.nth)
		require.ErrorContains(t, err, c.name)
		sim.Heal(c.name)
		require.Zero(t, sim.Current(), c.name)
		require.Equal(t, live, sim.Live(), c.name)
		require.Equal(t, fds, cudatest.FDs(t), c.name)

		p, err := s.Pin(backend.PinRequest{Addr: addr, Size: page})
		require.NoError(t, err, "the session works on after %s", c.name)
		require.NoError(t, p.Unpin())
	}
}

func TestOutOfDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 4*page)
	var err error
	cudatest.WithoutDescriptors(t, func() { _, err = s.Pin(backend.PinRequest{Addr: addr, Size: page}) })
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
}

// A pin outlives the memory. Freed memory stays mapped.
func TestMappingOutlivesTheMemory(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	a, err := cuda.Alloc(plain, 1<<20)
	require.NoError(t, err)
	p, err := s.Pin(backend.PinRequest{Addr: a.Ptr(), Size: page})
	require.NoError(t, err)
	sim.HtoD(plain, a.Ptr(), []byte("still here"))
	require.NoError(t, a.Free())
	va, _, err := p.Map(page, backend.None)
	require.NoError(t, err)
	require.Equal(t, "still here", string(cudatest.Bytes(va, 10)))
	require.NoError(t, p.Unmap())
	require.NoError(t, p.Unpin())
}

func TestManyThreads(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	const threads = 16
	addr := sim.MemAlloc(plain, threads*page)
	live, fds := sim.Live(), cudatest.FDs(t)
	cudatest.Together(threads, func(i int) {
		for n := range 50 {
			if err := cudatest.Cycle(s, addr+uint64(i)*page, page, byte(n)); err != nil {
				t.Errorf("thread %d: %v", i, err)
				return
			}
		}
	})
	require.Equal(t, live, sim.Live())
	require.Equal(t, fds, cudatest.FDs(t))
}

// An unmap that fails says so, and the mapping is there: it may be tried again.
func TestUnmapThatFails(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	p, err := s.Pin(backend.PinRequest{Addr: sim.MemAlloc(plain, page), Size: page})
	require.NoError(t, err)
	va, _, err := p.Map(page, backend.None)
	require.NoError(t, err)
	in := p.(*pin)
	in.va++ // no page begins there, so the kernel refuses
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)
	require.Equal(t, va+1, in.va, "it is still known")
	in.va--
	require.NoError(t, p.Unmap())
	require.ErrorIs(t, p.Unmap(), unix.EINVAL)
	require.NoError(t, p.Unpin())
	require.ErrorIs(t, p.Unpin(), unix.EINVAL)
}

func TestCallsLeaveNothingBehind(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, page)
	cudatest.Flat(t, func() { require.NoError(t, cudatest.Cycle(s, addr, page, 1)) })
}

func TestCUDAHostMemory(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.HostAlloc(1 << 16)
	fds := cudatest.FDs(t)
	_, err := s.Pin(backend.PinRequest{Addr: addr, Size: 4096})
	require.ErrorIs(t, err, unix.EINVAL)
	require.Equal(t, fds, cudatest.FDs(t))
}

// The host closed the dma-buf's descriptor, and its number is a file of the host's.
func TestHostClosesTheDescriptor(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(plain, 1<<20)
	s := openSession(t)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 65536})
	require.NoError(t, err)
	fd := p.(*pin).parts[0].fd
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(null, fd, unix.O_CLOEXEC))
	require.NoError(t, unix.Close(null))
	_, _, err = p.Map(65536, backend.None)
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorContains(t, err, "pin it again")
	require.NoError(t, p.Unpin())
	require.NoError(t, unix.Close(fd), "it is the host's")
}
