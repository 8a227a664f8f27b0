# SPDX-License-Identifier: MIT
"""gdrapi.share: arrays in other processes, for their CPU and in their CUDA; many arrays in one descriptor."""
import ctypes
import errno
import functools
import gc
import itertools
import json
import multiprocessing
import operator
import os
import subprocess
import sys
import weakref

import dlpack
import gdrapi
import pytest
from conftest import Array, Cuda, in_fork

MIB = 1 << 20


@pytest.fixture(autouse=True)
def rm(gdr, request):
    if gdr.backend != "rm" and request.function is not test_what_dmabuf_shared_is_not_for_cuda:
        pytest.skip("CUDA takes descriptors of rm alone")


def inverted(data):
    return data.translate(bytes(range(255, -1, -1)))


def changes(first, queue, answer):
    """Each byte is read, and another one written: of what came with the start, then of what the queue brings."""
    for shareds in itertools.chain([first], iter(queue.get, None)):
        said = []
        for shared in shareds:
            with shared.open() as remote:
                said.append((remote.read(), remote.shape))
                remote.write(inverted(said[-1][0]))
        answer.send((said, len(gdrapi.to_fds(shareds)[0]), os.getpid()))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_carries_arrays(cuda, make, segment, method):
    """Those of one memory object by one descriptor; those of several by one for each object, and one of all for the CPU."""
    whole, several = make(shape=(MIB,), typestr="|u1"), segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((MIB, 4 * MIB))
    parts = [Array(cuda, (50, 20), at=whole.address + offset) for offset in (0, 4096, 70100)]
    for array in [*parts, *several]:
        array.put(os.urandom(array.nbytes))
    before = [[array.get() for array in arrays] for arrays in (parts, several)]
    context = multiprocessing.get_context(method)
    queue, (here, there) = context.Queue(), context.Pipe()
    child = context.Process(target=changes, args=(gdrapi.share(parts), queue, there))
    child.start()
    there.close()
    queue.put(gdrapi.share(several))
    for arrays, data, count in zip((parts, several), before, (1, 4)):
        said, fds, pid = here.recv()
        assert said == [(one, array.shape) for one, array in zip(data, arrays)]
        assert fds == count and pid != os.getpid()
        assert [array.get() for array in arrays] == [inverted(one) for one in data]
    queue.put(None)
    child.join()
    assert child.exitcode == 0


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
    for use in (shared.open, shared.cuda, shared.__reduce__):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("lengths, start, size, error", [
    ((), 0, 4096, errno.EPERM), ((4 * MIB,), 0, 4 * MIB, None), ((2 * MIB, 4 * MIB), 0, 6 * MIB, None),
    ((2 * MIB, 4 * MIB), 65536, 6 * MIB - 65536, errno.EPERM), ((2 * MIB, 4 * MIB), 0, 6 * MIB - 65536, errno.EPERM),
    ([2 * MIB] * 129, 0, 258 * MIB, None), ([2 * MIB] * 129, 0, 258 * MIB - 65536, errno.EPERM),
])
def test_only_whole_objects(cuda, segment, lengths, start, size, error):
    array = Array(cuda, (size,), "|u1", at=segment(*lengths).address + start if lengths else cuda.alloc(size))
    if error is None:
        return gdrapi.share(array, whole=True).close()
    with pytest.raises(gdrapi.GdrError) as refused:
        gdrapi.share(array, whole=True)
    assert refused.value.errno == error


def sees(shareds, answer):
    """Each byte of an array is read by this process' CUDA, and another one written, before the next array."""
    arrays, cuda, said = [shared.cuda() for shared in shareds], Cuda(), []
    for array in arrays:
        said.append((cuda.read(array.address, array.nbytes), array.shape, array.device))
        cuda.write(array.address, inverted(said[-1][0]))
    with open("/proc/self/maps") as maps:
        answer.send((said, "libgdrapi" in maps.read()))


