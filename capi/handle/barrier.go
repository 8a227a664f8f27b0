package handle

import (
	"time"

	"golang.org/x/sys/unix"
)

// membarrierPrivateExpedited is a command of membarrier(2), of Linux 4.14. A copy notes
// the handle that it uses, and then checks that the handle is valid. The command saves a
// fence between the two steps: an unmap, which is rare, makes every running thread of
// the process pass a fence instead.
//
// The process must be registered for the command, which takes long where it has threads
// already: see RegisterBarrier.
const membarrierPrivateExpedited = 1 << 3

// RegisterBarrier registers the process for the command, if it is not. Until then, and for
// ever where the kernel lacks the command, each copy has one fence more.
func (t *Table) RegisterBarrier(register func() error) {
	if t.header.fenced.Load() != 0 && register() == nil {
		t.header.fenced.Store(0)
	}
}

// hasBarrier reports whether the command exists and the process is registered for it.
func hasBarrier() bool { return membarrier(membarrierPrivateExpedited) == nil }

// barrier makes every running thread of this process pass a full memory barrier. A
// host may have forbidden itself membarrier(2) since it was registered (seccomp). Then
// barrier sleeps instead. After that every store of another thread is visible, because
// processors hold a store back for less than a microsecond.
func barrier() {
	if membarrier(membarrierPrivateExpedited) != nil {
		sleep(10 * time.Millisecond)
	}
}

// sleep and membarrier are variables, so that tests can check the order of the steps around
// them.
var sleep = func(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

var membarrier = func(cmd uintptr) error {
	if _, _, e := unix.Syscall(unix.SYS_MEMBARRIER, cmd, 0, 0); e != 0 {
		return e
	}
	return nil
}
