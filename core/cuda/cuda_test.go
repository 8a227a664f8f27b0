package cuda

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
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

// The sizes and offsets of the driver API's structures on 64-bit machines.
func TestLayout(t *testing.T) {
	var p AllocationProp
	var a accessDesc
	for _, c := range []struct {
		what      string
		got, want uintptr
	}{
		{"sizeof CUmemLocation", unsafe.Sizeof(p.Location), 8},
		{"CUmemLocation.id", unsafe.Offsetof(p.Location.ID), 4},
		{"sizeof CUmemAllocationProp", unsafe.Sizeof(p), 32},
		{"requestedHandleTypes", unsafe.Offsetof(p.RequestedHandleTypes), 4},
		{"location", unsafe.Offsetof(p.Location), 8},
		{"win32HandleMetaData", unsafe.Offsetof(p.win32HandleMetaData), 16},
		{"allocFlags.compressionType", unsafe.Offsetof(p.compressionType), 24},
		{"allocFlags.gpuDirectRDMACapable", unsafe.Offsetof(p.gpuDirectRDMACapable), 25},
		{"allocFlags.usage", unsafe.Offsetof(p.usage), 26},
		{"sizeof CUmemAccessDesc", unsafe.Sizeof(a), 12},
		{"CUmemAccessDesc.flags", unsafe.Offsetof(a.flags), 8},
		{"sizeof CUmemGenericAllocationHandle", unsafe.Sizeof(MemHandle(0)), 8},
		{"sizeof CUdevice", unsafe.Sizeof(Device(0)), 4},
	} {
		require.Equal(t, c.want, c.got, c.what)
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

func TestBeforeInit(t *testing.T) {
	if !cudatest.InChild(t) {
		return
	}
	d := load1(t)
	v, err := d.Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, v, 10000)
	_, err = d.DeviceCount()
	require.ErrorIs(t, err, ErrNotInitialized)
	_, err = d.MemoryAt(1 << 20)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "CUDA is not initialised")
	_, err = d.DeviceCount()
	require.ErrorIs(t, err, ErrNotInitialized, "nothing above may have called cuInit")
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
				in.SetSyncMemops(of(c.addr), c.addr, c.addr+1)
				return nil
			}))
			require.Equal(t, was, idle.Current())
			require.ErrorIs(t, d.WithMemory(of(c.addr), c.addr, func(*Driver) error { return unix.EMLINK }), unix.EMLINK)
			require.Equal(t, was, idle.Current())
		})
	}
	for _, name := range []string{"cuCtxPushCurrent_v2", "cuDeviceGet", "cuDevicePrimaryCtxRetain"} {
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
	require.False(t, sim.PrimaryActive(1))
	inside := func(want uintptr, active bool) {
		t.Helper()
		was := sim.Current()
		require.NoError(t, d.WithMemory(m, vmm, func(*Driver) error {
			if want != 0 {
				require.Equal(t, want, sim.Current())
			}
			require.NotZero(t, sim.Current())
			require.Equal(t, active, sim.PrimaryActive(1))
			return nil
		}))
		require.Equal(t, was, sim.Current())
		require.ErrorIs(t, d.WithMemory(m, vmm, func(*Driver) error { return unix.EMLINK }), unix.EMLINK)
		require.Equal(t, was, sim.Current())
		require.False(t, sim.PrimaryActive(1))
	}
	inside(0, true)
	cudatest.WithoutDescriptors(t, func() {
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

// setSyncMemops sets the attribute on one memory.
func setSyncMemops(d *Driver, addr uint64) error {
	on := int32(1)
	return d.call(symPointerSetAttribute, &on, SyncMemops, addr)
}

func TestSetSyncMemops(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 4096)
	m, err := d.MemoryAt(p)
	require.NoError(t, err)
	set := func() {
		require.NoError(t, d.WithMemory(m, p, func(in *Driver) error {
			in.SetSyncMemops(m, p, p+1)
			return nil
		}))
	}
	set()
	v, err := d.PointerAttribute(SyncMemops, p)
	require.NoError(t, err)
	require.Equal(t, 1, v)

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
		ErrUnknown:      fmt.Sprintf("WARN: the CUDA driver cannot set SYNC_MEMOPS for %#x; ", p),
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
	m.ID++ // its memory was freed, and the address is another's
	sim.Fail("cuPointerSetAttribute", int(ErrUnknown), 1)
	require.Empty(t, cudatest.Lines(t, set))
	sim.Heal("cuPointerSetAttribute")
}

// neighbour is a memory of a fake driver: what kind it is, and where on its GPU page.
type neighbour struct {
	context Context // of cuMemAlloc's memory; 0: a pool's
	at, end uint64
	gone    bool // it is freed once it was described
}

// crowded is a driver whose memory is that of the list. *calls notes what it is asked to do, *asked
// how often it is asked about memory. The primary context is 9.
func crowded(list []neighbour, calls *[]string, asked *int) *Driver {
	find := func(addr uintptr) (id uint64, n neighbour) {
		for i, n := range list {
			if uint64(addr) >= base+n.at && uint64(addr) < base+n.end {
				return uint64(i + 1), n
			}
		}
		return 0, neighbour{}
	}
	var current []Context
	freed := map[uint64]bool{}
	d := with(symPointerGetAttribute, func(v *uint64, a PointerAttribute, addr uintptr) uintptr {
		*asked++
		if *v, _ = find(addr); *v == 0 || freed[*v] {
			return uintptr(ErrInvalidValue)
		}
		return 0
	})
	d.fn[symPointerGetAttributes] = purego.NewCallback(func(n uintptr, names *[10]PointerAttribute, places *[10]unsafe.Pointer, addr uintptr) uintptr {
		*asked++
		id, m := find(addr)
		*(*int32)(places[1]) = -2
		if id == 0 {
			return 0
		}
		freed[id] = m.gone
		*(*int32)(places[0]), *(*int32)(places[1]) = MemoryTypeDevice, 0
		if m.context != 0 {
			*(*int32)(places[3]) = 1
		}
		for i, v := range []uint64{base + m.at, m.end - m.at, uint64(m.context), id, base, 2 << 20} {
			*(*uint64)(places[4+i]) = v
		}
		return 0
	})
	d.fn[symPointerSetAttribute] = purego.NewCallback(func(v *int32, a PointerAttribute, addr uintptr) uintptr {
		id, m := find(addr)
		if *v != 1 || a != SyncMemops || id == 0 || freed[id] {
			return uintptr(ErrInvalidValue)
		}
		*calls = append(*calls, fmt.Sprintf("%#x in %d", m.at, current[len(current)-1]))
		return 0
	})
	d.fn[symCtxPushCurrent] = purego.NewCallback(func(c Context) uintptr { current = append(current, c); return 0 })
	d.fn[symCtxPopCurrent] = purego.NewCallback(func(*Context) uintptr { current = current[:len(current)-1]; return 0 })
	d.fn[symDeviceGet] = purego.NewCallback(func(*Device, int32) uintptr { return 0 })
	d.fn[symDevicePrimaryCtxGetState] = purego.NewCallback(func(dev Device, flags *uint32, active *int32) uintptr { *active = 1; return 0 })
	d.fn[symDevicePrimaryCtxRetain] = purego.NewCallback(func(c *Context, dev Device) uintptr { *c = 9; return 0 })
	d.fn[symDevicePrimaryCtxRelease] = purego.NewCallback(func(Device) uintptr { return 0 })
	return d
}

// What lies on the GPU page before the caller's memory, and what is asked for: the caller's bytes
// get the attribute, and so does all other memory in the range, each in its own context.
func TestSyncMemopsOfEachMemoryInARange(t *testing.T) {
	const end = 0x8400
	for start, first := range map[string]*neighbour{
		"free":          nil,
		"cuMemAlloc":    {context: 1, at: 0, end: 0x700},
		"pool":          {at: 0, end: 0x400},
		"other context": {context: 2, at: 0, end: 0x700},
		"freed":         {context: 1, at: 0, end: 0x700, gone: true},
	} {
		for own, mine := range map[string]neighbour{
			"cuMemAlloc": {context: 1, at: 0x8000, end: end},
			"pool":       {at: 0x8000, end: end},
		} {
			own, want := own, "0x8000 in 1"
			if mine.context == 0 {
				want = "0x8000 in 9"
			}
			list := []neighbour{mine, {context: 3, at: 0x9000, end: 0x9100}}
			before := []string{want}
			if first != nil {
				list = append(list, *first)
				in := max(first.context, 9*(1-min(first.context, 1)))
				before = []string{fmt.Sprintf("0x0 in %d", in), want}
				if first.gone {
					before = []string{want}
				}
			}
			for _, c := range []struct {
				what      string
				from, end uint64
				want      []string
			}{
				{"the caller's bytes alone", 0x8010, 0x8050, []string{want}},
				{"all of the caller's memory", 0x8000, end, []string{want}},
				{"from the page's start on", 0, 0x8040, before},
				{"the page", 0, 1 << 16, append(slices.Clone(before), "0x9000 in 3")},
				{"past the caller's memory", 0x8000, 0x9001, []string{want, "0x9000 in 3"}},
			} {
				t.Run(start+"/"+own+"/"+c.what, func(t *testing.T) {
					var calls []string
					var asked int
					d := crowded(list, &calls, &asked)
					m, at, err := d.MemoryIn(base+c.from, c.end-c.from)
					require.NoError(t, err)
					lines := cudatest.Lines(t, func() {
						require.NoError(t, d.WithMemory(m, at, func(in *Driver) error {
							in.SetSyncMemops(m, at, base+c.end)
							return nil
						}))
					})
					require.Equal(t, c.want, calls)
					require.Empty(t, lines)
					if len(c.want) == 1 && c.from >= 0x8000 {
						require.Equal(t, 1, asked, "one memory fills the range")
					}
				})
			}
		}
	}
}

// A capture in the global mode, of this thread and of another one. Each call would lose it.
func TestRelaxed(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 4096)
	m, err := d.MemoryAt(p)
	require.NoError(t, err)
	leave := sim.WithContext(0)
	defer leave()
	var stream uintptr
	sim.Must("cuStreamCreate", uintptr(unsafe.Pointer(&stream)), streamNonBlocking)
	const global, active = 0, 1
	mode := func() (m int32) {
		sim.Must("cuThreadExchangeStreamCaptureMode", uintptr(unsafe.Pointer(&m)))
		other := m
		sim.Must("cuThreadExchangeStreamCaptureMode", uintptr(unsafe.Pointer(&other)))
		return m
	}
	sim.Must("cuStreamBeginCapture_v2", stream, global)
	for what, call := range map[string]func(in *Driver) error{
		"SYNC_MEMOPS": func(in *Driver) error { return setSyncMemops(in, p) },
		"a copy":      func(in *Driver) error { return in.ReadBack(make([]byte, 64), p) },
		"cuMemAlloc": func(in *Driver) error {
			_, err := in.MemAlloc(4096)
			return err
		},
		"an error": func(in *Driver) error {
			require.Error(t, setSyncMemops(in, 1))
			return nil
		},
	} {
		require.NoError(t, call(d), what)
		require.Zero(t, mode(), what)
		require.NoError(t, d.WithMemory(m, p, call), what)
		require.Zero(t, mode(), what)
		require.ErrorIs(t, d.Relaxed(func(in *Driver) error {
			require.EqualValues(t, captureModeRelaxed, mode(), what)
			require.NoError(t, call(in), what)
			return in.Relaxed(func(*Driver) error { return unix.EMLINK })
		}), unix.EMLINK)
		require.Zero(t, mode(), what)
		var status int32
		sim.Must("cuStreamIsCapturing", stream, uintptr(unsafe.Pointer(&status)))
		require.EqualValues(t, active, status, what)
	}
	var graph uintptr
	sim.Must("cuStreamEndCapture", stream, uintptr(unsafe.Pointer(&graph)))
	sim.Must("cuGraphDestroy", graph)
	sim.Must("cuStreamDestroy_v2", stream)

	// A driver without the function, and one that fails it.
	old := &Driver{fn: new(functions)}
	*old.fn = *d.fn
	old.fn[symThreadExchangeStreamCaptureMode] = 0
	require.NoError(t, old.Relaxed(func(in *Driver) error { return setSyncMemops(in, p) }))
	for nth := 1; nth <= 2; nth++ {
		sim.Fail("cuThreadExchangeStreamCaptureMode", int(ErrNotPermitted), nth)
		require.NoError(t, setSyncMemops(d, p))
		sim.Heal("cuThreadExchangeStreamCaptureMode")
		back := int32(global)
		sim.Must("cuThreadExchangeStreamCaptureMode", uintptr(unsafe.Pointer(&back)))
	}
}

func TestAlloc(t *testing.T) {
	sim := cudatest.Need(t)
	before, fds := sim.Live(), cudatest.FDs(t)
	for _, device := range []int{0, 1} {
		for _, size := range []uint64{1, 65536, 2 << 20, 2<<20 + 1} {
			a, err := Alloc(device, size)
			require.NoError(t, err)
			const granule = 2 << 20 // of the simulated driver
			require.Equal(t, (size+granule-1)&^(granule-1), a.Size(), "no more than the next granule")
			require.Zero(t, a.Ptr()%(64<<10))
			last := a.Ptr() + a.Size() - 8
			sim.HtoD(device, last, []byte("in place"))
			require.Equal(t, "in place", string(sim.DtoH(device, last, 8)))
			require.NoError(t, a.Free())
		}
	}
	require.Equal(t, before, sim.Live())
	require.Equal(t, fds, cudatest.FDs(t))
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
		{"cuMemMap", 1}, {"cuMemSetAccess", 1},
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

func TestOutOfDescriptors(t *testing.T) {
	sim := cudatest.Need(t)
	a, err := Alloc(0, 1<<20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Free()) })
	d := a.driver
	h, err := d.MemRetainAllocationHandle(a.Ptr())
	require.NoError(t, err)
	defer func() { require.NoError(t, d.MemRelease(h)) }()

	var full error
	cudatest.WithoutDescriptors(t, func() { _, full = d.MemExport(h) })
	require.ErrorIs(t, full, unix.EMFILE)
	require.ErrorContains(t, full, "RLIMIT_NOFILE")

	sim.Fail("cuMemExportToShareableHandle", int(ErrOperatingSystem), 1)
	_, err = d.MemExport(h)
	require.ErrorIs(t, err, unix.EIO, "with descriptors left it is the driver's own error")

	fd, err := d.MemExport(h)
	require.NoError(t, err)
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
}
