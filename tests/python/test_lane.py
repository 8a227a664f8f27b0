# SPDX-License-Identifier: MIT
"""Lane: the same tensors written before each step, by a mapping or by copies."""
import array as arrays
import ctypes
import errno
import itertools
import os
from concurrent import futures

import numpy
import pytest

import gdrapi
from conftest import Array, in_fork

SIZES = (64, 70000, 1000)


class Tensor(Array):
    """GPU memory as PyTorch shows it: data_ptr says where it is now."""

    dtype = "torch.int32"
    moved = 0

    def data_ptr(self):
        return self.address + self.moved


class HostTensor:
    """Host memory as PyTorch shows it."""

    is_cpu, dtype = True, "torch.int32"

    def __init__(self, data):
        self.array = data

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize


@pytest.fixture
def make(cuda):
    """Arrays in memory of their own: the simulated driver exports an allocation from one start at a time."""
    return lambda kind=Array, **how: kind(cuda, offset=2 << 20, **how)


@pytest.fixture
def make_set(make):
    return lambda kind=Tensor, sizes=SIZES: [make(kind, shape=(size // 4,), typestr="<i4") for size in sizes]


@pytest.fixture(params=["mapping", "pageable"])
def make_lane(request, monkeypatch, cuda):
    """Lanes of both ways. Each must do the same."""
    made = []

    def make(*sets, **how):
        if request.param == "mapping":
            made.append(gdrapi.Lane(*sets, **how))
        else:
            with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="^copies in place of a lane: .*gdr_open"):
                patch.setattr(gdrapi._lane, "shared", refused)
                made.append(gdrapi.Lane(*sets, fallback=0, **how))
        assert made[-1].way == request.param
        return made[-1]

    yield make
    for lane in made:
        lane.close()


def refused():
    raise gdrapi.GdrError(errno.ENODEV, "gdr_open")


numbers = itertools.count(1)


def steps(sizes=SIZES):
    """Arrays that no other step has."""
    return [numpy.full(size // 4, next(numbers), "i4") for size in sizes]


def holds(lane, tensors, sent):
    lane.drain()
    return all(tensor.get(data.nbytes) == data.tobytes() for tensor, data in zip(tensors, sent))


@pytest.mark.parametrize("locked", [False, True])
def test_an_array_that_is_filled_again(cuda, make_lane, make_set, locked):
    """At once after the write, also where the GPU could read it later."""
    tensors, sent, memory = make_set(), steps(), ctypes.c_void_p()
    if locked:
        cuda("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(sum(SIZES)), 0)
        whole = numpy.frombuffer((ctypes.c_ubyte * sum(SIZES)).from_address(memory.value), "i4")
        sent = numpy.split(whole, numpy.cumsum(SIZES)[:-1] // 4)
    lane = make_lane(tensors)
    for number in range(20):
        for data in sent:
            data.fill(number)
        lane.write(sent)
        for data in sent:
            data.fill(-1)
        assert holds(lane, tensors, [numpy.full_like(data, number) for data in sent])
    if locked:
        cuda("cuMemFreeHost", memory)


def test_drain(gdr, make_lane, make_set):
    """After it the CPU reads the bytes from GPU memory."""
    tensors, sent = make_set(), steps()
    lane = make_lane(tensors)
    with gdr.pin(tensors[0]) as buffer:
        lane.write(sent)
        lane.drain()
        assert buffer.read() == sent[0].tobytes()


def test_parts(make_lane, make_set):
    """None, shorter arrays and sizes leave the rest as it was."""
    tensors, first, second, third, last = make_set(), steps(), steps(), steps(), steps()
    lane = make_lane(tensors)
    lane.write(first)
    lane.write([second[0], None, second[2][:10]])
    assert holds(lane, tensors, [second[0], first[1], numpy.append(second[2][:10], first[2][10:])])
    lane.write(third, [0, 8, third[2].nbytes])
    assert holds(lane, tensors, [second[0], numpy.append(third[1][:2], first[1][2:]), third[2]])
    lane.write(third)
    assert holds(lane, tensors, third)
    lane.write([last[0], None, None], numpy.array([4, 0, 0]))
    assert holds(lane, tensors, [numpy.append(last[0][:1], third[0][1:]), third[1], third[2]])


@pytest.mark.parametrize("kind", [
    HostTensor, lambda data: data.tobytes(), lambda data: bytearray(data.tobytes()), lambda data: arrays.array("i", data),
    memoryview, lambda data: data.reshape(2, -1), lambda data: numpy.frombuffer(data.tobytes(), "i4"),
])
def test_sources(make_lane, make_set, kind):
    tensors = make_set()
    lane = make_lane(tensors)
    for _ in range(3):
        sent = steps()
        lane.write([kind(data) for data in sent])
        assert holds(lane, tensors, sent)


def test_a_source_that_moves(make_lane, make_set):
    """A tensor of PyTorch may be given other memory, a bytearray moves when it grows."""
    tensors, sent = make_set(sizes=(64, 4096)), steps((64, 4096))
    host, grows = HostTensor(sent[0]), bytearray(sent[1][:4].tobytes())
    lane = make_lane(tensors)
    lane.write([host, grows])
    assert holds(lane, tensors, [sent[0], sent[1][:4]])
    host.array = steps((64,))[0]
    grows += sent[1][4:].tobytes()
    lane.write([host, grows])
    assert holds(lane, tensors, [host.array, sent[1]])


class Event:
    def __init__(self, said, name):
        self.said, self.name = said, name

    def synchronize(self):
        self.said.append(self.name)


def test_sets_take_turns(make_lane, make_set):
    """A write waits for its own set's event, and leaves the other set as it is."""
    sets, said, sent = [make_set(), make_set()], [], [steps(), steps()]
    lane = make_lane(*sets, events=[Event(said, 0), Event(said, 1)])
    for number in range(6):
        turn = number % 2
        sent[turn] = steps()
        assert lane.write(sent[turn]) == turn
        assert said == [0, 1, 0, 1, 0, 1][:number + 1]
        assert number == 0 or holds(lane, sets[0], sent[0]) and holds(lane, sets[1], sent[1])
    with pytest.raises(ValueError):
        lane.write([])
    assert lane.write(steps()) == 0  # an error takes no turn


@pytest.mark.parametrize("error, text, change, sizes", [
    (ValueError, "3 arrays for the 2 tensors", lambda sent: sent + [None], None),
    (ValueError, "array 1 has 68 bytes, its tensor 64", lambda sent: [sent[0], numpy.zeros(17, "i4")], None),
    (ValueError, "contiguous", lambda sent: [sent[0], numpy.zeros(16, "i4")[::2]], None),
    (ValueError, "array 1 is not contiguous", lambda sent: [sent[0], HostTensor(numpy.zeros(16, "i4")[::2])], None),
    (TypeError, "array 1 is of int64, its tensor of int32", lambda sent: [sent[0], numpy.zeros(8, "i8")], None),
    (TypeError, "int", lambda sent: [sent[0], 5], None),
    (ValueError, "1 sizes for 2 arrays", lambda sent: sent, [4]),
    (ValueError, "size 1 is 65, and the array has 64", lambda sent: sent, [64, 65]),
    (ValueError, "size 0 is -4", lambda sent: sent, [-4, 64]),
])
def test_a_wrong_write_writes_nothing(make_lane, make_set, error, text, change, sizes):
    tensors, sent = make_set(sizes=(64, 64)), steps((64, 64))
    lane = make_lane(tensors)
    lane.write(sent)
    with pytest.raises(error, match=text):
        lane.write(change(steps((64, 64))), sizes)
    assert holds(lane, tensors, sent)
    sent = steps((64, 64))
    lane.write(sent)
    assert holds(lane, tensors, sent)


@pytest.mark.parametrize("error, text, how", [
    (ValueError, "needs tensors", lambda a, b: gdrapi.Lane()),
    (ValueError, "needs tensors", lambda a, b: gdrapi.Lane([])),
    (TypeError, "a set is a list", lambda a, b: gdrapi.Lane(a, b)),
    (TypeError, "read-only", lambda a, b: setattr(a, "readonly", True) or gdrapi.Lane([a])),
    (ValueError, "not alike", lambda a, b: gdrapi.Lane([a], [a, b])),
    (ValueError, "share memory", lambda a, b: gdrapi.Lane([a, b], [b, a])),
    (ValueError, "1 events for 2 sets", lambda a, b: gdrapi.Lane([a], [b], events=[None])),
])
def test_what_is_no_lane(make_set, error, text, how):
    with pytest.raises(error, match=text):
        how(*make_set(sizes=(64, 64)))


def test_parts_beside_whole_tensors(monkeypatch, make_set):
    """All of a write, of whole tensors and of parts of any number, is one call, and makes nothing new once it was made."""
    made, real = [], gdrapi._lib.function("gdr_copy_to_mapping_v")
    monkeypatch.setattr(gdrapi._lane, "_BRIEF", 0)
    monkeypatch.setattr(gdrapi._lib.library(), "gdr_copy_to_mapping_v", lambda *a: (made.append(1), real(*a))[1])
    tensors, (first, second, third) = make_set(sizes=(4096, 4096, 64)), steps((4096, 4096, 64))
    kept = set()
    with gdrapi.Lane(tensors) as lane:
        lane.write([first, second, third])
        for number in range(1, 4):
            at = numpy.arange(0, 1000, number)  # more than the call has room for at first
            lane.write([(at, at), (slice(5), 9), third[:number]])
            first[at], second[:5] = at, 9
            assert holds(lane, tensors, [first, second, third])
            assert len(made) == 1 + number
            parts = lane._pools[0][0].parts
            kept.add((id(parts.pieces), *(id(stage) for stage, _ in parts.stages.values())))
    assert len(kept) == 1


def test_a_tensor_of_both_sets(make_lane, make_set):
    """What is only added to may be the same tensor in each set."""
    (table, *lens), sent = make_set(sizes=(4096, 64, 64)), steps((4096, 64))
    lane = make_lane([table, lens[0]], [table, lens[1]])
    lane.write(sent)
    for number in range(10):
        sent[0][number], sent[1] = number, steps((64,))[0]
        turn = lane.write([(number, number), sent[1]])
        assert holds(lane, [table, lens[turn]], sent)


@pytest.mark.parametrize("moved", [65536, None])
def test_a_tensor_that_was_resized_or_freed(make_lane, make_set, moved):
    tensors, sent = make_set(), steps()
    lane = make_lane(tensors)
    rows = lane.rows(tensors[0])
    lane.write(sent)
    tensors[1].moved = -tensors[1].address if moved is None else moved
    for use in (lambda: lane.write(steps()), lambda: rows.__setitem__(0, 1)):
        with pytest.raises(gdrapi.LaneError, match="make a new lane") as error:
            use()
        assert "\n" not in str(error.value)
    tensors[1].moved = 0
    assert holds(lane, tensors, sent)


def test_the_machine(make_set):
    """On Grace, which caches GPU memory, a lane is plain stores of the CPU's; the table of tests has a row of it."""
    tensors = make_set(sizes=(64,))
    with gdrapi.open() as gdr, gdr.pin(tensors[0]) as buffer, gdrapi.Lane(tensors) as lane:
        assert (buffer.mapping_type, lane.way) == ("cached" if os.environ.get("NVRM_SIM_MACHINE") == "grace" else "wc", "mapping")
        assert gdr.backend == os.environ.get("GDRCOPY_BACKEND", gdr.backend) and (gdr.persistent or gdr.backend == "gdrdrv")


@pytest.mark.parametrize("variable, value, says", [
    ("PYTORCH_ALLOC_CONF", "", "gdr_pin_bytes: "),
    ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", "expandable_segments:True may be why"),
    ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync may be why"),
])
def test_memory_that_cannot_be_pinned(monkeypatch, watch, make_set, variable, value, says):
    """What was pinned before it is unpinned."""
    monkeypatch.setenv(variable, value)
    host, calls = numpy.zeros(1 << 16, "u1"), watch("gdr_pin_bytes", "gdr_unpin_buffer")
    with pytest.raises(gdrapi.LaneError, match=says) as error:
        gdrapi.Lane(make_set() + [(host.ctypes.data, 4096)])
    assert "\n" not in str(error.value)
    assert calls.count("gdr_unpin_buffer") == len(SIZES)


def test_threads(cuda, make_lane, make_set):
    """Writes at the same time do not mix up their arrays."""
    tensors, context = make_set(sizes=(4096, 4096, 4096)), cuda.current()
    lane, columns = make_lane(tensors), numpy.arange(100)
    rows = lane.rows(tensors[2])

    def work(number):
        cuda("cuCtxSetCurrent", context)
        for _ in range(200):
            lane.write([numpy.full(1024, number, "i4"), bytes([number]) * 4 * (number + 1), None])
            rows[columns * 8 + number] = number

    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    lane.drain()
    assert set(numpy.frombuffer(tensors[0].get(), "i4")) <= set(range(8))
    assert tensors[2].get(3200) == numpy.tile(numpy.arange(8, dtype="i4"), 100).tobytes()


def test_the_end(make_lane, make_set):
    tensors, (other,) = make_set(), make_set(sizes=(64,))
    with make_lane(tensors) as lane:
        rows = lane.rows(tensors[0])
        lane.write(steps())
        with pytest.raises(ValueError, match="none of the lane's"):
            lane.rows(other)
    assert lane.closed
    lane.close()
    for use in (lambda: lane.write(steps()), lambda: rows.__setitem__(0, 1), lane.drain):
        with pytest.raises(ValueError, match="the lane is closed"):
            use()


def test_a_write_that_begins_hinders_no_close(monkeypatch, make_set):
    """It is counted before it finds the lane closed."""
    ended, real = [], gdrapi._lib.function("gdr_unpin_buffer")
    monkeypatch.setattr(gdrapi._lib.library(), "gdr_unpin_buffer", lambda *a: lane._running.append(None) or ended.append(real(*a)))
    lane = gdrapi.Lane(make_set())
    lane.close()
    assert ended == [0, 0, 0]


def test_a_forked_child_gets_an_error(make_set):
    def inherited(use):
        try:
            use()
        except gdrapi.GdrError as error:
            return error.errno

    tensors = make_set()
    with gdrapi.Lane(tensors) as lane:
        for use in (lambda: lane.write(steps()), lambda: lane.rows(tensors[0]).__setitem__(0, 1), lane.drain):
            assert in_fork(inherited, use) == (errno.EACCES, 0)
