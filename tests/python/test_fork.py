# SPDX-License-Identifier: MIT
"""What a forked child inherited."""
import errno
import faulthandler
import signal

import gdrapi
from conftest import in_fork


def errors(uses):
    """The error of each use, or None."""
    answers = []
    for use in uses:
        try:
            use()
            answers.append(None)
        except gdrapi.GdrError as error:
            answers.append((error.errno, error.call))
    return answers


def test_a_forked_child_uses_and_closes_nothing_of_its_parent(gdr, array):
    with gdr.pin(array) as buffer, gdr.cache() as cache, cache.get(array) as held:
        buffer.write(b"the parent's")
        for mapping, end in ((buffer, "gdr_unpin_buffer"), (held, "gdr_cache_put")):
            uses = (lambda: mapping.write(b"from the child"), lambda: mapping.read(4), mapping.view, mapping.close, gdr.close)
            assert in_fork(errors, uses) == ([
                (errno.EACCES, call) for call in ("gdr_copy_to_mapping", "gdr_copy_from_mapping", "view", end)] + [None], 0)
        assert array.get(12) == b"the parent's" == buffer.read(12) == held.read(12)


def test_a_view_of_before_the_fork(gdr, array):
    """It faults, as any mapping that a child does not inherit."""
    with gdr.pin(array) as buffer, buffer.view() as view:
        assert in_fork(lambda view: (faulthandler.disable(), view[0]), view) == (None, -signal.SIGSEGV)
