// Command capi is libgdrapi.so: the C ABI of include/gdrapi.h around package
// core. It is built with -buildmode=c-shared; see the Makefile.
//
// Hosts call C functions, in abi.c, copy.c, pieces.c and cache.c. These call the exports here.
// An export turns C values into Go values, calls package handle, and turns the result back.
// finish makes an errno value of each error.
package main

/*
#cgo CFLAGS: -std=gnu11 -O2 -g -Wall -Wextra
#cgo LDFLAGS: -ldl -lpthread
#include "copy/slot.h"
#include "core.h"
#include "guest/env.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"gdrapi/capi/cache"
	_ "gdrapi/capi/copy" // C alone: copy.c calls it
	"gdrapi/capi/guest"
	"gdrapi/capi/handle"
	"gdrapi/core"
	"gdrapi/core/backend"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// The first gdrcore_open sets these. Any other call comes later.
var (
	making  sync.Mutex
	library *handle.Library
)

func main() {}

// finish is deferred by every export: it turns the call's error, or its panic, into
// the errno value that C gets.
func finish(call string, err *error, rc *C.int) {
	panicked := recover()
	if panicked == nil && *err == nil {
		return
	}
	*rc = C.int(core.Outcome(call, *err, panicked))
}

// makeLibrary makes the library, unless it was made. Handles get epoch, and table has their slots.
func makeLibrary(epoch uint32, table *C.struct_gdr_table) error {
	making.Lock()
	defer making.Unlock()
	if library != nil {
		return nil
	}
	core.UseMemory(core.HostMemory{Mmap: guest.Mmap, Munmap: guest.Munmap})
	core.UseLoader(guest.Driver)
	l, err := handle.New(epoch, (*handle.Shared)(unsafe.Pointer(table)))
	if err != nil {
		return fmt.Errorf("the core did not start: %w", err)
	}
	library = l
	return nil
}

//export gdrcore_open
func gdrcore_open(opts *C.struct_gdr_options, epoch C.uint64_t, table *C.struct_gdr_table, g *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_open", &err, &rc)
	log.SetThreshold(log.Level(opts.log_level))
	if err = makeLibrary(uint32(epoch), table); err != nil {
		return
	}
	o := core.Options{ForceDMABuf: opts.force_dmabuf != 0, Watch: guest.Watch}
	if opts.backend != nil {
		o.Backend = C.GoString(opts.backend)
	}
	var h handle.Handle
	h, err = library.Open(o)
	*g = C.uint64_t(h)
	return
}

//export gdrcore_close
func gdrcore_close(g C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_close", &err, &rc)
	err = library.Close(handle.Handle(g))
	return
}

//export gdrcore_pin
func gdrcore_pin(call *C.char, g, addr, size, token C.uint64_t, vaSpace, flags C.uint32_t, h *C.uint64_t) (rc C.int) {
	var err error
	defer finish(C.GoString(call), &err, &rc)
	var pinned handle.Handle
	pinned, err = library.Pin(handle.Handle(g), backend.PinRequest{
		Addr:    uint64(addr),
		Size:    uint64(size),
		Token:   uint64(token),
		VASpace: uint32(vaSpace),
		Flags:   uint32(flags),
	})
	*h = C.uint64_t(pinned)
	return
}

//export gdrcore_pin_fd
func gdrcore_pin_fd(g C.uint64_t, fd C.int, h *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_pin_fd", &err, &rc)
	var pinned handle.Handle
	pinned, err = library.PinFD(handle.Handle(g), int(fd))
	*h = C.uint64_t(pinned)
	return
}

//export gdrcore_export_fd
func gdrcore_export_fd(g, h C.uint64_t, flags C.uint32_t, fd *C.int) (rc C.int) {
	var err error
	defer finish("gdr_export_fd", &err, &rc)
	var n int
	n, err = library.ExportFD(handle.Handle(g), handle.Handle(h), uint32(flags))
	*fd = C.int(n)
	return
}

//export gdrcore_unpin
func gdrcore_unpin(g, h C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_unpin_buffer", &err, &rc)
	err = library.Unpin(handle.Handle(g), handle.Handle(h))
	return
}

//export gdrcore_map
func gdrcore_map(call *C.char, g, h, size C.uint64_t, flags C.int, va *C.uint64_t) (rc C.int) {
	var err error
	defer finish(C.GoString(call), &err, &rc)
	*va = 0
	var m *core.Mapping
	if m, err = library.Map(handle.Handle(g), handle.Handle(h), uint64(size), int(flags)); err == nil {
		*va = C.uint64_t(m.VA())
	}
	return
}

//export gdrcore_unmap
func gdrcore_unmap(g, h, va, size C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_unmap", &err, &rc)
	err = library.Unmap(handle.Handle(g), handle.Handle(h), uintptr(va), uint64(size))
	return
}

//export gdrcore_info
func gdrcore_info(call *C.char, g, h C.uint64_t, out *C.struct_gdr_core_info) (rc C.int) {
	var err error
	defer finish(C.GoString(call), &err, &rc)
	var i core.Info
	if i, err = library.Info(handle.Handle(g), handle.Handle(h)); err != nil {
		return
	}
	*out = C.struct_gdr_core_info{
		va:            C.uint64_t(i.VA),
		mapped_size:   C.uint64_t(i.MappedSize),
		tm_cycles:     C.uint64_t(i.TMCycles),
		page_size:     C.uint32_t(i.PageSize),
		cycles_per_ms: C.uint32_t(i.CyclesPerMS),
		mapping_type:  C.uint32_t(i.Type),
	}
	if i.Mapped {
		out.mapped = 1
	}
	return
}

//export gdrcore_callback_flag
func gdrcore_callback_flag(g, h C.uint64_t, flag *C.int) (rc C.int) {
	var err error
	defer finish("gdr_get_callback_flag", &err, &rc)
	var v int
	v, err = library.CallbackFlag(handle.Handle(g), handle.Handle(h))
	*flag = C.int(v)
	return
}

//export gdrcore_attribute
func gdrcore_attribute(g C.uint64_t, attr C.int, value *C.int) (rc C.int) {
	var err error
	defer finish("gdr_get_attribute", &err, &rc)
	var v int
	v, err = library.Attribute(handle.Handle(g), backend.Attr(attr))
	*value = C.int(v)
	return
}

//export gdrcore_driver_version
func gdrcore_driver_version(g C.uint64_t, major, minor *C.int) (rc C.int) {
	var err error
	defer finish("gdr_driver_get_version", &err, &rc)
	var ma, mi int
	ma, mi, err = library.DriverVersion(handle.Handle(g))
	*major, *minor = C.int(ma), C.int(mi)
	return
}

//export gdrcore_backend
func gdrcore_backend(g C.uint64_t, out *C.char, size C.size_t) (rc C.int) {
	var err error
	defer finish("gdr_get_backend", &err, &rc)
	var name string
	if name, err = library.BackendName(handle.Handle(g)); err != nil {
		return
	}
	text := append([]byte(name), 0)
	if uint64(len(text)) > uint64(size) {
		err = fmt.Errorf("%q needs %d bytes, not %d: %w", name, len(text), size, unix.ERANGE)
		return
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(out)), len(text)), text)
	return
}

//export gdrcore_mem_alloc
func gdrcore_mem_alloc(g C.uint64_t, device C.int, size C.uint64_t, m *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_mem_alloc", &err, &rc)
	var h handle.Handle
	h, err = library.MemAlloc(handle.Handle(g), int(device), uint64(size))
	*m = C.uint64_t(h)
	return
}

//export gdrcore_mem_free
func gdrcore_mem_free(g, m C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_mem_free", &err, &rc)
	err = library.MemFree(handle.Handle(g), handle.Handle(m))
	return
}

//export gdrcore_mem_ptr
func gdrcore_mem_ptr(g, m C.uint64_t, ptr, size *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_mem_get_device_ptr", &err, &rc)
	var p, n uint64
	p, n, err = library.MemPtr(handle.Handle(g), handle.Handle(m))
	*ptr, *size = C.uint64_t(p), C.uint64_t(n)
	return
}

//export gdrcore_mem_export
func gdrcore_mem_export(g, m C.uint64_t, flags C.uint32_t, fd *C.int) (rc C.int) {
	var err error
	defer finish("gdr_mem_export_dmabuf", &err, &rc)
	var n int
	n, err = library.MemExport(handle.Handle(g), handle.Handle(m), uint32(flags))
	*fd = C.int(n)
	return
}

//export gdrcore_cache_open
func gdrcore_cache_open(g, most C.uint64_t, c *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_cache_open", &err, &rc)
	var h handle.Handle
	h, err = library.CacheOpen(handle.Handle(g), uint64(most))
	*c = C.uint64_t(h)
	return
}

//export gdrcore_cache_get
func gdrcore_cache_get(c, addr, size, now C.uint64_t, h, va *C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_cache_get", &err, &rc)
	var in *cache.Cache
	if in, err = library.Cache(handle.Handle(c)); err != nil {
		return
	}
	var held uint64
	var at uintptr
	held, at, err = in.Get(uint64(addr), uint64(size), uint64(now))
	*h, *va = C.uint64_t(held), C.uint64_t(at)
	return
}

//export gdrcore_cache_settle
func gdrcore_cache_settle(c C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_cache_put", &err, &rc)
	var in *cache.Cache
	if in, err = library.Cache(handle.Handle(c)); err == nil {
		err = in.Settle()
	}
	return
}

//export gdrcore_cache_flush
func gdrcore_cache_flush(c C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_cache_flush", &err, &rc)
	var in *cache.Cache
	if in, err = library.Cache(handle.Handle(c)); err == nil {
		err = in.Flush()
	}
	return
}

//export gdrcore_cache_close
func gdrcore_cache_close(c C.uint64_t) (rc C.int) {
	var err error
	defer finish("gdr_cache_close", &err, &rc)
	err = library.CacheClose(handle.Handle(c))
	return
}
