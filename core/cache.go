package core

import (
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/cache"
	"gdrapi/core/cuda"

	"golang.org/x/sys/unix"
)

// openCache is a registration cache of gdr_cache_open.
type openCache struct {
	owner *context
	*cache.Cache
}

// cachePins pins for a cache, through the cache's context. That context is entered.
type cachePins struct {
	library *Library
	context *context
}

func (p cachePins) Pin(addr, size uint64) (Handle, error) {
	return p.library.pin(p.context, backend.PinRequest{Addr: addr, Size: size})
}

func (p cachePins) Info(h Handle) (va uint64, page uint32, err error) {
	i, err := p.library.infoOf(p.context, h)
	return i.VA, i.PageSize, err
}

func (p cachePins) Map(h Handle, size uint64) (uintptr, error) {
	m, err := p.library.mapOf(p.context, h, size, mapFlagDefault)
	return m.VA, err
}

func (p cachePins) Unpin(h Handle) error { return p.library.unpinOf(p.context, h) }

// findDriver gives the driver that caches ask about memory. Tests replace this variable.
var findDriver = func() (cache.Driver, error) {
	d, err := cuda.Loaded()
	if err != nil {
		return nil, err
	}
	return d, nil
}

// CacheOpen opens a cache. It keeps up to most bytes pinned that nobody holds.
func (l *Library) CacheOpen(g Handle, most uint64) (Handle, error) {
	c, err := l.enter(g)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	opened, err := l.cacheSet.Open(l.table, most, cachePins{l, c}, findDriver)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.caches[opened.Handle()] = &openCache{c, opened}
	l.mu.Unlock()
	return opened.Handle(), nil
}

// enterCache finds a cache and enters its context. The caller calls leave on that
// context.
func (l *Library) enterCache(h Handle) (*openCache, error) {
	l.mu.RLock()
	r := l.caches[h]
	l.mu.RUnlock()
	if r != nil {
		r.owner.mu.RLock()
		if !r.owner.closed {
			return r, nil
		}
		r.owner.mu.RUnlock()
	}
	return nil, fmt.Errorf("no open cache has the handle %#x; gdr_close of its gdr_t ended it, or gdr_cache_close: %w", uint64(h), unix.EINVAL)
}

// CacheGet holds a range of a cache that has the size bytes at addr. now is the time on
// the clock by which C dates hits.
func (l *Library) CacheGet(h Handle, addr, size, now uint64) (cache.Held, error) {
	r, err := l.enterCache(h)
	if err != nil {
		return cache.Held{}, err
	}
	defer r.owner.leave()
	return r.Get(addr, size, now)
}

// CacheSettle unpins the ranges that a put has left to unpin.
func (l *Library) CacheSettle(h Handle) error {
	r, err := l.enterCache(h)
	if err != nil {
		return err
	}
	defer r.owner.leave()
	return r.Settle()
}

// CacheFlush unpins all ranges that nobody holds.
func (l *Library) CacheFlush(h Handle) error {
	r, err := l.enterCache(h)
	if err != nil {
		return err
	}
	defer r.owner.leave()
	return r.Flush()
}

// CacheClose ends a cache and unpins all of it.
func (l *Library) CacheClose(h Handle) error {
	r, err := l.enterCache(h)
	if err != nil {
		return err
	}
	defer r.owner.leave()
	if err := r.Close(); err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.caches, h)
	l.mu.Unlock()
	return nil
}

// abandonCaches ends the caches of a context that is being closed. No thread is in a
// call on one of them.
func (l *Library) abandonCaches(c *context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, r := range l.caches {
		if r.owner == c {
			r.Abandon()
			delete(l.caches, h)
		}
	}
}
