package handle

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// zeros maps size bytes of zeros, with a protection. They get memory when they are written,
// even if the host has all future memory locked (mlockall). A forked child does not inherit them.
func zeros(size, prot int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	_ = unix.Munlock(mem)
	if err := unix.Mprotect(mem, prot); err != nil {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	// With huge pages the first byte would cost 2 MiB.
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return mem, nil
}
