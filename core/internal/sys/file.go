package sys

import (
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadFile and ReadDir do what those of package os do, without its poller. The poller
// would open two file descriptors in the host and keep them.

// ReadFile reads a file of at most limit bytes. A longer file is EFBIG.
func ReadFile(path string, limit int) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer Close(fd)
	var text []byte
	buf := make([]byte, 4096) // the files that are read are smaller, and the garbage lies in a host's memory
	for len(text) <= limit {
		n, err := retry(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return text, nil
		}
		text = append(text, buf[:n]...)
	}
	return nil, unix.EFBIG
}

// ReadDir lists the names in a folder, in no order.
func ReadDir(path string) ([]string, error) {
	fd, err := Open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer Close(fd)
	var names []string
	buf := make([]byte, 8192)
	for {
		n, err := retry(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// Open opens a file, close-on-exec.
func Open(path string, flags int) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	folder := unix.AT_FDCWD
	fd, err := retry(unix.SYS_OPENAT, uintptr(folder), uintptr(unsafe.Pointer(name)), uintptr(unix.O_CLOEXEC|flags), 0, 0, 0)
	if err != nil {
		return -1, err
	}
	return int(fd), nil
}

// Write writes to a file, perhaps not all.
func Write(fd int, text []byte) (int, error) {
	n, err := retry(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(text))), uintptr(len(text)), 0, 0, 0)
	return int(n), err
}

// DMABuf gives the name of the driver that made a dma-buf, empty for another descriptor, and the
// size in bytes. To ask takes a descriptor: where there is none left, err is EMFILE.
func DMABuf(fd int) (exporter string, size uint64, err error) {
	text, err := ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd), 4096)
	if err != nil {
		return "", 0, ExplainFDs(err)
	}
	field := func(name string) string {
		_, after, _ := strings.Cut(string(text), "\n"+name+":\t")
		value, _, _ := strings.Cut(after, "\n")
		return value
	}
	size, _ = strconv.ParseUint(field("size"), 10, 64)
	return field("exp_name"), size, nil
}

// ExplainFDs returns EMFILE instead of a driver's err if the process has no file
// descriptor left. Drivers have no result of their own for that.
func ExplainFDs(err error) error {
	// A descriptor that needs nothing else, to find out.
	fd, lack := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if lack == nil {
		Close(fd)
	}
	if lack == unix.EMFILE || lack == unix.ENFILE {
		return fmt.Errorf("%w: the process has no file descriptor left, and the driver needs one for each pinned buffer; raise RLIMIT_NOFILE (ulimit -n) or unpin buffers (%v)", unix.EMFILE, err)
	}
	return err
}
