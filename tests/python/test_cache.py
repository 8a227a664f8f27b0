# SPDX-License-Identifier: MIT
"""The registration cache."""
import errno
import gc

import pytest

import gdrapi


def test_what_was_pinned_is_found_again(gdr, make):
    array = make(shape=(65536,), typestr="|u1")
    with gdr.cache(1 << 20) as cache:
        with cache.get(array) as first:
            handle = first._handle.h
            first.write(b"from the cache", 100)
        assert array.get(14, 100) == b"from the cache"
        with cache.get(array) as again, cache.get((array.address + 50, 100)) as part:
            assert again._handle.h == part._handle.h == handle
            assert part.read(14, 50) == b"from the cache"


def test_what_is_dropped_is_not_held(gdr, array):
    with gdr.cache() as cache:
        handle = cache.get(array)._handle.h
        gc.collect()
        cache.flush()
        with cache.get(array) as again:
            assert again._handle.h != handle


def test_a_view_holds_its_own_cache(gdr, array):
    with gdr.cache() as other:
        cache = gdr.cache()
        held = cache.get(array)
        with held.view():
            for resource in (held, cache, gdr):
                with pytest.raises(BufferError):
                    resource.close()
            other.close()
        cache.close()


def test_how_much_a_cache_keeps(gdr, monkeypatch):
    asked, real = [], gdrapi._lib.function("gdr_cache_open")
    monkeypatch.setattr(gdrapi._lib.library(), "gdr_cache_open", lambda *a: (asked.append(a[1:3]), real(*a))[1])
    gdr.cache().close()
    gdr.cache(5 << 20).close()
    with pytest.raises(gdrapi.GdrError):
        gdr.cache(0)
    assert asked == [(1 << 30, 0), (5 << 20, 0), (0, 0)]


def test_what_the_cache_refuses(gdr, array):
    with gdr.cache() as cache, pytest.raises(gdrapi.GdrError) as error:
        cache.get((65536, 4096))
    assert (error.value.errno, error.value.call) == (errno.EINVAL, "gdr_cache_get")
    with pytest.raises(gdrapi.GdrError):
        cache.get(array)
