package cuda

import (
	"errors"
	"fmt"
	"slices"
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
			r := Result(n)
			require.Equal(t, text, r.Error())
			wrapped := fmt.Errorf("cuX: %w", r)
			require.ErrorIs(t, wrapped, r)
			var as unix.Errno
			require.ErrorAs(t, wrapped, &as, text)
			require.Equal(t, errno, as, text)
			for e := range errnos {
				require.Equal(t, e == errno, errors.Is(wrapped, e), "%s is %v", text, e)
			}
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

// A scene is memory of device 1 and what is current.
type scene struct {
	*testing.T
	sim    *cudatest.Sim
	d      *Driver
	addr   uint64
	m      MemoryInfo
	own    uintptr // the program's context
	called []string
}

func (s *scene) at(addr uint64) error {
	var err error
	s.addr = addr
	s.m, err = s.d.MemoryAt(addr)
	return err
}

// with is WithMemory. The context that is current within is own, primary or same, as before.
func (s *scene) with(want string) error {
	was, ran := s.sim.Current(), 0
	err := s.d.WithMemory(s.m, s.addr, func(in *Driver) error {
		ran++
		names := map[uintptr]string{0: "none", was: "same"}
		names[s.own] = "own"
		name := names[s.sim.Current()]
		if name == "" && s.active() {
			name = "primary"
		}
		require.Equal(s, want, name)
		in.SyncMemops(s.addr, 1)
		return nil
	})
	require.Equal(s, err == nil, ran == 1)
	require.Equal(s, was, s.sim.Current())
	if err == nil {
		kept, err := s.d.KeepMemory(s.m, s.addr, func(*Driver) error { return unix.EMLINK })
		require.ErrorIs(s, err, unix.EMLINK)
		require.Nil(s, kept)
		require.Equal(s, was, s.sim.Current())
	}
	return err
}

// active says whether someone holds the primary context of device 1.
func (s *scene) active() bool { return s.d.HasPrimary(1) }

// sync is SyncMemops of a byte; a line of the log is EIO. The context's flags are the program's.
func (s *scene) sync(string) error {
	flags := func() (flags uint32) {
		if s.sim.Current() != 0 {
			s.sim.Must("cuCtxGetFlags", cudatest.Address(&flags))
		}
		return flags
	}
	before := flags()
	s.sim.Called()
	lines := cudatest.Lines(s, func() { s.d.SyncMemops(s.addr, 1) })
	s.called = s.sim.Called()
	require.Equal(s, before, flags())
	if lines != "" {
		return fmt.Errorf("%s%w", lines, unix.EIO)
	}
	return nil
}

func hasSyncMemops(t *testing.T, d *Driver, p uint64) bool {
	var v int32
	require.NoError(t, d.call(symPointerGetAttribute, &v, syncMemops, p))
	return v == 1
}

func (s *scene) run(script string) {
	is := func(what func() bool) func(string) error {
		return func(want string) error { require.Equal(s, want, fmt.Sprint(what()), script); return nil }
	}
	s.sim.Run(script, map[string]func(string) error{
		"plain": func(string) error { return s.at(s.sim.MemAlloc(1, 4096)) },
		"vmm": func(string) error {
			addr, _ := s.sim.VMM(1, 1, 0)
			return s.at(addr)
		},
		"nowhere": func(string) error { s.addr = 0x10; return nil },
		"freed":   func(string) error { s.m.ID++; return nil }, // the address is another's
		// A context of the program's, which is current then.
		"create": func(device string) error {
			s.sim.Must("cuCtxCreate_v2", cudatest.Address(&s.own), 0, uintptr(device[0]-'0'))
			s.Cleanup(func() { s.sim.Call("cuCtxDestroy_v2", s.own) })
			return nil
		},
		"own": func(string) error { // its memory goes with it
			var addr uint64
			s.sim.Must("cuMemAlloc_v2", cudatest.Address(&addr), 4096)
			return s.at(addr)
		},
		"none": func(string) error { s.sim.Must("cuCtxSetCurrent", 0); return nil },
		"gone": func(string) error {
			s.sim.Must("cuCtxDestroy_v2", s.own)
			s.sim.Must("cuCtxSetCurrent", s.own)
			s.own = 1
			return nil
		},
		"other":   func(string) error { s.Cleanup(s.sim.WithContext(0)); return nil },
		"with":    s.with,
		"sync":    s.sync,
		"isSet":   is(func() bool { return hasSyncMemops(s.T, s.d, s.addr) }),
		"active":  is(s.active),
		"retains": is(func() bool { return slices.Contains(s.called, "cuDevicePrimaryCtxRetain") }),
		"sets":    is(func() bool { return slices.Contains(s.called, "cuPointerSetAttribute") }),
		"syncM":   func(string) error { return s.d.syncMemory(s.m, s.addr) },
		"noFDs":   func(string) error { withoutDescriptors(s, func() { s.run("with=EMFILE") }); return nil },
		"primary": func(ordinal string) error {
			n, err := strconv.Atoi(ordinal)
			require.NoError(s, err)
			return s.d.WithPrimary(n, func(*Driver) error { s.Error("fn ran"); return nil })
		},
	})
}

func TestScenes(t *testing.T) {
	for _, script := range []string{
		// The memory's context, whatever is current.
		"plain with:primary", "create:1 own none with:own", "create:1 own none other with:own",
		"plain other with:primary", "plain vmm other with:primary",
		"create:1 gone plain with:primary none", "create:1 gone plain vmm with:primary none",
		"plain vmm -cuCtxPushCurrent_v2=ENOMEM@1 with=ENOMEM", "plain vmm -cuDevicePrimaryCtxRetain=ENOMEM@1 with=ENOMEM",
		"primary:-1=ENODEV primary:64=ENODEV",
		// Nobody holds the primary context: the current one serves if it knows the memory, else the primary one for the time.
		"vmm active:false with:primary active:false noFDs", "vmm create:0 with:primary active:false", "vmm create:1 with:own active:false",
		"plain sync isSet:true",
		"plain other -cuPointerSetAttribute=ENOTSUP@1 sync +cuPointerSetAttribute isSet:false sync isSet:true",
		"plain other -cuPointerSetAttribute=EIO@1 sync=EIO~^WARN:.cannot.set.SYNC_MEMOPS.on.0x.....*\\n",
		"plain freed -cuPointerSetAttribute=EIO@1 syncM +cuPointerSetAttribute with=EINVAL",
		"nowhere sync=EIO~^WARN:.cannot.set.SYNC_MEMOPS.on.0x10,.*",
		// For memory that has no context of its own none is made to set an attribute that it does not have.
		"vmm active:false sync retains:false", "vmm create:1 sync sets:true retains:false",
	} {
		live := cudatest.Need(t).Live()
		ok := t.Run(script, func(t *testing.T) {
			s := &scene{T: t, sim: cudatest.Need(t), d: load1(t), own: 1}
			s.run(script)
		})
		require.True(t, ok)
		require.Equal(t, live, cudatest.Need(t).Live(), script)
	}
}

// What cannot be given back is told, and the call is good all the same.
func TestContextThatStays(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	plain := sim.MemAlloc(1, 4096)
	m, err := d.MemoryAt(plain)
	require.NoError(t, err)
	for _, c := range []struct {
		call, line string
		lends      func(func(*Driver) error) error
		argument   uintptr // of the call that does it after all
	}{
		{"cuCtxPopCurrent_v2", "a context of the library's choice stays current on this thread: ",
			func(fn func(*Driver) error) error { return d.WithMemory(m, plain, fn) }, cudatest.Address(new(uintptr))},
		{"cuDevicePrimaryCtxRelease_v2", "a reference to the primary context of CUDA device 1 is lost: ",
			func(fn func(*Driver) error) error { return d.WithPrimary(1, fn) }, 1},
	} {
		sim.Fail(c.call, int(ErrUnknown), 1)
		ran := 0
		lines := cudatest.Lines(t, func() {
			require.ErrorIs(t, c.lends(func(*Driver) error { ran++; return unix.EMLINK }), unix.EMLINK)
		})
		require.Equal(t, 1, ran)
		require.Regexp(t, "^WARN: "+c.line+".*"+c.call+".*CUDA_ERROR_UNKNOWN.*\n$", lines)
		sim.Heal(c.call)
		sim.Must(c.call, c.argument)
		require.Zero(t, sim.Current())
		require.Empty(t, cudatest.Lines(t, func() { require.NoError(t, c.lends(func(*Driver) error { return nil })) }))
	}
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

// withoutDescriptors calls f while the process cannot open a descriptor.
func withoutDescriptors(t testing.TB, f func()) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: old.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	f()
}
