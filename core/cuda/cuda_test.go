package cuda

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Every result that the table has, by its number in cuda.h. Another one is an I/O error.
func TestResultToErrno(t *testing.T) {
	rows := []struct {
		number int32
		name   string
		errno  unix.Errno
	}{
		{1, "INVALID_VALUE", unix.EINVAL},
		{2, "OUT_OF_MEMORY", unix.ENOMEM},
		{3, "NOT_INITIALIZED", unix.EINVAL},
		{4, "DEINITIALIZED", unix.ENODEV},
		{34, "STUB_LIBRARY", unix.ENODEV},
		{46, "DEVICE_UNAVAILABLE", unix.EBUSY},
		{100, "NO_DEVICE", unix.ENODEV},
		{101, "INVALID_DEVICE", unix.ENODEV},
		{201, "INVALID_CONTEXT", unix.EINVAL},
		{205, "MAP_FAILED", unix.ENOMEM},
		{206, "UNMAP_FAILED", unix.EIO},
		{214, "ECC_UNCORRECTABLE", unix.EIO},
		{304, "OPERATING_SYSTEM", unix.EIO},
		{400, "INVALID_HANDLE", unix.EINVAL},
		{500, "NOT_FOUND", unix.EINVAL},
		{700, "ILLEGAL_ADDRESS", unix.EIO},
		{709, "CONTEXT_IS_DESTROYED", unix.EINVAL},
		{800, "NOT_PERMITTED", unix.EPERM},
		{801, "NOT_SUPPORTED", unix.ENOTSUP},
		{802, "SYSTEM_NOT_READY", unix.ENODEV},
		{803, "SYSTEM_DRIVER_MISMATCH", unix.ENODEV},
		{804, "COMPAT_NOT_SUPPORTED_ON_DEVICE", unix.ENODEV},
		{999, "UNKNOWN", unix.EIO},
	}
	require.Len(t, known, len(rows))
	for _, number := range []int32{5, 33, 102, 202, 702, 719, 900, 12345, -7, math.MinInt32} {
		rows = append(rows, struct {
			number int32
			name   string
			errno  unix.Errno
		}{number, "", unix.EIO})
	}
	for _, c := range rows {
		r := Result(c.number)
		text := fmt.Sprintf("CUDA_ERROR_%s (%d)", c.name, c.number)
		if c.name == "" {
			text = fmt.Sprintf("CUDA error %d", c.number)
		}
		require.Equal(t, text, r.Error())
		require.Equal(t, c.errno, r.Unwrap(), text)
		wrapped := fmt.Errorf("cuX: %w", r)
		require.ErrorIs(t, wrapped, r)
		var errno unix.Errno
		require.ErrorAs(t, wrapped, &errno, text)
		require.Equal(t, c.errno, errno, text)
		var other *os.PathError
		require.False(t, errors.As(wrapped, &other), text)
		for _, e := range []unix.Errno{unix.EINVAL, unix.ENOMEM, unix.ENODEV, unix.EBUSY, unix.EIO, unix.EPERM, unix.ENOTSUP} {
			require.Equal(t, e == c.errno, errors.Is(wrapped, e), "%s is %v", text, e)
		}
	}
}

func TestMissingFunctionIsToldWhenItIsNeeded(t *testing.T) {
	d := &Driver{fn: new(functions)} // a driver without any function
	_, err := d.MemExportRange(1<<16, 1<<16, false)
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.ErrorContains(t, err, "cuMemGetHandleForAddressRange")
}

func load1(t *testing.T) *Driver {
	d, err := Load()
	require.NoError(t, err)
	return d
}

// The driver counts as loaded once the host has loaded it, by itself.
func TestLoadedByTheHost(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	_, err := Loaded()
	require.ErrorIs(t, err, unix.ENOTSUP)
	cudatest.NeedRaw(t)
	d, err := Loaded()
	require.NoError(t, err)
	_, err = d.Version()
	require.NoError(t, err)
}

