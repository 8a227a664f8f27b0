// Package dl loads shared libraries.
package dl

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// Open loads a library by its name or path, and binds all its symbols. It keeps to one
// thread: the C library has the text of an error for the thread that failed, and on
// another one the error would have no text.
func Open(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}
