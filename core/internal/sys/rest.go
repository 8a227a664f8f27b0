package sys

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"time"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// A range that was unmapped rests: it is private anonymous memory for a second at least. A
// copy that the unmap has overtaken ends there. What it writes nobody sees, what it reads
// is 0. A child of a fork does not inherit it. No thread and no timer ends a rest: the next
// Retire or FreeOld does.

const (
	restTime   = time.Second
	restsMost  = 4096
	bytesMost  = 1 << 40
	limitShare = 16 // of a limit of the process's, rests take so much at most
)

// rest is a range that rests.
type rest struct {
	va, size uintptr
	since    time.Time
}

// rests are in the order of their times.
var rests struct {
	mu    sync.Mutex
	of    []rest
	bytes uintptr
}

// now is a variable, so that tests need not wait.
var now = time.Now

// Retire ends a mapping in one step: at no time is there a gap where another mapping may
// come. After an error the range is not used again, as it may be somebody else's.
func Retire(va, size uintptr) error {
	count, most := restLimits()
	freeRests(count-1, most-min(size, most))
	if size > most {
		return Munmap(va, size)
	}
	made, err := takeSpare(size)
	if err != nil {
		log.Debugf("a mapping ends without a rest: %v", err)
		return Munmap(va, size)
	}
	if err := memory.Mremap(made, size, va); err != nil {
		_ = Munmap(made, size)
		return fmt.Errorf("mremap over a mapping of the GPU's: %w", err)
	}
	rests.mu.Lock()
	defer rests.mu.Unlock()
	rests.of = append(rests.of, rest{va, size, now()})
	rests.bytes += size
	return nil
}

// FreeOld ends the rests that are old enough.
func FreeOld() { freeRests(restsMost, bytesMost) }

// FreeAll ends all rests, where memory or address space has run out. It reports whether
// there was one.
func FreeAll() bool { return freeRests(0, 0) }

// freeRests ends the rests that are old enough, and the oldest ones until there are at most
// count of them, with at most size bytes. It holds no lock while it unmaps: a host's hooks
// may call the library.
func freeRests(count int, size uintptr) bool {
	freed := takeRests(count, size)
	for _, r := range freed {
		if err := Munmap(r.va, r.size); err != nil {
			log.Warnf("%d bytes of address space are lost: munmap: %v", r.size, err)
		}
	}
	return len(freed) > 0
}

func takeRests(count int, size uintptr) []rest {
	rests.mu.Lock()
	defer rests.mu.Unlock()
	n := 0
	for ; n < len(rests.of); n++ {
		if len(rests.of)-n <= count && rests.bytes <= size && now().Sub(rests.of[n].since) < restTime {
			break
		}
		rests.bytes -= rests.of[n].size
	}
	freed := rests.of[:n:n]
	rests.of = rests.of[n:]
	if len(rests.of) == 0 {
		rests.of = nil
	}
	return freed
}

// spareBytes is made at once for small ranges: to make memory takes five system calls.
const spareBytes = 4 << 20

// spare is what is left of that.
var spare struct {
	mu       sync.Mutex
	va, size uintptr
}

// takeSpare gives memory as Anonymous makes it.
func takeSpare(size uintptr) (va uintptr, err error) {
	if size > spareBytes/16 {
		return Anonymous(size)
	}
	spare.mu.Lock()
	va, left := spare.va, spare.size
	if left >= size {
		spare.va, spare.size = va+size, left-size
	}
	spare.mu.Unlock()
	if left >= size {
		return va, nil
	}
	if va, err = Anonymous(spareBytes); err != nil {
		return Anonymous(size)
	}
	spare.mu.Lock()
	old, left := spare.va, spare.size
	spare.va, spare.size = va+size, spareBytes-size
	spare.mu.Unlock()
	if left > 0 {
		_ = Munmap(old, left)
	}
	return va, nil
}

// limits are asked for once in a restTime.
var limits struct {
	mu   sync.Mutex
	at   time.Time
	size uintptr
}

// restLimits is how many ranges may rest, and how many bytes.
func restLimits() (count int, size uintptr) {
	limits.mu.Lock()
	defer limits.mu.Unlock()
	if t := now(); limits.at.IsZero() || t.Sub(limits.at) >= restTime {
		limits.at, limits.size = t, restBytes()
	}
	return min(restsMost, max(maxMappings()/limitShare, 1)), limits.size
}

// restBytes is how many bytes may rest by the process's limits.
func restBytes() uintptr {
	size := uint64(bytesMost)
	for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA} {
		var limit unix.Rlimit
		if unix.Prlimit(0, resource, nil, &limit) == nil {
			size = min(size, limit.Cur/limitShare)
		}
	}
	return uintptr(size)
}

// maxMappings is how many mappings a process may have. It does not change in practice.
var maxMappings = sync.OnceValue(func() int {
	text, err := ReadFile("/proc/sys/vm/max_map_count", 32)
	if err != nil {
		return restsMost * limitShare
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return restsMost * limitShare
	}
	return n
})

// Anonymous makes memory that is not locked, that no child inherits, and of which a write
// takes one page. A process may have called mlockall(MCL_FUTURE): so it is made without
// access first.
func Anonymous(size uintptr) (va uintptr, err error) {
	if va, err = Reserve(size); err != nil {
		return 0, err
	}
	_, _ = retry(unix.SYS_MUNLOCK, va, size, 0, 0, 0, 0)
	_, err = retry(unix.SYS_MPROTECT, va, size, unix.PROT_READ|unix.PROT_WRITE, 0, 0, 0)
	if err == nil {
		err = DontFork(va, size)
	}
	if err != nil {
		_ = Munmap(va, size)
		return 0, err
	}
	_, _ = retry(unix.SYS_MADVISE, va, size, unix.MADV_NOHUGEPAGE, 0, 0, 0)
	return va, nil
}
