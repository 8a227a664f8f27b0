package main

/*
#include <sys/mman.h>
#include "watch.h"
*/
import "C"

import (
	"unsafe"

	"gdrapi/core/rm"

	"golang.org/x/sys/unix"
)

// What package core has the C side do for it.

// mmap and munmap are the C library's, which hosts hook: see core.UseMemory.
func mmap(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
	p, err := C.mmap(pointer(addr), C.size_t(size), C.int(prot), C.int(flags), C.int(fd), C.off_t(offset))
	if va := uintptr(p); va != ^uintptr(0) {
		return va, nil
	}
	return 0, err
}

func munmap(va, size uintptr) error {
	if r, err := C.munmap(pointer(va), C.size_t(size)); r != 0 {
		return err
	}
	return nil
}

// pointer is an address of the host's, which Go's memory never holds.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// watch is rm.Watch.
func watch(export uintptr, addr, size uint64) (rm.Seen, error) {
	var w C.struct_gdr_watch
	if rc := C.gdr_watch_export(pointer(export), C.uint64_t(addr), C.uint64_t(size), &w); rc != 0 {
		return rm.Seen{}, unix.Errno(rc)
	}
	return rm.Seen{
		Result:   int32(w.result),
		FD:       int32(w.fd),
		Requests: uint32(w.requests),
		Size:     uint32(w.size),
		Client:   uint32(w.client),
		Object:   uint32(w.object),
		Offset:   uint64(w.offset),
	}, nil
}
