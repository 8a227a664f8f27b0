# SPDX-License-Identifier: MIT
"""The Python package vkgdr, as a program written for vkgdr uses it."""
import contextlib
import ctypes

import pytest

numpy = pytest.importorskip("numpy")

import vkgdr  # noqa: E402
from conftest import prototypes  # noqa: E402
from vkgdr import OpenFlags, RawMemory, Vkgdr, VkgdrError  # noqa: E402

SIZE = 4097


@pytest.fixture
def handle(cuda):
    return Vkgdr.open_current_context()


@pytest.mark.parametrize("flags", [0, OpenFlags.REQUIRE_COHERENT_BIT, OpenFlags.FORCE_NON_COHERENT_BIT])
def test_memory_is_the_cpus_and_the_gpus(cuda, flags):
    memory = RawMemory(Vkgdr.open_current_context(*[flags] if flags else []), SIZE)
    forced = flags == OpenFlags.FORCE_NON_COHERENT_BIT
    assert len(memory) == SIZE
    assert memory.is_coherent is not forced
    assert (memory.non_coherent_atom_size == 1) is not forced
    assert memory.__array_interface__ == {
        "version": 3, "shape": (SIZE,), "typestr": "|V1", "data": (memory.__array_interface__["data"][0], False)}
    array = numpy.asarray(memory).view(numpy.uint8)
    array[:] = sent = numpy.arange(SIZE, dtype=numpy.uint8)
    memory.flush(0, SIZE)
    assert cuda.read(memory.device_ptr, SIZE) == sent.tobytes()
    cuda.write(memory.device_ptr, bytes(reversed(sent.tobytes())))
    memory.invalidate(0, SIZE)
    assert array.tobytes() == bytes(reversed(sent.tobytes()))
    memory.free()


def test_calls_and_flags_are_the_headers():
    """A type that is too narrow cuts an address off, but not on each machine."""
    declared = prototypes("vkgdr.h")
    assert len(declared) == 12
    for name, types in declared.items():
        call = getattr(vkgdr._lib, name)
        assert (name, (call.restype, call.argtypes)) == (name, types)
    assert (vkgdr._free.restype, vkgdr._free.argtypes) == (None, [ctypes.c_void_p])
    assert {flag.name: int(flag) for flag in OpenFlags} == {
        "CURRENT_CONTEXT_BIT": 1, "FORCE_NON_COHERENT_BIT": 2, "REQUIRE_COHERENT_BIT": 4}


def test_free_may_come_twice(cuda, monkeypatch):
    """The library is closed with its last memory."""
    closed, close = [], vkgdr._lib.vkgdr_close
    monkeypatch.setattr(vkgdr._lib, "vkgdr_close", lambda g: (closed.append(g), close(g)))
    memory = RawMemory(Vkgdr(0), SIZE)
    assert not closed
    memory.free()
    memory.free()
    assert len(closed) == 1
    for use in (len, lambda m: m.device_ptr, lambda m: m.flush(0, 1), lambda m: m.invalidate(0, 1)):
        with pytest.raises(VkgdrError, match="freed"):
            use(memory)
    assert not hasattr(memory, "__array_interface__")


def test_an_error_has_its_text_which_is_freed(cuda, handle, monkeypatch):
    texts, freed, context = [], [], cuda.current()
    last_error, free = vkgdr._lib.vkgdr_last_error, vkgdr._free
    monkeypatch.setattr(vkgdr._lib, "vkgdr_last_error", lambda: (texts.append(last_error()), texts[-1])[1])
    monkeypatch.setattr(vkgdr, "_free", lambda text: (freed.append(text), free(text)))
    cuda("cuCtxSetCurrent", None)
    try:
        for fails, says in ((lambda: Vkgdr(99), "CUDA_ERROR_INVALID_DEVICE"), (lambda: Vkgdr(0, 1 << 20), "flags"),
                            (Vkgdr.open_current_context, "CUDA_ERROR_INVALID_CONTEXT"),
                            (lambda: RawMemory(handle, SIZE), "CUDA_ERROR_INVALID_CONTEXT")):
            with pytest.raises(VkgdrError, match=says):
                fails()
    finally:
        cuda("cuCtxSetCurrent", context)
    assert len(freed) == 4 and freed == texts


class TestPycuda:
    """vkgdr.pycuda, on PyCUDA or its double."""

    @pytest.fixture
    def driver(self, cuda):
        """PyCUDA, which has a context current."""
        driver = pytest.importorskip("pycuda.driver")
        own, before = driver.Device(0).retain_primary_context(), cuda.current().value
        own.push()
        yield driver
        driver.Context.pop()
        assert cuda.current().value == before

    @pytest.fixture
    def memory(self, handle, driver):
        pycuda = pytest.importorskip("vkgdr.pycuda")
        return lambda: pycuda.Memory(handle, SIZE)

    def test_a_kernel_gets_its_address(self, cuda, memory):
        made = memory()
        assert isinstance(made, vkgdr.RawMemory)
        assert int(made) == made.get_pointer() == made.device_ptr
        numpy.asarray(made).view(numpy.uint8)[:3] = (1, 2, 3)
        assert cuda.read(int(made), 3) == b"\1\2\3"

    @pytest.mark.parametrize("end", ["free", "__del__"])
    @pytest.mark.parametrize("broken_off", [False, True])
    def test_free_is_in_its_context(self, cuda, driver, memory, end, broken_off):
        """Whichever is current then, and that one stays."""
        made, seen = memory(), []
        free, mem = made._free_memory, made._memory

        def noted(address):
            seen.append((address, cuda.current().value))
            free(address)
            if broken_off:
                raise KeyboardInterrupt

        made._free_memory = noted
        own, other = driver.Context.get_current(), driver.Device(cuda.gpus() - 1).retain_primary_context()
        other.push()
        with pytest.raises(KeyboardInterrupt) if broken_off else contextlib.nullcontext():
            getattr(made, end)()
        assert seen == [(mem, own.handle)]
        assert cuda.current().value == other.handle and driver.Context.get_current() is other
        driver.Context.pop()
        made.free()
        assert len(seen) == 1 and cuda.current().value == own.handle and driver.Context.get_current() is own

    def test_a_context_that_is_not_pycudas(self, cuda, driver, memory, monkeypatch):
        """PyCUDA could not make it current again."""
        own = driver.Context.get_current()
        driver.Context.pop()
        assert cuda.current()
        monkeypatch.setattr(vkgdr._lib, "vkgdr_memory_alloc", None)
        try:
            with pytest.raises(VkgdrError, match="CUDA_ERROR_INVALID_CONTEXT"):
                memory()
        finally:
            own.push()


def test_the_wheel(install):
    """pip installs the package, with both libraries in it, and it works without others."""
    done = install("vkgdr/python", ["vkgdr/libvkgdr.so", "vkgdr/libgdrapi.so.2", "vkgdr/pycuda.py", "vkgdr/py.typed"], """
import ctypes, vkgdr
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
print(len(vkgdr.RawMemory(vkgdr.Vkgdr.open_current_context(), 100)))
print([line.split()[-1] for line in open("/proc/self/maps") if "libgdrapi" in line][0])
""")
    assert done[0] == "100" and done[1].endswith("/site/vkgdr/libgdrapi.so.2")
