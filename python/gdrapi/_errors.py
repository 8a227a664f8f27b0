# SPDX-License-Identifier: MIT
"""What the library answers, as an exception that says what to do."""
import errno
import os
from typing import Dict, Tuple

_LOG = "GDRCOPY_ENABLE_LOGGING=1 in the environment makes the library say why."

# By call and errno; then by errno alone.
_ADVICE: Dict[Tuple[str, int], str] = {
    ("gdr_open", errno.ENODEV):
        "No backend works. Check that nvidia-smi lists the GPU and that this user may open /dev/nvidiactl.",
    ("gdr_pin_bytes", errno.EINVAL): "The range must be GPU memory of one allocation of this process.",
    ("gdr_pin_bytes", errno.ENOTSUP): "This backend cannot map memory of this kind. Take memory of Gdr.alloc.",
    ("gdr_map_v2", errno.EAGAIN): "The memory was freed meanwhile, or the GPU is reset or suspended.",
    ("gdr_map_v2", errno.EINVAL): "The backend does not have this type of mapping. Ask for none.",
    ("gdr_map_v2", errno.ENOTSUP): "The driver cannot map this memory. Set GDRCOPY_BACKEND to another backend.",
    ("gdr_mem_alloc", errno.ENODEV):
        "There is no such GPU, or a parent had initialised CUDA before it forked. Start such a child by spawn.",
    ("gdr_mem_alloc", errno.ENOTSUP): "The GPU has no virtual memory management. Pin memory of CUDA's.",
    ("gdr_mem_export_dmabuf", errno.ENOTSUP):
        "The GPU's driver exports no dma-bufs. NVIDIA's open kernel modules do.",
    ("gdr_export_fd", errno.EPERM):
        "The memory around the array would go with it. Share all of it, or memory of Gdr.alloc.",
    ("gdr_export_fd", errno.ENOTSUP):
        "gdrdrv shares nothing, and a descriptor has room for few objects. Set GDRCOPY_BACKEND=rm.",
    ("gdr_get_object", errno.ENOTSUP):
        "CUDA takes whole memory objects that rm shared: dmabuf shared this one (set GDRCOPY_BACKEND=rm), or its allocator changed it meanwhile.",
    ("gdr_pin_fd", errno.ENOTSUP):
        "gdrdrv pins no descriptor; rm pins no dma-buf (GDRCOPY_BACKEND=dmabuf does), no memory pool's, none of a GPU in MIG mode, "
        "and no array in more than 128 memory objects.",
    ("gdr_cache_get", errno.ENOTSUP):
        "The cache takes memory of one allocation that has a buffer ID. Pin this memory by Gdr.pin.",
}
_ADVICE_BY_ERRNO: Dict[int, str] = {
    errno.EACCES: "It was opened before a fork. Open and pin in the child.",
    errno.EINVAL: "It was closed, or an argument is out of range.",
    errno.EMFILE: "The process is out of file descriptors. Raise ulimit -n, or close some.",
    errno.ENODEV: "There is no such GPU here, or no driver for it.",
    errno.ENOMEM: "Memory is short. Close what is pinned, or flush the cache.",
    errno.ENOSYS: "This libgdrapi.so.2 is another library's. Install this project's.",
}


class GdrError(OSError):
    """A call of the library failed.

    errno is what the call returned, call its name, advice what to do about it.
    """

    def __init__(self, number: int, call: str) -> None:
        self.call = call
        self.advice = _ADVICE.get((call, number)) or _ADVICE_BY_ERRNO.get(number, "")
        text = "%s: %s. %s %s" % (call, os.strerror(number), self.advice, _LOG)
        super().__init__(number, " ".join(text.split()))

    def __reduce__(self) -> "Tuple[type, Tuple[int, str]]":
        return GdrError, (self.errno or 0, self.call)


class LaneError(RuntimeError):
    """A lane does not serve: the text is one line, and says why and what to do."""