// What is current while WithMemory runs, and that all is as it was afterwards.
func TestWithMemory(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	before := sim.Live()
	plain := sim.MemAlloc(1, 4096)
	vmm, free := sim.VMM(1, 1, 0)
	defer free()
	var own uintptr
	var elsewhere uint64
	sim.Must("cuCtxCreate_v2", cudatest.Address(&own), 0, 1)
	sim.Must("cuMemAlloc_v2", cudatest.Address(&elsewhere), 4096)
	sim.Must("cuCtxSetCurrent", 0)
	of := func(addr uint64) MemoryInfo {
		m, err := d.MemoryAt(addr)
		require.NoError(t, err)
		return m
	}
	leave := sim.WithContext(1)
	primary := sim.Current()
	leave()
	idle := cudatest.Need(t)
	create := func(ordinal int) (ctx uintptr) {
		sim.Must("cuCtxCreate_v2", uintptr(unsafe.Pointer(&ctx)), 0, uintptr(ordinal))
		return ctx
	}
	for _, c := range []struct {
		what    string
		addr    uint64
		current func() (leave func())
		want    uintptr // 0: what was current before
	}{
		{"the memory's context, the primary", plain, func() func() { return func() {} }, primary},
		{"the memory's context, a program's own", elsewhere, func() func() { return func() {} }, own},
		{"the same, with another device's current", elsewhere, func() func() { return sim.WithContext(0) }, own},
		{"with another device's current", plain, func() func() { return sim.WithContext(0) }, primary},
		{"VMM memory in the primary context", vmm, func() func() { return sim.WithContext(0) }, primary},
		{"with a destroyed one current", plain, func() func() { return destroyed(sim, create(1)) }, primary},
		{"VMM memory with a destroyed one current", vmm, func() func() { return destroyed(sim, create(1)) }, primary},
	} {
		t.Run(c.what, func(t *testing.T) {
			defer c.current()()
			was := idle.Current()
			require.NoError(t, d.WithMemory(of(c.addr), c.addr, func(in *Driver) error {
				require.Equal(t, c.want, idle.Current())
				in.SyncMemops(c.addr, 1)
				return nil
			}))
			require.Equal(t, was, idle.Current())
			require.ErrorIs(t, d.WithMemory(of(c.addr), c.addr, func(*Driver) error { return unix.EMLINK }), unix.EMLINK)
			require.Equal(t, was, idle.Current())
		})
	}
	for _, name := range []string{"cuCtxPushCurrent_v2", "cuDevicePrimaryCtxRetain"} {
		t.Run(name+" fails", func(t *testing.T) {
			sim := cudatest.Need(t)
			sim.Fail(name, int(ErrOutOfMemory), 1)
			err := d.WithMemory(of(vmm), vmm, func(*Driver) error { t.Error("fn ran"); return nil })
			require.ErrorIs(t, err, unix.ENOMEM)
			sim.Heal(name)
			require.Zero(t, sim.Current())
		})
	}
	fails := func(call, line string, f func(func(*Driver) error) error) {
		t.Helper()
		sim.Fail(call, int(ErrUnknown), 1)
		ran := 0
		lines := cudatest.Lines(t, func() {
			require.ErrorIs(t, f(func(*Driver) error { ran++; return unix.EMLINK }), unix.EMLINK)
		})
		require.Equal(t, 1, ran)
		require.Regexp(t, "^WARN: "+line+".*"+call+".*CUDA_ERROR_UNKNOWN.*\n$", lines)
		sim.Heal(call)
	}
	fails("cuCtxPopCurrent_v2", "a context of the library's choice stays current on this thread: ", func(fn func(*Driver) error) error {
		return d.WithMemory(of(plain), plain, fn)
	})
	require.Equal(t, primary, sim.Current())
	sim.Must("cuCtxPopCurrent_v2", cudatest.Address(new(uintptr)))
	fails("cuDevicePrimaryCtxRelease_v2", "a reference to the primary context of CUDA device 1 is lost: ", func(fn func(*Driver) error) error {
		return d.WithPrimary(1, fn)
	})
	sim.Must("cuDevicePrimaryCtxRelease_v2", 1)
	require.Empty(t, cudatest.Lines(t, func() {
		require.NoError(t, d.WithPrimary(1, func(*Driver) error { return nil }))
	}))
	for _, ordinal := range []int{-1, 64} {
		require.ErrorIs(t, d.WithPrimary(ordinal, func(*Driver) error { t.Error("fn ran"); return nil }), ErrInvalidDevice)
	}
	sim.Must("cuCtxDestroy_v2", own)
	require.Equal(t, before+4, sim.Live(), "the memory of this test: a buffer; a handle, its mapping, a reservation")
}