# Offsets and sizes in objects of 4, 2, 2, 6 and 2 MiB: all; from one into the next; three of five; behind one; in two, with one of them
# inside; two in one.
SEVERAL = [
    [(0, 16 * MIB)], [(4 * MIB - 4096, 8192)], [(MIB + 4096, 9 * MIB)], [(0, 4096), (3 * MIB, 2 * MIB), (5 * MIB + 512, MIB)],
    [(3 * MIB, 2 * MIB), (3 * MIB + 512, 100), (4 * MIB + 100, 5 * MIB), (8 * MIB, 4096), (14 * MIB, 2 * MIB)],
    [(MIB, 2 * MIB), (MIB + 512, 100)],
]


@pytest.mark.parametrize("places", SEVERAL)
def test_another_process_has_them_in_cuda_without_the_library(cuda, gdr, segment, places):
    memory = segment(4 * MIB, 2 * MIB, 2 * MIB, 6 * MIB, 2 * MIB)
    arrays = memory.arrays(*places)
    shareds, model = gdrapi.share(arrays, gdr), bytearray(cuda.read(memory.address, 16 * MIB))
    for shared, (at, size) in zip(shareds, places):
        with shared.open(gdr) as remote:
            assert remote.read() == bytes(remote.view()) == model[at:at + size]
    assert len(set(gdrapi.to_fds(shareds)[0])) <= 6
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=sees, args=(shareds, there))
    child.start()
    there.close()
    said, library = here.recv()
    child.join()
    assert child.exitcode == 0 and not library
    for (at, size), one in zip(places, said):
        assert one == (model[at:at + size], (size,), 0)
        model[at:at + size] = inverted(one[0])
    assert cuda.read(memory.address, 16 * MIB) == model


def test_many_arrays_in_one_allocation_have_one_descriptor(cuda, gdr, make):
    base = cuda.alloc(8 * MIB)
    parts = [Array(cuda, (100, n + 1), at=base + 65536 * n + 512 * (n % 3)) for n in range(60)]
    order = parts[30:] + parts[:30] + [make()] + [Array(cuda, (2 * MIB,), at=base)]
    for number, part in enumerate(parts):
        part.put(bytes([number]) * part.nbytes)
    shareds = gdrapi.share(order, gdr)
    fds, table = gdrapi.to_fds(shareds)
    assert len(fds) == 2 and len(set(fds)) == 2
    for part, shared in zip(order, shareds):
        with shared.open(gdr) as remote:
            assert (remote.read(), remote.shape) == (part.get(), part.shape)
        array = shared.cuda()
        assert cuda.read(array.address, array.nbytes) == part.get()
    shareds[0].close()
    assert os.fstat(fds[0])  # the others have it still
    again = gdrapi.from_fds([os.dup(fd) for fd in fds], json.loads(json.dumps(gdrapi.to_fds(shareds[1:])[1])))
    assert [one.cuda().shape for one in again] == [part.shape for part in order[1:]]
    for shared in shareds:
        shared.close()
    with pytest.raises(OSError):
        os.fstat(fds[0])
    cuda.free(base)


@pytest.mark.parametrize("refused", [False, True])
def test_neighbours_that_are_allocations_of_their_own(cuda, gdr, monkeypatch, refused):
    parts, pin = [Array(cuda, at=cuda.alloc(4096)) for _ in range(3)], gdrapi._share._pin

    def one_alone(resource, gdr, source):
        if source.nbytes > 4096:
            raise gdrapi.GdrError(errno.EINVAL, "gdr_pin_bytes")
        return pin(resource, gdr, source)

    if refused:
        monkeypatch.setattr(gdrapi._share, "_pin", one_alone)
    for number, part in enumerate(parts):
        part.put(bytes([number]) * part.nbytes)
    shareds = gdrapi.share(parts, gdr)
    assert len(gdrapi.to_fds(shareds)[0]) == 3 or not refused
    for part, shared in zip(parts, shareds):
        assert cuda.read(shared.cuda().address, part.nbytes) == part.get()
        cuda.free(part.address)


