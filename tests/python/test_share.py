# SPDX-License-Identifier: MIT
"""gdrapi.share: an array in other processes."""
import errno
import multiprocessing
import os
import weakref

import gdrapi
import pytest

NO_RESOURCES = 0x1a  # NV_ERR_INSUFFICIENT_RESOURCES


@pytest.fixture(autouse=True)
def rm(gdr):
    if gdr.backend != "rm":
        pytest.skip("a simulated dma-buf without the simulated driver does not say whose it is")


def changes(shared, answer):
    """Each byte is read, and another one written."""
    with shared.open() as remote:
        data = remote.read()
        remote.write(bytes(255 - b for b in data))
        answer.send((data, remote.shape, remote.nbytes, os.getpid()))
    shared.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("offset", [0, 4096, 100])
def test_a_child_reads_and_writes(array, make, method, offset):
    array = make(shape=(50, 20), offset=offset)
    data = os.urandom(array.nbytes)
    array.put(data)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    shared = gdrapi.share(array)
    child = context.Process(target=changes, args=(shared, there))
    child.start()
    shared.close()
    got, shape, nbytes, pid = here.recv()
    child.join()
    assert child.exitcode == 0 and pid != os.getpid()
    assert (got, shape, nbytes) == (data, (50, 20), array.nbytes)
    assert array.get() == bytes(255 - b for b in data)


def takes(queue, answer):
    for shared in iter(queue.get, None):
        changes(shared, answer)


def test_a_running_child_gets_it_by_a_queue(make):
    context = multiprocessing.get_context("fork")
    queue, (here, there) = context.Queue(), context.Pipe()
    child = context.Process(target=takes, args=(queue, there))
    child.start()
    for number in range(3):
        array = make()
        array.put(bytes([number]) * array.nbytes)
        shared = gdrapi.share(array)
        queue.put(shared)
        assert here.recv()[0] == bytes([number]) * array.nbytes
        assert array.get() == bytes([255 - number]) * array.nbytes
        shared.close()
    queue.put(None)
    child.join()
    assert child.exitcode == 0


def test_the_same_process_and_numpy(array):
    numpy = pytest.importorskip("numpy")
    shared = gdrapi.share(array)
    with shared.open() as remote:
        view = numpy.asarray(remote)
        view[:] = numpy.arange(len(view))
        with pytest.raises(BufferError):
            remote.close()
        del view
        assert remote.read() == array.get() == numpy.arange(1024, dtype="<f4").tobytes()
    shared.close()
    for use in (shared.open, shared.__reduce__):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_it_keeps_its_array_and_the_memory_outlives_both(make, gdr):
    array = make()
    array.put(b"kept" * 1024)
    shared, kept = gdrapi.share(array, gdr), weakref.ref(array)
    del array
    assert kept() is not None
    remote = shared.open(gdr)
    shared.close()
    assert kept() is None
    assert remote.read(4, 400) == b"kept"
    remote.close()


def test_it_maps_nothing(cuda, gdr, array):
    if not hasattr(cuda.lib, "rm_sim_fail"):
        pytest.skip("a simulated driver alone refuses a mapping")
    gdr.pin(array).close()  # the proof, once in a process, maps
    cuda.lib.rm_sim_fail(b"MAP_MEMORY", NO_RESOURCES, 0)
    try:
        with pytest.raises(gdrapi.GdrError):
            gdr.pin(array)
        shared = gdrapi.share(array, gdr)
    finally:
        cuda.lib.rm_sim_fail(b"MAP_MEMORY", 0, 0)
    with shared.open(gdr) as remote:
        assert remote.read() == array.get()
    shared.close()


def test_only_whole_objects(cuda, gdr):
    with pytest.raises(gdrapi.GdrError) as refused:
        gdrapi.share((cuda.alloc(4096), 4096), whole=True)
    assert refused.value.errno == errno.EPERM
    with gdr.alloc(2 << 20) as memory:
        gdrapi.share(memory, whole=True).close()
