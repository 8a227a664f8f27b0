// Command capi is libgdrapi.so: the C ABI of include/gdrapi.h around package
// core. It is built with -buildmode=c-shared; see the Makefile.
//
// An export turns C values into Go values, calls package handle, and turns the result back.
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
	_ "gdrapi/capi/copy" // C alone: copy_one.c calls it
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

// answer does a call, and turns its error, or its panic, into the errno value that C gets.
func answer(call string, do func() error) (rc C.int) {
	var err error
	defer func() { rc = C.int(core.Outcome(call, err, recover())) }()
	err = do()
	return
}

// answerOne is answer for a call whose result, a handle or an address, goes to out.
func answerOne[R ~uint64 | ~uintptr](call string, out *C.uint64_t, do func() (R, error)) C.int {
	return answer(call, func() error {
		v, err := do()
		*out = C.uint64_t(v)
		return err
	})
}

// answerOn is answer for a call on the object that find finds.
func answerOn[T any](call string, find func() (T, error), do func(T) error) C.int {
	return answer(call, func() error {
		object, err := find()
		if err != nil {
			return err
		}
		return do(object)
	})
}

func deviceOf(g C.uint64_t) func() (*core.Device, error) {
	return func() (*core.Device, error) { return library.Device(toHandle(g)) }
}

func bufferOf(g, h C.uint64_t) func() (*core.Buffer, error) {
	return func() (*core.Buffer, error) { return library.Buffer(toHandle(g), toHandle(h)) }
}

func memoryOf(g, m C.uint64_t) func() (*core.Memory, error) {
	return func() (*core.Memory, error) { return library.Memory(toHandle(g), toHandle(m)) }
}

func cacheOf(c C.uint64_t) func() (*cache.Cache, error) {
	return func() (*cache.Cache, error) { return library.Cache(toHandle(c)) }
}

func toHandle(h C.uint64_t) handle.Handle { return handle.Handle(h) }

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
func gdrcore_open(opts *C.struct_gdr_options, epoch C.uint64_t, table *C.struct_gdr_table, g *C.uint64_t) C.int {
	return answerOne("gdr_open", g, func() (handle.Handle, error) {
		log.SetThreshold(log.Level(opts.log_level))
		if err := makeLibrary(uint32(epoch), table); err != nil {
			return 0, err
		}
		o := core.Options{ForceDMABuf: opts.force_dmabuf != 0, Ears: guest.Ears{}}
		if opts.backend != nil {
			o.Backend = C.GoString(opts.backend)
		}
		return library.Open(o)
	})
}

//export gdrcore_close
func gdrcore_close(g C.uint64_t) C.int {
	return answer("gdr_close", func() error { return library.Close(toHandle(g)) })
}

//export gdrcore_pin
func gdrcore_pin(call *C.char, g, addr, size, token C.uint64_t, vaSpace, flags C.uint32_t, h *C.uint64_t) C.int {
	return answerOne(C.GoString(call), h, func() (handle.Handle, error) {
		return library.Pin(toHandle(g), backend.PinRequest{
			Addr:    uint64(addr),
			Size:    uint64(size),
			Token:   uint64(token),
			VASpace: uint32(vaSpace),
			Flags:   uint32(flags),
		})
	})
}

//export gdrcore_pin_bytes
func gdrcore_pin_bytes(g, addr, size C.uint64_t, flags C.uint32_t, h *C.uint64_t) C.int {
	return answerOne("gdr_pin_bytes", h, func() (handle.Handle, error) {
		return library.PinBytes(toHandle(g), uint64(addr), uint64(size), uint32(flags))
	})
}

//export gdrcore_pin_fd
func gdrcore_pin_fd(g C.uint64_t, fd C.int, h *C.uint64_t) C.int {
	return answerOne("gdr_pin_fd", h, func() (handle.Handle, error) { return library.PinFD(toHandle(g), int(fd)) })
}

//export gdrcore_export_fd
func gdrcore_export_fd(g, h C.uint64_t, flags C.uint32_t, fd *C.int) C.int {
	return answerOn("gdr_export_fd", bufferOf(g, h), func(b *core.Buffer) error {
		v, err := b.Export(uint32(flags))
		*fd = C.int(v)
		return err
	})
}

//export gdrcore_object
func gdrcore_object(g, h C.uint64_t, offset, length *C.uint64_t, count *C.uint) C.int {
	return answerOn("gdr_get_object", bufferOf(g, h), func(b *core.Buffer) error {
		o, err := b.Object()
		*offset, *length, *count = C.uint64_t(o.Offset), C.uint64_t(o.Length), C.uint(o.Count)
		return err
	})
}

//export gdrcore_unpin
func gdrcore_unpin(g, h C.uint64_t) C.int {
	return answer("gdr_unpin_buffer", func() error { return library.Unpin(toHandle(g), toHandle(h)) })
}

//export gdrcore_map
func gdrcore_map(call *C.char, g, h, size C.uint64_t, flags C.int, va *C.uint64_t) C.int {
	return answerOne(C.GoString(call), va, func() (uintptr, error) { return library.Map(toHandle(g), toHandle(h), uint64(size), int(flags)) })
}