def live(cuda):
    """What CUDA has here: memory, reservations, mappings, and exported descriptors. A real driver says none."""
    if not hasattr(cuda.lib, "cuda_sim_live"):
        pytest.skip("a real driver does not count")
    gc.collect()
    return cuda.lib.cuda_sim_live()


def test_the_last_array_unmaps_once_the_gpu_has_ended(cuda, make):
    array = make(shape=(65536,))
    before = live(cuda)
    shared = gdrapi.share(array)
    one, two = shared.cuda(), shared.cuda()
    assert one.address == two.address != array.address
    shared.close()
    other = cuda.alloc(65536)
    mapped, capsule = live(cuda), two.__dlpack__()
    cuda("cuMemcpyDtoD_v2", ctypes.c_uint64(other), ctypes.c_uint64(one.address), ctypes.c_size_t(4096))
    del one, two
    assert live(cuda) == mapped > before
    del capsule  # the copy lands when somebody waits
    cuda("cuCtxSynchronize")  # 719 where the mapping went before
    cuda.free(other)
    assert live(cuda) == before


@pytest.mark.parametrize("failing, nth", [
    ("cuMemImportFromShareableHandle", 1), ("cuMemImportFromShareableHandle", 3), ("cuMemGetAllocationPropertiesFromHandle", 1),
    ("cuDevicePrimaryCtxRetain", 1), ("cuMemAddressReserve", 1), ("cuMemMap", 1), ("cuMemMap", 3), ("cuMemSetAccess", 1),
])
def test_a_call_that_fails_leaves_nothing(cuda, segment, failing, nth):
    array, = segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((MIB, 4 * MIB))
    shared = gdrapi.share(array)
    before = live(cuda)
    cuda.lib.cuda_sim_fail(failing.encode(), 999, nth)
    with pytest.raises(gdrapi.CudaError, match=failing + ": CUresult 999"):
        shared.cuda()
    assert live(cuda) == before
    assert cuda.read(shared.cuda().address, array.nbytes) == array.get()


def test_another_gpu(cuda, make):
    if cuda.gpus() < 2:
        pytest.skip("there is one GPU")
    shared = gdrapi.share(make())
    here, there = shared.cuda(0), shared.cuda(1)
    assert [(one.device, one.__dlpack_device__()) for one in (here, there)] == [(0, (2, 0)), (1, (2, 1))]
    with pytest.raises(gdrapi.CudaError, match="cuDevicePrimaryCtxRetain: CUresult 101"):
        shared.cuda(99)


TYPES = [("|b1", 6, 8), ("|u1", 1, 8), ("<i2", 0, 16), ("<f2", 2, 16), ("<f4", 2, 32), ("<i8", 0, 64), ("<c8", 5, 64)]
BFLOAT16, FLOAT8 = 4, 7  # NumPy has none


