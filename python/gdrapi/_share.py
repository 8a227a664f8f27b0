# SPDX-License-Identifier: MIT
"""An array's memory in another process, with CUDA or without: gdr_export_fd(3)."""
import ctypes
import errno
import os
import weakref
from multiprocessing import reduction
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, overload

from . import _lib
from ._cuda import CudaArray, Import
from ._errors import GdrError
from ._gdr import Gdr, _pin, _watch, shared
from ._mapping import Mapping, Resource
from ._source import GpuArray, Source, carried, typed


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


class _Fd:
    """A descriptor, until nothing refers to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)


class _Memory:
    """Pinned memory, for all arrays in it.

    place is what gdr_get_object says: offset, length, count; a count of 0 where it does not. fds has one descriptor then.
    Of several objects length is their sum, and behind count stand a list of their lengths and the number of descriptors: one of each
    object, for CUDA, then one of all, for gdr_pin_fd, where one has room for them.
    """

    def __init__(self, fds: Sequence[_Fd], place: Sequence[Any]) -> None:
        self.fds, self.place = fds, place
        self._imports: "weakref.WeakValueDictionary[Tuple[int, Optional[int]], Import]" = weakref.WeakValueDictionary()

    @property
    def lengths(self) -> Sequence[int]:
        lengths: Sequence[int] = self.place[3] if len(self.place) > 3 else self.place[1:2]
        return lengths

    @property
    def fd(self) -> int:
        """The one for gdr_pin_fd."""
        if len(self.lengths) == len(self.fds) > 1:
            raise GdrError(errno.ENOTSUP, "gdr_pin_fd")
        return self.fds[-1].fd

    def cuda(self, device: Optional[int]) -> Import:
        key = os.getpid(), device  # a forked child has none of its parent's
        made = self._imports.get(key)
        if made is None:
            if self.place[2] != len(self.lengths):
                raise GdrError(errno.ENOTSUP, "gdr_get_object")
            made = self._imports[key] = Import([(one.fd, length) for one, length in zip(self.fds, self.lengths)], device)
        return made

    def __reduce__(self) -> Any:
        return _received, ([reduction.DupFd(one.fd) for one in self.fds], self.place)


_END = 1 << 62  # ctypes takes numbers modulo 1 << 64, so sums of these count right


def _received(fds: Any, place: Sequence[Any]) -> _Memory:
    return _Memory([_Fd(fd.detach()) for fd in fds], place)


class Shared:
    """An array's memory, for other processes. Where share made it, it keeps the array until close.

    After that an allocator may give the memory to another array, while processes that have it go on writing there.
    multiprocessing carries it: as an argument of a Process, by a Queue, a Pipe or a Pool, to forked children.
    A Queue's put returns before it has taken it: close it once the other process has it. to_fds is for other ways.
    """

    def __init__(self, memory: _Memory, source: Source, skip: int) -> None:
        self._source, self._array, self._skip = source, source.owner, skip
        if source.owner is not None:
            self._source = source._replace(owner=None)
        self._memory: Optional[_Memory] = memory

    def _open(self) -> _Memory:
        if self._memory is None:  # its descriptor's number may be another file's by now
            raise ValueError("the shared memory is closed")
        return self._memory

    @property
    def _fd(self) -> int:
        return self._open().fd

    def open(self, gdr: Optional[Gdr] = None) -> Remote:
        """Maps the memory for this process' CPU, with the array's shape and type. CUDA is not called.

        It maps from the first array that share put into the same descriptor on. GdrError (ENOTSUP) for an array in more than 128
        memory objects: share parts of the array.
        """
        return Remote(gdr or shared(), self._source, self._fd, self._skip)

    def cuda(self, device: Optional[int] = None) -> CudaArray:
        """The array in this process' CUDA, for GPU number device; None: the GPU that has the memory.

        It initialises CUDA and takes the GPU's primary context, as PyTorch does. Nothing is copied. Several memory objects, as of
        expandable_segments, are mapped side by side. CudaError if CUDA refuses; GdrError (ENOTSUP) for an array that dmabuf shared.
        """
        memory = self._open()
        imported, offset = memory.cuda(device), memory.place[0] + self._skip
        if not 0 <= offset <= memory.place[1] - self._source.nbytes:
            raise ValueError("the array does not lie in its memory object")
        return CudaArray(imported, offset, self._source)

    def close(self) -> None:
        """Lets go of the descriptor and the array. What open and cuda gave stays."""
        self._memory = self._array = None

    def __reduce__(self) -> Any:
        return Shared, (self._open(), self._source, self._skip)


def to_fds(shareds: Sequence[Shared]) -> Tuple[List[int], Any]:
    """For a socket: the descriptors, each once, and a table that json takes. Keep the Shareds until they are sent."""
    memories = list(dict.fromkeys(shared._open() for shared in shareds))
    index = {memory: number for number, memory in enumerate(memories)}
    rows = [(index[shared._open()], shared._skip, source.address, source.shape, source.typestr, source.readonly, source.dl)
            for shared in shareds for source in (shared._source,)]
    return [one.fd for memory in memories for one in memory.fds], [[memory.place for memory in memories], rows]


def from_fds(fds: Sequence[int], table: Any) -> List[Shared]:
    """What to_fds was given, in another process. The descriptors are its own now, also where it raises ValueError."""
    return _of([_Fd(fd) for fd in fds], table)


def _of(held: List[_Fd], table: Any) -> List[Shared]:
    try:
        return _all_of(held, table)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the table is not that of these descriptors: %s" % error) from None


def _all_of(held: List[_Fd], table: Any) -> List[Shared]:
    memories: List[_Memory] = []
    for place in table[0]:
        several = len(place) > 3
        count = place[4] if several else 1
        numbers = [count, *place[:3], *(place[3] if several else ())]
        good = (len(place) > 2 and 0 < count <= len(held) and all(type(number) is int and 0 <= number < _END for number in numbers)
                and (not several or 1 < place[2] == len(place[3]) <= count <= place[2] + 1 and sum(place[3]) == place[1]))
        if not good:
            raise ValueError("the table is not that of these descriptors")
        memories.append(_Memory(held[:count], place))
        del held[:count]
    if held or any(not 0 <= number < len(memories) or type(skip) is not int or not 0 <= skip < _END for number, skip, *_ in table[1]):
        raise ValueError("the table is not that of these descriptors")
    return [Shared(memories[number], carried(*row), skip) for number, skip, *row in table[1]]


def _pin_object(gdr: Gdr, source: Source) -> Tuple[Resource, Any, int, Tuple[int, int, int]]:
    """Pins; what ends that, the handle, the first page's address, and the place in the object."""
    pinned, (offset, length, count) = Resource(), (ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint())
    handle, info = _pin(pinned, gdr, source)
    try:
        _lib.call("gdr_get_object", gdr._g, handle, ctypes.byref(offset), ctypes.byref(length), ctypes.byref(count))
    except GdrError as error:
        if error.errno != errno.ENOTSUP:  # of dmabuf
            raise
    return pinned, handle, int(info.va), (offset.value, length.value, count.value)


