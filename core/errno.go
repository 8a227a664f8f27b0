package core

import (
	"runtime/debug"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Errno turns an error of this library into the errno value that the C ABI answers. It
// chooses the outermost error in the chain that has an errno value. Of several such
// errors at one level it chooses the first. No other place makes this choice.
func Errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errnoOf(err); ok {
		return errno
	}
	return unix.EIO
}

// Outcome logs how a call of the C ABI ended, and gives its errno value. panicked is nil,
// or the value of a panic. A panic is a defect of this library. It must not end the
// host, so the answer is EIO and a log line that asks for a report.
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
