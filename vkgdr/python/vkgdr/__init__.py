# SPDX-License-Identifier: MIT
"""GPU memory that the CPU has mapped, with the interface of vkgdr, by libvkgdr.so.

    handle = vkgdr.Vkgdr.open_current_context()
    memory = vkgdr.RawMemory(handle, 1 << 20)
    numpy.asarray(memory).view(numpy.uint8)[:4] = 1     # the CPU writes what the GPU will read
    memory.flush(0, 4)
    memory.free()

vkgdr.h says what each call does. vkgdr.pycuda has memory for PyCUDA.
"""
import ctypes
import enum
import os
from typing import Any, Dict, Optional, Type, TypeVar

__all__ = ["OpenFlags", "RawMemory", "Vkgdr", "VkgdrError"]

__version__ = "2.6.0"

_SONAME = "libvkgdr.so"
_INT, _UINT32, _SIZE, _POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p

# What each function returns and takes.
_FUNCTIONS: Dict[str, Any] = {
    "vkgdr_last_error": (_POINTER, []),
    "vkgdr_open": (_POINTER, [_INT, _UINT32]),
    "vkgdr_close": (None, [_POINTER]),
    "vkgdr_memory_alloc": (_POINTER, [_POINTER, _SIZE, _UINT32]),
    "vkgdr_memory_free": (None, [_POINTER]),
    "vkgdr_memory_get_host_ptr": (_POINTER, [_POINTER]),
    "vkgdr_memory_get_device_ptr": (ctypes.c_uint64, [_POINTER]),
    "vkgdr_memory_get_size": (_SIZE, [_POINTER]),
    "vkgdr_memory_is_coherent": (ctypes.c_bool, [_POINTER]),
    "vkgdr_memory_non_coherent_atom_size": (_SIZE, [_POINTER]),
    "vkgdr_memory_flush": (None, [_POINTER, _SIZE, _SIZE]),
    "vkgdr_memory_invalidate": (None, [_POINTER, _SIZE, _SIZE]),
}


def _load() -> ctypes.CDLL:
    """The wheel's library; without one, that which the dynamic loader finds."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), _SONAME)
    library = ctypes.CDLL(own if os.path.exists(own) else _SONAME)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_lib = _load()
_free = ctypes.CDLL(None).free
_free.restype, _free.argtypes = None, [_POINTER]


class OpenFlags(enum.IntFlag):
    """What Vkgdr may be asked for; the flags may be or-ed."""

    #: The GPU of the thread's current CUDA context, whatever device says.
    CURRENT_CONTEXT_BIT = 1
    #: Memory says that it is not coherent, though it is: to test a program's flushes.
    FORCE_NON_COHERENT_BIT = 2
    #: Fail unless memory is coherent. It always is.
    REQUIRE_COHERENT_BIT = 4


class VkgdrError(RuntimeError):
    """A call failed. The text has CUDA's name of the error where CUDA has one."""


def _error() -> VkgdrError:
    """Why the thread's last call failed."""
    text = _lib.vkgdr_last_error()
    if not text:
        return VkgdrError("unknown error")
    try:
        return VkgdrError(ctypes.string_at(text).decode("utf-8", "replace"))
    finally:
        _free(text)


class _Handle:
    """An open library. It is closed with its last reference: a Vkgdr's, or a memory's."""

    def __init__(self, device: int, flags: int) -> None:
        self.value: Optional[int] = None
        self._close = _lib.vkgdr_close  # the module's names may be gone when the interpreter ends
        self.value = _lib.vkgdr_open(device, flags)
        if not self.value:
            raise _error()

    def __del__(self) -> None:
        if self.value:
            self._close(self.value)


_V = TypeVar("_V", bound="Vkgdr")


class Vkgdr:
    """An open library that allocates on one GPU: the one that CUDA numbers device.

    flags are OpenFlags, or-ed. It is closed with its last reference and its last memory's. VkgdrError
    says why it could not be opened. Any thread may use it.
    """

    def __init__(self, device: int, flags: int = 0) -> None:
        self._handle = _Handle(device, flags)

    @classmethod
    def open_current_context(cls: Type[_V], flags: int = 0) -> _V:
        """Opens the library for the GPU of the thread's current CUDA context."""
        return cls(0, flags | OpenFlags.CURRENT_CONTEXT_BIT)


class RawMemory:
    """size bytes of GPU memory that the CPU has mapped.

    The thread's current CUDA context must be one of owner's GPU; flags must be 0; VkgdrError says
    why there is none. The memory lives until free: garbage collection does not free it.
    numpy.asarray(memory) is the memory itself, and must not be used after free.
    """

    def __init__(self, owner: Vkgdr, size: int, flags: int = 0) -> None:
        self._memory: Optional[int] = None
        self._owner: Optional[_Handle] = owner._handle
        self._free_memory = _lib.vkgdr_memory_free
        self._memory = _lib.vkgdr_memory_alloc(owner._handle.value, size, flags)
        if not self._memory:
            raise _error()
        self.__array_interface__: Dict[str, Any] = {
            "version": 3, "shape": (size,), "typestr": "|V1",
            "data": (_lib.vkgdr_memory_get_host_ptr(self._memory), False),
        }

    def _live(self) -> int:
        if not self._memory:
            raise VkgdrError("the memory has been freed")
        return self._memory

    def free(self) -> None:
        """Frees the memory. The GPU's work on it must be done. A second call does nothing."""
        memory, self._memory = self._memory, None
        if memory:
            del self.__array_interface__
            self._free_memory(memory)
            self._owner = None

    @property
    def device_ptr(self) -> int:
        """The GPU's address of the first byte."""
        return int(_lib.vkgdr_memory_get_device_ptr(self._live()))

    def __len__(self) -> int:
        return int(_lib.vkgdr_memory_get_size(self._live()))

    @property
    def is_coherent(self) -> bool:
        """True unless FORCE_NON_COHERENT_BIT was given."""
        return bool(_lib.vkgdr_memory_is_coherent(self._live()))

    @property
    def non_coherent_atom_size(self) -> int:
        """The alignment of flushed and invalidated ranges, in bytes; 1 for coherent memory."""
        return int(_lib.vkgdr_memory_non_coherent_atom_size(self._live()))

    def flush(self, offset: int, size: int) -> None:
        """After the CPU wrote that range, before the GPU reads it."""
        _lib.vkgdr_memory_flush(self._live(), offset, size)

    def invalidate(self, offset: int, size: int) -> None:
        """After the GPU wrote that range, before the CPU reads it."""
        _lib.vkgdr_memory_invalidate(self._live(), offset, size)
