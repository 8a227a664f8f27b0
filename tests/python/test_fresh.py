# SPDX-License-Identifier: MIT
"""Reads after a copy within the GPU, of small allocations that share a GPU page, in each way to a mapping.

cuMemcpyDtoD returns before the copy has ended, unless SYNC_MEMOPS is set on the memory. Memory of a pool takes the
attribute, and the driver does not follow it (580.159.04): there the program synchronises before it reads.
"""
import ctypes
import sys

import pytest

PAGE = 65536
SYNC_MEMOPS = 6
IS_LEGACY = 10  # memory of cuMemAlloc
CONTROL = 20  # reads with the attribute taken away again


class Driver:
    """Allocations of one kind, and copies within the GPU that are late."""

    def __init__(self, cuda, pool):
        self.cuda, self.pool, self.made = cuda, pool, []
        simulated = hasattr(cuda.lib, "cuda_sim_live")
        self.reads, self.busy = 100 if simulated else 1000, 4096 if simulated else 1 << 30
        self.source, self.ahead = cuda.alloc(PAGE), cuda.alloc(self.busy)

    def alloc(self, size):
        address = ctypes.c_uint64()
        if self.pool:
            self.cuda("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), None)
            self.cuda("cuStreamSynchronize", None)
        else:
            address.value = self.cuda.alloc(size)
        self.made.append(address.value)
        return address.value

    def free(self, address):
        self.made.remove(address)
        if self.pool:
            self.cuda("cuMemFreeAsync", ctypes.c_uint64(address), None)
            self.cuda("cuStreamSynchronize", None)
        else:
            self.cuda.free(address)

    def close(self):
        for address in list(self.made):
            self.free(address)
        self.cuda.free(self.source)
        self.cuda.free(self.ahead)

    def attribute(self, which, address):
        value = ctypes.c_uint64()
        self.cuda("cuPointerGetAttribute", ctypes.byref(value), which, ctypes.c_uint64(address))
        return bool(value.value & 0xff)

    def be_asynchronous(self, address):
        self.cuda("cuPointerSetAttribute", ctypes.byref(ctypes.c_int(0)), SYNC_MEMOPS, ctypes.c_uint64(address))

    def stale(self, address, read, reads, waits=False):
        """How many of so many reads show the word of before the copy, which waits behind a memset."""
        found = 0
        for number in range(1, reads + 1):
            self.cuda("cuMemsetD32_v2", ctypes.c_uint64(self.source), ctypes.c_uint(number), ctypes.c_size_t(16))
            self.cuda("cuCtxSynchronize")
            self.cuda("cuMemsetD8Async", ctypes.c_uint64(self.ahead), ctypes.c_ubyte(number & 255), ctypes.c_size_t(self.busy), None)
            self.cuda("cuMemcpyDtoD_v2", ctypes.c_uint64(address), ctypes.c_uint64(self.source), ctypes.c_size_t(64))
            if waits:
                self.cuda("cuCtxSynchronize")
            found += read() != number
            self.cuda("cuCtxSynchronize")
        return found


def one_of_a_page(driver, size):
    """An allocation behind others of its GPU page, and these."""
    made = [driver.alloc(size) for _ in range(4 * PAGE // size)]
    pages = [address // PAGE for address in made]
    mine = [address for address in made if address % PAGE >= size and pages.count(address // PAGE) > 1][-1]
    return mine, [address for address in made if address // PAGE == mine // PAGE and address != mine]


def word_of(resource):
    return lambda: int.from_bytes(resource.read(4), sys.byteorder)


def pin(gdr, address):
    buffer = gdr.pin((address, 64))
    return word_of(buffer), buffer.close


def cache(gdr, address):
    cache = gdr.cache(1 << 24)
    return word_of(cache.get((address, 64))), cache.close


@pytest.mark.parametrize("way", [pin, cache])
@pytest.mark.parametrize("size", [1024, 32768])
@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_no_read_is_stale(cuda, gdr, pool, freed, size, way):
    driver = Driver(cuda, pool)
    try:
        address, neighbours = one_of_a_page(driver, size)
    except AssertionError as why:
        pytest.skip("no memory of this kind here: %s" % why)
    if freed and gdr.backend == "dmabuf":
        pytest.skip("CUDA exports no page that begins in free space")
    while freed and neighbours:
        driver.free(neighbours.pop())
    driver.be_asynchronous(address)
    read, end = way(gdr, address)
    assert driver.attribute(SYNC_MEMOPS, address)
    assert driver.stale(address, read, driver.reads, waits=not driver.attribute(IS_LEGACY, address)) == 0
    assert not any(driver.attribute(SYNC_MEMOPS, one) for one in neighbours)
    driver.be_asynchronous(address)
    assert driver.stale(address, read, CONTROL)
    end()
    driver.close()