def _fd(gdr: Gdr, handle: Any, whole: bool) -> _Fd:
    fd = ctypes.c_int(-1)
    _lib.call("gdr_export_fd", gdr._g, handle, int(whole), ctypes.byref(fd))
    return _Fd(fd.value)


def _export(gdr: Gdr, sources: Sequence[Source], whole: bool) -> Tuple[_Memory, int, int]:
    """The memory of the first array and those behind it in its allocation: the address of its first page, and of how many."""
    pinned, handle, va, place = _pin_object(gdr, sources[0])
    if place[2] > 1:
        with pinned:
            memory, count = _export_each(gdr, sources, whole)
            return memory, va, count
    limit, count = va - place[0] + place[1] if place[2] == 1 else 0, 1
    while count < len(sources) and sources[count].address + sources[count].nbytes <= limit:
        count += 1
    if count > 1:
        try:
            pinned, handle, va, place = _pin_object(gdr, _around(sources[:count]))
        except GdrError:
            count = 1  # they are allocations of their own
    with pinned:
        return _Memory([_fd(gdr, handle, whole)], place), va, count


def _around(sources: Sequence[Source]) -> Source:
    end = max(source.address + source.nbytes for source in sources)
    return sources[0]._replace(nbytes=end - sources[0].address)


_MOST = 128  # memory objects that a descriptor of gdr_export_fd has room for
_PAGE = 1 << 16  # no memory object ends inside of one


def _export_each(gdr: Gdr, sources: Sequence[Source], whole: bool) -> Tuple[_Memory, int]:
    """The same of several objects, of how many arrays: those that begin in the objects of the ones before."""
    fds, lengths, first, end, count = [], [], 0, sources[0].address, 0  # type: List[_Fd], List[int], int, int, int
    for source in sources:
        if source.address >= end and count:
            break
        more, sizes, last = [], [], end  # type: List[_Fd], List[int], int
        while last < source.address + source.nbytes:
            pinned, handle, va, (offset, length, _) = _pin_object(gdr, source._replace(address=last, nbytes=1))
            with pinned:
                more.append(_fd(gdr, handle, False))
            first = first if lengths or sizes else offset
            last = va - offset + length
            sizes.append(length)
        if count and len(fds) + len(more) > _MOST:
            break
        fds, lengths, end, count = fds + more, lengths + sizes, last, count + 1
    around = _around(sources[:count])
    pinned, handle, va, place = _pin_object(gdr, around)
    with pinned:
        if place[2] != len(lengths):  # others lie there by now
            raise GdrError(errno.ENOTSUP, "gdr_get_object")
        if whole and (first or around.address + around.nbytes != end):
            raise GdrError(errno.EPERM, "gdr_export_fd")
        try:
            fds.append(_fd(gdr, handle, whole))
        except GdrError as error:
            if error.errno != errno.ENOTSUP:
                raise
    return _Memory(fds, (first, sum(lengths), len(lengths), lengths, len(fds))), count


@overload
def share(array: List[GpuArray], gdr: Optional[Gdr] = None, whole: bool = False) -> List[Shared]: ...


@overload
def share(array: GpuArray, gdr: Optional[Gdr] = None, whole: bool = False) -> Shared: ...


def share(array: Any, gdr: Optional[Gdr] = None, whole: bool = False) -> Any:
    """Makes an array's memory known to other processes, or that of each array of a list. It maps nothing.

    A list costs one descriptor for each allocation, as PyTorch's of many tensors, not for each array; one for each memory object if an
    array lies in several, as with expandable_segments.
    Who gets it can reach the memory object around the array: with cudaMalloc up to 2 MiB, with PyTorch a block
    of many tensors. With whole that raises GdrError (EPERM).
    """
    if not isinstance(array, list):
        return share([array], gdr, whole)[0]
    gdr, sources, made = gdr or shared(), [typed(one) for one in array], {}
    order = sorted(range(len(sources)), key=lambda number: sources[number].address)
    while order:
        memory, va, count = _export(gdr, [sources[number] for number in order], whole)
        for number in order[:count]:
            made[number] = Shared(memory, sources[number], sources[number].address - va)
        del order[:count]
    return [made[number] for number in range(len(sources))]
