# SPDX-License-Identifier: MIT
"""An open library, and what it opens: buffers, memory of its own, the registration cache."""
import ctypes
import os
import struct
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _lib
from ._errors import GdrError
from ._mapping import _SMALL, Mapping, Resource
from ._source import GpuArray, Source, source_of


# All mappings; without a lock, which a fork could leave locked in the child.
_mappings: "weakref.WeakValueDictionary[int, Mapping]" = weakref.WeakValueDictionary()


def _watch(mapping: Mapping, *of: Resource) -> None:
    """A close from now on ends the mapping, too. One that came before did not."""
    _mappings[id(mapping)] = mapping
    if any(isinstance(one, Resource) and one._closing for one in (mapping._source.owner, *of)):
        raise ValueError("what the mapping is of was closed")


def _live(of: Callable[[Mapping], bool]) -> List[Mapping]:
    mappings = (reference() for reference in _mappings.valuerefs())
    return [mapping for mapping in mappings if mapping is not None and of(mapping)]


def _pin(resource: Resource, gdr: "Gdr", source: Source) -> Tuple[_lib.Handle, _lib.Info]:
    """Pins, until the end of resource. The pin begins on a page of the backend's, as a mapping does."""
    handle, info = _lib.Handle(), _lib.Info()
    _lib.call("gdr_pin_bytes", gdr._g, source.address, source.nbytes, 0, ctypes.byref(handle))
    resource._opened("gdr_unpin_buffer", gdr._g, handle)
    _lib.call("gdr_get_info_v2", gdr._g, handle, ctypes.byref(info))
    return handle, info


class Buffer(Mapping):
    """GPU memory that Gdr.pin pinned and mapped."""

    def __init__(self, gdr: "Gdr", array: GpuArray, map_flags: int, of: Optional[Resource] = None) -> None:
        """of makes the copies, where it is not the Buffer itself."""
        super().__init__()
        if of is not None:
            self._running, self._closing = of._running, of._closing
        source = source_of(array)
        handle, self._info = _pin(self, gdr, source)
        va, size = ctypes.c_void_p(), source.nbytes + source.address - int(self._info.va)
        try:
            _lib.call("gdr_map_v2", gdr._g, handle, ctypes.byref(va), size, map_flags)
            _lib.call("gdr_get_info_v2", gdr._g, handle, ctypes.byref(self._info))
        except GdrError:
            self._finalizer()
            raise
        self._mapped(gdr, source, handle, (va.value or 0) + source.address - int(self._info.va))
        _watch(self, gdr)

    @property
    def mapping_type(self) -> str:
        """"wc", "cached" or "device"."""
        return ("none", "wc", "cached", "device")[self._info.mapping_type]


class Scalar(Resource):
    """One element of an array, read and written by the CPU while a kernel may run."""

    def __init__(self, gdr: "Gdr", array: GpuArray) -> None:
        buffer = gdr.pin(array)
        letter = buffer._source.format
        if letter is None or buffer.nbytes != struct.calcsize(letter):
            buffer.close()
            raise ValueError("a scalar is one element, of a type that the struct module has")
        self._buffer, self._struct = buffer, struct.Struct(letter)
        self._finalizer = buffer._finalizer

    def close(self) -> None:
        """Unpins the memory."""
        self._buffer.close()

    @property
    def value(self) -> Any:
        """What the memory holds now: one load, or one store with a fence after it.

        It waits for no kernel and no copy, and says nothing of memory beside this element.
        """
        if _SMALL and os.getpid() == self._buffer._pid:
            try:
                return self._struct.unpack_from(self._buffer._bytes)[0]
            except ValueError:
                pass  # closed: read says so
        return self._struct.unpack(self._buffer.read(self._struct.size))[0]

    @value.setter
    def value(self, value: Any) -> None:
        self._buffer.write(self._struct.pack(value))


class Held(Mapping):
    """GPU memory that a cache holds mapped, until close."""

    def __init__(self, cache: "Cache", array: GpuArray) -> None:
        super().__init__()
        source = source_of(array)
        handle, va = _lib.Handle(), ctypes.c_void_p()
        _lib.call("gdr_cache_get", cache._cache, source.address, source.nbytes,
                  ctypes.byref(handle), ctypes.byref(va))
        self._opened("gdr_cache_put", cache._cache, handle)
        self._cache = cache
        self._mapped(cache._gdr, source, handle, va.value or 0)
        _watch(self, cache, cache._gdr)


