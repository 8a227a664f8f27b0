# SPDX-License-Identifier: MIT
"""Pins, copies and views."""
import ctypes
import errno
import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import weakref

import pytest

import gdrapi
from gdrapi import _lib
from gdrapi._source import _itemsize
from conftest import TOP, prototypes
from dlpack import CPU, Exporter, live


def test_calls_and_structs_are_the_headers():
    """A type that is too narrow cuts an address off, but not on each machine."""
    handles = dict.fromkeys(("gdr_mh_t", "gdr_mem_t", "gdr_cache_t"), _lib.Handle)
    declared = prototypes("gdrapi.h", "gdrapi_ext.h", **handles)
    for name in ("gdr_open", "gdr_runtime_get_version", *_lib._ARGUMENTS):
        call = _lib.function(name)
        assert (name, (call.restype, call.argtypes)) == (name, declared[name])
    assert (ctypes.sizeof(_lib.Info), ctypes.sizeof(_lib.Handle)) == (48, ctypes.sizeof(ctypes.c_void_p))
    assert gdrapi.version() >= (2, 6)


def test_a_pair_is_an_address_and_a_size(gdr, array):
    with gdr.pin((array.address, 8)) as buffer:
        assert buffer.write(b"8 bytes!") == len(buffer) == 8
        said = buffer.__array_interface__
        assert (said["typestr"], said["shape"], buffer.readonly) == ("|u1", (8,), False)
        del said
    assert array.get(8) == b"8 bytes!"


def test_nothing_is_held_after_a_copy(gdr, array):
    """A bytearray whose buffer is held cannot grow."""
    data = bytearray(b"8 bytes.")
    with gdr.pin(array) as buffer:
        for copy in (buffer.write, buffer.readinto):
            copy(data)
            data.append(0)
            with pytest.raises(ValueError):
                copy(data, 4096 - 8)
            data.append(0)


def test_what_cannot_be_copied(gdr, make):
    with gdr.pin(make()) as buffer, gdr.pin(make(readonly=True)) as readonly:
        for copy, data, error in (
            (buffer.write, memoryview(bytes(8))[::2], BufferError), (buffer.readinto, memoryview(bytearray(8))[::2], BufferError),
            (buffer.write, "text", TypeError), (buffer.readinto, b"read-only", TypeError), (readonly.write, b"x", TypeError),
        ):
            with pytest.raises(error):
                copy(data)
        with readonly.view() as view:
            assert view.readonly


def test_sizes_of_types():
    assert [_itemsize(typestr) for typestr in ("=f4", "|t8", "|t9")] == [4, 1, 2]
    for typestr in ("|O8", "f4", "<f", "<M4[s]", "<f4[ns]", ""):
        with pytest.raises(ValueError, match="no type of NumPy"):
            _itemsize(typestr)


def test_a_view_keeps_its_mapping_and_the_array(gdr, make):
    array = make()
    buffer, kept = gdr.pin(array), weakref.ref(array)
    del array
    view = buffer.view()
    part = view[4:8]
    view.release()
    for resource in (buffer, gdr):
        with pytest.raises(BufferError):
            resource.close()
    del buffer
    gc.collect()
    part[0] = 1.0
    assert gdr._ends() and kept()
    part.release()
    gc.collect()
    assert not gdr._ends() and not kept()


def refuses(mapping):
    """Each use of what is closed raises, and no view shows what lies there now."""
    uses = [mapping.view, mapping.read, lambda: mapping.read(4), lambda: mapping.readinto(bytearray(1)), lambda: mapping.write(b"x"),
            lambda: mapping.__array_interface__, lambda: mapping.__buffer__(0), lambda: pytest.importorskip("numpy").asarray(mapping)]
    for use in uses:
        with pytest.raises(ValueError, match="^the mapping is closed$"):
            use()
    assert mapping.closed
    mapping.close()


@pytest.mark.parametrize("what", ["mapping", "owner", "memory"])
@pytest.mark.parametrize("kind", ["pin", "cache"])
def test_after_a_close(gdr, watch, kind, what):
    """A mapping ends by its own close, and by that of what it was made of, which also unpins it."""
    ended = watch("gdr_unpin_buffer", "gdr_cache_put", "gdr_mem_free", "gdr_cache_close", "gdr_close")
    opened, memory = gdrapi.open(), gdr.alloc(4096)
    cache, other = opened.cache(), opened.alloc(4096)
    mapping = opened.pin(memory) if kind == "pin" else cache.get(memory)
    assert len(mapping.read(4)) == 4 and not mapping.closed
    del ended[:]
    {"mapping": mapping, "owner": opened if kind == "pin" else cache, "memory": memory}[what].close()
    own, owner = ("gdr_unpin_buffer", "gdr_close") if kind == "pin" else ("gdr_cache_put", "gdr_cache_close")
    assert ended == {"mapping": [own], "owner": [owner], "memory": [own, "gdr_mem_free"]}[what]
    refuses(mapping)
    opened.close()
    refuses(mapping)
    for made in (cache, other):
        assert made.closed
        made.close()


