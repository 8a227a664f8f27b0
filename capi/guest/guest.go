// Package guest has the Go runtime live as a guest in somebody else's process: its start,
// forks, threads, memory, and what package core has C do for it. Most of it is C, for it runs
// before the runtime does, or where Go cannot.
package guest

/*
#cgo CFLAGS: -std=gnu11 -O2 -g -Wall -Wextra
#cgo LDFLAGS: -ldl -lpthread
#define _GNU_SOURCE
#include <sys/mman.h>
#include "driver.h"
#include "watch.h"

// The answer is a number: a driver may answer an address that no Go pointer may hold.
static uintptr_t map_memory(uintptr_t addr, size_t size, int prot, int flags, int fd, off_t offset)
{
	return (uintptr_t)mmap((void *)addr, size, prot, flags, fd, offset);
}
*/
import "C"

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	_ "gdrapi/capi/copy" // C alone
	"gdrapi/core"
	"gdrapi/core/cuda"
	"gdrapi/core/dl"

	"golang.org/x/sys/unix"
)

// Mmap is the C library's, which hosts hook: see core.UseMemory. So is Munmap.
func Mmap(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
	va, err := C.map_memory(C.uintptr_t(addr), C.size_t(size), C.int(prot), C.int(flags), C.int(fd), C.off_t(offset))
	if uintptr(va) != ^uintptr(0) {
		return uintptr(va), nil
	}
	return 0, err
}

// Munmap ends a mapping.
func Munmap(va, size uintptr) error {
	if r, err := C.munmap(Pointer(va), C.size_t(size)); r != 0 {
		return err
	}
	return nil
}

// Driver is the CUDA driver that C has loaded, here or in an ancestor of this process.
var Driver = cuda.Loader{
	Load: func() error {
		var why [256]C.char
		state := C.gdr_driver_load(&why[0], C.size_t(len(why)))
		if state == C.GDR_DRIVER_LOADED {
			return nil
		}
		return fmt.Errorf("%w (%s)", unix.ENODEV, C.GoString(&why[0]))
	},
	Loaded: func() bool { return bool(C.gdr_driver_is_loaded()) },
	Find:   findFunctions,
}

// findFunctions looks up functions of the driver, and how the export is watched, once: a forked
// child has its parent's answers. Two threads may do it at a time.
func findFunctions(names []string) []uintptr {
	known := (*uint32)(&C.gdr_driver_functions.known)
	kept := (*[len(C.gdr_driver_functions.at)]uintptr)(unsafe.Pointer(&C.gdr_driver_functions.at))[:len(names)]
	if atomic.LoadUint32(known) != 0 {
		return slices.Clone(kept)
	}
	found := make([]uintptr, len(names))
	for i, name := range names {
		text := append([]byte(name), 0)
		found[i] = uintptr(C.gdr_driver_find((*C.char)(unsafe.Pointer(&text[0]))))
		if name == cuda.ExportName && found[i] != 0 {
			findWatched(found[i])
		}
	}
	copy(kept, found)
	atomic.StoreUint32(known, 1)
	return found
}

// Pointer is an address of the host's, which Go's memory never holds.
func Pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

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
