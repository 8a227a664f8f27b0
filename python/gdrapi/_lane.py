# SPDX-License-Identifier: MIT
"""A lane: the same few tensors in GPU memory, written by the CPU before each step.

Lane.write is one call of gdr_copy_to_mapping_v, and so is an assignment to rows. What it needs is made once,
and kept from call to call: the pieces, and the address and size of each source.
"""
import ctypes
import functools
import operator
import os
import warnings
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib
from ._errors import GdrError, LaneError
from ._gdr import Buffer, shared
from ._mapping import _SIMPLE, Resource, _get_buffer, _PyBuffer, _release_buffer
from ._source import Source, source_of


class _Piece(ctypes.Structure):
    """gdr_piece_t."""

    _fields_ = [("handle", _lib.Handle), ("map_d_ptr", ctypes.c_void_p), ("h_ptr", ctypes.c_void_p),
                ("size", ctypes.c_size_t)]


#: A thread that gives the interpreter's lock back may get it again only after sys.getswitchinterval(), 5 ms. So
#: a write of up to so many bytes keeps it: the CPU writes them in 15 us (docs/measurements.md).
_BRIEF = 256 << 10
#: A copy of so much pageable memory waits for no other: the driver stages it (docs/choose.md).
_STAGED = 64 << 10


class _Target(NamedTuple):
    """A tensor of a lane, and where it was when the lane was made."""

    array: Any
    source: Source

    @property
    def ends(self) -> Tuple[int, int]:
        """Its first byte on the GPU, and the one after its last."""
        return self.source.address, self.source.address + self.source.nbytes


def _check_type(i: int, source: Any, target: Any) -> None:
    """Types have one name in NumPy and PyTorch, such as int32. What has none is bytes."""
    names = tuple(str(kind).rpartition(".")[2] for kind in (source, target))
    if source is not None and target is not None and names[0] != names[1]:
        raise TypeError("array %d is of %s, its tensor of %s: convert it, for a lane copies bytes"
                        % (i, names[0], names[1]))


