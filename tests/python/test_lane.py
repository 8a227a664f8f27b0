# SPDX-License-Identifier: MIT
"""Lane: the same tensors written before each step, by a mapping or by copies from pinned memory."""
import array as arrays
import errno
import itertools
import os
import threading

import numpy
import pytest

import gdrapi
from conftest import Array

SIZES = (64, 4096, 1000)


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
def make_set(cuda):
    """Tensors in memory of their own: the simulated driver exports an allocation from one start at a time."""
    return lambda kind=Tensor, sizes=SIZES: [kind(cuda, shape=(size // 4,), typestr="<i4", offset=2 << 20) for size in sizes]


@pytest.fixture(params=["mapping", "pinned"])
def make_lane(request, monkeypatch, cuda):
    """Lanes of both ways. Each must do the same."""
    made = []

    def make(*sets, **how):
        if request.param == "mapping":
            made.append(gdrapi.Lane(*sets, **how))
        else:
            with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="pinned copies in place of a lane: .*gdr_open"):
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


def test_every_step_has_its_bytes(make_lane, make_set):
    tensors = make_set()
    lane = make_lane(tensors)
    for _ in range(20):
        sent = steps()
        assert lane.write(sent) == 0
        assert holds(lane, tensors, sent)


def test_an_array_that_is_filled_again(make_lane, make_set):
    tensors, sent = make_set(), steps()
    lane = make_lane(tensors)
    for number in range(20):
        for data in sent:
            data.fill(number)
        lane.write(sent)
        assert holds(lane, tensors, sent)


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
    (ValueError, "not alike", lambda a, b: gdrapi.Lane([a], [a, b])),
    (ValueError, "share memory", lambda a, b: gdrapi.Lane([a, b], [b, a])),
    (ValueError, "1 events for 2 sets", lambda a, b: gdrapi.Lane([a], [b], events=[None])),
])
def test_what_is_no_lane(make_set, error, text, how):
    with pytest.raises(error, match=text):
        how(*make_set(sizes=(64, 64)))


def test_read_only(make):
    with pytest.raises(TypeError, match="read-only"):
        gdrapi.Lane([make(readonly=True)])


@pytest.mark.parametrize("moved", [65536, None])
def test_a_tensor_that_was_resized_or_freed(make_lane, make_set, moved):
    tensors, sent = make_set(), steps()
    lane = make_lane(tensors)
    lane.write(sent)
    tensors[1].moved = -tensors[1].address if moved is None else moved
    with pytest.raises(gdrapi.LaneError, match="make a new lane") as error:
        lane.write(steps())
    assert "\n" not in str(error.value)
    tensors[1].moved = 0
    assert holds(lane, tensors, sent)


def test_a_coherent_machine(make_set, monkeypatch):
    monkeypatch.setattr(gdrapi.Buffer, "mapping_type", "cached")
    with pytest.raises(gdrapi.LaneError, match="share their memory"):
        gdrapi.Lane(make_set())


@pytest.mark.parametrize("variable, value, says", [
    ("PYTORCH_ALLOC_CONF", "", "gdr_pin_buffer: "),
    ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True", "expandable_segments:True may be why"),
    ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync may be why"),
])
def test_memory_that_cannot_be_pinned(monkeypatch, make_set, variable, value, says):
    """What was pinned before it is unpinned."""
    monkeypatch.setenv(variable, value)
    host, pinned = numpy.zeros(1 << 16, "u1"), []
    for name, one in (("gdr_pin_buffer", 1), ("gdr_unpin_buffer", -1)):
        real = gdrapi._lib.function(name)
        monkeypatch.setattr(gdrapi._lib.library(), name,
                            lambda *a, f=real, n=one: (lambda number: (number or pinned.append(n), number)[1])(f(*a)))
    with pytest.raises(gdrapi.LaneError, match=says) as error:
        gdrapi.Lane(make_set() + [(host.ctypes.data, 4096)])
    assert "\n" not in str(error.value)
    assert pinned and sum(pinned) == 0


def test_threads(cuda, make_lane, make_set):
    """Writes at the same time do not mix up their arrays."""
    tensors, failed, context = make_set(sizes=(4096, 4096)), [], cuda.current()
    lane = make_lane(tensors)

    def work(number):
        try:
            cuda("cuCtxSetCurrent", context)
            for _ in range(200):
                lane.write([numpy.full(1024, number, "i4"), bytes([number]) * 4 * (number + 1)])
        except BaseException as error:  # noqa: B902 - it is shown by the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    lane.drain()
    assert set(numpy.frombuffer(tensors[0].get(), "i4")) <= set(range(8))


def test_the_end(make_lane, make_set):
    with make_lane(make_set()) as lane:
        lane.write(steps())
    assert lane.closed
    lane.close()
    for use in (lambda: lane.write(steps()), lane.drain):
        with pytest.raises(ValueError, match="the lane is closed"):
            use()


def test_no_close_beside_a_write(monkeypatch, make_set):
    """A lane that gives the interpreter's lock back is not unmapped under the copy."""
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(gdrapi._lane, "_BRIEF", 0)
    real = gdrapi._lib.function("gdr_copy_to_mapping_v")
    monkeypatch.setattr(gdrapi._lib.library(), "gdr_copy_to_mapping_v", lambda *a: (begun.set(), go_on.wait(), real(*a))[2])
    tensors, sent = make_set(), steps()
    lane = gdrapi.Lane(tensors)
    thread = threading.Thread(target=lane.write, args=(sent,))
    thread.start()
    begun.wait()
    with pytest.raises(BufferError, match="a write of this lane runs"):
        lane.close()
    assert not lane.closed
    go_on.set()
    thread.join()
    assert holds(lane, tensors, sent)
    lane.close()


def test_a_forked_child_gets_an_error(make_set):
    with gdrapi.Lane(make_set()) as lane:
        child = os.fork()
        if not child:
            try:
                lane.write(steps())
            except gdrapi.GdrError as error:
                os._exit(0 if error.errno == errno.EACCES else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