@pytest.mark.parametrize("call, use", [
    ("gdr_copy_to_mapping", lambda held, lane: held.write(b"x")), ("gdr_copy_from_mapping", lambda held, lane: held.readinto(bytearray(1))),
    ("gdr_copy_to_mapping_v", lambda held, lane: lane.write([b"x"])),
])
def test_no_close_beside_a_copy(monkeypatch, call, use):
    """A copy gives the interpreter's lock back: another thread's close must not unmap what it reads or writes."""
    real, begun, go_on = _lib.function(call), threading.Event(), threading.Event()
    monkeypatch.setattr(_lib.library(), call, lambda *a: (begun.set(), go_on.wait(), real(*a))[2])
    monkeypatch.setattr(gdrapi._lane, "_BRIEF", 0)
    gdr = gdrapi.open()
    memory, cache = gdr.alloc(4096), gdr.cache()
    held, lane = cache.get(memory), gdrapi.Lane([memory])
    thread = threading.Thread(target=use, args=(held, lane))
    thread.start()
    begun.wait()
    for resource in (lane, memory) if call.endswith("_v") else (held, cache, memory, gdr):
        with pytest.raises(BufferError, match="in use"):
            resource.close()
    assert not held.closed and not lane.closed and len(held.read(4)) == 4
    go_on.set()
    thread.join()
    assert call == "gdr_copy_from_mapping" or held.read(1) == b"x"
    memory.close()
    with pytest.raises(ValueError, match="the lane is closed"):
        lane.write([b"y"])
    gdr.close()
    refuses(held)


@pytest.mark.parametrize("call, what, make", [
    ("gdr_map_v2", 0, lambda gdr, cache, memory: gdr.pin(memory)), ("gdr_map_v2", 2, lambda gdr, cache, memory: gdr.pin(memory)),
    ("gdr_cache_get", 0, lambda gdr, cache, memory: cache.get(memory)), ("gdr_cache_get", 1, lambda gdr, cache, memory: cache.get(memory)),
])
def test_a_close_overtakes_a_pin(monkeypatch, call, what, make):
    """What is mapped once its owner is closed is not handed out."""
    gdr = gdrapi.open()
    things, real = (gdr, gdr.cache(), gdr.alloc(4096)), _lib.function(call)
    monkeypatch.setattr(_lib.library(), call, lambda *a: (real(*a), things[what].close())[0])
    with pytest.raises((ValueError, gdrapi.GdrError)):
        make(*things)
    gdr.close()


def test_an_error_says_what_to_do(gdr):
    with pytest.raises(gdrapi.GdrError) as error:
        gdr.pin((65536, 4096))
    assert (error.value.errno, error.value.call) == (errno.EINVAL, "gdr_pin_bytes")
    assert error.value.advice in str(error.value)
    assert "GPU memory of one allocation" in error.value.advice, "the call's own, before its errno's"
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.errno, again.call, str(again)) == (errno.EINVAL, "gdr_pin_bytes", str(error.value))
    with pytest.raises(gdrapi.GdrError, match="Install this project's") as error:
        _lib.call("gdr_of_nobody")
    assert (error.value.errno, error.value.call) == (errno.ENOSYS, "gdr_of_nobody")


def test_what_cannot_be_pinned(gdr, make):
    class Masked:
        __cuda_array_interface__ = {**make().__cuda_array_interface__, "mask": make()}

    for thing, error, text in (
        (Masked(), ValueError, "^a masked array cannot be pinned"), (b"host memory", TypeError, "^bytes has no __cuda_array_interface__"),
        (Exporter(make(), 2, 32, device=CPU), TypeError, r"^Exporter is not in the memory of a CUDA GPU \(DLPack's device 1\)"),
        (Exporter(make(shape=(2, 3)), 2, 32, strides=(1, 2)), ValueError, "not contiguous"),
        (make(shape=(4, 4), strides=(4, 16)), ValueError, "not contiguous"), (make(strides=(8,)), ValueError, "not contiguous"),
        (make(shape=(0,)), ValueError, "no bytes"),
    ):
        with pytest.raises(error, match=text):
            gdr.pin(thing)
    with gdr.pin(make(shape=(4, 1, 4), strides=(16, 999, 4))) as buffer:
        assert buffer.nbytes == 64


