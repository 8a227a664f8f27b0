# SPDX-License-Identifier: MIT
"""Where an object has its GPU memory, and what lies there."""
import ctypes
import functools
import re
from typing import Any, Dict, NamedTuple, Optional, Protocol, Sequence, Tuple, Union, runtime_checkable


@runtime_checkable
class CudaArray(Protocol):
    """What CuPy, numba and PyTorch say of their arrays."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        ...


@runtime_checkable
class DLPackArray(Protocol):
    """What the array API standard says of arrays."""

    def __dlpack__(self, *, stream: Any = ...) -> Any:
        ...

    def __dlpack_device__(self) -> Any:
        ...


#: What can be pinned; the pair is a GPU address and a number of bytes.
GpuArray = Union[CudaArray, DLPackArray, Tuple[int, int]]


class Source(NamedTuple):
    """A range of GPU memory and the array in it."""

    address: int
    nbytes: int
    shape: Tuple[int, ...]
    typestr: str  # NumPy's name of an element: "<f4"
    readonly: bool
    owner: object  # keeps the memory while it lives
    descr: Any = None  # the fields of a structured element, as NumPy lists them
    dl: Optional[Tuple[int, int, int]] = None  # DLPack's type, bits and lanes of an element, where DLPack said them

    @property
    def format(self) -> Optional[str]:
        """The struct module's letter of an element, where memoryview knows it."""
        return None if self.typestr[0] == ">" else _FORMATS.get(self.typestr[1:])


_FORMATS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q",
    "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f4": "f", "f8": "d",
}


def source_of(array: GpuArray) -> Source:
    """TypeError for what is not in GPU memory; ValueError for what cannot be seen as one range."""
    if isinstance(array, tuple):
        address, nbytes = array
        return _checked(Source(address, nbytes, (nbytes,), "|u1", False, None), None)
    try:
        said = array.__cuda_array_interface__  # type: ignore[union-attr]
    except (AttributeError, KeyError):  # KeyError: of PyTorch, for a type that NumPy lacks
        pass
    else:
        return _of_interface(array, said)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    raise TypeError("%s has no __cuda_array_interface__ and no __dlpack__" % type(array).__name__)


def _of_interface(array: Any, said: Dict[str, Any]) -> Source:
    address, readonly = said["data"]
    if said.get("mask") is not None:
        raise ValueError("a masked array cannot be pinned")
    shape, typestr, fields = tuple(said["shape"]), said["typestr"], said.get("descr")
    if fields is not None and [tuple(field) for field in fields] == [("", typestr)]:
        fields = None  # CuPy says it of each type
    nbytes = _itemsize(typestr) * _count(shape)
    return _checked(Source(address, nbytes, shape, typestr, readonly, array, fields), said.get("strides"))


# NumPy's name of a type: the order of its bytes, a letter, a number; a unit of time for m and M.
_TYPESTR = re.compile(r"[<>|=](?:([biufcSaUVt])(\d+)|([mM])(8)(?:\[.*\])?)")


@functools.lru_cache(maxsize=256)
def _itemsize(typestr: str) -> int:
    """Bytes of an element: the number in its name, which counts characters for U, bits for t."""
    said = _TYPESTR.fullmatch(typestr)
    if not said:
        raise ValueError("%r is no type of NumPy's that lies in an array itself" % typestr)
    letter, number = said[1] or said[3], int(said[2] or said[4])
    return {"U": 4 * number, "t": (number + 7) // 8}.get(letter, number)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CUDA = 2
_DL_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_NO_SYNC = -1  # the stream for which the producer waits for nothing

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _of_dlpack(array: Any) -> Source:
    kind, _ = array.__dlpack_device__()
    if int(kind) != _DL_CUDA:
        raise TypeError("%s is not in the memory of a CUDA GPU (DLPack's device %d)"
                        % (type(array).__name__, int(kind)))
    # Nobody takes the tensor out of the capsule: its end frees it.
    capsule = array.__dlpack__(stream=_NO_SYNC)
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    itemsize = (tensor.bits * tensor.lanes + 7) // 8
    letter = _DL_LETTERS.get(tensor.code, "V") if tensor.lanes == 1 else "V"
    strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim)) if tensor.strides else None
    return _checked(Source((tensor.data or 0) + tensor.byte_offset, itemsize * _count(shape), shape,
                           "%s%s%d" % ("|" if itemsize == 1 else "<", letter, itemsize), False,
                           (array, capsule), None, (tensor.code, tensor.bits, tensor.lanes)), strides)


def typed(array: GpuArray) -> Source:
    """The same, with DLPack's type of what NumPy lacks, such as bfloat16."""
    source = source_of(array)
    if source.typestr[1] == "V" and not source.descr and hasattr(array, "__dlpack__"):
        source = source._replace(dl=_of_dlpack(array).dl)
    return source


def carried(address: int, shape: Sequence[int], typestr: str, readonly: bool, dl: Any) -> Source:
    """A Source from another process. ValueError for one that cannot be."""
    size, dl = _itemsize(typestr), tuple(bytes([*dl])) if dl else None
    if any(type(n) is not int or n < 1 for n in (address, size, *shape)) or dl and not (len(dl) == 3 and 0 < dl[1] * dl[2] <= 8 * size):
        raise ValueError("there is no array %s of %s, %s" % (shape, typestr, dl))
    return Source(address, size * _count(shape), tuple(shape), typestr, bool(readonly), None, None, dl)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _checked(source: Source, strides: Optional[Sequence[int]]) -> Source:
    if source.nbytes <= 0:
        raise ValueError("there is nothing to pin: the array has no bytes")
    if strides is None:
        return source
    step = source.nbytes // _count(source.shape)
    for n, stride in zip(reversed(source.shape), reversed(strides)):
        if n != 1 and stride != step:
            raise ValueError("the array is not contiguous: pin a contiguous copy, or the array it is a view of")
        step *= n
    return source
