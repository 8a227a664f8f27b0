package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Zeros maps size bytes of zeros that are backed by memory as they are written, in
// a host too that has all future memory locked (mlockall). A forked child does not
// inherit them.
func Zeros(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	_ = unix.Munlock(mem)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	// Huge pages would make the first byte cost 2 MiB.
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return mem, nil
}
