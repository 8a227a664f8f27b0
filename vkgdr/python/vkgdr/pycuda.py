# SPDX-License-Identifier: MIT
"""vkgdr's memory for PyCUDA.

    memory = vkgdr.pycuda.Memory(vkgdr.Vkgdr.open_current_context(), 4 * n)
    array = pycuda.gpuarray.GPUArray(n, numpy.float32, gpudata=memory)
"""
from typing import Any

import pycuda.driver  # type: ignore

import vkgdr

__all__ = ["Memory"]


class Memory(pycuda.driver.PointerHolderBase, vkgdr.RawMemory):  # type: ignore[misc]
    """RawMemory that garbage collection frees, and that a GPUArray takes as gpudata.

    It keeps the context that is current when it is made, and frees the memory in it. That context
    must not be detached before.
    """

    def __init__(self, owner: vkgdr.Vkgdr, size: int, flags: int = 0) -> None:
        self._context: Any = pycuda.driver.Context.get_current()
        if self._context is None:
            raise vkgdr.VkgdrError("no CUDA context is current (CUDA_ERROR_INVALID_CONTEXT)")
        vkgdr.RawMemory.__init__(self, owner, size, flags)
        pycuda.driver.PointerHolderBase.__init__(self)

    def get_pointer(self) -> int:
        """The address that PyCUDA gives to a kernel."""
        return self.device_ptr

    def free(self) -> None:
        """Frees the memory, in its context. A second call does nothing."""
        context, self._context = self._context, None
        if context is None:
            return
        context.push()
        try:
            vkgdr.RawMemory.free(self)
        finally:
            context.pop()

    def __del__(self) -> None:
        self.free()
