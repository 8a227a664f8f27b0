# SPDX-License-Identifier: MIT
"""vkgdr's interface."""
import gc

import pytest

from gdrapi import vkgdr


def test_memory_is_the_gpus_and_the_cpus(cuda):
    handle = vkgdr.Vkgdr.open_current_context(vkgdr.OpenFlags.REQUIRE_COHERENT)
    assert handle.device == 0
    memory = vkgdr.RawMemory(handle, 10000)
    assert len(memory) == 10000 and memory.is_coherent and memory.non_coherent_atom_size >= 1
    view = memory.view()
    view[9990:] = b"ten bytes."
    memory.flush(9990, 10)
    assert cuda.read(memory.device_ptr + 9990, 10) == b"ten bytes."
    cuda.write(memory.device_ptr, b"from CUDA")
    memory.invalidate(0, 9)
    assert bytes(view[:9]) == b"from CUDA"
    assert memory.host_ptr % 4096 == 0


def test_a_view_keeps_the_memory(cuda):
    memory = vkgdr.RawMemory(vkgdr.Vkgdr.open(0), 4096)
    view, address = memory.view(), memory.device_ptr
    del memory
    gc.collect()
    view[0] = 42
    assert cuda.read(address, 1) == b"\x2a"


def test_numpy_is_the_memory(cuda):
    numpy = pytest.importorskip("numpy")
    memory = vkgdr.RawMemory(vkgdr.Vkgdr.open(0), 4096)
    numpy.asarray(memory)[:] = 7
    assert cuda.read(memory.device_ptr, 4096) == b"\x07" * 4096


def test_bad_arguments(cuda):
    with pytest.raises(ValueError):
        vkgdr.Vkgdr.open(0, 1 << 20)
    handle = vkgdr.Vkgdr.open(0)
    with pytest.raises(ValueError):
        vkgdr.RawMemory(handle, 4096, 1)
    with pytest.raises(OSError):
        vkgdr.RawMemory(handle, 0)
    with pytest.raises(OSError):
        vkgdr.RawMemory(vkgdr.Vkgdr.open(99), 4096)
    with pytest.raises(ValueError):
        vkgdr.RawMemory(handle, 4096).flush(4000, 100)
