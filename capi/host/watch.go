package host

/*
#include "watch.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"gdrapi/core"
	"gdrapi/core/dl"

	"golang.org/x/sys/unix"
)

// readMemory is a reader.
func readMemory(addr uint64, to []byte) bool {
	return len(to) > 0 && bool(C.gdr_read_library(C.uintptr_t(addr), unsafe.Pointer(&to[0]), C.size_t(len(to))))
}

// libraries lists those of the process, in the loader's order.
func libraries() []library {
	list := make([]C.struct_gdr_library, 256)
	n := int(C.gdr_list_libraries(&list[0], C.size_t(len(list))))
	for n > len(list) {
		list = make([]C.struct_gdr_library, n+16)
		n = int(C.gdr_list_libraries(&list[0], C.size_t(len(list))))
	}
	var all []library
	for _, c := range list[:n] {
		l := library{base: uint64(c.addr), read: readMemory}
		// They lie in the library, whose segments are in them.
		l.headers = []header{{Type: ptLoad, Memsz: ^uint64(0)}}
		l.headers = table[header](l, uint64(c.headers), uint64(c.count))
		all = append(all, l)
	}
	return all
}

// watched is how the requests of export are watched.
type watched struct {
	export uintptr
	slot   slot
	by     uint64 // gdr_watch_export of the copy that watches; 0: nothing can be watched
}

var lastWatched atomic.Pointer[watched]

// findWatched finds it once for an export.
func findWatched(export uintptr) watched {
	if known := lastWatched.Load(); known != nil && known.export == export {
		return *known
	}
	all := libraries()
	w := watched{export: export, slot: findSlot(all, uint64(export))}
	if w.slot.at != 0 {
		w.by = firstCopy(all)
	}
	lastWatched.Store(&w)
	return w
}

// Watch is core.Watch.
func Watch(export uintptr, addr, size uint64) (core.Seen, error) {
	// It walks the list of libraries, which takes a lock of the loader.
	if !Usable() {
		return core.Seen{}, unix.ENOTSUP
	}
	how := findWatched(export)
	if how.by == 0 {
		return core.Seen{}, unix.ENOTSUP
	}
	s := C.struct_gdr_watch_slot{
		at:        C.uintptr_t(how.slot.at),
		low:       C.uintptr_t(how.slot.low),
		high:      C.uintptr_t(how.slot.high),
		read_only: C.bool(how.slot.readOnly),
	}
	var w C.struct_gdr_watch
	if rc := int32(dl.Call(uintptr(how.by), &s, export, addr, size, &w)); rc != 0 {
		return core.Seen{}, unix.Errno(rc)
	}
	head := unsafe.Slice((*byte)(&w.head[0]), len(w.head))
	seen := core.Seen{Result: int32(w.result), FD: int32(w.fd), Requests: uint32(w.requests), Size: uint32(w.size)}
	seen.Client, seen.Object, seen.Offset = requested(seen.Size, head)
	return seen, nil
}
