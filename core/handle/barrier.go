package handle

import (
	"time"

	"golang.org/x/sys/unix"
)

// A command of membarrier(2). With it the copy path needs no fence between
// "I use this handle" and "is it still good": the rare unmap makes every
// running thread of the process pass one instead. Linux 4.14 has it.
//
// The process must be registered for it: capi/start.c does that before there are
// threads.
const membarrierPrivateExpedited = 1 << 3

// hasBarrier reports whether the process has it, and is registered.
func hasBarrier() bool { return membarrier(membarrierPrivateExpedited) == nil }

// barrier makes every running thread of this process pass a full memory
// barrier. A host may have refused itself membarrier(2) since it was registered
// (seccomp). Then there is a wait instead, for which no thread's stores are held
// back: processors keep them for less than a microsecond.
func barrier() {
	if membarrier(membarrierPrivateExpedited) != nil {
		ts := unix.NsecToTimespec(int64(10 * time.Millisecond))
		_ = unix.Nanosleep(&ts, nil)
	}
}

// membarrier is a variable for tests of the order around it.
var membarrier = func(cmd uintptr) error {
	if _, _, e := unix.Syscall(unix.SYS_MEMBARRIER, cmd, 0, 0); e != 0 {
		return e
	}
	return nil
}
