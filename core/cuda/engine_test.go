package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memories is a driver that knows a list of memories, in pages of 4 KiB from base on. A
// memory of cuMemAlloc is a part of its block, which is the mapping; VMM memory is a mapping
// in a reservation, which is the range.
type memories struct {
	list  []memory
	old   bool // it does not know what a mapping is
	fails Result
	moved int64 // by so many pages the driver puts each memory elsewhere
	calls int
}

type memory struct{ id, start, size, mapping, mappingSize uint64 }

const (
	page = 4096
	base = 0x700000000000
)

func (m *memories) attributes(n uintptr, names *[10]PointerAttribute, places *[10]unsafe.Pointer, addr uintptr) uintptr {
	m.calls++
	if m.fails != 0 {
		return uintptr(m.fails)
	}
	if m.old && n == 10 {
		return uintptr(ErrInvalidValue)
	}
	var at memory
	for _, x := range m.list {
		if p := (uint64(addr) - base) / page; p-x.start < x.size && p-x.mapping < x.mappingSize {
			at = x
		}
	}
	for i := range n {
		var v uint64
		switch {
		case names[i] == DeviceOrdinal:
			*(*int32)(places[i]) = -2
			v = 3
			if at.id == 14 {
				v = 4
			}
		case at == memory{}:
		case names[i] == MemoryType:
			v = MemoryTypeDevice
		case names[i] == bufferID:
			v = at.id
		case names[i] == rangeStartAddr:
			v = base + (at.start+uint64(m.moved))*page
		case names[i] == rangeSize:
			v = at.size * page
		case names[i] == mappingBaseAddr:
			v = base + (at.mapping+uint64(m.moved))*page
		case names[i] == mappingSize:
			v = at.mappingSize * page
		}
		if at == (memory{}) {
			continue
		}
		switch names[i] {
		case MemoryType, DeviceOrdinal, isManaged, isLegacyIPCCapable:
			*(*int32)(places[i]) = int32(v)
		default:
			*(*uint64)(places[i]) = v
		}
	}
	return 0
}

func TestMemoriesIn(t *testing.T) {
	defer func(was bool) { noMappings.Store(was) }(noMappings.Load())
	fake := &memories{}
	d := with(symPointerGetAttributes, fake.attributes)
	// A block with two memories in it, a page, a reservation with two mappings.
	usual := []memory{
		{11, 16, 16, 0, 512},
		{12, 32, 1, 0, 512},
		{13, 1024, 2048, 1024, 512},
		{14, 1024, 2048, 1536, 1024},
		{15, 601, 1, 601, 1},
	}
	a, b, c, e, f := [3]uint64{16, 32, 11}, [3]uint64{32, 33, 12}, [3]uint64{1024, 1536, 13}, [3]uint64{1536, 2560, 14}, [3]uint64{601, 602, 15}
	for _, x := range []struct {
		what        string
		addr, bytes uint64 // from base on
		with        memories
		want        [][3]uint64 // pages, and the ID
		calls       int         // at most
	}{
		{"a memory", 16 * page, 16 * page, memories{}, [][3]uint64{a}, 1},
		{"one byte in its midst", 20*page + 5, 1, memories{}, [][3]uint64{a}, 1},
		{"two of one block, and free space", 16 * page, 32 * page, memories{}, [][3]uint64{a, b}, 17},
		{"an old driver", 16 * page, 32 * page, memories{old: true}, [][3]uint64{a, b}, 34},
		{"two mappings of a reservation", 1024 * page, 1536 * page, memories{}, [][3]uint64{c, e}, 2},
		{"of which an old driver says but the reservation", 1024 * page, 1536 * page, memories{old: true}, [][3]uint64{{1024, 3072, 13}}, 2},
		{"free space, and the first 50 bytes of a memory", page + 100, 15*page - 50, memories{}, [][3]uint64{a}, 16},
		{"free space alone", page + 100, 15*page - 100, memories{}, nil, 15},
		{"much free space", 602 * page, 400 * page, memories{}, nil, 64},
		{"63 pages of free space, and a memory", (1024 - 63) * page, 64 * page, memories{}, [][3]uint64{c}, 64},
		{"a page of free space, and a memory of a page", 600 * page, 2 * page, memories{}, [][3]uint64{f}, 2},
		{"memories, and much free space behind them", 31 * page, 1000 * page, memories{}, [][3]uint64{a, b}, 66},
		{"a driver that fails", 16 * page, 16 * page, memories{fails: ErrIllegalAddress}, nil, 16},
		{"a driver that puts it behind the address", 16 * page, page, memories{moved: 32}, nil, 1},
		{"a driver that puts it before the address", 16 * page, page, memories{moved: -32}, nil, 1},
		{"a driver that has it end at the address", 31 * page, page, memories{moved: -1}, nil, 1},
	} {
		t.Run(x.what, func(t *testing.T) {
			noMappings.Store(false)
			*fake = x.with
			fake.list = usual
			ordinal, got := d.MemoriesIn(base+x.addr, x.bytes)
			var want []Extent
			for _, w := range x.want {
				want = append(want, Extent{base + w[0]*page, base + w[1]*page, w[2]})
			}
			require.Equal(t, want, got)
			if want != nil {
				require.Equal(t, 3, ordinal)
			}
			require.LessOrEqual(t, fake.calls, x.calls)
		})
	}
	*fake = memories{list: []memory{{0, 16, 16, 0, 512}}}
	_, got := d.MemoriesIn(base+16*page, 16*page)
	require.Empty(t, got, "memory that has no number is none")
	*fake = memories{}
	for i := range uint64(4097) {
		fake.list = append(fake.list, memory{i + 1, i, 1, i, 1})
	}
	for n, want := range map[uint64]int{4095: 4095, 4096: 4096, 4097: 4096} {
		_, got = d.MemoriesIn(base, n*page)
		require.Len(t, got, want)
	}
}

