package cuda

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Every result that the table has, by its number in cuda.h. Another one is an I/O error.
func TestResultToErrno(t *testing.T) {
	errnos := map[unix.Errno]string{
		unix.EINVAL:  "1:INVALID_VALUE 3:NOT_INITIALIZED 201:INVALID_CONTEXT 400:INVALID_HANDLE 500:NOT_FOUND 709:CONTEXT_IS_DESTROYED",
		unix.ENOMEM:  "2:OUT_OF_MEMORY 205:MAP_FAILED",
		unix.ENODEV:  "4:DEINITIALIZED 34:STUB_LIBRARY 100:NO_DEVICE 101:INVALID_DEVICE 802:SYSTEM_NOT_READY 803:SYSTEM_DRIVER_MISMATCH 804:COMPAT_NOT_SUPPORTED_ON_DEVICE",
		unix.EBUSY:   "46:DEVICE_UNAVAILABLE",
		unix.EPERM:   "800:NOT_PERMITTED",
		unix.ENOTSUP: "801:NOT_SUPPORTED",
		unix.EIO: "206:UNMAP_FAILED 214:ECC_UNCORRECTABLE 304:OPERATING_SYSTEM 700:ILLEGAL_ADDRESS 999:UNKNOWN " +
			"5 33 102 202 702 719 900 12345 -7 -2147483648",
	}
	named := 0
	for errno, list := range errnos {
		for _, word := range strings.Fields(list) {
			number, name, has := strings.Cut(word, ":")
			n, err := strconv.ParseInt(number, 10, 32)
			require.NoError(t, err)
			text := "CUDA error " + number
			if has {
				named++
				text = fmt.Sprintf("CUDA_ERROR_%s (%s)", name, number)
			}
			require.EqualError(t, Result(n), text)
			var as unix.Errno
			require.ErrorAs(t, fmt.Errorf("cuX: %w", Result(n)), &as, text)
			require.Equal(t, errno, as, text)
		}
	}
	require.Len(t, known, named)
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

func hasSyncMemops(t *testing.T, d *Driver, p uint64) bool {
	var v int32
	require.NoError(t, d.call(symPointerGetAttribute, &v, syncMemops, p))
	return v == 1
}

// One line says that the attribute cannot be set, but for memory that has none, and for memory that the program has freed.
func TestSyncMemops(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	plain := sim.MemAlloc(1, 4096)
	for _, c := range []struct {
		addr   uint64
		fails  Result
		isSet  bool
		inLine string
	}{
		{plain, ErrNotSupported, false, "^$"},
		{plain, ErrUnknown, false, "^WARN: cannot set SYNC_MEMOPS on 0x.*\n$"},
		{0x10, 0, false, "^WARN: cannot set SYNC_MEMOPS on 0x10,.*\n$"},
		{plain, 0, true, "^$"},
	} {
		sim.Fail("cuPointerSetAttribute", int(c.fails), 1)
		require.Regexp(t, c.inLine, cudatest.Lines(t, func() { d.SyncMemops(c.addr, 1) }))
		sim.Heal("cuPointerSetAttribute")
		require.Equal(t, c.isSet, hasSyncMemops(t, d, plain))
	}
	m, err := d.MemoryAt(plain)
	require.NoError(t, err)
	m.ID++ // the address is another's
	require.NoError(t, d.syncMemory(m, plain))
	require.ErrorIs(t, d.WithMemory(m, plain, func(*Driver) error { return nil }), unix.EINVAL)
}

// A primary context takes descriptors.
func TestContextWithoutDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	addr, _ := sim.VMM(1, 1, 0)
	m, err := d.MemoryAt(addr)
	require.NoError(t, err)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: old.Max}))
	err = d.WithMemory(m, addr, func(*Driver) error { return nil })
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.ErrorIs(t, err, unix.EMFILE)
}

// What cannot be given back is told, and the call is good all the same.
func TestContextThatStays(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	for call, line := range map[string]string{
		"cuCtxPopCurrent_v2":           "a context of the library's choice stays current on this thread: ",
		"cuDevicePrimaryCtxRelease_v2": "a reference to the primary context of CUDA device 1 is lost: ",
	} {
		sim.Fail(call, int(ErrUnknown), 1)
		lines := cudatest.Lines(t, func() {
			require.ErrorIs(t, d.WithPrimary(1, func(*Driver) error { return unix.EMLINK }), unix.EMLINK)
		})
		require.Regexp(t, "^WARN: "+line+".*"+call+".*CUDA_ERROR_UNKNOWN.*\n$", lines)
		sim.Heal(call)
	}
	sim.Must("cuCtxPopCurrent_v2", cudatest.Address(new(uintptr)))
	sim.Must("cuDevicePrimaryCtxRelease_v2", 1)
	require.Zero(t, sim.Current())
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

// Each call on the way fails once. Nothing may be left.
func TestAllocUndoesEveryFailure(t *testing.T) {
	sim := cudatest.Need(t)
	before, fds := sim.Live(), cudatest.FDs(t)
	for _, call := range strings.Fields("cuInit@1 cuDeviceGet@1 cuDeviceGetAttribute@1 cuDeviceGetAttribute@2 cuDeviceGetAttribute@3 " +
		"cuMemGetAllocationGranularity@1 cuMemCreate@1 cuMemAddressReserve@1 cuMemMap@1 cuMemSetAccess@1 cuDevicePrimaryCtxRetain@1") {
		name, nth, _ := strings.Cut(call, "@")
		sim.Run("-"+name+"=EPERM@"+nth+" alloc=EPERM~"+name+" +"+name, map[string]func(string) error{
			"alloc": func(string) error { _, err := Alloc(0, 1<<20); return err },
		})
		require.Equal(t, before, sim.Live(), call)
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
