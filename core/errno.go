package core

import "golang.org/x/sys/unix"

// Errno turns an error of this library into the errno value that the C ABI
// answers: that of the outermost error that has one, and of several at one level
// the first one's. It is the one place where this is decided.
func Errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errnoOf(err); ok {
		return errno
	}
	return unix.EIO
}

func errnoOf(err error) (unix.Errno, bool) {
	switch e := err.(type) {
	case unix.Errno:
		return e, true
	case interface{ Errno() unix.Errno }:
		return e.Errno(), true
	case interface{ Unwrap() error }:
		return errnoOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if errno, ok := errnoOf(err); ok {
				return errno, true
			}
		}
	}
	return 0, false
}
