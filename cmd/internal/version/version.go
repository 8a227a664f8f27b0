// Package version says which build a program is.
package version

import (
	"fmt"
	"runtime"
	"strings"

	"gdrapi/core"
)

// The linker sets these; see tools/tools.mk.
var (
	Release = "unknown"
	Commit  = "unknown"
)

// Line is what --version prints, as gdr_ext_version has it for the library.
func Line(program string) string {
	var names []string
	for _, b := range core.Backends(core.Options{}) {
		names = append(names, b.Name())
	}
	return fmt.Sprintf("%s %s (commit %s, %s, backends %s)\n", program, Release, Commit, runtime.Version(), strings.Join(names, " "))
}
