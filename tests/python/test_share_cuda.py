# SPDX-License-Identifier: MIT
"""Shared.cuda: another process' array in this one's CUDA; and many arrays in one descriptor."""
import ctypes
import errno
import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys

import dlpack
import gdrapi
import pytest
from conftest import Array, in_fork

MIB = 1 << 20


@pytest.fixture(autouse=True)
def rm(gdr, request):
    if gdr.backend != "rm" and request.function is not test_what_dmabuf_shared_is_not_for_cuda:
        pytest.skip("CUDA takes descriptors of rm alone")


# What another process does: takes descriptors and a table, and answers what it saw.
HEIR = """
import json, socket, sys
sys.path.insert(0, sys.argv[2])
from conftest import Cuda
import gdrapi
end = socket.socket(fileno=int(sys.argv[1]))
data, fds, _, _ = socket.recv_fds(end, 1 << 20, 253)
shareds = gdrapi.from_fds(fds, json.loads(data))
arrays = [shared.cuda() for shared in shareds]
cuda = Cuda()
for array in arrays:
    got = cuda.read(array.address, array.nbytes)
    cuda.write(array.address, got.translate(bytes(range(255, -1, -1))))
    end.sendall(got)
library = "libgdrapi" in open("/proc/self/maps").read()
end.sendall(json.dumps([[array.shape, array.device] for array in arrays] + [library]).encode())
"""


def sent(shareds):
    """A process with CUDA that has got them, and our end of its socket."""
    here, there = socket.socketpair()
    fds, table = gdrapi.to_fds(shareds)
    socket.send_fds(here, [json.dumps(table).encode()], fds)
    child = subprocess.Popen([sys.executable, "-c", HEIR, str(there.fileno()), os.path.dirname(__file__)], pass_fds=[there.fileno()])
    there.close()
    return child, here, fds


def received(end, size):
    data = b""
    while len(data) < size:
        data += end.recv(size - len(data))
    return data


