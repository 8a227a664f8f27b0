// Package dl loads shared libraries, and calls their functions.
package dl

import (
	"fmt"
	"reflect"
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

// Call calls a function of C's. An argument is an integer, or a pointer to an object of Go's,
// which stays in place and alive during the call. Who passes an object that points to others
// pins those.
func Call(fn uintptr, args ...any) uintptr {
	words := make([]uintptr, len(args))
	for i, arg := range args {
		words[i] = word(arg)
	}
	r, _, _ := purego.SyscallN(fn, words...)
	runtime.KeepAlive(args)
	return r
}

// word is what C gets of an argument. Pointer has the object on the heap, where nothing moves.
func word(arg any) uintptr {
	switch v := reflect.ValueOf(arg); v.Kind() {
	case reflect.Pointer:
		return v.Pointer()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return uintptr(v.Int())
	case reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return uintptr(v.Uint())
	}
	panic(fmt.Sprintf("no argument of a C function: %T", arg))
}
