package core

import (
	"fmt"

	"gdrapi/core/backend"
	"gdrapi/core/dmabuf"
	"gdrapi/core/gdrdrv"
	"gdrapi/core/vulkan"

	"golang.org/x/sys/unix"
)

// backends lists them in the order in which Open tries them. A new backend is
// one line here. It is a variable for the tests.
var backends = func(opts Options) []backend.Backend {
	return []backend.Backend{
		gdrdrv.Backend{},
		dmabuf.Backend{},
		vulkan.Backend{DriverFiles: opts.VulkanDriverFiles},
	}
}

// Options are what the environment of the host process asks for.
type Options struct {
	Backend     string // GDRCOPY_BACKEND: force the one of that name; "" for none
	ForceDMABuf bool   // GDRCOPY_USE_DMABUF_MMAP=1

	VulkanDriverFiles string // VK_DRIVER_FILES, or VK_ICD_FILENAMES, its older name
}

// choose lists the backends to try, in order.
func choose(opts Options) ([]backend.Backend, error) {
	name := opts.Backend
	if name == "" && opts.ForceDMABuf {
		name = dmabuf.Backend{}.Name()
	}
	all := backends(opts)
	if name == "" {
		return all, nil
	}
	for _, b := range all {
		if b.Name() == name {
			return []backend.Backend{b}, nil
		}
	}
	return nil, fmt.Errorf("GDRCOPY_BACKEND=%q names no backend; use gdrdrv, dmabuf or vulkan, or unset it: %w", name, unix.EINVAL)
}
