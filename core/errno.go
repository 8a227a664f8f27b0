package core

import (
	"runtime/debug"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

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

// Outcome is the errno value of a call of the C ABI that ended with err or with a
// panic, where that is not nil, and logs why. A panic is a defect of this library;
// it must not take the host down, so it is EIO and a line that asks for a report.
func Outcome(call string, err error, panicked any) unix.Errno {
	if panicked != nil {
		log.Errorf("%s: internal error, please report it: %v\n%s", call, panicked, debug.Stack())
		return unix.EIO
	}
	errno := Errno(err)
	if errno != 0 {
		log.Errorf("%s: %v (errno %d)", call, err, int(errno))
	}
	return errno
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