@pytest.mark.parametrize("typestr, code, bits", TYPES + [(None, BFLOAT16, 16), (None, FLOAT8, 8)])
def test_dlpack_gives_the_type_and_shape_and_keeps_the_memory(cuda, make, typestr, code, bits):
    array = make(shape=(4, 3, 50), typestr=typestr or "|V%d" % (bits // 8))
    array.put(os.urandom(array.nbytes))
    shared = gdrapi.share(array if typestr else dlpack.Exporter(array, code, bits))
    shared = gdrapi.from_fds([os.dup(shared._fd)], json.loads(json.dumps(gdrapi.to_fds([shared])[1])))[0]
    capsule = shared.cuda().__dlpack__(stream=-1, max_version=(1, 0))
    tensor = dlpack.taken(capsule)
    assert (tensor.device_type, tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (2, code, bits, 1, 0)
    assert tensor.shape[:tensor.ndim] == [4, 3, 50] and not tensor.strides
    mapped = live(cuda)
    del capsule
    assert live(cuda) == mapped and cuda.read(tensor.data, array.nbytes) == array.get()
    tensor.end()
    assert live(cuda) < mapped


def test_a_capsule_that_an_error_ends_keeps_nothing(cuda, make):
    before = live(cuda)
    with pytest.raises(SystemError):  # ctypes' callbacks lose an error that is on its way
        len(gdrapi.share(make()).cuda().__dlpack__())
    gc.collect()
    assert live(cuda) == before


EXIT = """
import ctypes, sys
import gdrapi, dlpack
from conftest import Array, Cuda
cuda = Cuda()
one = gdrapi.share(Array(cuda, (1024,))).cuda()
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
taken = [dlpack.taken(one.__dlpack__()) for _ in range(3)]
taken[1].end()
for tensor in taken[::2]:
    assert not libc.__cxa_atexit(tensor.deleter, ctypes.addressof(tensor), None)
print("registered")
"""


def test_a_tensor_is_given_back_after_the_interpreter(cuda):
    paths = os.pathsep.join([os.path.dirname(os.path.dirname(gdrapi.__file__)), os.path.dirname(__file__)])
    ran = subprocess.run([sys.executable, "-c", EXIT], env=dict(os.environ, PYTHONPATH=paths),
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, b"registered\n")


def test_what_dlpack_cannot_say(cuda, make):
    for array in (make(typestr=">f4"), make(readonly=True), make(typestr="|V8", descr=[("a", "<i4"), ("b", "<f4")])):
        one = gdrapi.share(array).cuda()
        with pytest.raises(BufferError):
            one.__dlpack__()
        said = one.__cuda_array_interface__
        assert (said["typestr"], said.get("descr"), said["data"][1]) == (array.typestr, array.descr, array.readonly)
    one = gdrapi.share(make()).cuda()
    for wish in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 99)}):
        with pytest.raises(BufferError):
            one.__dlpack__(**wish)
    for wish in ({"copy": False}, {"copy": None, "dl_device": None}, {"dl_device": one.__dlpack_device__()}):
        tensor = dlpack.taken(one.__dlpack__(**wish))
        assert tensor.data == one.address
        tensor.end()


def test_more_objects_than_a_descriptor_has_room_for(cuda, gdr, segment):
    """The GPU has them all, the CPU those arrays that lie in 128 of them."""
    whole = Array(cuda, (260 * MIB,), "|u1", at=segment(*[2 * MIB] * 130).address)
    arrays = [Array(cuda, (5 * MIB,), "|u1", at=whole.address + 512 + 5 * MIB * number) for number in range(51)]
    for number, array in enumerate(arrays):
        cuda.write(array.address + array.nbytes - 4096, bytes([number + 1]) * 4096)
    shared = gdrapi.share(whole, gdr)
    assert len(gdrapi.to_fds([shared])[0]) == 130
    assert cuda.read(shared.cuda().address + 255 * MIB, 1024) == bytes([51]) * 512 + bytes(512)
    with pytest.raises(gdrapi.GdrError, match="more than 128 memory objects") as refused:
        shared.open(gdr)
    assert refused.value.errno == errno.ENOTSUP
    shareds = gdrapi.share(arrays, gdr)
    assert len(gdrapi.to_fds(shareds)[0]) < 135
    for number, (shared, array) in enumerate(zip(shareds, arrays)):
        with shared.open(gdr) as remote:
            assert remote.read(4096, array.nbytes - 4096) == bytes([number + 1]) * 4096
        assert cuda.read(shared.cuda().address + array.nbytes - 4096, 4096) == bytes([number + 1]) * 4096


def test_objects_that_change_meanwhile(segment, monkeypatch):
    array, = segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((0, 6 * MIB))
    pin = gdrapi._share._pin_object

    def changed(gdr, source):
        pinned, handle, va, (offset, length, count) = pin(gdr, source)
        return pinned, handle, va, (offset, length, count + (count > 1))

    monkeypatch.setattr(gdrapi._share, "_pin_object", changed)
    with pytest.raises(gdrapi.GdrError, match="whole memory objects") as refused:
        gdrapi.share(array)
    assert refused.value.errno == errno.ENOTSUP