def test_dlpack(gdr, make):
    class Both(Exporter):
        @property
        def __cuda_array_interface__(self):
            raise KeyError("bfloat16")

    array = make(shape=(2, 3), typestr="<i2")
    with gdr.pin(Both(array, 0, 16, strides=(3, 1), offset=8)) as buffer:
        assert len(live) == 1
        assert (buffer.shape, buffer.nbytes, buffer.address) == ((2, 3), 12, array.address)
        buffer.write(b"twelve bytes")
        with buffer.view() as view:
            assert view.format == "h"
    assert array.get() == b"twelve bytes"
    del buffer
    gc.collect()
    assert not live


@pytest.mark.parametrize("code, bits, lanes, typestr", [
    (0, 8, 1, "|i1"), (0, 64, 1, "<i8"), (1, 32, 1, "<u4"), (2, 16, 1, "<f2"), (2, 64, 1, "<f8"), (5, 64, 1, "<c8"), (6, 8, 1, "|b1"),
    (4, 16, 1, "<V2"), (2, 16, 2, "<V4"), (1, 4, 2, "|V1"),
])
def test_types_of_dlpack(gdr, make, code, bits, lanes, typestr):
    size = (bits * lanes + 7) // 8
    with gdr.pin(Exporter(make(shape=(3,), typestr="|V%d" % size), code, bits, lanes=lanes)) as buffer:
        assert buffer.__array_interface__["typestr"] == typestr
        assert (buffer.nbytes, buffer.readonly) == (3 * size, False)


def python(program, **env):
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **env}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("loaded", [False, True])
def test_which_library_is_loaded(tmp_path, loaded):
    """The one that the process has; else the package's own, before the one that the loader finds. An open that fails has its errno."""
    real = os.path.join(TOP, "build", "libgdrapi.so.2")
    shutil.copytree(os.path.join(TOP, "python", "gdrapi"), tmp_path / "gdrapi")
    shutil.copy(real, tmp_path / "gdrapi" / "libgdrapi.so.2")
    (tmp_path / "other").mkdir()
    shutil.copy(real, tmp_path / "other" / "libgdrapi.so.2")
    program = """
import ctypes
%sgdrapi = __import__("gdrapi")
try: gdrapi.open()
except gdrapi.GdrError as e: print(e.errno, e.call, {line.split()[-1] for line in open("/proc/self/maps") if "libgdrapi" in line})
""" % ('ctypes.CDLL("libgdrapi.so.2")\n' if loaded else "")
    said = python(program, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path / "other"), GDRCOPY_BACKEND="pigeon", GDRCOPY_LOG_LEVEL="5")
    assert said == "%d gdr_open %r\n" % (errno.EINVAL, {str(tmp_path / ("other" if loaded else "gdrapi") / "libgdrapi.so.2")})


def test_the_end_of_the_program_calls_nothing():
    """The process ends all; at that time the library may be gone."""
    program = """
import gdrapi
from gdrapi import _lib
real = _lib.library().gdr_close
_lib.library().gdr_close = lambda g: (print("closed"), real(g))[1]
with gdrapi.open(): pass
kept = gdrapi.open()
print("the end")
"""
    assert python(program) == "closed\nthe end\n"


def test_a_map_that_is_refused_unpins(gdr, array, watch, monkeypatch):
    """What was pinned before a call that fails is unpinned."""
    calls = watch("gdr_pin_bytes", "gdr_unpin_buffer")
    with pytest.raises(gdrapi.GdrError):
        gdr.pin(array, map_flags=99)
    pinned = calls.count("gdr_pin_bytes")
    assert pinned and calls.count("gdr_unpin_buffer") == pinned
    info = gdrapi._lib.function("gdr_get_info_v2")
    for nth in (1, 2):
        del calls[:]
        answers = [0] * (nth - 1) + [errno.EIO]
        monkeypatch.setattr(gdrapi._lib.library(), "gdr_get_info_v2", lambda *a: answers.pop(0) or info(*a))
        with pytest.raises(gdrapi.GdrError):
            gdr.pin(array)
        assert calls == ["gdr_pin_bytes", "gdr_unpin_buffer"] and not answers


def test_memory_of_the_library(gdr, cuda):
    with gdr.alloc(100000) as memory, gdr.pin(memory) as buffer:
        assert memory.__cuda_array_interface__ == {
            "version": 3, "shape": (100000,), "typestr": "|u1", "data": (memory.address, False), "strides": None, "stream": None}
        assert len(memory) == len(buffer) == 100000
        buffer.write(b"shared", offset=99994)
        assert cuda.read(memory.address + 99994, 6) == b"shared"


def test_memory_as_a_dma_buf(gdr):
    with gdr.alloc(4096) as memory:
        try:
            fd = memory.export_dmabuf()
        except gdrapi.GdrError as error:
            if error.errno != errno.ENOTSUP or os.environ.get("GDR_TEST_DOUBLES"):
                raise
            pytest.skip("this GPU's driver exports no dma-bufs")
        try:
            assert not os.get_inheritable(fd)
        finally:
            os.close(fd)
