# SPDX-License-Identifier: MIT
"""GPU memory that is mapped for the CPU: reads, writes, views."""
import ctypes
import errno
import os
import platform
import struct
import sys
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar

from . import _lib
from ._errors import GdrError
from ._source import Source

_T = TypeVar("_T", bound="Resource")


class _PyBuffer(ctypes.Structure):
    """Py_buffer, of the stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


_SIMPLE = 0  # PyBUF_SIMPLE: the bytes, in one piece
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_PyBuffer)], None


def _address(view: memoryview) -> int:
    """Where the bytes are, while the view lives. BufferError if they are in several pieces."""
    held = _PyBuffer()
    _get_buffer(view, ctypes.byref(held), _SIMPLE)
    address = held.buf or 0
    _release_buffer(ctypes.byref(held))
    return address


# A read of at most so many bytes is made by the interpreter, of the mapping's own memoryview. An Arm
# device mapping takes aligned loads alone, which memcpy does not promise.
_SMALL = 64 if platform.machine() == "x86_64" else 0
_BYTES = [struct.Struct("%ds" % size) for size in range(_SMALL + 1)]
# The C library's memcpy makes two loads of such a size, each a round trip to the GPU; an integer is one.
_WORDS = {struct.calcsize(letter): struct.Struct(letter) for letter in "BHIQ"} if _SMALL else {}


class Resource:
    """What ends once: by close, with its block of `with`, or with the last reference to it."""

    _finalizer: Any  # weakref.finalize
    _unpins = True  # the call that ends this unpins what ends with it
    _of: "Optional[Resource]" = None  # whose end is this one's, too

    def __init__(self) -> None:
        # Lists that count: append and pop are one step each of the interpreter's, and a fork leaves no lock locked.
        self._closing: List[None] = []  # who closes this, or has: then nothing of it begins
        self._running: List[None] = []  # copies that run, views that are made
        self._pid = os.getpid()  # in a forked child nothing is mapped

    def _opened(self, name: str, *arguments: Any) -> None:
        """The call of that name ends this object; its errors count in close alone."""
        self._call = name
        self._finalizer = weakref.finalize(self, _lib.function(name), *arguments)
        self._finalizer.atexit = False  # the end of the process ends all

    @property
    def closed(self) -> bool:
        """True after close, and after close of what this was made of; of a Lane after its own close alone."""
        return not self._finalizer.alive or self._of is not None and self._of.closed

    def _in_use(self) -> bool:
        return bool(self._running) and os.getpid() == self._pid

    def _ends(self) -> "Sequence[Mapping]":
        """What ends with this."""
        return ()

    def close(self) -> None:
        """Ends this. BufferError while a view of its memory lives or a copy runs; nothing if it is closed."""
        if self._of is not None and self._of.closed:
            return
        self._closing.append(None)
        ends = self._ends()
        for mapping in ends:
            mapping._closing.append(None)
        if any(resource._in_use() for resource in (self, *ends)):
            for resource in (self, *ends):
                resource._closing.pop()
            raise BufferError("this memory is in use: release or delete its views, wait for its copies")
        left = self._finalizer.detach()
        if left is None:
            return
        for mapping in ends:
            mapping._bytes.release()
            mapping._finalizer.detach() if self._unpins else mapping._finalizer()
        _, end, arguments, _ = left
        number = end(*arguments)
        if number:
            raise GdrError(number, self._call)

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()


class Mapping(Resource):
    """GPU memory that is mapped for the CPU: what Buffer and Held have in common."""

    address: int  #: GPU address of the first byte
    nbytes: int
    shape: Tuple[int, ...]
    readonly: bool

    def __init__(self) -> None:
        super().__init__()
        self._views: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()

    def _mapped(self, gdr: Resource, source: Source, handle: _lib.Handle, va: int) -> None:
        self._gdr, self._source, self._handle = gdr, source, handle
        self._va = va  # of the byte at address
        self._copy_to, self._copy_from = (
            _lib.function("gdr_copy_to_mapping"), _lib.function("gdr_copy_from_mapping"))
        self.address, self.nbytes, self.shape = source.address, source.nbytes, source.shape
        self.readonly = source.readonly
        # For small reads. Nothing keeps the mapping for it: its release must come before the unmap.
        self._bytes = memoryview((ctypes.c_ubyte * self.nbytes).from_address(va)).cast("B")

    def _ends(self) -> "Sequence[Mapping]":
        return (self,)

    def _in_use(self) -> bool:
        return super()._in_use() or len(self._views) > 0 and os.getpid() == self._pid

    def __len__(self) -> int:
        return self.nbytes

    def _at(self, offset: int, size: int) -> int:
        """The CPU's address of that byte, of which size shall be used."""
        if self._closing:
            raise ValueError("the mapping is closed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError("%d bytes at %d are not all in the %d that are mapped"
                             % (size, offset, self.nbytes))
        return self._va + offset

    def write(self, data: Any, offset: int = 0) -> int:
        """Writes the bytes of data, anything with the buffer protocol. Returns how many.

        When this returns, the bytes are in order before every later store of this thread.
        """
        if self.readonly:
            raise TypeError("the array is read-only")
        if isinstance(data, bytes):
            start: Any = data  # ctypes takes bytes as they are
            size = len(data)
        else:
            view = memoryview(data)
            start, size = _address(view), view.nbytes
        self._running.append(None)  # before _at looks whether a close began
        try:
            number = self._copy_to(self._handle, self._at(offset, size), start, size)
        finally:
            self._running.pop()
        if number:
            raise GdrError(number, "gdr_copy_to_mapping")
        return size

    def readinto(self, target: Any, offset: int = 0) -> int:
        """Fills target, anything with a writable buffer. Returns how many bytes it has."""
        view = memoryview(target)
        if view.readonly:
            raise TypeError("the target is read-only")
        size = view.nbytes
        self._running.append(None)
        try:
            number = self._copy_from(self._handle, _address(view), self._at(offset, size), size)
        finally:
            self._running.pop()
        if number:
            raise GdrError(number, "gdr_copy_from_mapping")
        return size

    def read(self, size: int = -1, offset: int = 0) -> bytes:
        """Reads size bytes, or all from offset on.

        On x86-64, up to 64 bytes are read without a call into the library: plain loads, with no
        fence between them and loads before or after. readinto fences at any size.
        """
        if 0 < size <= _SMALL and offset >= 0 and os.getpid() == self._pid:
            try:
                word = _WORDS.get(size)
                if word is not None:
                    return int(word.unpack_from(self._bytes, offset)[0]).to_bytes(size, sys.byteorder)
                data: bytes = _BYTES[size].unpack_from(self._bytes, offset)[0]
                return data
            except (struct.error, ValueError):
                pass  # out of range, or closed: readinto says which
        target = bytearray(size if size >= 0 else max(self.nbytes - offset, 0))
        self.readinto(target, offset)
        return bytes(target)

    def view(self) -> memoryview:
        """The GPU memory itself, with the array's shape and type.

        Where memoryview has no such type (float16, complex, ...), these are its bytes; NumPy's
        asarray of this object has every type. Loads from a write-combined mapping are slow and
        stores to it have no order: read, readinto and write are fast, and fence.
        """
        data: Any = self._exported()  # mypy 1.15 wants each letter by name
        letter = self._source.format
        shaped: memoryview = data.cast(letter, list(self.shape)) if letter else data
        return shaped

    def _exported(self) -> memoryview:
        """All bytes; the array that they are of lives as long as a view of them does."""
        if os.getpid() != self._pid:
            raise GdrError(errno.EACCES, "view")
        self._running.append(None)
        try:
            array = (ctypes.c_ubyte * self.nbytes).from_address(self._at(0, self.nbytes))
            array.mapping = self  # type: ignore[attr-defined]
            self._views[id(array)] = array
        finally:
            self._running.pop()
        data = memoryview(array).cast("B")
        return data.toreadonly() if self.readonly else data

    def __buffer__(self, flags: int) -> memoryview:
        """memoryview(mapping), from Python 3.12 on; NumPy asks here first."""
        if not self._source.format:
            raise BufferError("memoryview has no type %s: use view" % self._source.typestr)
        return self.view()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        """numpy.asarray(mapping): the GPU memory itself, as NumPy's."""
        said = {"version": 3, "shape": self.shape, "typestr": self._source.typestr,
                "data": self._exported()}
        if self._source.descr:
            said["descr"] = self._source.descr
        return said
