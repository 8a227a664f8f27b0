# SPDX-License-Identifier: MIT
"""libgdrapi.so.2 by ctypes: gdrapi.h and gdrapi_ext.h say what each call does.

ctypes gives the interpreter's lock back for the time of a call.
"""
import ctypes
import errno
import functools
import os
from typing import Any, Dict, List, Tuple

from ._errors import GdrError

SONAME = "libgdrapi.so.2"


class Handle(ctypes.Structure):
    """gdr_mh_t, gdr_mem_t and gdr_cache_t: a number, by value."""

    _fields_ = [("h", ctypes.c_ulong)]


class Info(ctypes.Structure):
    """struct gdr_info_v2."""

    _fields_ = [
        ("va", ctypes.c_uint64), ("mapped_size", ctypes.c_uint64), ("page_size", ctypes.c_uint32),
        ("tm_cycles", ctypes.c_uint64), ("cycles_per_ms", ctypes.c_uint32),
        ("mapped", ctypes.c_uint, 1), ("wc_mapping", ctypes.c_uint, 1), ("mapping_type", ctypes.c_int),
    ]


_INT, _UINT, _LONG, _SIZE, _POINTER = (
    ctypes.c_int, ctypes.c_uint, ctypes.c_ulong, ctypes.c_size_t, ctypes.c_void_p)
_OUT = ctypes.c_void_p  # ctypes.byref gives it

_ARGUMENTS: Dict[str, List[Any]] = {
    "gdr_close": [_POINTER],
    "gdr_pin_bytes": [_POINTER, _LONG, _SIZE, _UINT, _OUT],
    "gdr_unpin_buffer": [_POINTER, Handle],
    "gdr_get_info_v2": [_POINTER, Handle, _OUT],
    "gdr_map_v2": [_POINTER, Handle, _OUT, _SIZE, _INT],
    "gdr_copy_to_mapping": [Handle, _POINTER, _POINTER, _SIZE],
    "gdr_copy_from_mapping": [Handle, _POINTER, _POINTER, _SIZE],
    "gdr_copy_to_mapping_v": [_POINTER, _SIZE],
    "gdr_copy_from_mapping_v": [_POINTER, _SIZE],
    "gdr_get_attribute": [_POINTER, _INT, _OUT],
    "gdr_get_backend": [_POINTER, _OUT, _SIZE],
    "gdr_mem_alloc": [_POINTER, _INT, _SIZE, _UINT, _OUT],
    "gdr_mem_free": [_POINTER, Handle],
    "gdr_mem_get_device_ptr": [_POINTER, Handle, _OUT, _OUT],
    "gdr_mem_export_dmabuf": [_POINTER, Handle, _UINT, _OUT],
    "gdr_export_fd": [_POINTER, Handle, _UINT, _OUT],
    "gdr_get_object": [_POINTER, Handle, _OUT, _OUT, _OUT],
    "gdr_pin_fd": [_POINTER, _INT, _UINT, _OUT],
    "gdr_cache_open": [_POINTER, _SIZE, _UINT, _OUT],
    "gdr_cache_get": [Handle, _LONG, _SIZE, _OUT, _OUT],
    "gdr_cache_put": [Handle, Handle],
    "gdr_cache_flush": [Handle],
    "gdr_cache_close": [Handle],
}


def _load() -> ctypes.CDLL:
    """The one that the process has; else the wheel's; else the one that the loader finds."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD, use_errno=True)
    except OSError:
        return ctypes.CDLL(own if os.path.exists(own) else SONAME, use_errno=True)


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The library. Loading it starts nothing; OSError where there is none."""
    lib = _load()
    lib.gdr_open.argtypes, lib.gdr_open.restype = [], _POINTER
    lib.gdr_runtime_get_version.argtypes, lib.gdr_runtime_get_version.restype = [_OUT, _OUT], None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(lib, name, None)
        if function is not None:
            function.argtypes = arguments
    return lib


def function(name: str, lib: Any = None) -> Any:
    """The call of that name."""
    found = getattr(lib or library(), name, None)
    if found is None:
        raise GdrError(errno.ENOSYS, name)
    return found


def brief(name: str) -> Any:
    """The same for a call that takes microseconds: it keeps the interpreter's lock."""
    found = function(name, ctypes.PyDLL(SONAME, handle=library()._handle))
    found.argtypes = _ARGUMENTS[name]
    return found


def call(name: str, *arguments: Any) -> None:
    """Makes a call, and raises what it answers."""
    number = function(name)(*arguments)
    if number:
        raise GdrError(number, name)


def open_library() -> int:
    """gdr_open."""
    ctypes.set_errno(0)
    g = library().gdr_open()
    if not g:
        raise GdrError(ctypes.get_errno() or errno.ENODEV, "gdr_open")
    return int(g)


def version() -> Tuple[int, int]:
    """The library's version, (2, 6) or later."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().gdr_runtime_get_version(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value
