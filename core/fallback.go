package core

import (
	"errors"
	"sync"

	"gdrapi/core/backend"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// fallback is a session of one of two backends. The first pin decides which one: the first
// backend if it serves the buffer, else the standby. A question for
// GDR_ATTR_USING_DMA_BUF_MMAP decides before, if CUDA can tell.
type fallback struct {
	first             backend.Tentative
	standby           backend.Session
	name, standbyName string

	mu     sync.Mutex
	chosen backend.Session // nil before the choice
}

// choose gives the session that pins. It keeps the first answer of serves that is nil or
// ENOTSUP.
func (p *fallback) choose(call string, serves func() error) (backend.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen != nil {
		return p.chosen, nil
	}
	err := serves()
	switch {
	case err == nil:
		p.chosen = p.first
		log.Infof("%s: using the %s backend", call, p.name)
	case errors.Is(err, unix.ENOTSUP):
		p.chosen = p.standby
		log.Infof("%s: using the %s backend, for the %s backend does not serve: %v", call, p.standbyName, p.name, err)
	default:
		return nil, err
	}
	return p.chosen, nil
}

// chosenName is the name of the backend that pins, "" before the choice.
func (p *fallback) chosenName() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.chosen {
	case nil:
		return ""
	case backend.Session(p.first):
		return p.name
	}
	return p.standbyName
}

func (p *fallback) Pin(req backend.PinRequest) (backend.Pin, error) {
	session, err := p.choose("gdr_pin_buffer", func() error { return p.first.Serves(req) })
	if err != nil {
		return nil, err
	}
	return session.Pin(req)
}

// Attribute is the answer of the chosen backend. Before the choice it is an answer that
// holds for both.
func (p *fallback) Attribute(a backend.Attr) (int, error) {
	p.mu.Lock()
	chosen := p.chosen
	p.mu.Unlock()
	if chosen == nil && a == backend.AttrDMABufMmap {
		chosen, _ = p.choose("gdr_get_attribute", p.first.ServesAny)
	}
	if chosen != nil {
		return chosen.Attribute(a)
	}
	x, err := p.first.Attribute(a)
	if err != nil {
		return 0, err
	}
	y, err := p.standby.Attribute(a)
	return min(x, y), err
}

func (p *fallback) Version() (int, int) { return p.first.Version() }

func (p *fallback) Close() error { return first(p.first.Close(), p.standby.Close()) }
