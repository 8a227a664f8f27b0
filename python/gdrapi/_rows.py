# SPDX-License-Identifier: MIT
"""Parts of a lane's tensors: NumPy finds where they lie and fills all their pieces at once."""
import ctypes
import importlib
from typing import Any, Dict, Tuple

from ._source import Source

numpy: Any = importlib.import_module("numpy")  # what has no rows needs none

_PIECE = numpy.dtype([("handle", "u8"), ("to", "u8"), ("of", "u8"), ("size", "u8")])  # gdr_piece_t
_INT64 = numpy.dtype("i8")


def _of_axis(one: Any, length: int) -> Any:
    """An index of one axis, as NumPy takes it. IndexError for one of no axis or of several, such as None or a bool."""
    if type(one) is int or isinstance(one, slice):
        return one
    array = numpy.asarray(one)
    if array.dtype is _INT64:
        return array
    if array.dtype.kind == "b" and array.shape == (length,):
        return array.nonzero()[0]
    if array.dtype.kind not in "iu" and (array.size or array is one):  # of an empty list NumPy makes floats
        raise IndexError("give rows and columns as integers, arrays of them, slices, or masks of %d" % length)
    return array.astype(_INT64)  # a sum of small types wraps


def _bits(data: Any, kind: Any) -> Any:
    """What is assigned to a type that NumPy lacks, such as bfloat16. NumPy would take the first bytes of any number."""
    data = numpy.asarray(data)
    if data.dtype.kind not in "uV" or data.dtype.itemsize != kind.itemsize or not data.dtype.isnative:
        raise TypeError("NumPy lacks this tensor's type: give its bits, as an array of u%d" % kind.itemsize)
    return data.view(kind)


class Table:
    """A tensor as rows of columns, and where each begins."""

    def __init__(self, source: Source, handle: int, address: int) -> None:
        kind = numpy.dtype(source.descr or source.typestr)
        self.kind, self.item, self.handle = kind, int(kind.itemsize), handle
        self.opaque = kind.kind == "V" and not kind.names
        rows, self.shape = (source.shape or (1,))[0], source.shape[1:]
        self.columns = source.nbytes // (rows * self.item)
        self.rows = numpy.arange(rows, dtype="u8") * numpy.uint64(self.columns * self.item) + numpy.uint64(address)
        self.ends = numpy.arange(self.columns + 1, dtype="u8") * numpy.uint64(self.item)
        self.starts = self.ends[:-1]

    def find(self, index: Any) -> Tuple[Any, Any, Any, Tuple[int, ...]]:
        """The addresses of runs; the bytes of each; where each begins in the data, an index; the data's shape. NumPy
        checks the index."""
        row, *columns = (index if type(index) is tuple else (index,)) or (...,)
        row = slice(None) if row is ... and not columns else _of_axis(row, len(self.rows))
        at = self.rows[row]
        if not columns:
            shape = at.shape + self.shape
            if isinstance(row, slice) and row.step in (None, 1):
                return at[:1], len(at) * self.columns * self.item, slice(1), shape
            return at, self.columns * self.item, slice(0, at.size * self.columns, self.columns), shape
        column = _of_axis(columns[0], self.columns)
        if isinstance(column, slice) and column.step in (None, 1) and len(columns) == 1:
            begin, end, _ = column.indices(self.columns)
            count = max(end - begin, 0)
            return (at + self.ends[begin], count * self.item, slice(0, max(at.size * count, 1), max(count, 1)),
                    at.shape + (count,))
        if len(columns) > 2 or slice in (type(row), type(column)):
            raise IndexError("give rows, columns, and how many from each on, as numbers or as arrays")
        if len(columns) == 1:
            at = at + self.starts[column]
            return at, self.item, slice(at.size), at.shape
        counts = numpy.asarray(_of_axis(columns[1], 0))
        start, end, signs = self.ends[column], self.ends[column + counts], column | counts
        if signs.size and signs.item(signs.argmin()) < 0:
            raise IndexError("the columns and lengths of runs are not negative")
        at, sizes = at + start, end - start
        if not at.shape == sizes.shape == counts.shape:
            at, sizes, counts = numpy.broadcast_arrays(at, sizes, counts)
        after = counts.cumsum()
        return at, sizes.ravel(), after - counts.ravel(), (after.item(-1) if after.size else 0,)


class Parts:
    """The pieces of one call: room for those of whole tensors, then parts. What is to be written is copied here."""

    def __init__(self, whole: Any) -> None:
        self.whole, self.first = numpy.frombuffer(whole, "u8"), len(whole)
        self.stages: Dict[Table, Tuple[Any, Any]] = {}  # elements, and the address of each
        self.like: Any = None  # what the pieces up to self.full are: of which table, of how many bytes, from where on
        self.count, self.nbytes, self.full = self.first, 0, 0
        self._grow(self.first + 256, numpy.zeros(0, _PIECE))

    def _grow(self, count: int, keep: Any) -> None:
        self.pieces, self.like = numpy.zeros(count, _PIECE), None
        self.pieces[:len(keep)] = keep
        self.handle, self.to, self.of, self.size = (self.pieces[name] for name in _PIECE.names)
        self.room, start = self.pieces.view("u8")[:len(self.whole)], int(self.pieces.ctypes.data)
        self.starts = ctypes.c_void_p(start + self.first * _PIECE.itemsize), ctypes.c_void_p(start)

    def begin(self) -> None:
        """Forgets what was put."""
        self.count, self.nbytes = self.first, 0

    def put(self, table: Table, index: Any, data: Any) -> None:
        """Makes pieces of a part of a tensor, once for a call. Nothing is put where an error is raised."""
        at, size, begins, shape = table.find(index)
        first, end = self.count, self.count + at.size
        total = shape[0] if len(shape) == 1 else int(numpy.prod(shape))
        stage, sources = self.stages.get(table) or self._stage(table, total)
        if total >= len(sources):
            stage, sources = self._stage(table, total)
        if table.opaque:
            data = _bits(data, table.kind)
        (stage[:total] if len(shape) == 1 else stage[:total].reshape(shape))[...] = data
        if end > len(self.pieces):
            self._grow(2 * end, self.pieces[:first])
        self.to[first:end] = at if at.ndim == 1 else at.ravel()
        like = (table, size, first) if type(begins) is slice else None
        if like is None or like != self.like or end > self.full:  # else the last call's are the same
            self.of[first:end], self.handle[first:end], self.size[first:end] = sources[begins], table.handle, size
            self.like, self.full = like, end
        self.count, self.nbytes = end, self.nbytes + total * table.item

    def _stage(self, table: Table, total: int) -> Tuple[Any, Any]:
        """Room for so many elements, and one more."""
        stage = numpy.empty(2 * total + 64, table.kind)
        sources = numpy.arange(len(stage), dtype="u8") * numpy.uint64(table.item) + numpy.uint64(stage.ctypes.data)
        self.stages[table], self.like = (stage, sources), None
        return stage, sources

    def made(self, whole: bool) -> Tuple[Any, int]:
        """Where the pieces begin, and how many they are."""
        if whole:
            self.room[:] = self.whole
        return self.starts[whole], self.count - (0 if whole else self.first)
