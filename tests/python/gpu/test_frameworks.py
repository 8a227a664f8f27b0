# SPDX-License-Identifier: MIT
"""Arrays of PyTorch, CuPy, numba and JAX on a real GPU. What is not installed is skipped."""
import numpy
import pytest

import gdrapi

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture(scope="module")
def gdr():
    with gdrapi.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.mark.parametrize("name", [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
])
def test_torch_types(gdr, torch, name):
    tensor = torch.ones(1000, dtype=getattr(torch, name), device="cuda")
    torch.cuda.synchronize()
    with gdr.pin(tensor) as buffer:
        seen = numpy.asarray(buffer)
        assert seen.dtype == numpy.dtype(name) and (seen == 1).all()
        seen[500:] = 0
        del seen
        assert (tensor.cpu().numpy() == [1] * 500 + [0] * 500).all()


def test_torch_bfloat16(gdr, torch):
    tensor = torch.ones(8, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    with gdr.pin(tensor) as buffer:
        assert buffer.read(2) == b"\x80\x3f"


def test_torch_in_memory_of_the_library(gdr, torch):
    memory = gdr.alloc(1 << 20)
    tensor = torch.as_tensor(memory, device="cuda")
    assert tensor.data_ptr() == memory.address
    tensor.fill_(9)
    torch.cuda.synchronize()
    with gdr.pin(tensor) as buffer:
        assert buffer.read(4, 4096) == b"\x09" * 4
        buffer.write(b"\x05" * 1000)
    assert int(tensor[:1000].sum()) == 5000


@pytest.mark.parametrize("name", ["uint8", "int16", "float16", "float64", "complex128"])
def test_cupy(gdr, cupy, name):
    array = cupy.arange(10, dtype=name)
    cupy.cuda.Device().synchronize()
    with gdr.pin(array) as buffer:
        seen = numpy.asarray(buffer)
        assert (seen == numpy.arange(10, dtype=name)).all()
        seen += 1
        del seen
    assert (array.get() == numpy.arange(1, 11, dtype=name)).all()


def test_cupy_in_memory_of_the_library(gdr, cupy):
    memory = gdr.alloc(4096)
    array = cupy.asarray(memory)
    array[:] = 3
    cupy.cuda.Device().synchronize()
    with gdr.pin(memory) as buffer:
        assert buffer.read() == b"\x03" * 4096


def test_numba(gdr):
    cuda = pytest.importorskip("numba.cuda")
    array = cuda.to_device(numpy.arange(100, dtype="f4"))
    cuda.synchronize()
    with gdr.pin(array) as buffer:
        with buffer.view() as view:
            assert view.format == "f" and view[99] == 99.0
        buffer.write(numpy.zeros(50, "f4"))
    assert array.copy_to_host().sum() == sum(range(50, 100))


def test_jax(gdr):
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip("JAX has no GPU: %s" % error)
    array = jax.device_put(numpy.arange(64, dtype="i4"), device)
    array.block_until_ready()
    with gdr.pin(array) as buffer:
        assert buffer.read() == numpy.arange(64, dtype="i4").tobytes()
