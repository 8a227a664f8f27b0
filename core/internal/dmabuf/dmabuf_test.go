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

func openSession(t testing.TB) backend.Session {
	s, err := Backend{}.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
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