class _Call:
    """The pieces of a write, and what they were last made of."""

    def __init__(self, targets: Sequence[_Target], places: Sequence[Tuple[_lib.Handle, int]],
                 writes: Sequence[Callable[[Any, Any], int]]) -> None:
        """writes has a call that keeps the interpreter's lock, and one that does not."""
        self.pieces = (_Piece * len(targets))()
        self.each = list(self.pieces)
        self.targets, self.places, self.writes = targets, places, writes
        self.types: List[Any] = [None] * len(targets)  # of the sources, as they say it
        self.view = _PyBuffer()
        for piece, (handle, address) in zip(self.each, places):
            piece.handle, piece.map_d_ptr = handle, address
        self.sources: List[Any] = [None] * len(targets)
        self.sizes = [0] * len(targets)  # of the sources, in bytes
        self.pointers: List[Tuple[int, Callable[[], int]]] = []  # of those that are PyTorch's
        self.cut = False  # a piece has another size than its source
        self.nbytes = 0  # of all sources
        self.parts: Any = None  # once there were some
        self.tables: Dict[int, Any] = {}  # of the tensors that have some
        # What ctypes has made of the arguments it need not make again.
        whole = ctypes.c_void_p(ctypes.addressof(self.pieces)), ctypes.c_size_t(len(targets))
        self.ways = [functools.partial(write, *whole) for write in writes]
        self.send: Callable[[], int] = self.ways[0]

    def fill(self, arrays: Sequence[Any], sizes: Optional[Sequence[int]]) -> None:
        """Makes the pieces of these sources. Nothing is asked of one that is the same object as before."""
        sources, each = self.sources, self.each
        if len(arrays) != len(sources):
            raise ValueError("%d arrays for the %d tensors of this lane: give None for one that stays"
                             % (len(arrays), len(sources)))
        i = 0
        for array in arrays:
            if array is not sources[i] or array is None:
                self._take(i, array)
            i += 1
        for i, pointer in self.pointers:  # a tensor may be given other memory
            if pointer() != each[i].h_ptr:
                self._take(i, sources[i])
        if sizes is not None:
            self._trim(sizes)
        elif self.cut:
            for piece, size in zip(each, self.sizes):
                piece.size = size
            self.cut = False

    def _take(self, i: int, array: Any) -> None:
        """Makes a piece of another source."""
        self.sources[i] = None
        self.nbytes -= self.sizes[i]
        self.sizes[i] = self.each[i].size = 0
        self.pointers = [(j, pointer) for j, pointer in self.pointers if j != i]
        if array is None:
            return
        if isinstance(array, tuple):
            self.put(i, *array)
            return
        is_tensor = getattr(array, "is_cpu", False)  # of PyTorch
        if is_tensor:
            if not array.is_contiguous():
                raise ValueError("array %d is not contiguous" % i)
            address, size = array.data_ptr(), array.numel() * array.element_size()
        else:
            _get_buffer(array, self.view, _SIMPLE)
            address, size = self.view.buf or 0, self.view.len
            _release_buffer(self.view)
        if size > self.targets[i].source.nbytes:
            raise ValueError("array %d has %d bytes, its tensor %d" % (i, size, self.targets[i].source.nbytes))
        kind = getattr(array, "dtype", None)
        if kind is not self.types[i]:
            _check_type(i, kind, getattr(self.targets[i].array, "dtype", None))
            self.types[i] = kind
        self.each[i].h_ptr = address
        self.sizes[i] = self.each[i].size = size
        self.nbytes += size
        if self.parts is None:
            self.send = self.ways[self.nbytes > _BRIEF]
        if is_tensor:
            self.pointers.append((i, array.data_ptr))
        # A bytearray may move while we keep it, an array of NumPy does not.
        if is_tensor or hasattr(type(array), "__array_interface__"):
            self.sources[i] = array

    def _trim(self, sizes: Sequence[int]) -> None:
        if len(sizes) != len(self.each):
            raise ValueError("%d sizes for %d arrays" % (len(sizes), len(self.each)))
        self.cut = True
        for i, (piece, size, most) in enumerate(zip(self.each, map(operator.index, sizes), self.sizes)):
            if not 0 <= size <= most:
                raise ValueError("size %d is %d, and the array has %d bytes" % (i, size, most))
            piece.size = size

    def put(self, i: int, index: Any, data: Any) -> None:
        """Makes pieces of a part of a tensor."""
        if i not in self.tables:
            from ._rows import Parts, Table
            self.tables[i] = Table(self.targets[i].source, self.places[i][0].h, self.places[i][1])
            self.parts, self.send = self.parts or Parts(self.pieces), self._send_parts
        self.parts.put(self.tables[i], index, data)

    def _send_parts(self) -> Any:
        parts = self.parts
        if parts.count == parts.first:
            return self.ways[self.nbytes > _BRIEF]()
        return self.writes[self.nbytes + parts.nbytes > _BRIEF](*parts.made(self.nbytes > 0))


class _Mapped:
    """Writes by the CPU, through mappings of the tensors."""

    name = "mapping"

    def __init__(self, sets: Sequence[Sequence[_Target]], lane: Resource) -> None:
        self._buffers: Dict[Tuple[int, int], Buffer] = {}
        try:
            gdr = shared()
            for target in (target for targets in sets for target in targets):
                if target.ends not in self._buffers:  # a tensor may be of each set
                    self._buffers[target.ends] = Buffer(gdr, target.array, 0, lane)
            self._writes = _lib.brief("gdr_copy_to_mapping_v"), _lib.function("gdr_copy_to_mapping_v")
            self._read = _lib.function("gdr_copy_from_mapping_v")
        except GdrError as error:
            self.close()
            raise LaneError("%s%s" % (error, _allocator())) from error
        except BaseException:
            self.close()
            raise
        self._last, self._bytes = (_Piece * len(self._buffers))(), (ctypes.c_ubyte * len(self._buffers))()
        for i, (piece, buffer) in enumerate(zip(self._last, self._buffers.values())):
            piece.handle, piece.map_d_ptr, piece.size = buffer._handle, buffer._at(buffer.nbytes - 1, 1), 1
            piece.h_ptr = ctypes.addressof(self._bytes) + i

    def call(self, targets: Sequence[_Target]) -> _Call:
        """A new call for a set."""
        buffers = [self._buffers[target.ends] for target in targets]
        return _Call(targets, [(buffer._handle, buffer._at(0, 1)) for buffer in buffers], self._writes)

    def drain(self) -> None:
        number = self._read(self._last, len(self._last))
        if number:
            raise GdrError(number, "gdr_copy_from_mapping_v")

    def close(self) -> int:
        """Unpins, also while a write begins that is about to find the lane closed. Buffer.close would refuse."""
        number = 0
        for buffer in self._buffers.values():
            number = buffer._finalizer() or number
        return number


