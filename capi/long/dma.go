// Package long has the copies that others than the caller may make, or help with: threads, and
// the GPU's copy engine.
//
// Go prepares them, at a pin and at a mapping, by all that is asked of CUDA and of the kernel
// once. C makes them: long.h is what it offers to package capi's C. It knows nothing of
// package capi.
package long

/*
#cgo CFLAGS: -std=gnu11 -O2 -g -Wall -Wextra
#include "dma.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"gdrapi/capi/host"
	"gdrapi/core/cuda"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// engines has the copy engine of each GPU that has one, by ordinal.
var engines [C.GDR_GPUS_MAX]struct {
	engine atomic.Pointer[cuda.Engine]
	makes  atomic.Bool // a thread looks after the engine; others go on without
}

// Pinned has the GPU's copy engine make long copies through the handle, which has just
// pinned size bytes at addr, if the host wants that. After a failure the CPU makes them.
func Pinned(handle, addr, size uint64) {
	if !C.gdr_dma_is_wanted() {
		return
	}
	d, err := cuda.Loaded()
	if err == nil {
		err = d.Relaxed(func(d *cuda.Driver) error { return prepare(d, handle, addr, size) })
	}
	if err != nil {
		log.Warnf("no copies by DMA through handle %#x: %v", handle, err)
	}
}

// Both have the same layout.
var _ = [1]int{}[unsafe.Sizeof(cuda.Extent{})-unsafe.Sizeof(C.struct_gdr_extent{})]

func prepare(d *cuda.Driver, handle, addr, size uint64) error {
	gpu, memories := d.MemoriesIn(addr, size)
	if len(memories) == 0 || gpu >= len(engines) {
		return nil
	}
	if !C.gdr_dma_pinned(C.uint64_t(handle), C.uint(gpu), (*C.struct_gdr_extent)(unsafe.Pointer(&memories[0])), C.size_t(len(memories))) {
		return unix.ENOMEM
	}
	return renewEngine(d, gpu)
}

// renewEngine makes a GPU's engine, unless it has one that works.
func renewEngine(d *cuda.Driver, gpu int) error {
	e := &engines[gpu]
	if e.makes.Swap(true) {
		return nil
	}
	defer e.makes.Store(false)
	f, err := d.Functions()
	if err != nil {
		return err
	}
	old := e.engine.Load()
	engine, err := d.EngineOf(gpu, old, cuda.Staging{Size: uintptr(C.gdr_engine_bytes), Word: uintptr(C.gdr_engine_word)})
	if engine == nil || engine == old {
		return err
	}
	C.gdr_dma_set_engine(C.uint(gpu), (*C.struct_gdr_engine)(host.Pointer(engine.Staging)), &C.struct_gdr_engine_parts{
		unscoped: C.struct_gdr_cuda_calls{
			attributes:    function(f.PointerGetAttributes),
			push:          function(f.CtxPushCurrent),
			pop:           function(f.CtxPopCurrent),
			stream_wait:   function(f.StreamSynchronize),
			to:            function(f.MemcpyHtoDAsync),
			from:          function(f.MemcpyDtoHAsync),
			write:         function(f.StreamWriteValue32),
			exchange_mode: function(f.ThreadExchangeStreamCaptureMode),
		},
		ctx:          host.Pointer(uintptr(engine.Context)),
		stream:       host.Pointer(engine.Stream),
		gpu_at:       C.uint64_t(engine.StagingAt),
		writes_words: C.bool(engine.WritesWords),
	})
	e.engine.Store(engine)
	return err
}

// function is the address of a function that C calls.
func function(addr uintptr) *[0]byte { return (*[0]byte)(host.Pointer(addr)) }

// Mapped is called when a handle has got a mapping, which begins at the GPU's address gpu.
func Mapped(handle, gpu uint64) {
	C.gdr_dma_mapped(C.uint64_t(handle), C.uint64_t(gpu))
	if err := StartThreads(); err != nil {
		log.Errorf("%v", err)
	}
}