@pytest.mark.parametrize("size", [512, 4096, 65536, MIB + 512, 8 * MIB])
def test_another_process_has_it_in_cuda_without_the_library(make, size):
    arrays = [make(shape=(size,), typestr="|u1", offset=offset) for offset in (0, 512)]
    for number, array in enumerate(arrays):
        array.put(bytes([number, 7]) * (size // 2))
    shareds = gdrapi.share(arrays)
    child, end, _ = sent(shareds)
    for number in range(2):
        assert received(end, size) == bytes([number, 7]) * (size // 2)
    assert json.loads(end.recv(1000)) == [[[size], 0]] * 2 + [False]
    assert child.wait() == 0
    for number, array in enumerate(arrays):
        assert array.get() == bytes([255 - number, 248]) * (size // 2)
    end.close()


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


def passes(shareds, answer):
    answer.send([shared.open().read(4) for shared in shareds])
    answer.send(len(gdrapi.to_fds(shareds)[0]))


def test_multiprocessing_carries_a_descriptor_once(cuda):
    base = cuda.alloc(4 * MIB)
    parts = [Array(cuda, at=base + 65536 * n) for n in range(20)]
    for number, part in enumerate(parts):
        part.put(bytes([number]) * part.nbytes)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=passes, args=(gdrapi.share(parts), there))
    child.start()
    assert here.recv() == [bytes([number]) * 4 for number in range(20)] and here.recv() == 1
    child.join()
    cuda.free(base)


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


@pytest.mark.parametrize("failing", ["cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle",
                                     "cuDevicePrimaryCtxRetain", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_a_call_that_fails_leaves_nothing(cuda, array, failing):
    shared = gdrapi.share(array)
    before = live(cuda)
    cuda.lib.cuda_sim_fail(failing.encode(), 999, 1)
    with pytest.raises(gdrapi.CudaError, match=failing + ": CUresult 999"):
        shared.cuda()
    assert live(cuda) == before
    assert cuda.read(shared.cuda().address, array.nbytes) == array.get()


def test_another_gpu(cuda, make):
    if cuda.gpus() < 2:
        pytest.skip("there is one GPU")
    here, there = (gdrapi.share(make()).cuda(gpu) for gpu in (0, 1))
    assert [(one.device, one.__dlpack_device__()) for one in (here, there)] == [(0, (2, 0)), (1, (2, 1))]
    with pytest.raises(gdrapi.CudaError, match="cuDevicePrimaryCtxRetain: CUresult 101"):
        gdrapi.share(make()).cuda(99)


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


def test_dlpack_copies_nothing(cuda, make):
    one = gdrapi.share(make()).cuda()
    for wish in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 99)}, {"copy": True, "dl_device": (1, 0)}):
        with pytest.raises(BufferError):
            one.__dlpack__(**wish)
    for wish in ({}, {"copy": False}, {"copy": None, "dl_device": None}, {"dl_device": one.__dlpack_device__()}):
        tensor = dlpack.taken(one.__dlpack__(**wish))
        assert tensor.data == one.address
        tensor.end()


def test_what_dlpack_cannot_say(make):
    for array in (make(typestr=">f4"), make(readonly=True), make(typestr="|V8", descr=[("a", "<i4"), ("b", "<f4")])):
        with pytest.raises(BufferError):
            gdrapi.share(array).cuda().__dlpack__()
        said = gdrapi.share(array).cuda().__cuda_array_interface__
        assert (said["typestr"], said.get("descr"), said["data"][1]) == (array.typestr, array.descr, array.readonly)


# Offsets and sizes in objects of 4, 2, 2, 6 and 2 MiB: all; from one into the next; three of five; behind one; in two, with one of them inside.
SEVERAL = [
    [(0, 16 * MIB)], [(4 * MIB - 4096, 8192)], [(MIB + 4096, 9 * MIB)], [(0, 4096), (3 * MIB, 2 * MIB), (5 * MIB + 512, MIB)],
    [(3 * MIB, 2 * MIB), (3 * MIB + 512, 100), (4 * MIB + 100, 5 * MIB), (8 * MIB, 4096), (14 * MIB, 2 * MIB)],
]


@pytest.mark.parametrize("places", SEVERAL)
def test_arrays_in_several_objects_in_another_process(cuda, gdr, segment, places):
    memory = segment(4 * MIB, 2 * MIB, 2 * MIB, 6 * MIB, 2 * MIB)
    arrays = memory.arrays(*places)
    shareds, model = gdrapi.share(arrays, gdr), bytearray(cuda.read(memory.address, 16 * MIB))
    for shared, (at, size) in zip(shareds, places):
        with shared.open(gdr) as remote:
            assert remote.read() == bytes(remote.view()) == model[at:at + size]
    child, end, fds = sent(shareds)
    assert len(fds) == len(set(fds)) <= 6
    for at, size in places:  # the child writes each one before it reads the next
        assert received(end, size) == model[at:at + size]
        model[at:at + size] = model[at:at + size].translate(bytes(range(255, -1, -1)))
    assert json.loads(end.recv(1000)) == [[[size], 0] for _, size in places] + [False]
    assert child.wait() == 0
    assert cuda.read(memory.address, 16 * MIB) == model
    end.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_carries_several_objects(segment, method):
    array, = segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((MIB, 4 * MIB))
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=passes, args=([gdrapi.share(array)], there))
    child.start()
    assert here.recv() == [array.get(4)] and here.recv() == 4  # one of all, for the CPU
    child.join()
    assert child.exitcode == 0


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


@pytest.mark.parametrize("lengths, place, error", [
    ((2 * MIB, 4 * MIB), (0, 6 * MIB), None), ((2 * MIB, 4 * MIB), (65536, 6 * MIB - 65536), errno.EPERM),
    ((2 * MIB, 4 * MIB), (0, 6 * MIB - 65536), errno.EPERM),
    ([2 * MIB] * 129, (0, 258 * MIB), None), ([2 * MIB] * 129, (0, 258 * MIB - 65536), errno.EPERM),
])
def test_only_whole_objects_of_several(cuda, segment, lengths, place, error):
    array = Array(cuda, place[1:], "|u1", at=segment(*lengths).address + place[0])
    if error is None:
        return gdrapi.share(array, whole=True).close()
    with pytest.raises(gdrapi.GdrError) as refused:
        gdrapi.share(array, whole=True)
    assert refused.value.errno == error


def test_objects_that_are_mapped_in_part(cuda, segment):
    array = Array(cuda, (6 * MIB,), "|u1", at=segment(2 * MIB, 2 * MIB, 2 * MIB, more=2 * MIB).address)
    with pytest.raises(gdrapi.GdrError, match="whole memory objects") as refused:
        gdrapi.share(array)
    assert refused.value.errno == errno.ENOTSUP


@pytest.mark.parametrize("nth", range(1, 4))
@pytest.mark.parametrize("failing", ["cuMemImportFromShareableHandle", "cuMemMap"])
def test_an_object_that_fails_leaves_nothing_of_those_before(cuda, segment, failing, nth):
    array, = segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((MIB, 4 * MIB))
    shared = gdrapi.share(array)
    before = live(cuda)
    cuda.lib.cuda_sim_fail(failing.encode(), 999, nth)
    with pytest.raises(gdrapi.CudaError, match=failing + ": CUresult 999"):
        shared.cuda()
    assert live(cuda) == before
    one = shared.cuda()
    assert cuda.read(one.address, array.nbytes) == array.get()
    del one, shared
    gc.collect()


def test_what_dmabuf_shared_is_not_for_cuda(gdr, array):
    shared = gdrapi.share(array)
    if gdr.backend == "rm":
        shared._memory.place = 0, 0, 0
    with pytest.raises(gdrapi.GdrError, match="CUDA takes whole memory objects that rm shared") as refused:
        shared.cuda()
    assert refused.value.errno == errno.ENOTSUP


@pytest.mark.parametrize("spoil", [
    lambda places, rows: places.clear(), lambda places, rows: places.append(places[0]), lambda places, rows: rows[0].__setitem__(0, 1),
    lambda places, rows: rows[0].__setitem__(0, -1), lambda places, rows: rows[0].__setitem__(1, -4096),
    lambda places, rows: rows[0].__setitem__(3, [-1, -1024]), lambda places, rows: rows[0].__setitem__(3, [1 << 40]),
    lambda places, rows: rows[0].__setitem__(4, "<f4 "), lambda places, rows: rows[0].__setitem__(6, [2, 64, 1]),
    lambda places, rows: rows[0].__setitem__(1, 2 * MIB),
    lambda places, rows: (places[0].__setitem__(1, 1 << 64 | 2 * MIB), rows[0].__setitem__(1, 2 * MIB)),
    lambda places, rows: rows[0].__setitem__(3, [1024.0]), lambda places, rows: rows[0].__setitem__(3, "1"), lambda places, rows: rows[0].pop(),
    lambda places, rows: rows[0].__setitem__(4, 4), lambda places, rows: rows[0].__setitem__(4, "<f0"), lambda places, rows: rows[0].__setitem__(1, 0.5),
    lambda places, rows: rows[0].__setitem__(6, [2, -8, 1]), lambda places, rows: rows[0].__setitem__(6, [2]), lambda places, rows: rows[0].clear(),
    lambda places, rows: places.__setitem__(0, 7), lambda places, rows: places[0].pop(), lambda places, rows: places[0].__setitem__(0, "0"),
])
def test_a_table_that_lies(array, spoil):
    shared = gdrapi.share(array)
    table = json.loads(json.dumps(gdrapi.to_fds([shared])[1]))
    spoil(*table)
    fd = os.dup(shared._fd)
    with pytest.raises(ValueError):
        gdrapi.from_fds([fd], table)[0].cuda()
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.parametrize("spoil", [
    lambda place: place.__setitem__(0, -1), lambda place: place.__setitem__(1, 8 * MIB), lambda place: place.__setitem__(2, 2),
    lambda place: place[3].pop(), lambda place: place[3].__setitem__(slice(0, 2), [-MIB, 5 * MIB]), lambda place: place.__setitem__(4, 2),
    lambda place: place.__setitem__(3, 3), lambda place: place.__setitem__(4, 4.0), lambda place: place[3].__setitem__(0, None),
    lambda place: place.__setitem__(4, 0), lambda place: place.__setitem__(4, 5), lambda place: place.__delitem__(slice(3, 5)),
])
def test_a_table_that_lies_of_several_objects(segment, spoil):
    shared = gdrapi.share(segment(2 * MIB, 2 * MIB, 2 * MIB).arrays((MIB, 4 * MIB))[0])
    fds, (places, rows) = gdrapi.to_fds([shared])
    assert len(fds) == places[0][4] == 4 and places[0][:4] == (MIB, 6 * MIB, 3, [2 * MIB] * 3)
    copies, table = [os.dup(fd) for fd in fds], json.loads(json.dumps([places, rows]))
    spoil(table[0][0])
    with pytest.raises(ValueError):
        gdrapi.from_fds(copies, table)
    for fd in copies:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_a_table_whose_sums_pass_64_bits(array):
    shared = gdrapi.share(array)
    places, ((number, _, *row),) = gdrapi.to_fds([shared])[1]
    row[1:3] = [(1 << 63) - 1], "|u1"
    with pytest.raises(ValueError):
        gdrapi.from_fds([os.dup(shared._fd)], [places, [[number, (1 << 63) + 4097, *row]]])[0].open()


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
