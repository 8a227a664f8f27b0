package cuda

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
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