// To release the last reference ends a context, which no capture may be lost for.
func TestReleaseIsRelaxed(t *testing.T) {
	var calls []string
	d := with(symDeviceGet, func(*Device, int32) uintptr { return 0 })
	for s, name := range map[symbol]string{
		symThreadExchangeStreamCaptureMode: "exchange", symDevicePrimaryCtxRetain: "retain", symDevicePrimaryCtxRelease: "release",
	} {
		d.fn[s] = purego.NewCallback(func(uintptr, uintptr) uintptr { calls = append(calls, name); return 0 })
	}
	var kept *Primary
	require.NoError(t, d.Relaxed(func(in *Driver) (err error) {
		kept, err = in.RetainPrimary(0)
		return err
	}))
	calls = nil
	kept.Release()
	require.Equal(t, []string{"exchange", "release", "exchange"}, calls)
}

// destroyed leaves a context current that has been destroyed.
func destroyed(sim *cudatest.Sim, ctx uintptr) (leave func()) {
	sim.Must("cuCtxDestroy_v2", ctx)
	sim.Must("cuCtxSetCurrent", ctx)
	return func() { sim.Must("cuCtxSetCurrent", 0) }
}

// VMM memory where nobody holds the device's primary context: the current one serves if it
// knows the memory.
func TestWithMemoryWithoutPrimary(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	vmm, free := sim.VMM(1, 1, 0)
	defer free()
	m, err := d.MemoryAt(vmm)
	require.NoError(t, err)
	require.False(t, primaryActive(sim, 1))
	inside := func(want uintptr, active bool) {
		t.Helper()
		was := sim.Current()
		require.NoError(t, d.WithMemory(m, vmm, func(*Driver) error {
			if want != 0 {
				require.Equal(t, want, sim.Current())
			}
			require.NotZero(t, sim.Current())
			require.Equal(t, active, primaryActive(sim, 1))
			return nil
		}))
		require.Equal(t, was, sim.Current())
		require.ErrorIs(t, d.WithMemory(m, vmm, func(*Driver) error { return unix.EMLINK }), unix.EMLINK)
		require.Equal(t, was, sim.Current())
		require.False(t, primaryActive(sim, 1))
	}
	inside(0, true)
	withoutDescriptors(t, func() {
		require.ErrorIs(t, d.WithMemory(m, vmm, func(*Driver) error { return nil }), unix.EMFILE)
	})
	for ordinal, active := range []bool{true, false} {
		var ctx uintptr
		sim.Must("cuCtxCreate_v2", uintptr(unsafe.Pointer(&ctx)), 0, uintptr(ordinal))
		want := uintptr(0)
		if !active {
			want = ctx
		}
		inside(want, active)
		sim.Must("cuCtxDestroy_v2", ctx)
	}
}

func hasSyncMemops(t *testing.T, d *Driver, p uint64) bool {
	var v int32
	require.NoError(t, d.call(symPointerGetAttribute, &v, syncMemops, p))
	return v == 1
}