def _allocator() -> str:
    """What of PyTorch's allocator may be why memory is refused."""
    said = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    for setting in ("expandable_segments:True", "backend:cudaMallocAsync"):
        if setting in said:
            return " PyTorch's %s may be why: make these tensors of gdrapi.open().alloc(size)." % setting
    return ""


class _Copied:
    """What a program does without a mapping: copies on a stream. CUDA must be current."""

    name = "pageable"

    def __init__(self, stream: Any) -> None:
        own = getattr(stream, "__cuda_stream__", None)  # PyTorch, CuPy and cuda.core say (version, handle)
        self._stream = ctypes.c_void_p(own()[1] if own else int(getattr(stream, "cuda_stream", stream)))
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def _do(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments, self._stream)
        if result:
            raise LaneError("%s: CUDA's error %d" % (name, result))

    def call(self, targets: Sequence[_Target]) -> _Call:
        """A new call for a set, whose places are the GPU's own addresses."""
        return _Call(targets, [(_lib.Handle(), target.source.address) for target in targets], (self._send,) * 2)

    def _send(self, pieces: ctypes.c_void_p, count: Any) -> int:
        """A page-locked source would be read after the call, so each copy is of pageable memory."""
        for piece in (_Piece * getattr(count, "value", count)).from_address(pieces.value or 0):
            for start in range(0, piece.size, _STAGED):
                part = ctypes.string_at(piece.h_ptr + start, min(piece.size - start, _STAGED))
                self._do("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(piece.map_d_ptr + start), part, ctypes.c_size_t(len(part)))
        return 0

    def drain(self) -> None:
        self._do("cuStreamSynchronize")

    def close(self) -> None:
        """There is nothing to unpin."""


class Lane(Resource):
    """Tensors in GPU memory that the CPU writes before each step.

        lane = gdrapi.Lane([block_table, seq_lens, positions])
        lane.write([block_table_np, seq_lens_np, positions_np])
        graph.replay()

    A kernel that is launched after write returned, alone or in a graph, sees the bytes. A set is free to be
    written once all kernels that read it have ended. With two sets, Lane(even, odd), a write goes to the one
    that the last write did not: the kernels of a step read theirs while the next step's is written.

    Make the tensors, wait for them (torch.cuda.synchronize()), and make the lane while no capture is open.
    """

    def __init__(self, *sets: Sequence[Any], events: Optional[Sequence[Any]] = None, fallback: Any = None) -> None:
        """Pins and maps the tensors, and keeps them. Each set has as many, and they share no memory.

        events has one object for each set: write calls its synchronize() before it writes the set. Record it
        after the last kernel that reads the set. Without events the caller waits.

        LaneError says in a line why a lane does not serve here. With fallback, a stream (PyTorch's, CuPy's, or a
        CUstream's number), it is a RuntimeWarning instead, and write copies pageable memory on this stream, at most
        64 KiB at a time: launch on it, too.
        """
        super().__init__()
        self._sets = [_targets(tensors) for tensors in sets]
        _check_sets(self._sets)
        if events is not None and len(events) != len(sets):
            raise ValueError("%d events for %d sets" % (len(events), len(sets)))
        self.events = events
        #: None, or why write copies on a stream.
        self.reason: Optional[str] = None
        try:
            self._way: Any = _Mapped(self._sets, self)
        except LaneError as error:
            if fallback is None:
                raise
            self.reason = str(error)
            warnings.warn("copies in place of a lane: " + self.reason, RuntimeWarning, stacklevel=2)
            self._way = _Copied(fallback)
        self._turn = 0
        self._pools = [[self._way.call(targets)] for targets in self._sets]
        movable = [[target for target in targets if hasattr(target.array, "data_ptr")] for targets in self._sets]
        self._pointers = [[target.array.data_ptr for target in targets] for targets in movable]
        self._addresses = [[target.source.address for target in targets] for targets in movable]
        self._call, self._finalizer = "gdr_unpin_buffer", weakref.finalize(self, self._way.close)
        self._finalizer.atexit = False
        #: "mapping", or "pageable" where the copies of the fallback serve instead.
        self.way: str = self._way.name

    def write(self, arrays: Sequence[Any], sizes: Optional[Sequence[int]] = None) -> int:
        """Writes an array to the start of each tensor of a set. Returns the set's number, from 0.

        An array is in host memory: NumPy's, a tensor of PyTorch, or anything with the buffer protocol, of
        the tensor's type and at most its size. None leaves a tensor as it is; a pair (index, data) writes what
        rows(tensor)[index] = data does, in the same call. sizes has of each array the bytes to write, and 0 for
        what is no array; without it all are written. Nothing is written where an error is raised.

        It is fastest with the same arrays each time: a lane keeps the last ones. Do not resize one in place.
        """
        self._running.append(None)
        try:
            turn = self._turn
            if self.events:
                self.events[turn].synchronize()
            self._send(turn, self._pools[turn], None, arrays, sizes)
            self._turn = turn + 1 if turn + 1 < len(self._sets) else 0
            return turn
        finally:
            self._running.pop()

    def rows(self, tensor: Any) -> "Rows":
        """Parts of a tensor of this lane: each assignment to what this returns is written at once."""
        for turn, targets in enumerate(self._sets):
            for i, target in enumerate(targets):
                if target.array is tensor:
                    return Rows(self, turn, i)
        raise ValueError("this tensor is none of the lane's")

    def _send(self, turn: int, pool: List[_Call], i: Optional[int], what: Any, more: Any) -> None:
        """Writes arrays and sizes; or, of tensor i, an index and data."""
        if [pointer() for pointer in self._pointers[turn]] != self._addresses[turn]:
            raise LaneError("a tensor has other memory than when the lane was made (resized or freed): make a new lane")
        if self._closing:
            raise ValueError("the lane is closed")
        try:
            call = pool.pop()
        except IndexError:  # another thread writes
            call = self._way.call(self._sets[turn])
        try:
            if i is None:
                call.fill(what, more)
            else:
                call.put(i, what, more)
            number = call.send()
        finally:
            if call.parts is not None:
                call.parts.begin()
            pool.append(call)
        if number:
            raise GdrError(number, "gdr_copy_to_mapping_v")

    def drain(self) -> None:
        """Returns when all bytes written so far are in GPU memory: about 1 us. A launch on the same GPU needs
        none of it; one on another GPU does."""
        self._running.append(None)
        try:
            if self._closing:
                raise ValueError("the lane is closed")
            self._way.drain()
        finally:
            self._running.pop()


class Rows:
    """Parts of a tensor of a lane, of Lane.rows. An assignment is one call of gdr_copy_to_mapping_v, at once.

        rows = lane.rows(table)     # int32 [requests, columns]
        rows[r, c] = ids            # elements: r and c are numbers or arrays of them, ids a number or as many
        rows[r] = new               # whole rows; r may be a slice
        rows[r, a:b] = new          # a part of each of these rows
        rows[r, c, n] = ids         # runs of n ids from column c on, all runs' ids one after another

    An index means what it means in NumPy, and what is assigned is converted as NumPy does. Index arrays of int64 are
    quickest. Of a tensor of one dimension each element is a row; of one of more, all but the first are columns.
    It takes no turn and waits for no event. Nothing is written where an error is raised.
    """

    def __init__(self, lane: Lane, turn: int, i: int) -> None:
        self._lane, self._turn, self._i = lane, turn, i
        self._pool: List[_Call] = []

    def __setitem__(self, index: Any, data: Any) -> None:
        running = self._lane._running
        running.append(None)
        try:
            self._lane._send(self._turn, self._pool, self._i, index, data)
        finally:
            running.pop()


def _targets(tensors: Sequence[Any]) -> List[_Target]:
    if hasattr(tensors, "__cuda_array_interface__") or hasattr(tensors, "__dlpack__"):
        raise TypeError("a set is a list of tensors: Lane([a, b])")
    targets = [_Target(tensor, source_of(tensor)) for tensor in tensors]
    if any(target.source.readonly for target in targets):
        raise TypeError("a tensor is read-only")
    return targets


def _check_sets(sets: Sequence[Sequence[_Target]]) -> None:
    if not sets or not sets[0]:
        raise ValueError("a lane needs tensors")
    if any([one.source.nbytes for one in targets] != [one.source.nbytes for one in sets[0]] for targets in sets):
        raise ValueError("the sets are not alike: each tensor has one of its size in every set")
    ranges = sorted({(*one.ends, i) for targets in sets for i, one in enumerate(targets)})
    if any(one[1] > other[0] for one, other in zip(ranges, ranges[1:])):
        raise ValueError("two tensors of a lane share memory")
