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
#include "hear.h"
#include "heard.h"
#include "libraries.h"

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

// findFunctions looks up functions of the driver, and where its requests go, once: a forked child
// has its parent's answers. Two threads may do it at a time.
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
			findSlotOf(found[i])
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
	var list []C.struct_gdr_library
	n := 1
	for n > len(list) { // the first call counts; more may be loaded meanwhile
		list = make([]C.struct_gdr_library, n)
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

// findSlotOf finds the slot that the requests of export go through, once for an export. Two threads
// may do it at a time.
func findSlotOf(export uintptr) {
	known := (*uintptr)(unsafe.Pointer(&C.gdr_export.function))
	if atomic.LoadUintptr(known) == export {
		return
	}
	atomic.StoreUintptr(known, 0)
	s := findSlot(libraries(), uint64(export))
	C.gdr_export.slot = C.struct_gdr_slot{
		at:        C.uintptr_t(s.at),
		low:       C.uintptr_t(s.low),
		high:      C.uintptr_t(s.high),
		read_only: C.bool(s.readOnly),
	}
	atomic.StoreUintptr(known, export)
}

// Ears are core.Ears.
type Ears struct{}

// Listen puts the function that hears into libcuda's slot, where libcuda is loaded, and begins to
// listen, where the driver's layouts are known. It may be called again.
func (Ears) Listen(driver core.Version) {
	if atomic.LoadUintptr((*uintptr)(unsafe.Pointer(&C.gdr_export.function))) != 0 {
		C.gdr_hear(&C.gdr_export.slot, layout(driver))
	}
}

// layout says how a driver's requests are laid out. Newer drivers have the newest layout that is known.
func layout(driver core.Version) (l C.uint) {
	for _, since := range []struct {
		first core.Version
		bit   C.uint
	}{
		{core.Version{535}, C.GDR_HEAR_535},
		{core.Version{550, 40, 53}, C.GDR_HEAR_550},
		{core.Version{590, 44, 1}, C.GDR_HEAR_590},
	} {
		if slices.Compare(driver[:], since.first[:]) >= 0 {
			l |= since.bit
		}
	}
	return l
}

// At says what lies from first to before end.
func (Ears) At(first, end uint64) (core.Hearing, []core.Heard) {
	if !C.gdr_hears() {
		return core.Hearing{}, nil
	}
	list := make([]C.struct_gdr_heard, 4)
	for {
		is := C.gdr_heard_at(C.uint64_t(first), C.uint64_t(end), &list[0], C.size_t(len(list)))
		if int(is.entries) > len(list) {
			list = make([]C.struct_gdr_heard, is.entries+16)
			continue
		}
		h := core.Hearing{Heard: is.answer == C.GDR_HEARD, Gone: is.answer == C.GDR_GONE, Clients: uint32(is.clients), Ends: uint64(is.ends)}
		if !h.Heard {
			return h, nil
		}
		all := make([]core.Heard, is.entries)
		for i, e := range list[:is.entries] {
			all[i] = core.Heard{
				Base: uint64(e.base), End: uint64(e.end), Number: uint64(e.number), Offset: uint64(e.offset),
				Client: uint32(e.client), Object: uint32(e.object), Control: int(e.control),
				Parent: uint32(e.parent), GPU: uint32(e.gpu),
			}
		}
		return h, all
	}
}

// Keep keeps what was learned of an entry.
func (Ears) Keep(e core.Heard) {
	C.gdr_heard_keep(&C.struct_gdr_heard{
		base: C.uint64_t(e.Base), number: C.uint64_t(e.Number), parent: C.uint32_t(e.Parent),
	})
}

// Learn adds an entry.
func (Ears) Learn(h core.Hearing, e core.Heard) {
	C.gdr_heard_learn(&C.struct_gdr_heard{
		base: C.uint64_t(e.Base), end: C.uint64_t(e.End), offset: C.uint64_t(e.Offset),
		client: C.uint32_t(e.Client), object: C.uint32_t(e.Object), gpu: C.uint32_t(e.GPU),
	}, C.uint64_t(h.Ends))
}

// Stop has nothing be heard any more.
func (Ears) Stop() { C.gdr_heard_stop() }

// Watch is that of core.Ears.
func (Ears) Watch(export uintptr, addr, size uint64) (core.Seen, error) {
	var w C.struct_gdr_watch
	if rc := C.gdr_watch_export(C.uintptr_t(export), C.uint64_t(addr), C.uint64_t(size), &w); rc != 0 {
		return core.Seen{}, unix.Errno(rc)
	}
	return core.Seen{
		Result: int32(w.result), FD: int32(w.fd), Requests: uint32(w.requests), Size: uint32(w.size),
		Client: uint32(w.client), Object: uint32(w.object), Offset: uint64(w.offset),
	}, nil
}