func TestEngineOf(t *testing.T) {
	if !cudatest.InChild(t) { // engines stay
		return
	}
	sim := cudatest.Need(t)
	d := load1(t)
	s := Staging{Size: 1 << 20, Word: 4096}
	defer sim.WithContext(1)()
	current := sim.Current()
	before := sim.Live()
	calls := func(name string) int {
		text := append([]byte(name), 0)
		return int(sim.Call("cuda_sim_calls", uintptr(unsafe.Pointer(&text[0]))))
	}
	for _, name := range []string{"cuStreamDestroy_v2", "cuMemHostUnregister", "cuDevicePrimaryCtxRelease_v2"} {
		sim.Fail(name, int(ErrUnknown), math.MaxInt32) // has it counted
	}
	released := func() int { return calls("cuDevicePrimaryCtxRelease_v2") }

	for _, name := range []string{
		"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate",
		"cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2",
	} {
		sim.Fail(name, int(ErrNotSupported), 1)
		e, err := d.EngineOf(0, nil, s)
		require.ErrorIs(t, err, ErrNotSupported, name)
		require.ErrorContains(t, err, name)
		require.Nil(t, e, name)
		require.Equal(t, before, sim.Live(), name)
		require.Equal(t, current, sim.Current(), name)
		sim.Heal(name)
	}
	require.Equal(t, 2, calls("cuStreamDestroy_v2"))
	require.Equal(t, 1, calls("cuMemHostUnregister"))
	require.Equal(t, 4, released(), "what fails keeps no context")
	require.False(t, sim.PrimaryActive(0))

	e, err := d.EngineOf(0, nil, s)
	require.NoError(t, err)
	require.NotZero(t, e.Context)
	require.NotZero(t, e.Stream)
	require.True(t, e.WritesWords)
	require.EqualValues(t, 1, loadWord(e.Staging+s.Word))
	require.Equal(t, current, sim.Current())
	require.Equal(t, 4, released(), "a new engine keeps its context")
	live := sim.Live()
	again, err := d.EngineOf(0, e, s)
	require.NoError(t, err)
	require.Same(t, e, again)
	require.Equal(t, live, sim.Live(), "an engine that lives takes nothing more")
	require.Equal(t, 5, released())
	sim.Fail("cuDevicePrimaryCtxRelease_v2", int(ErrNotPermitted), 1)
	_, err = d.EngineOf(0, e, s)
	require.ErrorIs(t, err, ErrNotPermitted)
	sim.Heal("cuDevicePrimaryCtxRelease_v2")
	sim.Must("cuDevicePrimaryCtxRelease_v2", 0)
	require.True(t, sim.PrimaryActive(0))

	sim.Fail("cuStreamWriteValue32_v2", int(ErrNotSupported), 1)
	other, err := d.EngineOf(1, nil, s)
	require.NoError(t, err)
	require.False(t, other.WritesWords)
	require.NotEqual(t, e.Context, other.Context)

	var dev int32
	sim.Must("cuDeviceGet", uintptr(unsafe.Pointer(&dev)), 0)
	sim.Must("cuDevicePrimaryCtxReset_v2", uintptr(dev))
	renewed, err := d.EngineOf(0, e, s)
	require.NoError(t, err)
	require.NotSame(t, e, renewed)
	require.True(t, renewed.WritesWords)
}

// marker has memory that a test marks, and finds out whether it is still there. The kernel
// reads it: what was unmapped may be another's by now.
type marker struct {
	t    *testing.T
	file int
}

const mark = 0x6d61726b

func (m marker) set(addr uintptr) { *(*uint32)(sys.Pointer(addr)) = mark }

func (m marker) has(addr uintptr) bool {
	_, _, errno := unix.Syscall6(unix.SYS_PWRITE64, uintptr(m.file), addr, 4, 0, 0, 0)
	if errno == unix.EFAULT {
		return false
	}
	require.Zero(m.t, errno)
	var b [4]byte
	_, err := unix.Pread(m.file, b[:], 0)
	require.NoError(m.t, err)
	return binary.NativeEndian.Uint32(b[:]) == mark
}

