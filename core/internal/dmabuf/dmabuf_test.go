package dmabuf

import (
	"os"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
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

func openSession(t testing.TB) backend.Session {
	s, err := Backend{}.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestAsEveryBackend(t *testing.T) {
	backendtest.Simulated{
		Open:       func(t testing.TB) backend.Session { return openSession(t) },
		Memory:     func(sim *cudatest.Sim) uint64 { return sim.MemAlloc(plain, 1<<20) },
		Attributes: map[backend.Attr]int{backend.AttrPersistentMapping: 1, backend.AttrForcePCIe: 1, backend.AttrDMABufMmap: 1},
		NoTypes:    []backend.MappingType{backend.Caching, backend.Device, backend.Device + 1},
		Refused: func(sim *cudatest.Sim) []backendtest.Refusal {
			addr, silent := sim.MemAlloc(plain, 1<<20), sim.MemAlloc(mute, 1<<20)
			return []backendtest.Refusal{
				backendtest.Refuses("the end of the address space", 1<<64-8192, 8191, unix.EINVAL, "no CUDA device pointer"),
				backendtest.Refuses("more than the allocation", addr, 1<<40, unix.EINVAL, "cuMemGetHandleForAddressRange"),
				backendtest.Refuses("absurdly more", addr, 1<<64-1-addr, unix.EINVAL, "end of the address space"),
				backendtest.Refuses("a device that exports nothing", silent, 4096, unix.ENOTSUP, "cannot export dma-bufs"),
			}
		},
	}.Test(t)
}

func TestOpenRefuses(t *testing.T) {
	for version, text := range map[string]string{"13020": "13.2", "12090": "12.9", "13000": "13.0"} {
		t.Run("a driver of "+text, func(t *testing.T) {
			if !cudatest.InChild(t, "CUDA_SIM_DRIVER_VERSION="+version) {
				return
			}
			_, err := Backend{}.Open()
			require.ErrorIs(t, err, unix.ENOTSUP)
			require.ErrorContains(t, err, "the CUDA driver is "+text+",")
		})
	}
	t.Run("devices that export nothing", func(t *testing.T) {
		if !cudatest.InChild(t, "CUDA_SIM_DMABUF=0,0,0") {
			return
		}
		s, err := Backend{}.Open()
		require.NoError(t, err, "before cuInit that is not known")
		sim := cudatest.Need(t)
		err = s.(backend.Tentative).ServesAny()
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.ErrorContains(t, err, "none of the 3 CUDA devices")
		sim.Fail("cuDeviceGetCount", int(cuda.ErrNotPermitted), 1)
		require.ErrorIs(t, s.(backend.Tentative).ServesAny(), unix.EPERM)
		require.NoError(t, s.Close())
		_, err = Backend{}.Open()
		require.ErrorIs(t, err, unix.ENOTSUP)
		require.Zero(t, sim.Current())
	})
	t.Run("no driver", func(t *testing.T) {
		if !cudatest.InChild(t) { // the loader belongs to the process
			return
		}
		cuda.UseLoader(cuda.Loader{Load: func() error { return unix.EMLINK }})
		s, err := Backend{}.Open()
		require.Nil(t, s)
		require.ErrorIs(t, err, unix.EMLINK)
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

func TestSyncMemopsIsSet(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, 4096)
	fds := cudatest.FDs(t)
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
	require.NoError(t, err)
	require.Equal(t, fds+1, cudatest.FDs(t), "one descriptor a pin")
	cu, err := cuda.Load()
	require.NoError(t, err)
	v, err := cu.PointerAttribute(cuda.SyncMemops, addr)
	require.NoError(t, err)
	require.Equal(t, 1, v)
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

func TestCallsLeaveNothingBehind(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr := sim.MemAlloc(plain, page)
	cudatest.Flat(t, func() { require.NoError(t, cudatest.Cycle(s, addr, page, 1)) })
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
			backendtest.Life(t, s, c.device, backend.PinRequest{Addr: addr + page, Flags: c.flags}, c.want, c.got, c.err)
			require.EqualValues(t, c.flags, sim.ExportFlags(), "the driver is asked for PCIe, too")
			require.Equal(t, fds, cudatest.FDs(t))
			require.Equal(t, live, sim.Live())
		})
	}
}
