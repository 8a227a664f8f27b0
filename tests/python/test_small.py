# SPDX-License-Identifier: MIT
"""Small reads, which the interpreter makes by itself, and scalar."""
import struct

import pytest

import gdrapi
from conftest import in_fork


@pytest.mark.parametrize("typestr, letter, value", [
    ("<i4", "i", -5), ("<u8", "Q", 1 << 63), ("<f4", "f", 0.5), ("<f8", "d", -2.25), ("|u1", "B", 200), ("|b1", "?", True),
])
def test_a_scalar_is_the_memory(make, typestr, letter, value):
    array = make(shape=(1,), typestr=typestr)
    with gdrapi.scalar(array) as scalar:
        array.put(struct.pack(letter, value))
        assert scalar.value == value
        array.put(bytes(array.nbytes))
        assert scalar.value == 0
        scalar.value = value
        assert array.get() == struct.pack(letter, value)
        assert not scalar.closed
    assert scalar.closed
    with pytest.raises(ValueError, match="the mapping is closed"):
        scalar.value


@pytest.mark.parametrize("how", [{"shape": (2,)}, {"shape": (1,), "typestr": "<c8"}])
def test_what_is_no_scalar_is_not_pinned(make, watch, how):
    calls = watch("gdr_pin_bytes", "gdr_unpin_buffer")
    with pytest.raises(ValueError, match="one element") as error:
        gdrapi.scalar(make(**how))
    assert calls == ["gdr_pin_bytes", "gdr_unpin_buffer"]  # while the error, and what it names, live
    assert error


def test_a_scalar_in_a_forked_child(make):
    """An inherited one raises; the library of the next one is the child's own."""
    array = make(shape=(1,), typestr="<i4")
    with gdrapi.scalar(array) as scalar:
        g = gdrapi._gdr._default._g

        def another(_):
            with pytest.raises(gdrapi.GdrError):
                scalar.value
            try:
                gdrapi.scalar(array)
            except gdrapi.GdrError as error:  # CUDA does not work in a child that is forked after cuInit
                if error.call == "gdr_open":
                    return True
            return gdrapi._gdr._default._g != g

        assert in_fork(another, None) == (True, 0)
        scalar.value = 7
        assert scalar.value == 7
