package guest

import (
	"encoding/binary"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// header is Elf64_Phdr, entry Elf64_Dyn, relocation Elf64_Rela, and symbol Elf64_Sym.
type (
	header struct {
		Type, Flags                                 uint32
		Off, Vaddr, Paddr, Filesz, Memsz, Alignment uint64
	}
	entry struct {
		Tag   int64
		Value uint64
	}
	relocation struct {
		Offset, Info uint64
		Addend       int64
	}
	symbol struct {
		Name        uint32
		Info, Other uint8
		Section     uint16
		Value, Size uint64
	}
)

// Of elf.h.
const (
	ptLoad     = 1
	ptDynamic  = 2
	ptGNURelro = 0x6474e552

	dtPltRelSz = 2
	dtStrTab   = 5
	dtSymTab   = 6
	dtSoname   = 14
	dtJmpRel   = 23
)

// jumpSlot is the type of the relocations of functions that are bound at their first call. On
// an unknown machine nothing is watched.
var jumpSlot = map[string]uint32{"amd64": 7, "arm64": 1026, "ppc64le": 21}[runtime.GOARCH]

// reader copies what is in memory at addr. It reports whether that lies in a library: another
// thread may unload one.
type reader func(addr uint64, to []byte) bool

// library is one that the loader has loaded.
type library struct {
	base    uint64 // added to the addresses in its file
	headers []header
	read    reader
}

// slot is where a library keeps the address of ioctl.
type slot struct {
	at        uint64
	low, high uint64 // the library
	readOnly  bool   // the loader made its page so
}

// table reads n entries at addr. It is empty where they are not in the library.
func table[T any](l library, addr uint64, n uint64) []T {
	size := uint64(binary.Size(*new(T)))
	if n == 0 || n > 1<<32 || !l.holds(addr, n*size) {
		return nil
	}
	raw, entries := make([]byte, n*size), make([]T, n)
	if !l.read(addr, raw) {
		return nil
	}
	if _, err := binary.Decode(raw, binary.NativeEndian, entries); err != nil {
		return nil
	}
	return entries
}

// holds reports whether the size bytes at addr lie in one segment.
func (l library) holds(addr, size uint64) bool {
	return slices.ContainsFunc(l.headers, func(h header) bool {
		before := addr - l.base - h.Vaddr
		return h.Type == ptLoad && before < h.Memsz && size <= h.Memsz-before
	})
}

// segment is the first of a type, which may be empty.
func (l library) segment(kind uint32) header {
	for _, h := range l.headers {
		if h.Type == kind {
			return h
		}
	}
	return header{}
}

// dynamic is the library's dynamic section, by the tags. Where that section is read-only, the
// loader leaves its addresses as the file has them.
func (l library) dynamic() map[int64]uint64 {
	h, found := l.segment(ptDynamic), make(map[int64]uint64)
	for _, e := range table[entry](l, l.base+h.Vaddr, h.Memsz/16) {
		if e.Tag == 0 {
			break
		}
		address := e.Tag == dtJmpRel || e.Tag == dtStrTab || e.Tag == dtSymTab
		if address && !l.holds(e.Value, 1) {
			e.Value += l.base
		}
		found[e.Tag] = e.Value
	}
	return found
}

// text reports whether memory at addr begins with want.
func (l library) text(addr uint64, want string) bool {
	got := make([]byte, len(want))
	return l.read(addr, got) && string(got) == want
}

// ioctlSlot is the address of the only slot of ioctl, or 0.
func (l library) ioctlSlot(dynamic map[int64]uint64) uint64 {
	var found []uint64
	for _, r := range table[relocation](l, dynamic[dtJmpRel], dynamic[dtPltRelSz]/24) {
		if jumpSlot == 0 || uint32(r.Info) != jumpSlot {
			continue
		}
		s := table[symbol](l, dynamic[dtSymTab]+r.Info>>32*24, 1)
		if len(s) == 1 && l.text(dynamic[dtStrTab]+uint64(s[0].Name), "ioctl\x00") {
			found = append(found, l.base+r.Offset)
		}
	}
	if len(found) != 1 {
		return 0
	}
	return found[0]
}

// rank is how surely the library is the libcuda that export ends in. Some tools put a function of
// their own before libcuda's: export may lie in a library of another name.
func (l library) rank(dynamic map[int64]uint64, export uint64) int {
	rank := 0
	if name := dynamic[dtSoname]; name != 0 && l.text(dynamic[dtStrTab]+name, "libcuda.so") {
		rank = 2
	}
	if l.holds(export, 1) {
		rank++
	}
	return rank
}

// slotAt describes the slot at an address. The loader makes whole pages read-only.
func (l library) slotAt(at uint64) slot {
	s := slot{at: at, low: ^uint64(0)}
	for _, h := range l.headers {
		if start := l.base + h.Vaddr; h.Type == ptLoad {
			s.low, s.high = min(s.low, start), max(s.high, start+h.Memsz)
		}
	}
	relro, page := l.segment(ptGNURelro), -uint64(unix.Getpagesize())
	start := l.base + relro.Vaddr
	s.readOnly = at >= start&page && at < (start+relro.Memsz)&page
	return s
}

// findSlot finds the slot that export's request goes through.
func findSlot(all []library, export uint64) (found slot) {
	best := 0
	for _, l := range all {
		dynamic := l.dynamic()
		rank := l.rank(dynamic, export)
		if rank <= best {
			continue
		}
		if at := l.ioctlSlot(dynamic); at != 0 {
			best, found = rank, l.slotAt(at)
		}
	}
	return found
}
