package sys

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FileID is what the kernel says of an open file. A host may close a descriptor of the
// library's, as daemons do with all of them. Then the number may be another file's, also
// another open of the same device. That one differs in Owner or Signal.
type FileID struct {
	Dev, Ino, Rdev uint64
	Owner, Signal  int
}

// Own marks a file that the library has just opened, and gives its FileID. The mark is the
// process and the signal for asynchronous input, which the kernel keeps for each open.
// Nobody turns such input on here. A file whose mark is refused has none.
func Own(fd int) (FileID, error) {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETOWN, unix.Getpid())
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETSIG, signal)
	return Identify(fd)
}

// signal differs, most likely, between the copies of this library in a process.
var signal = 1 + int(uintptr(unsafe.Pointer(&syscall6))>>12%64)

// Identify gives the FileID of an open file.
func Identify(fd int) (id FileID, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return id, err
	}
	id = FileID{Dev: uint64(st.Dev), Ino: st.Ino, Rdev: uint64(st.Rdev)}
	id.Owner, _ = unix.FcntlInt(uintptr(fd), unix.F_GETOWN, 0)
	id.Signal, _ = unix.FcntlInt(uintptr(fd), unix.F_GETSIG, 0)
	return id, nil
}

// SameDevice reports whether two descriptors are of one device.
func SameDevice(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Mode&unix.S_IFMT == y.Mode&unix.S_IFMT && x.Rdev == y.Rdev
}

// Shared gives the FileID of a dma-buf. Others have the file, too, and may mark it anew at any
// time. It has an inode of its own, and is known by that.
func Shared(fd int) (FileID, error) {
	id, err := Identify(fd)
	id.Owner = anyMark
	return id, err
}

// anyMark is the Owner of a FileID whose Owner and Signal do not count.
const anyMark = math.MinInt

// IsStill reports whether fd is that file.
func (id FileID) IsStill(fd int) bool {
	now, err := Identify(fd)
	if id.Owner == anyMark {
		now.Owner, now.Signal = id.Owner, id.Signal
	}
	return err == nil && now == id
}

// CloseOwn closes a file of the library's. It leaves alone another one that has the number.
func CloseOwn(fd int, id FileID) error {
	if !id.IsStill(fd) {
		return nil
	}
	return Close(fd)
}