// What an engine is made of, and that each part goes, the last first, even where another one
// cannot.
func TestNewEngineIsUndone(t *testing.T) {
	const stream, size = 0x5000, 1 << 20
	file, err := unix.MemfdCreate("marks", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(file)
	m := marker{t, file}
	r := &recorder{t: t}
	var staging uintptr
	d := with(symStreamCreate, func(s *uintptr, flags uint32) uintptr {
		*s = stream
		return r.note("create", flags)
	})
	for s, fn := range map[symbol]any{
		symMemHostRegister: func(addr, n uintptr, flags uint32) uintptr {
			staging = addr
			m.set(addr)
			m.set(addr + n - 4)
			return r.note("register", n, flags)
		},
		symMemHostGetDevicePointer: func(at *uint64, addr uintptr, flags uint32) uintptr {
			require.Equal(t, staging, addr)
			*at = 0xd0000000
			return r.note("pointer", flags)
		},
		symMemHostUnregister: func(addr uintptr) uintptr {
			require.Equal(t, staging, addr)
			require.True(t, m.has(addr), "page-locked memory is not unmapped")
			return r.note("unregister")
		},
		symStreamDestroy: func(s uintptr) uintptr {
			require.EqualValues(t, stream, s)
			require.False(t, m.has(staging) || m.has(staging+size-4))
			return r.note("destroy")
		},
		symStreamWriteValue32: func(s, at uintptr, value, flags uint32) uintptr {
			return r.note("write", s, at-0xd0000000, value, flags)
		},
		symStreamSynchronize: func(s uintptr) uintptr { return r.note("wait", s) },
	} {
		d.fn[s] = purego.NewCallback(fn)
	}
	create, register, pointer := "create 1", fmt.Sprint("register ", size, " 2"), "pointer 0"
	for _, c := range []struct {
		fails string
		size  uintptr
		want  []string
	}{
		{"create", size, []string{create}},
		{"memory", 1 << 60, []string{create, "destroy"}},
		{"register", size, []string{create, register, "destroy"}},
		{"pointer", size, []string{create, register, pointer, "unregister", "destroy"}},
		{"nothing", size, []string{create, register, pointer, fmt.Sprint("write ", stream, " 64 1 0"), fmt.Sprint("wait ", stream)}},
	} {
		for _, stuck := range [][]string{nil, {"unregister"}, {"destroy"}, {"unregister", "destroy"}} {
			staging = 0
			r.calls, r.refused = nil, map[string]Result{c.fails: ErrNotPermitted}
			lost := 0
			for _, s := range stuck {
				r.refused[s] = ErrUnknown
				if slices.Contains(c.want, s) {
					lost++
				}
			}
			var e *Engine
			var err error
			lines := cudatest.Lines(t, func() { e, err = d.newEngine(9, Staging{Size: c.size, Word: 64}) })
			require.Equal(t, c.want, r.calls, c.fails)
			require.Equal(t, lost, strings.Count(lines, "WARN: a stream, or page-locked memory, is lost: cu"), lines)
			require.Equal(t, lost, strings.Count(lines, "\n"), lines)
			switch c.fails {
			case "nothing":
				require.NoError(t, err)
				require.Equal(t, &Engine{Context: 9, Stream: stream, Staging: staging, StagingAt: 0xd0000000}, e)
				require.Contains(t, cudatest.VMFlags(t, staging), "dc", "no child inherits it")
				require.NoError(t, unmap(staging, size))
				require.False(t, m.has(staging) || m.has(staging+size-4))
			case "memory":
				require.ErrorIs(t, err, unix.ENOMEM)
			default:
				require.ErrorIs(t, err, ErrNotPermitted)
			}
			if err != nil {
				require.Nil(t, e)
			}
		}
	}
	require.ErrorIs(t, unmap(1, size), unix.EINVAL)
}

// What the stream writes, the CPU must see.
func TestWritesWord(t *testing.T) {
	words := new([4]uint32)
	e := &Engine{Staging: uintptr(unsafe.Pointer(words)), StagingAt: 0x1000}
	nothing := func(uintptr) uintptr { return 0 }
	d := with(symStreamSynchronize, nothing)
	require.False(t, d.writesWord(e, 8), "no such function")
	d.fn[symStreamWriteValue32] = purego.NewCallback(func(stream, at uintptr, value uint32, flags uintptr) uintptr { return 0 })
	require.False(t, d.writesWord(e, 8), "the word does not come")
	d.fn[symStreamWriteValue32] = purego.NewCallback(func(stream, at uintptr, value uint32, flags uintptr) uintptr {
		words[(at-0x1000)/4] = value
		return flags
	})
	require.True(t, d.writesWord(e, 8))
	require.Equal(t, [4]uint32{2: 1}, *words)
	d.fn[symStreamSynchronize] = purego.NewCallback(func(uintptr) uintptr { return 700 })
	require.False(t, d.writesWord(e, 8), "the stream fails")
}
