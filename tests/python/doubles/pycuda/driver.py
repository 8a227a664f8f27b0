# SPDX-License-Identifier: MIT
"""pycuda.driver's contexts, and PointerHolderBase: like PyCUDA's it is a class of a C++ library,
whose __init__ must have run before a kernel may take the object."""
import ctypes

_cuda = ctypes.CDLL("libcuda.so.1")


def _call(name, *arguments):
    result = getattr(_cuda, name)(*arguments)
    if result:
        raise RuntimeError("%s failed: %d" % (name, result))


class Context:
    """A context; push makes it current, and pop the one before."""

    def __init__(self, handle):
        self.handle = handle

    @staticmethod
    def get_current():
        handle = ctypes.c_void_p()
        _call("cuCtxGetCurrent", ctypes.byref(handle))
        return Context(handle.value) if handle.value else None

    def push(self):
        _call("cuCtxPushCurrent_v2", ctypes.c_void_p(self.handle))

    @staticmethod
    def pop():
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class PointerHolderBase:
    """What a GPUArray takes as gpudata."""

    def __init__(self):
        self._made = True

    def __int__(self):
        if not getattr(self, "_made", False):
            raise TypeError("PointerHolderBase.__init__ was not called")
        return self.get_pointer()
