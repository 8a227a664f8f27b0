package core

import (
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/internal/dmabuf"
	"gdrapi/core/internal/gdrdrv"
	"gdrapi/core/internal/rm"
	"gdrapi/core/internal/vulkan"

	"golang.org/x/sys/unix"
)

// entry is a backend in the table.
type entry struct {
	backend.Backend
	onRequest bool // opened only where GDRCOPY_BACKEND names it
}

// backends lists the backends in the order in which Open tries them. A new backend is
// an entry here. Open tries a backend that cannot pin plain device memory only on
// request: a consumer does without the library where gdr_open fails, but aborts where a
// pin fails. Tests replace this variable.
var backends = func(opts Options) []entry {
	if opts.Backends != nil {
		var entries []entry
		for _, b := range opts.Backends {
			entries = append(entries, entry{Backend: b})
		}
		return entries
	}
	return []entry{
		{Backend: gdrdrv.Backend{}},
		{Backend: dmabuf.Backend{}},
		{Backend: rm.Backend{Watch: opts.Watch}},
		{Backend: vulkan.Backend{DriverFiles: opts.VulkanDriverFiles}, onRequest: true},
	}
}

// Backends lists all backends, in the order in which Open tries them. It is for a
// program that tries each of them.
func Backends(opts Options) []backend.Backend {
	var all []backend.Backend
	for _, e := range backends(opts) {
		all = append(all, e.Backend)
	}
	return all
}

// Watch and Seen are what libgdrapi.so lends the rm backend.
type (
	Watch = rm.Watch
	Seen  = rm.Seen
)

// Options say which backend to open. The zero Options are good for most programs. In
// libgdrapi.so they are the settings in the environment of the host process, which this
// package does not read.
type Options struct {
	// Backend forces gdrdrv, dmabuf, rm or vulkan: GDRCOPY_BACKEND. "" forces none.
	Backend string
	// ForceDMABuf forces dmabuf where Backend forces none: GDRCOPY_USE_DMABUF_MMAP=1.
	ForceDMABuf bool
	// VulkanDriverFiles are the manifests of Vulkan drivers: VK_DRIVER_FILES, or
	// VK_ICD_FILENAMES, its older name.
	VulkanDriverFiles string

	// Watch shows the rm backend what libcuda asks the kernel. Only libgdrapi.so has one.
	Watch Watch
	// Backends are tried in place of this package's, in their order. nil: this package's.
	Backends []backend.Backend
	// CacheDriver gives the driver that caches ask about memory. nil: CUDA's.
	CacheDriver func() (CacheDriver, error)
}

// choose lists the backends to try, in order.
func choose(opts Options) ([]backend.Backend, error) {
	name := opts.Backend
	if name == "" && opts.ForceDMABuf {
		name = dmabuf.Backend{}.Name()
	}
	var unasked []backend.Backend
	for _, e := range backends(opts) {
		if e.Name() == name {
			return []backend.Backend{e.Backend}, nil
		}
		if !e.onRequest {
			unasked = append(unasked, e.Backend)
		}
	}
	if name == "" {
		return unasked, nil
	}
	return nil, fmt.Errorf("GDRCOPY_BACKEND=%q names no backend; use gdrdrv, dmabuf, rm or vulkan, or unset it: %w", name, unix.EINVAL)
}