func TestSyncMemops(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 4096)
	m, err := d.MemoryAt(p)
	require.NoError(t, err)
	set := func() { d.SyncMemops(p, 1) }
	set()
	require.True(t, hasSyncMemops(t, d, p))

	// The context's flags are the program's.
	leave := sim.WithContext(0)
	defer leave()
	flags := func() (flags uint32) {
		sim.Must("cuCtxGetFlags", uintptr(unsafe.Pointer(&flags)))
		return flags
	}
	before := flags()
	for r, line := range map[Result]string{
		0:               "",
		ErrNotSupported: "",
		ErrUnknown:      fmt.Sprintf("WARN: cannot set SYNC_MEMOPS on %#x, ", p),
	} {
		if r != 0 {
			sim.Fail("cuPointerSetAttribute", int(r), 1)
		}
		lines := cudatest.Lines(t, set)
		require.Equal(t, line == "", lines == "", "%d: %s", r, lines)
		require.True(t, strings.HasPrefix(lines, line), lines)
		require.Equal(t, before, flags())
		sim.Heal("cuPointerSetAttribute")
	}
	gone := m // its memory was freed, and the address is another's
	gone.ID++
	sim.Fail("cuPointerSetAttribute", int(ErrUnknown), 1)
	require.NoError(t, d.syncMemory(gone, p))
	sim.Heal("cuPointerSetAttribute")
	require.ErrorIs(t, d.WithMemory(gone, p, func(*Driver) error { t.Error("it runs"); return nil }), unix.EINVAL)
	require.Regexp(t, "^WARN: cannot set SYNC_MEMOPS on 0x10, .*\n$", cudatest.Lines(t, func() { d.SyncMemops(0x10, 8) }))
}

// For memory that has no context of its own none is made to set an attribute that it does not have.
func TestSyncMemopsMakesNoContext(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	vmm, free := sim.VMM(1, 1, 0)
	defer free()
	require.False(t, primaryActive(sim, 1))
	sim.Called()
	require.Empty(t, cudatest.Lines(t, func() { d.SyncMemops(vmm, 4096) }))
	require.NotContains(t, sim.Called(), "cuDevicePrimaryCtxRetain")

	// The current one serves, as it does for a pool's memory.
	var ctx uintptr
	sim.Must("cuCtxCreate_v2", cudatest.Address(&ctx), 0, 1)
	sim.Called()
	require.Empty(t, cudatest.Lines(t, func() { d.SyncMemops(vmm, 4096) }))
	called := sim.Called()
	require.Contains(t, called, "cuPointerSetAttribute")
	require.NotContains(t, called, "cuDevicePrimaryCtxRetain")
	sim.Must("cuCtxDestroy_v2", ctx)
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
		{"cuMemMap", 1}, {"cuMemSetAccess", 1}, {"cuDevicePrimaryCtxRetain", 1},
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

// recorder is a driver that notes its calls. A call whose name is in refused fails.
type recorder struct {
	t       *testing.T
	calls   []string
	refused map[string]Result
}

func (r *recorder) note(name string, args ...any) uintptr {
	r.calls = append(r.calls, strings.TrimSpace(name+" "+fmt.Sprintln(args...)))
	return uintptr(r.refused[name])
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

// withoutDescriptors calls f while the process cannot open a descriptor.
func withoutDescriptors(t testing.TB, f func()) {
	var hold []int
	defer func() {
		for _, fd := range hold {
			unix.Close(fd)
		}
	}()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	low := unix.Rlimit{Cur: 256, Max: old.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	for {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err == unix.EMFILE {
			break
		}
		require.NoError(t, err)
		hold = append(hold, fd)
	}
	f()
}

// primaryActive says whether someone holds the device's primary context.
func primaryActive(s *cudatest.Sim, ordinal int) bool {
	var dev, active int32
	var flags uint32
	s.Must("cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	s.Must("cuDevicePrimaryCtxGetState", uintptr(dev), uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&active)))
	return active != 0
}
