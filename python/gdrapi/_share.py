# SPDX-License-Identifier: MIT
"""An array's memory in another process, which needs no CUDA: gdr_export_fd(3)."""
import ctypes
import os
import weakref
from multiprocessing import reduction
from typing import Any, Optional

from . import _lib
from ._gdr import Gdr, _pin, _watch, shared
from ._mapping import Mapping, Resource
from ._source import GpuArray, Source, source_of


class Remote(Mapping):
    """GPU memory of another process, that Shared.open pinned and mapped here."""

    def __init__(self, gdr: Gdr, source: Source, fd: int, skip: int) -> None:
        super().__init__()
        handle, va = _lib.Handle(), ctypes.c_void_p()
        _lib.call("gdr_pin_fd", gdr._g, fd, 0, ctypes.byref(handle))
        self._opened("gdr_unpin_buffer", gdr._g, handle)  # also where the map fails
        _lib.call("gdr_map_v2", gdr._g, handle, ctypes.byref(va), skip + source.nbytes, 0)
        self._mapped(gdr, source, handle, (va.value or 0) + skip)
        _watch(self, gdr)


class Shared:
    """An array's memory, for other processes. Where share made it, it keeps the array until close.

    After that an allocator may give the memory to another array, while processes that have it go on writing there.
    multiprocessing carries it: as an argument of a Process, by a Queue, a Pipe or a Pool, to forked children.
    A Queue's put returns before it has taken it: close it once the other process has it.
    """

    def __init__(self, fd: int, source: Source, skip: int) -> None:
        self._fd, self._skip = fd, skip
        self._source, self._array = source._replace(owner=None), source.owner
        self._close = weakref.finalize(self, os.close, fd)

    def open(self, gdr: Optional[Gdr] = None) -> Remote:
        """Maps the memory in this process, with the array's shape and type. CUDA is not called."""
        if not self._close.alive:
            raise ValueError("the shared memory is closed")
        return Remote(gdr or shared(), self._source, self._fd, self._skip)

    def close(self) -> None:
        """Closes this process' descriptor, and lets go of the array. What was opened stays."""
        self._close()
        self._array = None

    def __reduce__(self) -> Any:
        if not self._close.alive:  # its number may be another file's by now
            raise ValueError("the shared memory is closed")
        return _received, (reduction.DupFd(self._fd), tuple(self._source), self._skip)


def _received(fd: Any, source: Any, skip: int) -> Shared:
    return Shared(fd.detach(), Source(*source), skip)


def share(array: GpuArray, gdr: Optional[Gdr] = None, whole: bool = False) -> Shared:
    """Makes an array's memory known to other processes. It maps nothing.

    Who gets it can reach the memory object around the array: with cudaMalloc up to 2 MiB, with PyTorch a block
    of many tensors. With whole that raises GdrError (EPERM).
    """
    gdr, source, fd = gdr or shared(), source_of(array), ctypes.c_int(-1)
    pinned = Resource()
    handle, info = _pin(pinned, gdr, source)
    with pinned:
        _lib.call("gdr_export_fd", gdr._g, handle, int(whole), ctypes.byref(fd))
    return Shared(fd.value, source, source.address - int(info.va))
