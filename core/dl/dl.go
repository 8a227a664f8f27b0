// Package dl loads shared libraries.
package dl

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// Usable reports whether this process can load a library. The loader of a forked child is
// unusable where a thread of the parent was inside it: a load would hang, or end the
// process. Who knows of forks replaces this variable before the first Open.
var Usable = func() bool { return true }

// Open loads a library by its name or path, and binds all its symbols. It keeps to one
// thread: the C library has the text of an error for the thread that failed, and on
// another one the error would have no text. It returns EBUSY in a process that cannot
// load.
func Open(name string) (uintptr, error) {
	if !Usable() {
		return 0, fmt.Errorf("when this process was forked, another thread of its parent was loading a library, so that %s cannot be loaded here; load it before the fork: %w", name, unix.EBUSY)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}
