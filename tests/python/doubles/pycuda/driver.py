# SPDX-License-Identifier: MIT
"""pycuda.driver's contexts, and PointerHolderBase: like PyCUDA's it is a class of a C++ library,
whose __init__ must have run before a kernel may take the object.

PyCUDA has a stack of contexts beside CUDA's: what other libraries made current is not on it. A pop
of none fails in PyCUDA, too: context::pop in its src/cpp/cuda.hpp.
"""
import ctypes

_cuda = ctypes.CDLL("libcuda.so.1")
_stack = []  # of the one thread that the tests have


def _call(name, *arguments):
    result = getattr(_cuda, name)(*arguments)
    if result:
        raise RuntimeError("%s failed: %d" % (name, result))


class Context:
    """A context; push makes it current, and pop the one before."""

    def __init__(self, handle):
        self.handle = handle.value

    @staticmethod
    def get_current():
        return _stack[-1] if _stack else None

    def push(self):
        _call("cuCtxPushCurrent_v2", ctypes.c_void_p(self.handle))
        _stack.append(self)

    @staticmethod
    def pop():
        del _stack[-1]
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Device:
    """A GPU."""

    def __init__(self, number):
        self._number = number

    def retain_primary_context(self):
        """Its primary context, which is not current for that."""
        handle = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), self._number)
        return Context(handle)


class PointerHolderBase:
    """What a GPUArray takes as gpudata."""

    def __init__(self):
        self._made = True

    def __int__(self):
        if not getattr(self, "_made", False):
            raise TypeError("PointerHolderBase.__init__ was not called")
        return self.get_pointer()
