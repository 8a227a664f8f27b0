package main

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"gdrapi/tests/doubles/nvrm"

	"golang.org/x/sys/unix"
)

// Mappings whose memory object is freed. The real driver takes the pages of BAR1 away, and the
// mapping reads zeros. Here the process has the memfd mapped. So the driver stops the thread that
// made the request, on its way back. The thread maps fresh pages in that place and goes on.

// revocation is what to take away from a caller after its request is answered.
type revocation struct {
	stopped bool
	at      []nvrm.Mapping
}

const stillShows = "a freed mapping still shows the memory, where the real one reads zeros"

// isMapped says whether the memory is still mapped at that address. A program may have unmapped it.
func isMapped(process int, memory *nvrm.Memory, m *nvrm.Mapping) bool {
	var st unix.Stat_t
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", process))
	if err != nil || unix.Fstat(memory.FD, &st) != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		var start, end, offset, ino uint64
		var access, device string
		n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d", &start, &end, &access, &offset, &device, &ino)
		if n == 6 && start == m.Addr && offset == m.Offset && ino == st.Ino {
			return true
		}
	}
	return false
}

// Revoke is called before the object ends. revokeNow follows after the answer.
func (c *caller) Revoke(process int, memory *nvrm.Memory, m *nvrm.Mapping) {
	if !isMapped(process, memory, m) {
		return
	}
	if !c.pending.stopped {
		err := unix.PtraceSeize(c.tid)
		if err == nil {
			err = unix.PtraceInterrupt(c.tid)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "rm_sim: %s: %v\n", stillShows, err)
			return
		}
		c.pending.stopped = true
	}
	c.pending.at = append(c.pending.at, *m)
}

func waitStopped(tid int) error {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(tid, &status, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err == nil && !status.Stopped() {
			err = unix.ESRCH // it was killed
		}
		return err
	}
}

func signalMask(request, tid int, mask *uint64) {
	_, _, _ = unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), unsafe.Sizeof(*mask), uintptr(unsafe.Pointer(mask)), 0, 0)
}

// revokeNow: the thread does not go on until this is done. Signals wait.
func (c *caller) revokeNow() {
	list := c.pending
	c.pending = revocation{}
	if !list.stopped || waitStopped(c.tid) != nil {
		return
	}
	const getMask, setMask = 0x420a, 0x420b
	var mask uint64
	all := ^uint64(0)
	signalMask(getMask, c.tid, &mask)
	signalMask(setMask, c.tid, &all)
	for _, m := range list.at {
		if err := mapFresh(c.tid, c.code, m.Addr, m.Length); err != nil {
			fmt.Fprintf(os.Stderr, "rm_sim: %s: %v\n", stillShows, err)
		}
	}
	signalMask(setMask, c.tid, &mask)
	_ = unix.PtraceDetach(c.tid)
}
