# SPDX-License-Identifier: MIT
"""vkgdr's interface on this library.

    handle = vkgdr.Vkgdr.open_current_context()
    memory = vkgdr.RawMemory(handle, 1 << 20)
    numpy.asarray(memory)[:4] = 1       # the CPU writes what the GPU will read

The memory is always coherent: flush and invalidate are allowed, and have nothing to do. A
kernel that is launched after the CPU wrote sees what it wrote.
"""
import ctypes
import enum
import errno
from typing import Any, Dict

from ._buffer import Gdr, Memory, open as _open
from ._errors import GdrError

__all__ = ["OpenFlags", "RawMemory", "Vkgdr"]


class OpenFlags(enum.IntFlag):
    """What Vkgdr.open may be asked for. Neither changes anything here."""

    FORCE_NON_COHERENT = 2
    REQUIRE_COHERENT = 4


def _current_device() -> int:
    """The GPU of the thread's CUDA context."""
    device = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device)):
        raise GdrError(errno.ENODEV, "cuCtxGetDevice")
    return device.value


class Vkgdr:
    """An open library that allocates on one GPU. It ends with its last reference."""

    def __init__(self, device: int, flags: int = 0) -> None:
        if flags & ~int(OpenFlags.FORCE_NON_COHERENT | OpenFlags.REQUIRE_COHERENT):
            raise ValueError("unknown flags: %#x" % flags)
        self.device = device
        self._gdr: Gdr = _open()

    @classmethod
    def open(cls, device: int, flags: int = 0) -> "Vkgdr":
        """Opens the library for the GPU that CUDA numbers so."""
        return cls(device, flags)

    @classmethod
    def open_current_context(cls, flags: int = 0) -> "Vkgdr":
        """Opens the library for the GPU of the thread's CUDA context."""
        return cls(_current_device(), flags)


class RawMemory:
    """GPU memory that the CPU has mapped. It ends with its last reference and last view."""

    is_coherent = True
    non_coherent_atom_size = 1

    def __init__(self, handle: Vkgdr, size: int, flags: int = 0) -> None:
        if flags:
            raise ValueError("unknown flags: %#x" % flags)
        self._memory: Memory = handle._gdr.alloc(size, handle.device)
        self._buffer = handle._gdr.pin(self._memory)

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def device_ptr(self) -> int:
        """GPU address of the first byte."""
        return self._memory.address

    @property
    def host_ptr(self) -> int:
        """The CPU's address of the first byte; it is not valid longer than this object."""
        return self._buffer._at(0, 0)

    def view(self) -> memoryview:
        """The memory itself."""
        return self._buffer.view()

    def __buffer__(self, flags: int) -> memoryview:
        """memoryview(memory), from Python 3.12 on."""
        return self.view()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return self._buffer.__array_interface__

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return self._memory.__cuda_array_interface__

    def flush(self, offset: int = 0, size: int = 0) -> None:
        """After the CPU wrote that range. Nothing is to do."""
        self._buffer._at(offset, size)

    def invalidate(self, offset: int = 0, size: int = 0) -> None:
        """Before the CPU reads what the GPU wrote in that range. Nothing is to do."""
        self._buffer._at(offset, size)