def test_what_dmabuf_shared_is_not_for_cuda(gdr, array):
    shared = gdrapi.share(array)
    if gdr.backend == "rm":
        shared._memory.place = 0, 0, 0
    with pytest.raises(gdrapi.GdrError, match="CUDA takes whole memory objects that rm shared") as refused:
        shared.cuda()
    assert refused.value.errno == errno.ENOTSUP


# Where in a table, whose halves are memory and arrays, another value stands.
LIES_OF_ONE = [
    ((0,), []), ((0, 0), 7), ((0, 0), [0, 2 * MIB]), ((0, 0, 0), "0"), ((0, 0, 0), 0.5), ((1, 0), []), ((1, 0), [0, 0, 1, [4], "|u1", False]),
    ((1, 0, 0), 1), ((1, 0, 0), -1), ((1, 0, 1), -4096), ((1, 0, 1), 0.5), ((1, 0, 1), 2 * MIB),
    ((1, 0, 3), [-1, -1024]), ((1, 0, 3), [1 << 40]), ((1, 0, 3), [1024.0]), ((1, 0, 3), "1"),
    ((1, 0, 4), 4), ((1, 0, 4), "<f4 "), ((1, 0, 4), "<f0"), ((1, 0, 6), [2, 64, 1]), ((1, 0, 6), [2, -8, 1]), ((1, 0, 6), [2]),
]
LIES_OF_THREE = [
    ((0, 0), [MIB, 6 * MIB, 3]), ((0, 0, 0), -1), ((0, 0, 1), 8 * MIB), ((0, 0, 2), 2), ((0, 0, 3), 3), ((0, 0, 3), [2 * MIB] * 2),
    ((0, 0, 3), [-MIB, 5 * MIB, 2 * MIB]), ((0, 0, 3), [None, 2 * MIB, 2 * MIB]), ((0, 0, 4), 0), ((0, 0, 4), 2), ((0, 0, 4), 5), ((0, 0, 4), 4.0),
]


@pytest.mark.parametrize("lengths, path, value", [((2 * MIB,), *lie) for lie in LIES_OF_ONE] + [([2 * MIB] * 3, *lie) for lie in LIES_OF_THREE])
def test_a_table_that_lies(segment, lengths, path, value):
    shared = gdrapi.share(segment(*lengths).arrays((MIB, sum(lengths) - MIB - 4096))[0])
    fds, table = gdrapi.to_fds([shared])
    copies, table = [os.dup(fd) for fd in fds], json.loads(json.dumps(table))
    functools.reduce(operator.getitem, path[:-1], table)[path[-1]] = value
    with pytest.raises(ValueError):
        gdrapi.from_fds(copies, table)[0].cuda()
    for fd in copies:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_a_table_that_lies_of_other_descriptors_or_by_64_bits(array):
    shared = gdrapi.share(array)
    (place,), ((number, _, *row),) = gdrapi.to_fds([shared])[1]
    row[1:3] = [(1 << 63) - 1], "|u1"
    for places, skip in (([place, place], 0), ([place], (1 << 63) + 4097), ([(place[0], 1 << 64 | 2 * MIB, 1)], 2 * MIB)):
        with pytest.raises(ValueError):
            gdrapi.from_fds([os.dup(shared._fd)], [places, [[number, skip, *row]]])[0].open()


def test_a_forked_child_ends_nothing_of_its_parents(cuda, array):
    shared = gdrapi.share(array)
    one = shared.cuda()
    held = [one]
    assert in_fork(lambda _: held.clear() or "ended", None) == ("ended", 0)
    assert cuda.read(one.address, array.nbytes) == array.get()
    with pytest.raises(gdrapi.CudaError, match="cuInit: CUresult 3"):
        raise in_fork(lambda shared: caught(shared.cuda), shared)[0]


def caught(function):
    try:
        return function()
    except Exception as error:
        return error
