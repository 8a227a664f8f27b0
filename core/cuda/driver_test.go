package cuda

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// moves says whether this goroutine comes to another thread, as others take threads for
// themselves.
func moves(rounds int) bool {
	before := unix.Gettid()
	for range rounds {
		release := make(chan bool)
		var ready sync.WaitGroup
		for range 4 {
			ready.Add(1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				ready.Done()
				<-release
			}()
		}
		ready.Wait()
		now := unix.Gettid()
		close(release)
		if now != before {
			return true
		}
	}
	return false
}

// The capture mode is exchanged once around a Relaxed, on one thread, and what was is put
// back. Where it cannot be exchanged, or the driver has no modes, the calls are made all the
// same, and on one thread: they may change its current context.
func TestCaptureModeIsPutBack(t *testing.T) {
	const before = 1
	for _, c := range []struct {
		fails int // the exchange that fails; -1: there is none
		want  []string
		line  string
	}{
		{0, []string{"exchange 2", "unmap 16 32", "unmap 16 32", "exchange 1"}, ""},
		{1, []string{"exchange 2", "unmap 16 32", "unmap 16 32"}, ""},
		{-1, []string{"unmap 16 32", "unmap 16 32"}, ""},
		{2, []string{"exchange 2", "unmap 16 32", "unmap 16 32", "exchange 1"}, "WARN: this thread's stream capture mode stays relaxed: cuThreadExchangeStreamCaptureMode: "},
	} {
		r := &recorder{t: t}
		threads := map[int]bool{}
		exchanges := 0
		d := with(symThreadExchangeStreamCaptureMode, func(mode *int32) uintptr {
			r.note("exchange", *mode)
			threads[unix.Gettid()] = true
			if exchanges++; exchanges == c.fails {
				return uintptr(ErrUnknown)
			}
			*mode = before
			return 0
		})
		if c.fails < 0 {
			d.fn[symThreadExchangeStreamCaptureMode] = 0
		}
		d.fn[symMemUnmap] = purego.NewCallback(func(addr, size uint64) uintptr {
			threads[unix.Gettid()] = true
			return r.note("unmap", addr, size)
		})
		lines := cudatest.Lines(t, func() {
			require.ErrorIs(t, d.Relaxed(func(in *Driver) error {
				require.NoError(t, in.memUnmap(16, 32))
				require.False(t, moves(50), "the mode and the current context are the thread's")
				require.NoError(t, in.Relaxed(func(in *Driver) error { return in.memUnmap(16, 32) }))
				return unix.EMLINK
			}), unix.EMLINK)
		})
		require.Equal(t, c.want, r.calls)
		require.Contains(t, lines, c.line)
		require.Equal(t, c.line == "", lines == "", lines)
		require.Len(t, threads, 1)
		require.True(t, moves(1000), "afterwards the goroutine has no thread of its own")
	}
}

// A loader that fails is asked again, and one that has loaded is not.
func TestLoader(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	saved := loader
	var failure error = unix.EMLINK
	loads, loaded := 0, false
	UseLoader(Loader{
		Load:   func() error { loads++; return failure },
		Loaded: func() bool { return loaded },
		Find: func(asked []string) []uintptr {
			require.Equal(t, names[:], asked)
			return saved.Find(asked)
		},
	})
	for n := 1; n <= 2; n++ {
		d, err := Load()
		require.Nil(t, d)
		require.ErrorIs(t, err, unix.EMLINK)
		require.ErrorContains(t, err, "cannot load the CUDA driver")
		require.Equal(t, n, loads)
	}
	_, err := Loaded()
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.Equal(t, 2, loads)
	loaded = true
	_, err = Loaded()
	require.ErrorIs(t, err, unix.EMLINK)
	require.Equal(t, 3, loads)
	_, err = Alloc(0, 1)
	require.ErrorIs(t, err, unix.EMLINK)
	failure = nil
	d, err := Load()
	require.NoError(t, err)
	failure, loaded = unix.EMLINK, false
	for _, load := range []func() (*Driver, error){Load, Loaded} {
		again, err := load()
		require.NoError(t, err)
		require.Same(t, d, again)
	}
	require.Equal(t, 5, loads)
}

// The usual loader, where there is no driver.
func TestNoDriver(t *testing.T) {
	if !cudatest.InChild(t, "LD_LIBRARY_PATH="+os.DevNull) {
		return
	}
	if _, err := purego.Dlopen(library, purego.RTLD_NOW); err == nil {
		return // one is installed
	}
	require.ErrorIs(t, loader.Load(), unix.ENODEV)
	require.False(t, loader.Loaded())
	require.Equal(t, []uintptr{0, 0}, loader.Find([]string{"cuInit", "cuDriverGetVersion"}))
	_, err := Load()
	require.ErrorIs(t, err, unix.ENODEV)
	require.ErrorContains(t, err, library)
	_, err = Loaded()
	require.ErrorIs(t, err, unix.ENOTSUP)
}

