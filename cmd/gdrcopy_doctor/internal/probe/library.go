package probe

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core/dl"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// library is a shared library that is loaded, with the functions that were looked up.
// One goroutine at a time may use it.
type library struct {
	handle    uintptr
	functions map[string]uintptr
}

func load(name string) (*library, error) {
	h, err := dl.Open(name)
	return &library{h, map[string]uintptr{}}, err
}

// function is the address of a function.
func (l *library) function(name string) (uintptr, error) {
	if fn := l.functions[name]; fn != 0 {
		return fn, nil
	}
	fn, err := purego.Dlsym(l.handle, name)
	if err == nil {
		l.functions[name] = fn
	}
	return fn, err
}

// call calls a function that answers an int or a pointer. Go objects that args point to
// stay where they are, and alive, for as long as the call lasts: that is what the
// directive is for. A struct of one long is passed as that long.
//
//go:uintptrescapes
func (l *library) call(name string, args ...uintptr) (uintptr, error) {
	fn, err := l.function(name)
	if err != nil {
		return 0, err
	}
	r, _, _ := purego.SyscallN(fn, args...)
	return r, nil
}

// errno calls a function that answers 0 or an errno value. Its error is a failed of that step.
//
//go:uintptrescapes
func (l *library) errno(name string, args ...uintptr) error {
	r, err := l.call(name, args...)
	if err == nil && int32(r) != 0 {
		err = unix.Errno(int32(r))
	}
	return step(name, err)
}

// file is the path of the file that a function is in, as the kernel has it mapped.
func (l *library) file(function string) string {
	at, err := l.function(function)
	if err != nil {
		return ""
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, line := range strings.Split(string(maps), "\n") {
		var first, end uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x", &first, &end); n != 2 || at < first || at >= end {
			continue
		}
		if i := strings.IndexByte(line, '/'); i >= 0 {
			return line[i:]
		}
	}
	return ""
}

// askLibrary finds out what the loader gives for a name, or a path.
func askLibrary(name string) facts.Library {
	answer := facts.Library{Name: name}
	l, err := load(name)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	answer.Path = l.file("gdr_open")
	// A linker puts the program headers right behind the ELF header.
	file, _ := os.ReadFile(answer.Path)
	const header = 64
	answer.Edited = len(file) > header && binary.LittleEndian.Uint64(file[32:]) != header
	_, err = l.function("gdr_get_backend")
	answer.Ours = err == nil
	var major, minor int32
	if _, err := l.call("gdr_runtime_get_version", uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))); err == nil {
		answer.Version = fmt.Sprintf("%d.%d", major, minor)
	}
	return answer
}
