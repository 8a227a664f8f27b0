# SPDX-License-Identifier: MIT
"""A producer of DLPack tensors, as a framework has one: written after the standard's C structs."""
import ctypes

CPU, CUDA = 1, 2
live = []  # tensors whose deleter has not run


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes, new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
rename = ctypes.pythonapi.PyCapsule_SetName
rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
USED = b"used_dltensor"
end_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


@end_type
def end(capsule):
    live.pop()


class Exporter:
    """An array with __dlpack__ alone."""

    def __init__(self, array, code, bits, device=CUDA, strides=None, offset=0, lanes=1):
        self.array, self.device = array, device
        shape = array.shape
        self.sizes = (ctypes.c_int64 * len(shape))(*shape)
        self.steps = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.tensor = Tensor(array.address - offset, device, 0, len(shape), code, bits, lanes,
                             ctypes.cast(self.sizes, ctypes.POINTER(ctypes.c_int64)),
                             ctypes.cast(self.steps, ctypes.POINTER(ctypes.c_int64)), offset, None, None)

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, *, stream=None):
        assert stream == -1
        live.append(ctypes.addressof(self.tensor))
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(end, ctypes.c_void_p))


def taken(capsule):
    """The tensor of a capsule, as a consumer takes it: it lives until its end()."""
    tensor = Tensor.from_address(pointer(capsule, b"dltensor"))
    rename(capsule, USED)
    tensor.end = lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tensor.deleter)(ctypes.addressof(tensor))
    return tensor
