# SPDX-License-Identifier: MIT
"""Another process' memory object in this one's CUDA: the driver's calls by ctypes, where somebody asks for them."""
import atexit
import contextlib
import ctypes
import functools
import os
import struct
import weakref
from typing import Any, Dict, Optional, Sequence, Tuple

from ._source import _DL_CUDA, _DL_LETTERS, Source

_ADVICE = {
    "cuInit": "There is no GPU, or a parent had initialised CUDA before it forked: start such a child by spawn.",
    "cuMemImportFromShareableHandle": "CUDA takes memory that rm shared, of a GPU that this process sees.",
    "cuMemSetAccess": "Ask for the memory's own GPU, or for one with peer access to it.",
}
_POSIX_FD, _ON_DEVICE, _READ_WRITE, _NONE = 1, 1, 3, ctypes.c_uint64(0)
_driver = functools.lru_cache(maxsize=None)(functools.partial(ctypes.CDLL, "libcuda.so.1"))


class CudaError(RuntimeError):
    """A call of CUDA's failed: the text says which, CUDA's number, and what to do."""


def _call(name: str, *arguments: Any) -> None:
    number = getattr(_driver(), name)(*arguments)
    if number:
        raise CudaError("%s: CUresult %d. %s" % (name, number, _ADVICE.get(name, "")))


class Import:
    """Memory objects, mapped side by side for a GPU of this process until nothing refers to this."""

    def __init__(self, objects: Sequence[Tuple[int, int]], device: Optional[int]) -> None:
        """objects are descriptors and lengths."""
        address, size, context = ctypes.c_uint64(), ctypes.c_uint64(sum(length for _, length in objects)), ctypes.c_void_p()
        handle, said = ctypes.c_uint64(), (ctypes.c_int * 8)()
        _call("cuInit", 0)
        with contextlib.ExitStack() as end:
            for number, (fd, length) in enumerate(objects):
                _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _POSIX_FD)
                with contextlib.ExitStack() as imported:
                    imported.callback(_driver().cuMemRelease, ctypes.c_uint64(handle.value))  # the mapping keeps the memory
                    if not number:
                        _call("cuMemGetAllocationPropertiesFromHandle", said, handle)
                        self.device = said[3] if device is None else device
                        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
                        end.callback(_driver().cuDevicePrimaryCtxRelease_v2, self.device)
                        _call("cuMemAddressReserve", ctypes.byref(address), size, _NONE, _NONE, _NONE)
                        end.callback(_driver().cuMemAddressFree, address, size)
                        at = address.value
                    where = ctypes.c_uint64(at), ctypes.c_uint64(length)
                    _call("cuMemMap", *where, _NONE, handle, _NONE)
                    end.callback(_driver().cuMemUnmap, *where)
                    at += length
            _call("cuMemSetAccess", address, size, (ctypes.c_int * 3)(_ON_DEVICE, self.device, _READ_WRITE), ctypes.c_size_t(1))
            self.address = address.value
            weakref.finalize(self, _end, os.getpid(), context, end.pop_all()).atexit = False  # the end of the process ends all


def _end(pid: int, context: ctypes.c_void_p, end: contextlib.ExitStack) -> None:
    if os.getpid() != pid:  # a forked child has nothing of it
        return
    if not _driver().cuCtxPushCurrent_v2(context):  # nothing is unmapped under a kernel or a copy
        _driver().cuCtxSynchronize()
        _driver().cuCtxPopCurrent_v2(ctypes.byref(context))
    end.close()


class CudaArray:
    """An array of another process in this one's CUDA, of Shared.cuda.

    torch.from_dlpack(array), torch.as_tensor(array, device="cuda") and cupy.asarray(array) are that memory, and keep it.
    With the last array in its memory object the memory is unmapped, once the GPU's work has ended (cuCtxSynchronize):
    let it go outside of captures.
    """

    def __init__(self, memory: Import, offset: int, source: Source) -> None:
        self._memory, self._source = memory, source
        self.address, self.nbytes, self.shape, self.device = memory.address + offset, source.nbytes, source.shape, memory.device

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        said = {"version": 3, "shape": self.shape, "typestr": self._source.typestr, "strides": None, "stream": None,
                "data": (self.address, self._source.readonly)}
        return {**said, "descr": self._source.descr} if self._source.descr else said

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _DL_CUDA, self.device

    def __dlpack__(self, *, dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None, **_: Any) -> Any:
        """It waits for no stream: the other process says when its data is there. It copies nothing (BufferError)."""
        if copy or dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("this gives the GPU's memory itself; copy it from there")
        kind, typestr = self._source.dl, self._source.typestr
        if typestr[0] != ">" and typestr[1] in _DL_CODES:
            kind = _DL_CODES[typestr[1]], 8 * int(typestr[2:]), 1
        if kind is None or kind[1] > 255 or self._source.readonly:
            raise BufferError("DLPack has no type %s, or no read-only array" % typestr)
        tensor, size = ctypes.create_string_buffer(_TENSOR.size + 8 * len(self.shape)), _TENSOR.size
        at = ctypes.addressof(tensor)
        _TENSOR.pack_into(tensor, 0, self.address, _DL_CUDA, self.device, len(self.shape), *kind, at + size, 0, 0, 0, _RETURN)
        struct.pack_into("%dq" % len(self.shape), tensor, size, *self.shape)
        if _lends and _at_end(_RETURN_PYTHON, at, at):
            raise MemoryError("__cxa_atexit")
        _lent[at] = tensor, self._memory
        return _new_capsule(at, b"dltensor", _UNUSED)


_DL_CODES = {letter: code for code, letter in _DL_LETTERS.items()}
# DLManagedTensor: data, device, dimensions, type, shape, strides, offset, the producer's own, who takes it back.
_TENSOR = struct.Struct("=QiiiBBHQQQQQ")
_lent: Dict[int, Any] = {}  # what DLPack's tensors stand on, by their address


def _python(name: str, *types: Any) -> Any:
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


_new_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_capsule = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_raise_pending = _python("PyErr_Occurred", ctypes.c_void_p)
_in_capsule = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


def _unused(capsule: int) -> None:
    try:
        _raise_pending()  # where an error ends the capsule, which would fail the next call
    finally:
        if _is_capsule(capsule, b"dltensor"):  # who takes the tensor gives the capsule another name
            _finalize(_in_capsule(capsule, b"dltensor"))


_C = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _returned(at: int) -> None:
    _lent.pop(at, None)


# A consumer may give a tensor back after the interpreter has ended. So its deleter is C: __cxa_finalize runs what
# __cxa_atexit registered for the tensor, which is _returned until _leave takes it out.
_libc = ctypes.CDLL(None)
_at_end, _finalize = _libc["__cxa_atexit"], _libc["__cxa_finalize"]
_at_end.argtypes, _finalize.argtypes, _finalize.restype = [ctypes.c_void_p] * 3, [ctypes.c_void_p], None
_callbacks = _C(_returned), _C(_unused)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callbacks))  # tensors outlive modules
_RETURN_PYTHON, _UNUSED = (ctypes.cast(one, ctypes.c_void_p).value for one in _callbacks)
_RETURN = ctypes.cast(_finalize, ctypes.c_void_p).value
_lends = True


@atexit.register
def _leave() -> None:
    global _lends
    _lends = False
    lent = dict(_lent)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lent))  # consumers may still use it; the end of the process ends it
    for at in lent:
        _finalize(at)