class Cache(Resource):
    """A registration cache: what it pinned stays pinned, for the next that asks for it."""

    def __init__(self, gdr: "Gdr", max_bytes: int) -> None:
        super().__init__()
        self._of = self._gdr = gdr
        self._cache = _lib.Handle()
        _lib.call("gdr_cache_open", gdr._g, max_bytes, 0, ctypes.byref(self._cache))
        self._opened("gdr_cache_close", self._cache)

    def get(self, array: GpuArray) -> Held:
        """Has the array mapped, and holds it until close of what this returns.

        A range in the cache is found without a lock or a system call.
        """
        return Held(self, array)

    def flush(self) -> None:
        """Unpins all that nobody holds."""
        _lib.call("gdr_cache_flush", self._cache)

    def _ends(self) -> List[Mapping]:
        return _live(lambda mapping: isinstance(mapping, Held) and mapping._cache is self)


class Memory(Resource):
    """GPU memory that can be pinned on every backend, of Gdr.alloc.

    It has __cuda_array_interface__: torch.as_tensor(memory, device="cuda") and
    cupy.asarray(memory) are arrays in it, which keep it. close is for when they are gone: it
    unpins the memory, and frees it.
    """

    _unpins = False

    def __init__(self, gdr: "Gdr", size: int, device: int) -> None:
        super().__init__()
        self._of = self._gdr = gdr
        address = ctypes.c_ulong()
        self._memory = memory = _lib.Handle()
        _lib.call("gdr_mem_alloc", gdr._g, device, size, 0, ctypes.byref(memory))
        self._opened("gdr_mem_free", gdr._g, memory)
        _lib.call("gdr_mem_get_device_ptr", gdr._g, memory, ctypes.byref(address), None)
        self.address, self.nbytes, self.device = int(address.value), size, device

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1",
                "data": (self.address, False), "strides": None, "stream": None}

    def __len__(self) -> int:
        return self.nbytes

    def export_dmabuf(self) -> int:
        """A descriptor of the memory as a dma-buf, for another device's driver. Close it by os.close."""
        fd = ctypes.c_int(-1)
        _lib.call("gdr_mem_export_dmabuf", self._gdr._g, self._memory, 0, ctypes.byref(fd))
        return fd.value

    def _ends(self) -> List[Mapping]:
        return _live(lambda mapping: mapping._source.owner is self)


class Gdr(Resource):
    """An open library."""

    def __init__(self) -> None:
        super().__init__()
        self._g = _lib.open_library()
        self._opened("gdr_close", self._g)

    @property
    def backend(self) -> str:
        """"gdrdrv", "dmabuf" or "rm"; "dmabuf|rm" until the first pin decides."""
        name = ctypes.create_string_buffer(16)
        _lib.call("gdr_get_backend", self._g, name, len(name))
        return name.value.decode()

    @property
    def persistent(self) -> bool:
        """True: a mapping stays valid when its GPU memory is freed, until it is closed."""
        answer = ctypes.c_int()
        _lib.call("gdr_get_attribute", self._g, 1, ctypes.byref(answer))
        return bool(answer.value)

    def pin(self, array: GpuArray, map_flags: int = 0) -> Buffer:
        """Pins and maps the memory of a contiguous array, which the Buffer keeps.

        map_flags is 0, or one of the GDR_MAP_FLAG_REQ_ values of gdrapi.h.
        """
        return Buffer(self, array, map_flags)

    def alloc(self, size: int, device: int = 0) -> Memory:
        """Allocates GPU memory that can be pinned on every backend; it initialises CUDA."""
        return Memory(self, size, device)

    def cache(self, max_bytes: int = 1 << 30) -> Cache:
        """Makes a registration cache that keeps so much pinned while nobody uses it."""
        return Cache(self, max_bytes)

    def _ends(self) -> List[Mapping]:
        return _live(lambda mapping: mapping._gdr is self)


_default: Optional[Gdr] = None  # of shared


def shared() -> Gdr:
    """This process' library of scalar and Lane, which stays open."""
    global _default
    if _default is None or _default._pid != os.getpid():
        _default = Gdr()
    return _default


def scalar(array: GpuArray) -> Scalar:
    """Pins one element, as tensor[3:4], for a value that a kernel updates or waits for.

    It uses a library of its own that stays open. Scalar.value reads and writes.
    """
    return Scalar(shared(), array)


def open() -> Gdr:  # noqa: A001 - gdrapi.open, as os.open
    """Opens the library: gdr_open(3) says which backend it takes."""
    return Gdr()