//export gdrcore_unmap
func gdrcore_unmap(g, h, va, size C.uint64_t) C.int {
	return answer("gdr_unmap", func() error { return library.Unmap(toHandle(g), toHandle(h), uintptr(va), uint64(size)) })
}

//export gdrcore_info
func gdrcore_info(call *C.char, g, h C.uint64_t, out *C.struct_gdr_core_info) C.int {
	return answerOn(C.GoString(call), bufferOf(g, h), func(b *core.Buffer) error {
		i, err := b.Info()
		*out = C.struct_gdr_core_info{
			va:            C.uint64_t(i.VA),
			mapped_size:   C.uint64_t(i.MappedSize),
			tm_cycles:     C.uint64_t(i.TMCycles),
			page_size:     C.uint32_t(i.PageSize),
			cycles_per_ms: C.uint32_t(i.CyclesPerMS),
			mapped:        C.bool(i.Mapped),
			mapping_type:  C.uint32_t(i.Type),
		}
		return err
	})
}

//export gdrcore_callback_flag
func gdrcore_callback_flag(g, h C.uint64_t, flag *C.int) C.int {
	return answerOn("gdr_get_callback_flag", bufferOf(g, h), func(b *core.Buffer) error {
		v, err := b.Revoked()
		*flag = C.int(v)
		return err
	})
}

//export gdrcore_attribute
func gdrcore_attribute(g C.uint64_t, attr C.int, value *C.int) C.int {
	return answerOn("gdr_get_attribute", deviceOf(g), func(d *core.Device) error {
		v, err := d.Attribute(backend.Attr(attr))
		*value = C.int(v)
		return err
	})
}

//export gdrcore_driver_version
func gdrcore_driver_version(g C.uint64_t, major, minor *C.int) C.int {
	return answerOn("gdr_driver_get_version", deviceOf(g), func(d *core.Device) error {
		first, second, err := d.Version()
		*major, *minor = C.int(first), C.int(second)
		return err
	})
}

//export gdrcore_backend
func gdrcore_backend(g C.uint64_t, out *C.char, size C.size_t) C.int {
	return answerOn("gdr_get_backend", deviceOf(g), func(d *core.Device) error {
		name, err := d.Backend()
		if err != nil {
			return err
		}
		if uint64(len(name)) >= uint64(size) {
			return fmt.Errorf("%q needs %d bytes, not %d: %w", name, len(name)+1, size, unix.ERANGE)
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(out)), len(name)+1), name+"\x00")
		return nil
	})
}

//export gdrcore_mem_alloc
func gdrcore_mem_alloc(g C.uint64_t, device C.int, size C.uint64_t, m *C.uint64_t) C.int {
	return answerOne("gdr_mem_alloc", m, func() (handle.Handle, error) { return library.MemAlloc(toHandle(g), int(device), uint64(size)) })
}

//export gdrcore_mem_free
func gdrcore_mem_free(g, m C.uint64_t) C.int {
	return answer("gdr_mem_free", func() error { return library.MemFree(toHandle(g), toHandle(m)) })
}

//export gdrcore_mem_ptr
func gdrcore_mem_ptr(g, m C.uint64_t, ptr, size *C.uint64_t) C.int {
	return answerOn("gdr_mem_get_device_ptr", memoryOf(g, m), func(mem *core.Memory) error {
		*ptr, *size = C.uint64_t(mem.Addr()), C.uint64_t(mem.Size())
		return nil
	})
}

//export gdrcore_mem_export
func gdrcore_mem_export(g, m C.uint64_t, flags C.uint32_t, fd *C.int) C.int {
	return answerOn("gdr_mem_export_dmabuf", memoryOf(g, m), func(mem *core.Memory) error {
		v, err := mem.Export(uint32(flags))
		*fd = C.int(v)
		return err
	})
}

//export gdrcore_cache_open
func gdrcore_cache_open(g, most C.uint64_t, c *C.uint64_t) C.int {
	return answerOne("gdr_cache_open", c, func() (handle.Handle, error) { return library.CacheOpen(toHandle(g), uint64(most)) })
}

//export gdrcore_cache_get
func gdrcore_cache_get(c, addr, size, now C.uint64_t, h, va *C.uint64_t) C.int {
	return answerOn("gdr_cache_get", cacheOf(c), func(c *cache.Cache) error {
		held, at, err := c.Get(uint64(addr), uint64(size), uint64(now))
		*h, *va = C.uint64_t(held), C.uint64_t(at)
		return err
	})
}

//export gdrcore_cache_settle
func gdrcore_cache_settle(c C.uint64_t) C.int {
	return answerOn("gdr_cache_put", cacheOf(c), (*cache.Cache).Settle)
}

//export gdrcore_cache_flush
func gdrcore_cache_flush(c C.uint64_t) C.int {
	return answerOn("gdr_cache_flush", cacheOf(c), (*cache.Cache).Flush)
}

//export gdrcore_cache_close
func gdrcore_cache_close(c C.uint64_t) C.int {
	return answer("gdr_cache_close", func() error { return library.CacheClose(toHandle(c)) })
}
