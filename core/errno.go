package core

import (
	"errors"
	"runtime/debug"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Errno gives the errno value that the C ABI answers for an error of this library: that of the
// outermost error in the chain that has one, and of several at one level the first. EIO where
// none has one, 0 for nil. It may be called from any goroutine.
func Errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	errno := unix.EIO
	errors.As(err, &errno)
	return errno
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
