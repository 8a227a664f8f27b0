# SPDX-License-Identifier: MIT
"""What hypothesis makes: indexes of rows, types, copies. NumPy, or a bytearray, says what they do."""
import contextlib
import os

import numpy
import pytest

from conftest import TOP, Array
from dlpack import Exporter
from test_lane import holds, make, make_lane  # noqa: F401 - the fixtures

hypothesis = pytest.importorskip("hypothesis")
some = pytest.importorskip("hypothesis.strategies")
types = pytest.importorskip("hypothesis.extra.numpy")

pytest.importorskip("hypothesis.configuration").set_hypothesis_home_dir(os.path.join(TOP, "build", "hypothesis"))

# The same examples in each run. A fixture outlives them, so what one leaves behind is in the next one's way.
generated = hypothesis.settings(derandomize=True, database=None, deadline=None, max_examples=25,
                                suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
ERRORS = (IndexError, TypeError, ValueError, DeprecationWarning)
pytestmark = pytest.mark.filterwarnings("error")
ODD = [None, ..., True, False, numpy.True_, numpy.array(True), numpy.array(False), numpy.ones(9, bool), numpy.ones((2, 2), bool), 0.5,
       numpy.array([0.0]), "f0", numpy.array([0], object), 1 << 40, slice(0, 9, 2), slice(4, None, -1)]


def axis(least, most):
    """Indexes of one axis by integers, which may leave it."""
    numbers = some.lists(some.integers(least, most) | some.integers(max(least, 0), most - 1), max_size=6)
    arrays = some.builds(lambda one, kind: numpy.array(one, "i8").astype(kind), numbers, some.sampled_from(["i8", "i4", "i1", "u1", ">i2"]))
    return some.integers(least, most) | some.integers(0, most - 1).map(numpy.array) | numbers | arrays | arrays.map(lambda one: one[:, None])


def one_of(length):
    return axis(-length, length) | some.lists(some.booleans(), min_size=length, max_size=length).map(numpy.array)


def indexes(rows, columns):
    """An index, and whether it must do what it does in NumPy. Else it may raise."""
    row, column, slices = one_of(rows), one_of(columns), some.builds(slice, *[some.none() | some.integers(-9, 9)] * 2)
    served = row | slices | some.sampled_from([..., (), slice(6, 1, -2)]) | some.tuples(row, column) | some.tuples(row | slices, slices)
    odd = some.sampled_from([*ODD, (), (0,)])
    others = odd | some.tuples(row | slices | odd, column | slices | odd) | some.tuples(row, column, odd, odd)
    return some.tuples(served, some.just(True)) | some.tuples(others, some.just(False))


def data_for(draw, shape):
    """Data for a part of this shape, or nearly."""
    count = int(numpy.prod(shape))
    data = (numpy.arange(count) % 90 + draw(some.integers(0, 9))).reshape(shape).astype(draw(some.sampled_from(["i8", "u1", "f8", ">i4"])))
    return draw(some.sampled_from([data, data, data.tolist(), 7, numpy.ones(count + 2, "i4")]))


def assigned(draw, model, index):
    """An index with its data, and the model after they were assigned: None where NumPy raises."""
    data, after = 7, model.copy()
    part = after.reshape(len(after), -1) if type(index) is tuple and index else after
    try:
        data = data_for(draw, part[index].shape)
        part[index] = data
    except ERRORS:
        after = None
    return (index, data), after


@pytest.mark.parametrize("shape, kind", [
    ((7, 5), "<i4"), ((9,), "<i8"), ((3, 2, 4), "<f4"), ((4, 300), "<f8"), ((3, 6), "|b1"), ((5, 3), ">i2"), ((4, 3), "<U2"), ((1, 1), "|u1"),
], ids=str)
def test_rows_are_as_numpys(make_lane, make, shape, kind):
    """By rows and by write, of two tensors, one or both at a time."""
    new = numpy.ones(shape, kind)
    tensors = [make(shape=shape, typestr=kind, itemsize=new.itemsize, descr=new.dtype.descr) for _ in range(2)]  # CuPy has a descr always
    lane = make_lane(tensors)
    rows = [lane.rows(tensor) for tensor in tensors]

    @generated
    @hypothesis.given(some.data())
    def each(data):
        models = [new, new]
        lane.write(models)
        for numbers in data.draw(some.lists(some.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=5)):
            parts, after, must = [None, None], list(models), True
            for i in numbers:
                index, served = data.draw(indexes(shape[0], new.size // shape[0]))
                parts[i], after[i] = assigned(data.draw, models[i], index)
                must = must and served and after[i] is not None
            try:
                if len(numbers) == 1 and data.draw(some.booleans()):
                    rows[i][index] = parts[i][1]
                else:
                    lane.write(parts)
            except ERRORS:
                assert not must
            else:
                models = after
            assert holds(lane, tensors, models)

    each()


def places(shape, row, columns, counts):
    """The elements of rows[r, c, n], run after run."""
    found = []
    for row, column, count in numpy.broadcast(numpy.arange(shape[0])[row], columns, counts):
        if not 0 <= column <= int(column) + int(count) <= shape[1]:
            raise IndexError("a run leaves its row")
        found += [(row, int(column) + i) for i in range(count)]
    return found


def test_runs(make_lane, make):
    """Runs of columns, each of its own length: what new blocks are to a block table."""
    table = make(shape=(5, 300), typestr="<i4")
    lane = make_lane([table])
    rows = lane.rows(table)

    @generated
    @hypothesis.given(some.tuples(one_of(5), axis(0, 300) | axis(100, 120) | axis(-1, 2), axis(0, 4) | axis(90, 120) | axis(-2, 1)), some.data())
    def each(index, data):
        model, values, raises = numpy.ones(table.shape, "i4"), 7, contextlib.nullcontext()
        lane.write([model])
        try:
            found = places(table.shape, *index)
            values, stage = data_for(data.draw, (len(found),)), numpy.zeros(len(found), "i4")
            stage[...] = values
            for place, value in zip(found, stage):
                model[place] = value
        except ERRORS:
            raises = pytest.raises(ERRORS)
        with raises:
            rows[index] = values
        assert holds(lane, [table], [model])

    each()
    for one in ODD:
        for index in ((one, 0, 1), (0, one, 1), (0, 0, one)):
            with pytest.raises(ERRORS):
                rows[index] = 7


@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize("dlpack", [False, True])
def test_a_type_that_numpy_lacks_takes_bits(make_lane, make, size, dlpack):
    """Such as bfloat16 and float8."""
    bits = numpy.arange(2 * size, dtype="u1").view("V%d" % size)
    array = make(shape=(4, 8), typestr=bits.dtype.str, itemsize=size, descr=bits.dtype.descr)
    tensor = Exporter(array, 4, 8 * size) if dlpack else array
    lane = make_lane([tensor])
    for whole in ((), ...):
        lane.rows(tensor)[whole] = numpy.zeros(1, bits.dtype)
    for number in ([1.5, 1, numpy.ones(2, "f2"), numpy.ones(2, "i8"), numpy.ones(2, "u4"), [b"ab"] * 2] + [numpy.ones(2, ">u2")] * (size > 1)):
        with pytest.raises(TypeError, match="give its bits"):
            lane.rows(tensor)[[1, 2], 3] = number
    assert holds(lane, [array], [numpy.zeros((4, 8), bits.dtype)])
    for row, data in ((1, bits), (2, bits.view("u%d" % size) if size <= 8 else bits)):
        lane.rows(tensor)[row, 2:4] = data
        lane.drain()
        assert array.get(2 * size, size * (8 * row + 2)) == bits.tobytes()


def test_copies(gdr, cuda):
    """Reads of each size, which up to 64 bytes are the interpreter's own, and writes; nothing past the ends."""
    array = Array(cuda, shape=(4096,), typestr="|u1", offset=100)
    copies = some.tuples(some.sampled_from("wri"), some.integers(-2, 100) | some.integers(4000, 4100) | some.just(1 << 40),
                         some.integers(0, 70) | some.integers(0, 4100), some.sampled_from([bytes, memoryview, lambda data: memoryview(data).cast("H")]))

    @generated
    @hypothesis.given(some.lists(copies, max_size=20), some.integers(0, 255))
    def each(copies, value):
        model = bytearray(range(256)) * 16
        array.put(bytes(model))
        for kind, offset, size, wrap in copies:
            size, value = size // 2 * 2 if wrap not in (bytes, memoryview) else size, (value + 1) % 256
            fits, target = 0 <= offset <= offset + size <= 4096, bytearray([value]) * size
            try:
                if kind == "w":
                    assert buffer.write(wrap(target), offset) == size
                    model[offset:offset + size] = target
                elif kind == "r":
                    target = buffer.read(size, offset)
                else:
                    assert buffer.readinto(target if wrap is bytes else wrap(target), offset) == size
            except ValueError as error:
                assert not fits and "%d bytes at %d are not all in the 4096" % (size, offset) in str(error)
            else:
                assert fits and target == model[offset:offset + size]
        assert array.get() == buffer.read() == model

    with gdr.pin(array) as buffer:
        each()


@generated
@hypothesis.example(numpy.dtype([("when", "M8[ns]"), ("name", "U2"), ("at", "f4", (2, 3))]), 0)
@hypothesis.example(numpy.dtype("M8[25s]"), 4096)
@hypothesis.given(types.scalar_dtypes() | types.array_dtypes() | some.sampled_from(["V2", "V7", "?", "<f4", "<f8"]).map(numpy.dtype),
                  some.sampled_from([0, 4, 512, 4096, 65532, 65536, 100000]))
def test_types(gdr, cuda, dtype, offset):
    """At any address NumPy sees each of its types in the memory; a memoryview has those that it knows."""
    hypothesis.assume(0 < dtype.itemsize < 4096)
    array = Array(cuda, shape=(4, 2), typestr=dtype.str, itemsize=dtype.itemsize, descr=dtype.descr, offset=offset)
    with gdr.pin(array) as buffer:
        seen = numpy.asarray(buffer)
        assert seen.shape == (4, 2) and seen.dtype == dtype and seen.nbytes == buffer.nbytes
        whole = numpy.ndarray((buffer.nbytes,), "u1", seen)
        whole[:] = numpy.arange(buffer.nbytes) % 2
        assert array.get() == whole.tobytes()
        with pytest.raises(BufferError):
            buffer.close()
        del seen, whole
        with buffer.view() as view:
            if dtype.char in "?bBhHiIlLqQfd" and dtype.isnative:
                assert view.tolist() == numpy.frombuffer(array.get(), dtype).reshape(4, 2).tolist()
            else:
                assert view.format == "B" and view.tobytes() == array.get()
