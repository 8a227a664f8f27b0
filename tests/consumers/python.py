# SPDX-License-Identifier: MIT
"""The library under Python: ctypes, and multiprocessing's three ways to start a child.

A child that was forked before CUDA started, and one of spawn or forkserver at any time,
has the library and the GPU for itself. One that was forked later has no GPU, as CUDA
has it, and must get an errno for it."""
import ctypes
import errno
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

PAGE = 65536
CHILDREN = 4
passed = failed = 0


class Handle(ctypes.Structure):
    _fields_ = [("h", ctypes.c_ulong)]


def load():
    """The library with the arguments of what is called here."""
    g = ctypes.CDLL("libgdrapi.so.2")
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    g.gdr_open.restype = pointer
    g.gdr_close.argtypes = [pointer]
    g.gdr_pin_buffer.argtypes = [pointer, ctypes.c_ulong, size, ctypes.c_uint64, ctypes.c_uint32,
                                 ctypes.POINTER(Handle)]
    g.gdr_map.argtypes = [pointer, Handle, ctypes.POINTER(pointer), size]
    g.gdr_copy_to_mapping.argtypes = [Handle, pointer, pointer, size]
    g.gdr_copy_from_mapping.argtypes = [Handle, pointer, pointer, size]
    return g


def check(result, call):
    if result:
        raise OSError(result, call)


class Buffer:
    """GPU memory of cuMemAlloc, pinned and mapped."""

    def __init__(self):
        cuda = ctypes.CDLL("libcuda.so.1")
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        check(cuda.cuInit(0), "cuInit")
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
        check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2 * PAGE)), "cuMemAlloc")
        self.cuda = cuda
        self.address = (address.value + PAGE - 1) // PAGE * PAGE
        self.gdr = load()
        self.g = self.gdr.gdr_open()
        if not self.g:
            raise OSError(ctypes.get_errno(), "gdr_open")
        self.mh, self.va = Handle(), ctypes.c_void_p()
        check(self.gdr.gdr_pin_buffer(self.g, self.address, PAGE, 0, 0, ctypes.byref(self.mh)),
              "gdr_pin_buffer")
        check(self.gdr.gdr_map(self.g, self.mh, ctypes.byref(self.va), PAGE), "gdr_map")

    def write(self, text):
        check(self.gdr.gdr_copy_to_mapping(self.mh, self.va, text, len(text)), "gdr_copy_to_mapping")

    def read(self, n):
        """What the CPU reads through the mapping, and what CUDA reads."""
        mine, its = ctypes.create_string_buffer(n), ctypes.create_string_buffer(n)
        check(self.gdr.gdr_copy_from_mapping(self.mh, mine, self.va, n), "gdr_copy_from_mapping")
        check(self.cuda.cuMemcpyDtoH_v2(its, ctypes.c_uint64(self.address), ctypes.c_size_t(n)),
              "cuMemcpyDtoH")
        return mine.raw, its.raw

    def close(self):
        check(self.gdr.gdr_close(self.g), "gdr_close")


def whole(number):
    """A child: all from the start, in its own process."""
    text = b"child %d of %d" % (number, os.getpid())
    buffer = Buffer()
    buffer.write(text)
    same = buffer.read(len(text)) == (text, text)
    buffer.close()
    return same


def inherited(mh, va):
    """A forked child of a process with a GPU: an errno for what it inherited."""
    g = load()
    word = ctypes.create_string_buffer(8)
    rc = g.gdr_copy_from_mapping(Handle(mh), word, va, 8)
    fresh = g.gdr_open()
    mine = Handle()
    pin = g.gdr_pin_buffer(fresh, 0x7f0000000000, PAGE, 0, 0, ctypes.byref(mine)) if fresh else errno.ENODEV
    return rc, pin


def workers(method, number):
    """Processes that were started that way. One that dies of a signal is an error; with
    multiprocessing's own Pool it would be a task that never ends."""
    return ProcessPoolExecutor(number, multiprocessing.get_context(method))


def killed(method):
    """Whether a child that dies of a signal is seen."""
    with workers(method, 1) as pool:
        try:
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        except BrokenProcessPool:
            return True
    return False


def result(ok, name):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print("%sok %d - %s" % ("" if ok else "not ", passed + failed, name), flush=True)


def children(method):
    """Several at a time, and a second generation in the same workers."""
    try:
        with workers(method, CHILDREN) as pool:
            answer = list(pool.map(whole, range(2 * CHILDREN)))
    except (OSError, BrokenProcessPool) as error:
        print("# %s: %s" % (method, error))
        return False
    return answer == [True] * (2 * CHILDREN)


def main():
    result(killed("fork"), "a child that dies of a signal is seen")
    # Opened and not yet used: that takes nothing from a child.
    g = load()
    first = g.gdr_open()
    result(first, "gdr_open in the parent")
    result(children("fork"), "children of fork, before the parent uses CUDA")
    result(g.gdr_close(first) == 0, "gdr_close in the parent")

    buffer = Buffer()
    buffer.write(b"the parent's")
    for method in ("spawn", "forkserver"):
        result(children(method), "children of %s, beside a parent with a GPU" % method)
    with workers("fork", 1) as pool:
        rc, pin = pool.submit(inherited, buffer.mh.h, buffer.va.value).result()
    result(rc == errno.EACCES, "a forked child's copy through what it inherited: EACCES is %d" % rc)
    result(pin > 0, "its own pin, without CUDA: an errno, %d" % pin)
    result(buffer.read(12) == (b"the parent's",) * 2, "the parent's buffer is as it was")
    buffer.close()

    print("1..%d" % (passed + failed))
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
