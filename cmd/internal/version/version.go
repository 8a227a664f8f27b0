// Package version says which build a program is.
package version

import (
	"fmt"
	"runtime"
)

// The linker sets these; see tools/tools.mk.
var (
	Release = "unknown"
	Commit  = "unknown"
)

// Line is what --version prints, as gdr_ext_version has it for the library. A program that does without the library has no backends.
func Line[B interface{ Name() string }](program string, backends ...B) string {
	text := ""
	for _, b := range backends {
		text += " " + b.Name()
	}
	if text != "" {
		text = ", backends" + text
	}
	return fmt.Sprintf("%s %s (commit %s, %s%s)\n", program, Release, Commit, runtime.Version(), text)
}
