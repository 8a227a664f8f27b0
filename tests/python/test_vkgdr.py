# SPDX-License-Identifier: MIT
"""The Python package vkgdr, as a program written for vkgdr uses it."""
import ctypes
import gc
import os
import subprocess
import sys
import threading

import pytest

numpy = pytest.importorskip("numpy")

import vkgdr  # noqa: E402
from conftest import TOP, prototypes  # noqa: E402
from vkgdr import OpenFlags, RawMemory, Vkgdr, VkgdrError  # noqa: E402

SIZE = 4097


@pytest.fixture
def handle(cuda):
    return Vkgdr.open_current_context()


@pytest.fixture
def no_context(cuda):
    """No context is current."""
    context = cuda.current()
    cuda("cuCtxSetCurrent", None)
    yield
    cuda("cuCtxSetCurrent", context)


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


def test_calls_are_the_headers():
    """A type that is too narrow cuts an address off, but not on each machine."""
    declared = prototypes("vkgdr.h")
    assert len(declared) == 12
    for name, types in declared.items():
        call = getattr(vkgdr._lib, name)
        assert (name, (call.restype, call.argtypes)) == (name, types)
    assert (vkgdr._free.restype, vkgdr._free.argtypes) == (None, [ctypes.c_void_p])


def test_what_the_package_gives():
    names = {}
    exec("from vkgdr import *", names)
    assert {"OpenFlags", "RawMemory", "Vkgdr", "VkgdrError"} == set(names) - {"__builtins__"}
    with open(os.path.join(TOP, "vkgdr", "python", "pyproject.toml")) as file:
        assert 'version = "%s"\n' % vkgdr.__version__ in file


def test_flags_have_vkgdrs_values():
    assert [int(flag) for flag in OpenFlags] == [1, 2, 4]
    assert {flag.name for flag in OpenFlags} == {
        "CURRENT_CONTEXT_BIT", "FORCE_NON_COHERENT_BIT", "REQUIRE_COHERENT_BIT"}


def test_free_may_come_twice(handle):
    memory = RawMemory(handle, SIZE)
    memory.free()
    memory.free()
    for use in (len, lambda m: m.device_ptr, lambda m: m.flush(0, 1), lambda m: m.invalidate(0, 1)):
        with pytest.raises(VkgdrError, match="freed"):
            use(memory)
    assert not hasattr(memory, "__array_interface__")


def test_the_text_of_an_error_is_freed(cuda, monkeypatch):
    texts, freed = [], []
    last_error, free = vkgdr._lib.vkgdr_last_error, vkgdr._free
    monkeypatch.setattr(vkgdr, "_lib", vkgdr._lib)
    monkeypatch.setattr(vkgdr._lib, "vkgdr_last_error", lambda: (texts.append(last_error()), texts[-1])[1])
    monkeypatch.setattr(vkgdr, "_free", lambda text: (freed.append(text), free(text)))
    for _ in range(3):
        with pytest.raises(VkgdrError):
            Vkgdr(99)
    assert len(freed) == 3 and freed == texts


def test_memory_keeps_the_library_open(cuda):
    memory = RawMemory(Vkgdr(0), SIZE)
    gc.collect()
    numpy.asarray(memory).view(numpy.uint8)[0] = 42
    assert cuda.read(memory.device_ptr, 1) == b"\x2a"
    memory.free()


@pytest.mark.parametrize("device, flags, match", [
    (-1, 0, "CUDA_ERROR_INVALID_DEVICE"),
    (99, 0, "CUDA_ERROR_INVALID_DEVICE"),
    (0, 1 << 20, "flags"),
])
def test_an_open_that_fails(cuda, device, flags, match):
    with pytest.raises(VkgdrError, match=match):
        Vkgdr(device, flags)


@pytest.mark.parametrize("size, flags, match", [
    (10 ** 15, 0, "OUT_OF_DEVICE_MEMORY"),
    (0, 0, "gdr_mem_alloc"),
    (SIZE, 1, "vkgdr_memory_alloc"),
])
def test_memory_that_is_refused(handle, size, flags, match):
    with pytest.raises(VkgdrError, match=match):
        RawMemory(handle, size, flags)


def test_without_a_context(handle, no_context):
    with pytest.raises(VkgdrError, match="CUDA_ERROR_INVALID_CONTEXT"):
        Vkgdr.open_current_context()
    with pytest.raises(VkgdrError, match="CUDA_ERROR_INVALID_CONTEXT"):
        RawMemory(handle, SIZE)


def test_before_cuda_is_initialised():
    program = "import vkgdr\ntry: vkgdr.Vkgdr(0)\nexcept vkgdr.VkgdrError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert "CUDA_ERROR_NOT_INITIALIZED" in done.stdout


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
        return lambda *flags: pycuda.Memory(handle, SIZE, *flags)

    @pytest.fixture
    def freed(self, cuda):
        """Has a memory tell which context is current when it is freed."""
        seen = []

        def watch(made):
            free = made._free_memory
            made._free_memory = lambda m: (seen.append((m, cuda.current().value)), free(m))
            return made._memory, seen

        return watch

    def test_what_the_module_gives(self, memory):
        names = {}
        exec("from vkgdr.pycuda import *", names)
        assert set(names) - {"__builtins__"} == {"Memory"}

    def test_a_kernel_gets_its_address(self, cuda, memory):
        made = memory()
        assert isinstance(made, vkgdr.RawMemory)
        assert int(made) == made.get_pointer() == made.device_ptr
        numpy.asarray(made).view(numpy.uint8)[:3] = (1, 2, 3)
        assert cuda.read(int(made), 3) == b"\1\2\3"

    @pytest.mark.parametrize("end", ["free", "__del__"])
    def test_free_is_in_its_context(self, cuda, driver, memory, freed, end):
        """Whichever is current then, and that one stays."""
        made = memory()
        mem, seen = freed(made)
        own, other = driver.Context.get_current(), driver.Device(cuda.gpus() - 1).retain_primary_context()
        other.push()
        getattr(made, end)()
        assert seen == [(mem, own.handle)]
        assert cuda.current().value == other.handle and driver.Context.get_current() is other
        driver.Context.pop()
        made.free()
        assert len(seen) == 1 and cuda.current().value == own.handle and driver.Context.get_current() is own

    def test_a_thread_without_a_context_frees(self, cuda, driver, memory, freed):
        made, after = memory(), []
        mem, seen = freed(made)

        def work():
            made.free()
            after.append((cuda.current().value, driver.Context.get_current()))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [(mem, driver.Context.get_current().handle)] and after == [(None, None)]

    def test_a_free_that_is_broken_off_restores_the_context(self, cuda, driver, memory):
        made, free = memory(), None
        free, mem = made._free_memory, made._memory

        def stop(_):
            raise KeyboardInterrupt

        made._free_memory = stop
        own, other = driver.Context.get_current(), driver.Device(cuda.gpus() - 1).retain_primary_context()
        other.push()
        with pytest.raises(KeyboardInterrupt):
            made.free()
        assert driver.Context.get_current() is other
        driver.Context.pop()
        assert driver.Context.get_current() is own
        free(mem)

    def test_memory_that_is_refused(self, memory):
        with pytest.raises(VkgdrError, match="vkgdr_memory_alloc"):
            memory(1)

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
