# SPDX-License-Identifier: MIT
"""CPU access to GPU memory through a mapping of it.

    import gdrapi

    with gdrapi.open() as gdr, gdr.pin(tensor) as buffer:
        buffer.write(b"from the CPU")
        first = buffer.read(4)
        view = buffer.view()        # a memoryview of the GPU memory itself

What can be pinned has ``__cuda_array_interface__`` or ``__dlpack__`` (PyTorch, CuPy, numba,
JAX, ...), or is a pair of a GPU address and a number of bytes. Sizes and offsets are bytes.

The library does not order the CPU and the GPU. Wait for the GPU's work on the memory before
the CPU reads it (``torch.cuda.synchronize()``), and launch work after the CPU wrote it.

Every object may be used from any thread. close raises BufferError beside a view or another thread's
copy. A forked child opens and pins for itself: there, what it inherited raises GdrError with EACCES,
and a view of before the fork faults.
"""
from ._cuda import CudaArray, CudaError
from ._errors import GdrError, LaneError
from ._gdr import Buffer, Cache, Gdr, Held, Memory, Scalar, open, scalar
from ._lane import Lane, Rows
from ._lib import version
from ._mapping import Mapping
from ._share import Remote, Shared, from_fds, share, to_fds
from ._source import GpuArray

__all__ = [
    "Buffer", "Cache", "CudaArray", "CudaError", "Gdr", "GdrError", "GpuArray", "Held", "Lane", "LaneError", "Mapping", "Memory",
    "Remote", "Rows", "Scalar", "Shared", "from_fds", "open", "scalar", "share", "to_fds", "version",
]
