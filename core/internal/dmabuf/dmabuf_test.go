package dmabuf

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var (
	_ backend.Backend   = Backend{}
	_ backend.Tentative = (*session)(nil)
)

// Device 0 exports dma-bufs; 1 does, and the CPU may cache its memory; 2 exports none.
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

// run runs a script on a session and its last pin, of 8 bytes. passes is a pin that another backend may have.
func run(t *testing.T, script string) {
	sim := cudatest.NeedRaw(t)
	var s backend.Session
	var p backend.Pin
	var addr uint64 = 4096
	pin := func(elsewhere bool) error {
		fds := cudatest.FDs(t)
		pinned, err := s.Pin(backend.PinRequest{Addr: addr, Size: 8})
		if err == nil {
			p = pinned
			return nil
		}
		require.Equal(t, elsewhere, errors.As(err, new(backend.NotServed)), "%v in %q", err, script)
		require.Equal(t, fds, cudatest.FDs(t), "%v in %q", err, script)
		return err
	}
	sim.Run(script, map[string]func(string) error{
		"init":     func(string) error { sim = cudatest.Need(t); return nil },
		"noDriver": func(string) error { cuda.UseLoader(cuda.Loader{Load: func() error { return unix.EMLINK }}); return nil },
		"open":     func(string) (err error) { s, err = Backend{}.Open(); return err },
		"serves":   func(string) error { return s.(backend.Tentative).ServesAny() },
		"at": func(device string) error {
			addr = sim.MemAlloc(int(device[0]-'0'), page)
			return nil
		},
		"pin":    func(string) error { return pin(false) },
		"passes": func(string) error { return pin(true) },
		"unpin":  func(string) error { return p.Unpin() },
		"count":  func(string) error { _, err := s.(*session).cuda.DeviceCount(); return err },
		"close":  func(string) error { return s.Close() },
	})
	require.Zero(t, sim.Call("cuInit", 0)) // else nobody knows what is current
	require.Zero(t, sim.Current(), script)
}

// Each runs in a process of its own, with that variable.
var processes = []struct{ env, script string }{
	{"CUDA_SIM_DRIVER_VERSION=13020", "open=ENOTSUP~CUDA.driver.is.13.2,"},
	{"CUDA_SIM_DRIVER_VERSION=12090", "open=ENOTSUP~12.9,"},
	{"CUDA_SIM_DRIVER_VERSION=13000", "open=ENOTSUP~13.0,"},
	{"CUDA_SIM_DEVICES=3", "noDriver open=EMLINK"},
	// Before cuInit it is not known whether a device serves.
	{"CUDA_SIM_DMABUF=0,0,0", "open init serves=ENOTSUP~none.of.the.3.CUDA.devices -cuDeviceGetCount=EPERM@1 serves=EPERM close open=ENOTSUP"},
	{"CUDA_SIM_DEVICES=3", "open serves=EINVAL~NOT_INITIALIZED pin=EINVAL count=EINVAL~NOT_INITIALIZED " +
		"init serves at:0 pin unpin"},
	// CUDA 13.3 over an older kernel driver: attribute 152 is 0.
	{"CUDA_SIM_DMABUF_MMAP=0", "init open=ENOTSUP~none.of.the.3.CUDA.devices"},
	{"CUDA_SIM_DMABUF_MMAP=0,1,1", "init open passes=EINVAL~no.CUDA.device.pointer at:0 passes=ENOTSUP~older.than.CUDA.13.3 " +
		"at:1 pin unpin at:2 passes=ENOTSUP~cannot.export"},
}

func TestProcesses(t *testing.T) {
	for i, c := range processes {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if cudatest.InChild(t, c.env) {
				run(t, c.script)
			}
		})
	}
}

func TestSessions(t *testing.T) {
	for _, name := range []string{"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute"} {
		run(t, "init -"+name+"=EPERM@1 open=EPERM +"+name)
	}
	// A driver that does not know attribute 124 or 152 answers INVALID_VALUE, which means no, and is kept. Any other
	// error is an error, and is not kept.
	for _, nth := range []string{"1", "2"} {
		run(t, "init open at:0 -cuDeviceGetAttribute=EINVAL@"+nth+" passes=ENOTSUP +cuDeviceGetAttribute passes=ENOTSUP")
		for _, e := range []string{"EPERM", "EIO"} {
			run(t, "init open at:0 -cuDeviceGetAttribute="+e+"@"+nth+" pin="+e+" +cuDeviceGetAttribute pin unpin")
		}
	}
	// What the driver does not export, as memory of a pool, another backend may pin.
	for e, how := range map[string]string{"EINVAL": "passes", "ENOTSUP": "passes", "ENOMEM": "pin", "EIO": "pin"} {
		run(t, "init open at:0 -cuMemGetHandleForAddressRange="+e+"@1 "+how+"="+e+" +cuMemGetHandleForAddressRange")
	}
}

// The host closed the dma-buf's descriptor, and its number is a file of the host's.
func TestHostClosesTheDescriptor(t *testing.T) {
	sim := cudatest.Need(t)
	s, err := Backend{}.Open()
	require.NoError(t, err)
	p, err := s.Pin(backend.PinRequest{Addr: sim.MemAlloc(0, 1<<20), Size: 65536})
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
