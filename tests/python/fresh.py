# SPDX-License-Identifier: MIT
"""Reads through a mapping, right after a cuMemcpyDtoD to it, of small allocations that share GPU pages:

    LD_LIBRARY_PATH=build PYTHONPATH=python python3 tests/python/fresh.py [READS]

Each copy waits in the GPU behind a memset. With SYNC_MEMOPS on memory of cuMemAlloc it is done when the call returns. So no
read may show the bytes of before it: that would be stale. Memory of a pool takes the attribute, and the driver does not
follow it (580.159.04): there the program synchronises before it reads. PyTorch's memory is tried where PyTorch is installed.
"""
import ctypes
import sys

import gdrapi
from gdrapi import _lib

PAGE = 65536
SYNC_MEMOPS = 6
IS_LEGACY = 10  # memory of cuMemAlloc
CONTROL = 20  # reads with the attribute taken away again


class Driver:
    """libcuda with the primary context of GPU 0."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)
        self.source = self.alloc(PAGE)
        # The simulated driver is as late without it.
        self.busy = 0 if hasattr(self.lib, "cuda_sim_live") else self.alloc(1 << 30)

    def __call__(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        assert result == 0, "%s: %d" % (name, result)

    def alloc(self, size, pool=False):
        address = ctypes.c_uint64()
        if pool:
            self("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), None)
            self("cuStreamSynchronize", None)
        else:
            self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address, pool=False):
        if pool:
            self("cuMemFreeAsync", ctypes.c_uint64(address), None)
            self("cuStreamSynchronize", None)
        else:
            self("cuMemFree_v2", ctypes.c_uint64(address))

    def attribute(self, which, address):
        value = ctypes.c_uint64()
        self("cuPointerGetAttribute", ctypes.byref(value), which, ctypes.c_uint64(address))
        return bool(value.value & 0xff)

    def is_synchronous(self, address):
        return self.attribute(SYNC_MEMOPS, address)

    def be_asynchronous(self, address):
        self("cuPointerSetAttribute", ctypes.byref(ctypes.c_int(0)), SYNC_MEMOPS, ctypes.c_uint64(address))

    def stale(self, address, read, reads, waits=False):
        """How many of so many reads show the word of before the copy. With waits the program synchronises first."""
        found = 0
        for number in range(1, reads + 1):
            self("cuMemsetD32_v2", ctypes.c_uint64(self.source), ctypes.c_uint(number), ctypes.c_size_t(16))
            self("cuCtxSynchronize")
            if self.busy:
                self("cuMemsetD8Async", ctypes.c_uint64(self.busy), ctypes.c_ubyte(number & 255), ctypes.c_size_t(1 << 30), None)
            self("cuMemcpyDtoD_v2", ctypes.c_uint64(address), ctypes.c_uint64(self.source), ctypes.c_size_t(64))
            if waits:
                self("cuCtxSynchronize")
            found += read() != number
            self("cuCtxSynchronize")
        return found


class Small:
    """Allocations of one kind and size. One is the caller's; others were made before it on its GPU page."""

    def __init__(self, cuda, kind, size, freed):
        self.cuda, self.pool, self.tensors, self.kept = cuda, kind == "pool", [], []
        for _ in range(4 * PAGE // size):
            self.kept.append(self.new(kind, size))
        pages = [address // PAGE for address in self.kept]
        mine = [address for address in self.kept if address % PAGE >= size and pages.count(address // PAGE) > 1]
        self.address = mine[-1]
        self.neighbours = [a for a in self.kept if a // PAGE == self.address // PAGE and a != self.address]
        if freed:
            for address in self.neighbours:
                self.kept.remove(address)
                cuda.free(address, self.pool)
            self.neighbours = []

    def new(self, kind, size):
        if kind != "torch":
            return self.cuda.alloc(size, self.pool)
        import torch
        self.tensors.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
        return self.tensors[-1].data_ptr()

    def close(self):
        if not self.tensors:
            for address in self.kept:
                self.cuda.free(address, self.pool)


def word_at(address):
    return lambda: ctypes.c_uint32.from_address(address).value


def word_of(resource):
    return lambda: int.from_bytes(resource.read(4), sys.byteorder)


def cache_get(gdr, address):
    """gdr_cache_get of C. Each way gives what reads the word, and what ends it."""
    cache, handle, va = _lib.Handle(), _lib.Handle(), ctypes.c_void_p()
    _lib.call("gdr_cache_open", gdr._g, 1 << 24, 0, ctypes.byref(cache))
    _lib.call("gdr_cache_get", cache, address, 64, ctypes.byref(handle), ctypes.byref(va))
    return word_at(va.value), lambda: _lib.call("gdr_cache_close", cache)


def pin_aligned(gdr, address):
    """The example of gdr_pin_buffer(3): from the page's start on."""
    handle, va, start = _lib.Handle(), ctypes.c_void_p(), address // PAGE * PAGE
    size = address + 64 - start
    _lib.call("gdr_pin_buffer", gdr._g, start, size, 0, 0, ctypes.byref(handle))
    _lib.call("gdr_map_v2", gdr._g, handle, ctypes.byref(va), size, 0)
    return word_at(va.value + address - start), lambda: _lib.call("gdr_unpin_buffer", gdr._g, handle)


def python_pin(gdr, address):
    buffer = gdr.pin((address, 64))
    return word_of(buffer), buffer.close


def python_cache(gdr, address):
    cache = gdr.cache(1 << 24)
    held = cache.get((address, 64))

    def end():
        held.close()
        cache.close()
    return word_of(held), end


def has_torch():
    try:
        import torch
        return torch.cuda.is_available()
    except ImportError:
        return False


def main(reads=1000):
    """Prints a line for each case. Returns how many went wrong."""
    cuda, wrong = Driver(), 0
    kinds = [(kind, freed) for kind in ("cuMemAlloc", "pool") for freed in (False, True)]
    if has_torch():
        kinds.append(("torch", False))
    with gdrapi.open() as gdr:
        for kind, freed in kinds:
            try:
                cuda.free(cuda.alloc(1024, kind == "pool"), kind == "pool")
            except AssertionError as why:
                print("# no %s here: %s" % (kind, why))
                continue
            if freed and gdr.backend == "dmabuf":
                print("# CUDA exports no page that begins in free space")
                continue
            for size in (1024, 32768):
                for way in (cache_get, pin_aligned, python_pin, python_cache):
                    small = Small(cuda, kind, size, freed)
                    cuda.be_asynchronous(small.address)
                    read, end = way(gdr, small.address)
                    synchronous = cuda.is_synchronous(small.address)
                    waits = not cuda.attribute(IS_LEGACY, small.address)
                    stale = cuda.stale(small.address, read, reads, waits)
                    touched = sum(map(cuda.is_synchronous, small.neighbours)) if kind != "torch" else 0
                    cuda.be_asynchronous(small.address)
                    control = cuda.stale(small.address, read, CONTROL)
                    end()
                    small.close()
                    bad = stale or not synchronous or not control or way in (cache_get, python_cache) and touched
                    wrong += bool(bad)
                    print("%s %s of %d bytes, neighbours %s, %s: %d of %d stale, neighbours with SYNC_MEMOPS %d; without it %d of %d stale" % (
                        "FAIL" if bad else "ok  ", kind, size, "freed" if freed else "live", way.__name__, stale, reads, touched,
                        control, CONTROL), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000) else 0)
