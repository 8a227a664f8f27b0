package cuda

import (
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pages is memory of the process that Go does not manage.
func pages(t *testing.T, size int) uintptr {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return uintptr(unsafe.Pointer(&b[0]))
}

func TestRegisterHost(t *testing.T) {
	const hostMemory = 1
	sim := cudatest.Need(t)
	d := load1(t)
	live, addr := sim.Live(), pages(t, 1<<20)
	m, err := RegisterHost(addr+100, 1<<20-200)
	require.NoError(t, err)
	require.Equal(t, live+1, sim.Live())
	require.Zero(t, sim.Current())
	require.True(t, sim.PrimaryActive(0), "the registration lives in it")
	kind, err := d.PointerAttribute(MemoryType, uint64(addr)+5000)
	require.NoError(t, err)
	require.Equal(t, hostMemory, kind)

	for _, at := range []uintptr{addr, addr + 100, addr + 1<<20 - 101} {
		_, err = RegisterHost(at, 101)
		require.ErrorIs(t, err, unix.EEXIST)
	}
	require.NoError(t, m.Unregister())
	require.Equal(t, live, sim.Live())
	require.False(t, sim.PrimaryActive(0))
	_, err = d.PointerAttribute(MemoryType, uint64(addr)+5000)
	require.ErrorIs(t, err, unix.EINVAL)
}

// A registration takes no context on a GPU that the process does not use.
func TestRegisterHostChoosesADevice(t *testing.T) {
	sim := cudatest.Need(t)
	load1(t)
	addr := pages(t, 4096)
	for name, use := range map[string]func() (done func()){
		"the current one": func() func() { return sim.WithContext(1) },
		"the active one": func() func() {
			var ctx uintptr
			sim.Must("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&ctx)), 1)
			return func() { sim.Must("cuDevicePrimaryCtxRelease_v2", 1) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			done := use()
			own := sim.Current()
			m, err := RegisterHost(addr, 4096)
			require.NoError(t, err)
			require.Equal(t, own, sim.Current())
			require.False(t, sim.PrimaryActive(0))
			done()
			require.True(t, sim.PrimaryActive(1), "the registration holds it")
			require.NoError(t, m.Unregister())
			require.False(t, sim.PrimaryActive(1))
		})
	}
}

func TestRegisterHostFails(t *testing.T) {
	sim := cudatest.Need(t)
	load1(t)
	addr := pages(t, 4096)
	for name, want := range map[string]unix.Errno{
		"cuCtxGetCurrent":          unix.EPERM,
		"cuDeviceGetCount":         unix.EPERM,
		"cuDevicePrimaryCtxRetain": unix.EPERM,
		"cuCtxPushCurrent_v2":      unix.EPERM,
		"cuMemHostRegister_v2":     unix.EPERM,
	} {
		t.Run(name, func(t *testing.T) {
			sim.Fail(name, int(ErrNotPermitted), 1)
			_, err := RegisterHost(addr, 4096)
			require.ErrorIs(t, err, want)
			require.Zero(t, sim.Current())
			require.False(t, sim.PrimaryActive(0))
		})
	}
	_, err := RegisterHost(4096, 4096)
	require.ErrorIs(t, err, unix.EINVAL, "no memory is there")
	require.False(t, sim.PrimaryActive(0))
}

// A reset of the GPU ends the registration. The reference to the context is still given
// back.
func TestRegisterHostAndReset(t *testing.T) {
	sim := cudatest.Need(t)
	load1(t)
	live, addr := sim.Live(), pages(t, 4096)
	m, err := RegisterHost(addr, 4096)
	require.NoError(t, err)
	sim.Must("cuDevicePrimaryCtxReset_v2", 0)
	require.Equal(t, live, sim.Live())
	require.ErrorIs(t, m.Unregister(), unix.EINVAL)
	again, err := RegisterHost(addr, 4096)
	require.NoError(t, err)
	require.NoError(t, again.Unregister())
	require.False(t, sim.PrimaryActive(0))
}
