package core

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"gdrapi/core/backend"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// fallback is a session of two backends. Where the first one can serve a device, it is
// chosen. The standby then pins only what the first one cannot serve. Else the standby is
// chosen, and pins all.
type fallback struct {
	first   backend.Tentative
	standby backend.Session
	chosen  atomic.Pointer[backend.Session] // nil while CUDA cannot say
}

func newFallback(first backend.Tentative, standby backend.Session) *fallback {
	p := &fallback{first: first, standby: standby}
	if p.decide("gdr_open") == nil {
		log.Infof("gdr_open: the first pin decides between the %s and the %s backend", first.Name(), standby.Name())
	}
	return p
}

// decide gives the session that is chosen, or nil where CUDA cannot say it yet. No lock is held while CUDA is
// asked, so several threads may ask; what the first one chooses stays.
func (p *fallback) decide(call string) backend.Session {
	if s := p.chosen.Load(); s != nil {
		return *s
	}
	var chosen backend.Session = p.first
	err := p.first.ServesAny()
	switch {
	case errors.Is(err, unix.ENOTSUP):
		chosen = p.standby
	case err != nil:
		return nil
	}
	if p.chosen.CompareAndSwap(nil, &chosen) {
		log.Infof("%s: using the %s backend", call, chosen.Name())
		if err != nil {
			log.Infof("%s: the %s backend does not work: %v", call, p.first.Name(), err)
		}
	}
	return *p.chosen.Load()
}

// Name is that of the backend that is chosen. Before the choice it is both names.
func (p *fallback) Name() string {
	if s := p.chosen.Load(); s != nil {
		return (*s).Name()
	}
	return p.first.Name() + "|" + p.standby.Name()
}

func (p *fallback) Pin(req backend.PinRequest) (backend.Pin, error) {
	if p.decide("gdr_pin_buffer") == p.standby {
		return p.standby.Pin(req)
	}
	pin, err := p.first.Pin(req)
	if !errors.As(err, new(backend.NotServed)) {
		return pin, err
	}
	pin, other := p.standby.Pin(req)
	if other != nil {
		return nil, fmt.Errorf("%w; nor does the %s backend pin it: %v", err, p.standby.Name(), other)
	}
	log.Debugf("gdr_pin_buffer: by the %s backend, because the %s backend cannot pin the memory: %v", p.standby.Name(), p.first.Name(), err)
	return pin, nil
}

// Import asks the first backend, and then the standby. Neither needs CUDA for it.
func (p *fallback) Import(fd int) (backend.Pin, error) {
	pin, err := p.first.Import(fd)
	if !errors.As(err, new(backend.NotServed)) {
		return pin, err
	}
	return p.standby.Import(fd)
}

// Attribute is the answer of the chosen backend. Before the choice it is an answer that
// holds for both.
func (p *fallback) Attribute(a backend.Attr) (int, error) {
	if p.chosen.Load() != nil || a == backend.AttrDMABufMmap {
		if s := p.decide("gdr_get_attribute"); s != nil {
			return s.Attribute(a)
		}
	}
	x, err := p.first.Attribute(a)
	if err != nil {
		return 0, err
	}
	y, err := p.standby.Attribute(a)
	return min(x, y), err
}

func (p *fallback) Version() (int, int) { return p.first.Version() }

func (p *fallback) Close() error { return cmp.Or(p.first.Close(), p.standby.Close()) }