// Of a driver's functions those that it lacks have no address.
func TestFind(t *testing.T) {
	cudatest.NeedRaw(t)
	found := loader.Find([]string{"cuNothing", "cuInit", "cuNothing_v2"})
	require.Zero(t, found[0])
	require.Equal(t, load1(t).fn[symInit], found[1])
	require.Zero(t, found[2])
}

// A child that was forked after cuInit is told so, by another errno than an address is.
func TestInitInAForkedChild(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	for result, want := range map[Result]unix.Errno{ErrNotInitialized: unix.ENODEV, ErrNoDevice: unix.ENODEV, ErrUnknown: unix.EIO} {
		sim.Fail("cuInit", int(result), 1)
		err := d.Init()
		require.ErrorIs(t, err, want)
		if result == ErrNotInitialized {
			require.NotErrorIs(t, err, unix.EINVAL)
			require.ErrorContains(t, err, "forked after its parent initialised it")
			require.ErrorContains(t, err, result.Error())
		} else {
			require.ErrorIs(t, err, result)
		}
		sim.Heal("cuInit")
	}
	require.NoError(t, d.Init())
}

// What a device can do decides what memory it is asked for.
func TestPropertiesOfAnAllocation(t *testing.T) {
	const vmm, file, rdma = VMMSupported, PosixFDSupported, RDMAWithVMMSupported
	for _, c := range []struct {
		has  []DeviceAttribute
		line string
		rdma uint8
	}{
		{[]DeviceAttribute{vmm, file, rdma}, "", 1},
		{[]DeviceAttribute{vmm, file}, "", 0},
		{[]DeviceAttribute{file, rdma}, "CUDA device 6 has no virtual memory management", 0},
		{[]DeviceAttribute{vmm, rdma}, "CUDA device 6 has no memory that is exported as a file descriptor", 0},
		{nil, "no virtual memory management", 0},
	} {
		d := with(symDeviceGet, func(dev *int32, ordinal int32) uintptr { *dev = ordinal + 10; return 0 })
		d.fn[symDeviceGetAttribute] = purego.NewCallback(func(v *int32, a DeviceAttribute, dev int32) uintptr {
			require.EqualValues(t, 16, dev)
			for _, has := range c.has {
				if has == a {
					*v = 3
				}
			}
			return 0
		})
		got, err := d.exportableProp(6)
		if c.line != "" {
			require.ErrorIs(t, err, unix.ENOTSUP)
			require.ErrorContains(t, err, c.line)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, AllocationProp{
			Type: 1, RequestedHandleTypes: 1, Location: Location{Type: 1, ID: 6}, gpuDirectRDMACapable: c.rdma,
		}, got)
	}
}

func TestGranularity(t *testing.T) {
	want := &AllocationProp{Type: 1, Location: Location{1, 4}}
	for _, c := range []struct {
		g      uint64
		result Result
		err    error
	}{{2 << 20, 0, nil}, {1, 0, nil}, {0, 0, unix.EIO}, {0, ErrNotPermitted, unix.EPERM}} {
		d := with(symMemGetAllocationGranularity, func(g *uint64, prop *AllocationProp, minimum uint32) uintptr {
			require.Equal(t, want, prop)
			require.Zero(t, minimum)
			*g = c.g
			return uintptr(c.result)
		})
		g, err := d.allocationGranularity(want)
		require.ErrorIs(t, err, c.err)
		if c.err == nil {
			require.Equal(t, c.g, g)
		}
	}
}

// Attributes of an address, each by its number.
func TestAddressAttributes(t *testing.T) {
	refused := PointerAttribute(0)
	d := with(symPointerGetAttribute, func(v *uint64, a PointerAttribute, addr uint64) uintptr {
		require.EqualValues(t, 0x20000, addr)
		if a == refused {
			return uintptr(ErrNotPermitted)
		}
		*v = map[PointerAttribute]uint64{7: 1<<40 + 5, 11: 0x700000010000, 12: 3 << 33}[a]
		return 0
	})
	require.Equal(t, d.fn[symPointerGetAttribute], d.PointerGetAttribute())
	id, err := d.BufferID(0x20000)
	require.NoError(t, err)
	require.EqualValues(t, 1<<40+5, id)
	base, size, err := d.AllocationRange(0x20000)
	require.NoError(t, err)
	require.Equal(t, []uint64{0x700000010000, 3 << 33}, []uint64{base, size})
	for _, refused = range []PointerAttribute{11, 12} {
		_, _, err = d.AllocationRange(0x20000)
		require.ErrorIs(t, err, unix.EPERM, fmt.Sprint(refused))
	}
	refused = 7
	_, err = d.BufferID(0x20000)
	require.ErrorIs(t, err, unix.EPERM)
}

