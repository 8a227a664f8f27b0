# SPDX-License-Identifier: MIT
"""Children: of fork before and after CUDA started, and of spawn."""
import errno
import faulthandler
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

import gdrapi
import pytest
from conftest import in_fork


def whole(number):
    """All from the start, in a process of its own."""
    from conftest import Array, Cuda

    array = Array(Cuda())
    with gdrapi.open() as gdr, gdr.pin(array) as buffer:
        buffer.write(b"child %3d" % number)
        return array.get(9) == b"child %3d" % number


def inherited(buffer):
    """The errors of each use of what a forked child inherited."""
    answers = []
    for use in (lambda: buffer.write(b"from the child"), lambda: buffer.read(4), buffer.view):
        try:
            use()
        except gdrapi.GdrError as error:
            answers.append((error.errno, error.call))
    return answers


def clean(_):
    """In a process that has no CUDA yet: opens, and forks children that do all."""
    with gdrapi.open():
        with workers("fork", 2) as pool:
            return list(pool.map(whole, range(4))) == [True] * 4


def workers(method, number):
    """Processes whose death is an error, not a task that never ends."""
    return ProcessPoolExecutor(number, multiprocessing.get_context(method))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_have_all_for_themselves(method):
    """Several at a time, and a second generation in the same workers, beside a parent with a GPU."""
    with workers(method, 4) as pool:
        assert list(pool.map(whole, range(8))) == [True] * 8


def test_children_forked_after_the_open():
    process = multiprocessing.get_context("spawn").Process(target=exit_by_clean)
    process.start()
    process.join()
    assert process.exitcode == 0


def exit_by_clean():
    raise SystemExit(0 if clean(None) else 1)


def test_what_a_forked_child_inherited(gdr, array):
    with gdr.pin(array) as buffer, gdr.cache() as cache, cache.get(array) as held:
        buffer.write(b"the parent's")
        for mapping in (buffer, held):
            assert in_fork(inherited, mapping) == ([
                (errno.EACCES, call) for call in ("gdr_copy_to_mapping", "gdr_copy_from_mapping", "view")], 0)
        assert array.get(12) == b"the parent's"


def test_a_view_of_before_the_fork(gdr, array):
    """It faults, as any mapping that a child does not inherit."""
    with gdr.pin(array) as buffer, buffer.view() as view:
        assert in_fork(lambda view: (faulthandler.disable(), view[0]), view) == (None, -signal.SIGSEGV)


def close_all(things):
    answers = []
    for thing in things:
        try:
            thing.close()
            answers.append(0)
        except gdrapi.GdrError as error:
            answers.append(error.errno)
    return answers


def test_a_forked_child_closes_nothing_of_its_parent(gdr, array):
    with gdr.pin(array) as buffer:
        assert in_fork(close_all, [buffer, gdr]) == ([errno.EACCES, 0], 0)
        buffer.write(b"still mapped")
        assert array.get(12) == b"still mapped"
