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

// findWatched finds how the requests of export are watched, once for an export. Two threads may
// do it at a time.
func findWatched(export uintptr) *C.struct_gdr_watched {
	kept := &C.gdr_watched
	known := (*uintptr)(unsafe.Pointer(&kept.export))
	if atomic.LoadUintptr(known) == export {
		return kept
	}
	atomic.StoreUintptr(known, 0)
	all := libraries()
	s := findSlot(all, uint64(export))
	kept.slot = C.struct_gdr_watch_slot{
		at:        C.uintptr_t(s.at),
		low:       C.uintptr_t(s.low),
		high:      C.uintptr_t(s.high),
		read_only: C.bool(s.readOnly),
	}
	kept.by = 0
	if s.at != 0 {
		kept.by = C.uintptr_t(firstCopy(all))
	}
	atomic.StoreUintptr(known, export)
	return kept
}

// Watch is core.Watch.
func Watch(export uintptr, addr, size uint64) (core.Seen, error) {
	how := findWatched(export)
	if how.by == 0 {
		return core.Seen{}, unix.ENOTSUP
	}
	s := how.slot
	var w C.struct_gdr_watch
	if rc := int32(dl.Call(uintptr(how.by), &s, export, addr, size, &w)); rc != 0 {
		return core.Seen{}, unix.Errno(rc)
	}
	head := unsafe.Slice((*byte)(&w.head[0]), len(w.head))
	seen := core.Seen{Result: int32(w.result), FD: int32(w.fd), Requests: uint32(w.requests), Size: uint32(w.size)}
	seen.Client, seen.Object, seen.Offset = requested(seen.Size, head)
	return seen, nil
}