// Whether a primary context is active, as far as the driver says.
func TestPrimaryIsActive(t *testing.T) {
	for _, c := range []struct {
		active int32
		result Result
		want   bool
	}{{0, 0, false}, {1, 0, true}, {1, ErrUnknown, false}} {
		d := with(symDevicePrimaryCtxGetState, func(dev int32, flags *uint32, active *int32) uintptr {
			require.EqualValues(t, 3, dev)
			*flags, *active = 8, c.active
			return uintptr(c.result)
		})
		require.Equal(t, c.want, d.primaryIsActive(3))
	}
}

// Each call gives the driver's error, with the function's name, and an error that tells of a
// function that is not there.
func TestEveryCallGivesItsError(t *testing.T) {
	refuse := purego.NewCallback(func() uintptr { return uintptr(ErrNotPermitted) })
	last := func(_ any, err error) error { return err }
	for s, call := range map[symbol]func(d *Driver) error{
		symInit:                                 func(d *Driver) error { return d.Init() },
		symDriverGetVersion:                     func(d *Driver) error { return last(d.Version()) },
		symDeviceGetCount:                       func(d *Driver) error { return last(d.DeviceCount()) },
		symDeviceGet:                            func(d *Driver) error { return last(d.Device(0)) },
		symDeviceGetAttribute:                   func(d *Driver) error { return last(d.DeviceAttribute(VMMSupported, 0)) },
		symDeviceGetPCIBusID:                    func(d *Driver) error { return last(d.PCIAddress(0)) },
		symCtxPushCurrent:                       func(d *Driver) error { return d.ctxPushCurrent(1) },
		symCtxPopCurrent:                        func(d *Driver) error { return d.ctxPopCurrent() },
		symDevicePrimaryCtxRetain:               func(d *Driver) error { return last(d.primaryCtxRetain(0)) },
		symDevicePrimaryCtxRelease:              func(d *Driver) error { return d.primaryCtxRelease(0) },
		symPointerGetAttribute:                  func(d *Driver) error { return last(d.PointerAttribute(MemoryType, 16)) },
		symPointerGetAttributes:                 func(d *Driver) error { return last(d.MemoryAt(16)) },
		symPointerSetAttribute:                  func(d *Driver) error { return d.setPointerAttribute(SyncMemops, 16, 1) },
		symMemGetAddressRange:                   func(d *Driver) error { _, _, err := d.MemGetAddressRange(16); return err },
		symMemGetHandleForAddressRange:          func(d *Driver) error { return last(d.MemExportRange(0, 4096, false)) },
		symIPCGetMemHandle:                      func(d *Driver) error { return last(d.IPCHandle(16)) },
		symMemRetainAllocationHandle:            func(d *Driver) error { return last(d.MemRetainAllocationHandle(16)) },
		symMemGetAllocationPropertiesFromHandle: func(d *Driver) error { return last(d.MemGetAllocationProperties(1)) },
		symMemExportToShareableHandle:           func(d *Driver) error { return last(d.MemExport(1)) },
		symMemGetAllocationGranularity:          func(d *Driver) error { return last(d.allocationGranularity(new(AllocationProp))) },
		symMemCreate:                            func(d *Driver) error { return last(d.memCreate(1, new(AllocationProp))) },
		symMemRelease:                           func(d *Driver) error { return d.MemRelease(1) },
		symMemAddressReserve:                    func(d *Driver) error { return last(d.memAddressReserve(1)) },
		symMemAddressFree:                       func(d *Driver) error { return d.memAddressFree(1, 1) },
		symMemMap:                               func(d *Driver) error { return d.memMap(1, 1, 1) },
		symMemUnmap:                             func(d *Driver) error { return d.memUnmap(1, 1) },
		symMemSetAccess:                         func(d *Driver) error { return d.memSetAccess(1, 1, Location{}) },
		symStreamCreate:                         func(d *Driver) error { return d.ReadBack(make([]byte, 8), 16) },
		symMemAlloc:                             func(d *Driver) error { return last(d.MemAlloc(1)) },
	} {
		d := &Driver{fn: new(functions)}
		err := call(d)
		require.ErrorIs(t, err, unix.ENOTSUP, names[s])
		require.ErrorContains(t, err, "it has no "+names[s])
		d.fn[s] = refuse
		err = call(d)
		require.ErrorIs(t, err, ErrNotPermitted, names[s])
		require.ErrorContains(t, err, names[s]+": ")
	}
}
