# SPDX-License-Identifier: MIT
"""pycuda.driver's contexts, and PointerHolderBase: like PyCUDA's it is a class of a C++ library,
whose __init__ must have run before a kernel may take the object.

PyCUDA has a stack of contexts for each thread, beside CUDA's: CUDA's has only the top of it. What
other libraries made current is not on it. A call that fails here fails in PyCUDA's src/cpp/cuda.hpp:
context::pop, context_push and context::current_context; src/wrapper/wrap_cudadrv.cpp has the classes.
"""
import ctypes

_cuda = ctypes.CDLL("libcuda.so.1")


class LogicError(Exception):
    pass


def _call(name, *arguments):
    result = getattr(_cuda, name)(*arguments)
    if result:
        raise LogicError("%s failed: %d" % (name, result))


_stack = []  # of the one thread that the tests have


def _leave():
    """CUDA's stack loses PyCUDA's context."""
    if _stack:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class Context:
    """A context; push makes it current, and pop the one before. A Device makes it."""

    def __init__(self, handle):
        self._handle = handle

    @staticmethod
    def get_current():
        return _stack[-1] if _stack else None

    def push(self):
        _leave()
        _call("cuCtxPushCurrent_v2", self._handle)
        _stack.append(self)

    @staticmethod
    def pop():
        _leave()
        if not _stack:
            raise LogicError("context::pop failed: cannot pop non-current context")
        del _stack[-1]
        if _stack:
            _call("cuCtxPushCurrent_v2", _stack[-1]._handle)

    @property
    def handle(self):
        return self._handle.value


class Device:
    """A GPU."""

    def __init__(self, number):
        self._device = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(self._device), number)

    def retain_primary_context(self):
        """Its primary context, which is not current for that."""
        handle = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), self._device)
        return Context(handle)


class PointerHolderBase:
    """What a GPUArray takes as gpudata."""

    def __init__(self):
        self._made = True

    def __int__(self):
        if not getattr(self, "_made", False):
            raise TypeError("PointerHolderBase.__init__ was not called")
        return self.get_pointer()
