// Package cudatest drives the simulated libcuda.so.1 of tests/doubles for the
// tests of this project's packages. Nothing that ships imports it.
//
// `make check` puts the doubles on LD_LIBRARY_PATH and sets
// GDR_TEST_DOUBLES=1, which makes their absence a failure; a plain `go test`
// skips the tests that need them.
package cudatest

import (
	stdlog "log"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core/dl"
	"gdrapi/core/internal/scripttest"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"
	"gdrapi/core/log/logtest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Sim is the simulated driver.
type Sim struct {
	t   testing.TB
	lib uintptr
}

// Need gives the simulated driver, which it brings up (cuInit) with no context
// on the calling thread. The test keeps its thread until it ends, and no fault
// outlives it.
func Need(t testing.TB) *Sim {
	s := NeedRaw(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	s.Must("cuInit", 0)
	s.Must("cuCtxSetCurrent", 0)
	return s
}

// NeedRaw is Need that leaves CUDA as it finds it.
func NeedRaw(t testing.TB) *Sim {
	return &Sim{t: t, lib: Library(t, "libcuda.so.1", "cuda_sim_fail")}
}

// Library loads a double, which it knows by a symbol that the real library
// lacks.
func Library(t testing.TB, name, mark string) uintptr {
	lib, err := dl.Open(name)
	if err == nil {
		_, err = purego.Dlsym(lib, mark)
	}
	if err != nil {
		if os.Getenv("GDR_TEST_DOUBLES") == "1" {
			t.Fatalf("GDR_TEST_DOUBLES=1, but the %s that is found is no test double: %v", name, err)
		}
		t.Skipf("needs the simulated %s of tests/doubles; run `make check`: %v", name, err)
	}
	return lib
}

// Call calls a function of the driver.
//
//go:uintptrescapes
func (s *Sim) Call(name string, args ...uintptr) uintptr {
	fn, err := purego.Dlsym(s.lib, name)
	require.NoError(s.t, err)
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// Must calls a function whose result has to be CUDA_SUCCESS.
//
//go:uintptrescapes
func (s *Sim) Must(name string, args ...uintptr) {
	require.Zero(s.t, int32(s.Call(name, args...)), name)
}

// Fail makes the nth call of name from now on give the result; nth 0 is every
// call. The fault goes when the test ends, or with Heal.
func (s *Sim) Fail(name string, result, nth int) {
	c := append([]byte(name), 0)
	s.Call("cuda_sim_fail", uintptr(unsafe.Pointer(&c[0])), uintptr(result), uintptr(nth))
	s.t.Cleanup(func() { s.Heal(name) })
}

// Heal drops the faults of name.
func (s *Sim) Heal(name string) {
	c := append([]byte(name), 0)
	s.Call("cuda_sim_fail", uintptr(unsafe.Pointer(&c[0])), 0, 0)
}

// results are those by which a function of the driver fails in a script, which may give another one by its number.
var results = map[string]int{"EINVAL": 1, "ENOMEM": 2, "EPERM": 800, "ENOTSUP": 801, "EIO": 999}

// Run runs a script of scripttest's. A function of the driver fails by -FUNCTION=ERRNO from now on, by
// -FUNCTION=ERRNO@2 the second time.
func (s *Sim) Run(script string, calls map[string]func(argument string) error) {
	scripttest.Run(s.t, script, calls, func(function, how string) {
		name, nth, _ := strings.Cut(how, "@")
		result, known := results[name]
		if !known {
			result, _ = strconv.Atoi(name)
		}
		require.Equal(s.t, how == "", result == 0, "-%s=%s in %q", function, how, script)
		n, _ := strconv.Atoi(nth)
		s.Fail(function, result, n)
	})
}

// Live counts what the driver has handed out and still owns.
func (s *Sim) Live() int { return int(s.Call("cuda_sim_live")) }

// Called names the functions that were called since this was asked last.
func (s *Sim) Called() []string {
	var names [4096]byte
	s.Call("cuda_sim_called", uintptr(unsafe.Pointer(&names)), uintptr(len(names)))
	text, _, _ := strings.Cut(string(names[:]), "\x00")
	return strings.Fields(text)
}

// WithContext gives the thread the primary context of a device until the
// returned function is called. Until then the goroutine stays on the thread.
func (s *Sim) WithContext(ordinal int) (leave func()) {
	runtime.LockOSThread()
	var dev int32
	var ctx uintptr
	s.Must("cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	s.Must("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&ctx)), uintptr(dev))
	s.Must("cuCtxPushCurrent_v2", ctx)
	return func() {
		s.Must("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&ctx)))
		s.Must("cuDevicePrimaryCtxRelease_v2", uintptr(dev))
		runtime.UnlockOSThread()
	}
}

// Current is the thread's context, 0 for none.
func (s *Sim) Current() uintptr {
	var ctx uintptr
	s.Must("cuCtxGetCurrent", uintptr(unsafe.Pointer(&ctx)))
	return ctx
}

// MemAlloc is plain device memory on the device, freed when the test ends.
func (s *Sim) MemAlloc(ordinal int, size uint64) uint64 {
	var dev int32
	var ctx uintptr
	s.Must("cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	// The context has to outlive the memory.
	s.Must("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&ctx)), uintptr(dev))
	s.Must("cuCtxPushCurrent_v2", ctx)
	var p uint64
	s.Must("cuMemAlloc_v2", uintptr(unsafe.Pointer(&p)), uintptr(size))
	s.Must("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&ctx)))
	s.t.Cleanup(func() {
		s.Must("cuCtxPushCurrent_v2", ctx)
		s.Must("cuMemFree_v2", uintptr(p))
		s.Must("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&ctx)))
		s.Must("cuDevicePrimaryCtxRelease_v2", uintptr(dev))
	})
	return p
}

// HtoD copies host bytes to the device, and waits for the copy.
func (s *Sim) HtoD(ordinal int, dst uint64, b []byte) {
	defer s.WithContext(ordinal)()
	s.Must("cuMemcpyHtoD_v2", uintptr(dst), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	s.Must("cuCtxSynchronize")
}

// DtoH copies device bytes to the host.
func (s *Sim) DtoH(ordinal int, src uint64, n int) []byte {
	defer s.WithContext(ordinal)()
	b := make([]byte, n)
	s.Must("cuMemcpyDtoH_v2", uintptr(unsafe.Pointer(&b[0])), uintptr(src), uintptr(n))
	return b
}

// Bytes is a mapping as a slice.
func Bytes(va uintptr, size int) []byte {
	return unsafe.Slice((*byte)(sys.Pointer(va)), size)
}

// FDs lists the open descriptors of the process.
func FDs(t testing.TB) int {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// InChild runs the calling test once more in a process of its own, where CUDA
// is as nobody has touched it, with env added to the environment. It is true
// in that process, and false in the first, where the test has then passed.
func InChild(t *testing.T, env ...string) bool {
	const mark = "GDR_TEST_CHILD"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	NeedRaw(t)
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v")
	// The race detector would sleep for a second at each exit.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=10", mark+"="+t.Name()), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// Lines is what f logs, but for lines of debugging.
func Lines(t testing.TB, f func()) string { return logtest.Lines(t, log.Info, f) }

// Address is the address of host memory.
func Address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// VMMChunk is the size of each chunk of VMM: a GPU's allocation granularity.
const VMMChunk = 2 << 20

// VMM is memory of cuMemCreate on the device: chunks of VMMChunk bytes side by
// side in one address range, with the handle types (1: POSIX descriptor) among
// their properties. It goes when the test ends, or with the returned function.
func (s *Sim) VMM(ordinal, chunks int, handleTypes uint32) (addr uint64, free func()) {
	// CUmemAllocationProp: pinned memory, handle types, on a device, which one.
	prop := [8]uint32{1, handleTypes, 1, uint32(ordinal)}
	// CUmemAccessDesc: for a device, which one, to read and write.
	access := [3]uint32{1, uint32(ordinal), 3}
	total := uintptr(chunks) * VMMChunk
	s.Must("cuMemAddressReserve", uintptr(unsafe.Pointer(&addr)), total, 0, 0, 0)
	handles := make([]uint64, chunks)
	for i := range handles {
		s.Must("cuMemCreate", uintptr(unsafe.Pointer(&handles[i])), VMMChunk, uintptr(unsafe.Pointer(&prop)), 0)
		s.Must("cuMemMap", uintptr(addr)+uintptr(i)*VMMChunk, VMMChunk, 0, uintptr(handles[i]), 0)
	}
	s.Must("cuMemSetAccess", uintptr(addr), total, uintptr(unsafe.Pointer(&access)), 1)
	free = sync.OnceFunc(func() {
		for i, h := range handles {
			s.Must("cuMemUnmap", uintptr(addr)+uintptr(i)*VMMChunk, VMMChunk)
			s.Must("cuMemRelease", uintptr(h))
		}
		s.Must("cuMemAddressFree", uintptr(addr), total)
	})
	s.t.Cleanup(free)
	return addr, free
}

// UseLibC has the C library make the mappings: the simulated driver of rm replaces its mmap.
// The real one is a system call away.
func UseLibC() {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	if err != nil {
		stdlog.Fatal(err)
	}
	call := func(name string, args ...uintptr) (uintptr, error) {
		fn, err := purego.Dlsym(libc, name)
		if err != nil {
			return 0, err
		}
		r, _, errno := purego.SyscallN(fn, args...)
		if r == ^uintptr(0) {
			return 0, unix.Errno(errno)
		}
		return r, nil
	}
	sys.UseMemory(sys.Memory{
		Mmap: func(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
			return call("mmap", addr, size, uintptr(prot), uintptr(flags), uintptr(fd), uintptr(offset))
		},
		Munmap: func(va, size uintptr) error {
			_, err := call("munmap", va, size)
			return err
		},
	})
}
