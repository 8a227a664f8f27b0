package core

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Errno turns an error of this library into the errno value that the C ABI
// answers: that of the outermost error in the chain that has one. It is the
// one place where this is decided.
func Errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch e := e.(type) {
		case unix.Errno:
			return e
		case interface{ Errno() unix.Errno }:
			return e.Errno()
		}
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO
}
