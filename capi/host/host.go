// Package host has the Go runtime live as a guest in somebody else's process: its start,
// forks, threads, memory, and what package core has C do for it.
//
// Most of it is C, for it runs before the runtime does, or where Go cannot: front.h,
// guest.h, env.h, driver.h and log.h are what it offers to package capi's C. It knows
// nothing of package capi.
package host

/*
#cgo CFLAGS: -std=gnu11 -O2 -g -Wall -Wextra
#cgo LDFLAGS: -ldl -lpthread
#define _GNU_SOURCE
#include <sys/mman.h>
#include "driver.h"

// The answer is a number: a driver may answer an address that no Go pointer may hold.
static uintptr_t map_memory(uintptr_t addr, size_t size, int prot, int flags, int fd, off_t offset)
{
	return (uintptr_t)mmap((void *)addr, size, prot, flags, fd, offset);
}

static uintptr_t move_memory(uintptr_t from, size_t size, uintptr_t to)
{
	return (uintptr_t)mremap((void *)from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to);
}
*/
import "C"

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	_ "gdrapi/capi/copy" // C alone: front.c and runtime.c call it
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

// Mremap moves a mapping of size bytes to another address, in place of what is mapped there.
func Mremap(from, size, to uintptr) error {
	if va, err := C.move_memory(C.uintptr_t(from), C.size_t(size), C.uintptr_t(to)); uintptr(va) != to {
		return err
	}
	return nil
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
