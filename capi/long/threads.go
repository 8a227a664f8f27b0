package long

/*
#include "long.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"gdrapi/capi/cpus"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// StartThreads starts the threads that the host wants long copies to be shared by, if any are
// missing. Copies go on with the threads that there are.
func StartThreads() error {
	t := C.gdr_long_threads()
	wanted, running := int(t.wanted), int(t.running)
	if wanted <= running {
		return nil
	}
	here := cpus.Here()
	threads := min(wanted, max(here.Allowed.Len(), 1)-1)
	if threads < wanted {
		log.Warnf("fewer threads share a copy than were asked for: the thread that starts them may run on too few CPUs; let it run on more")
	}
	if threads <= running {
		return nil
	}
	sets := (*C.struct_copy_cpus)(unsafe.Pointer(unsafe.SliceData(here.Apart(threads))))
	if rc := C.gdr_long_start_threads(C.uint(threads), sets); rc != 0 {
		return fmt.Errorf("fewer threads share a copy than were asked for: %w; raise the limit of threads or of memory", unix.Errno(rc))
	}
	return nil
}
