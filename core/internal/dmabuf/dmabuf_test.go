package dmabuf

import (
	"fmt"
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

func openSession(t testing.TB) backend.Session {
	s, err := Backend{}.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	s := openSession(t)
	major, minor := s.Version()
	require.Equal(t, []int{backend.Major, backend.Minor}, []int{major, minor})
	_, err := s.Pin(backend.PinRequest{Addr: 1 << 20, Size: 4096})
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	cu, err := cuda.Load()
	require.NoError(t, err)
	_, err = cu.DeviceCount()
	require.ErrorIs(t, err, cuda.ErrNotInitialized, "the backend may not call cuInit")
}

func TestAttributes(t *testing.T) {
	s := openSession(t)
	for _, a := range []backend.Attr{backend.AttrPersistentMapping, backend.AttrForcePCIe, backend.AttrDMABufMmap} {
		v, err := s.Attribute(a)
		require.NoError(t, err)
		require.Equal(t, 1, v, "attribute %d", a)
	}
}

func TestRefusedPins(t *testing.T) {
	sim := cudatest.Need(t)
	s := openSession(t)
	addr, silent, host := sim.MemAlloc(plain, 1<<20), sim.MemAlloc(mute, 1<<20), sim.HostAlloc(1<<16)
	own := uint64(cudatest.Address(new(uint64)))
	live, fds := sim.Live(), cudatest.FDs(t)
	for _, c := range []struct {
		what       string
		addr, size uint64
		want       unix.Errno
		line       string
	}{
		{"the end of the address space", 1<<64 - 8192, 8191, unix.EINVAL, "no CUDA device pointer"},
		{"more than the allocation", addr, 1 << 40, unix.EINVAL, "cuMemGetHandleForAddressRange"},
		{"absurdly more", addr, 1<<64 - 1 - addr, unix.EINVAL, "end of the address space"},
		{"a device that exports nothing", silent, 4096, unix.ENOTSUP, "cannot export dma-bufs"},
		{"CUDA's host memory", host, 4096, unix.EINVAL, ""},
		{"host memory", own, 8, unix.EINVAL, "no CUDA device pointer"},
		{"no memory", 4096, 4096, unix.EINVAL, "no CUDA device pointer"},
	} {
		_, err := s.Pin(backend.PinRequest{Addr: c.addr, Size: c.size})
		require.ErrorIs(t, err, c.want, c.what)
		require.ErrorContains(t, err, c.line, c.what)
		require.Equal(t, live, sim.Live(), c.what)
		require.Equal(t, fds, cudatest.FDs(t), c.what)
	}
	var err error
	cudatest.WithoutDescriptors(t, func() { _, err = s.Pin(backend.PinRequest{Addr: addr, Size: page}) })
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
	require.Equal(t, live, sim.Live())
}

func TestTypesThatAPinDoesNotHave(t *testing.T) {
	sim := cudatest.Need(t)
	p, err := openSession(t).Pin(backend.PinRequest{Addr: sim.MemAlloc(plain, 1<<20), Size: page})
	require.NoError(t, err)
	for _, want := range []backend.MappingType{backend.Caching, backend.Device, backend.Device + 1} {
		_, _, err := p.Map(page, want)
		require.ErrorIs(t, err, unix.EINVAL, "type %d", want)
		require.ErrorContains(t, err, fmt.Sprintf("mapping type %d was asked for", want))
	}
	require.NoError(t, p.Unpin())
}

func TestUnalignedBuffer(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(plain, 1<<20)
	p, err := openSession(t).Pin(backend.PinRequest{Addr: addr + page + 256, Size: page})
	require.NoError(t, err)
	info, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, backend.Info{VA: addr + page, MappedSize: 2 * page, PageSize: uint32(page)}, info)
	require.NoError(t, p.Unpin())
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
