package core

import (
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/internal/dmabuf"
	"gdrapi/core/internal/gdrdrv"
	"gdrapi/core/internal/rm"

	"golang.org/x/sys/unix"
)

// Backends lists the backends in the order in which Open tries them. A new backend is an
// entry here. Each can pin plain device memory: a consumer does without the library where
// gdr_open fails, but aborts where a pin fails.
func Backends(opts Options) []backend.Backend {
	if opts.Backends != nil {
		return opts.Backends
	}
	return []backend.Backend{gdrdrv.Backend{}, dmabuf.Backend{}, rm.Backend{Ears: opts.Ears, Named: opts.Backend == rm.Backend{}.Name()}}
}

// Ears are what libgdrapi.so lends the rm backend; the others are what they take and give.
type (
	Ears    = rm.Ears
	Version = rm.Version
	Hearing = rm.Hearing
	Heard   = rm.Heard
	Seen    = rm.Seen
)

// Options say which backend to open. The zero Options are good for most programs. In
// libgdrapi.so they are the settings in the environment of the host process, which this
// package does not read.
type Options struct {
	// Backend forces gdrdrv, dmabuf or rm: GDRCOPY_BACKEND. "" forces none.
	Backend string
	// ForceDMABuf forces dmabuf where Backend forces none: GDRCOPY_USE_DMABUF_MMAP=1.
	ForceDMABuf bool

	// Ears hear for the rm backend what libcuda asks the kernel. Only libgdrapi.so has some.
	Ears Ears
	// Backends are tried in place of this package's, in their order. nil: this package's.
	Backends []backend.Backend
}

// choose lists the backends to try, in order.
func choose(opts Options) ([]backend.Backend, error) {
	name := opts.Backend
	if name == "" && opts.ForceDMABuf {
		name = dmabuf.Backend{}.Name()
	}
	all := Backends(opts)
	if name == "" {
		return all, nil
	}
	for _, b := range all {
		if b.Name() == name {
			return []backend.Backend{b}, nil
		}
	}
	return nil, fmt.Errorf("GDRCOPY_BACKEND=%q names no backend; use gdrdrv, dmabuf or rm, or unset it: %w", name, unix.EINVAL)
}
