// SPDX-License-Identifier: MIT

package suite

import (
	_ "embed"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// lacks says of each program that is missing which Debian package has it.
func lacks(programs []string) string {
	var b strings.Builder
	for _, program := range programs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		packages := "the package that has it"
		for _, line := range strings.Split(needs, "\n") {
			if name, names, ok := strings.Cut(line, " "); ok && name == program {
				packages = names
			}
		}
		fmt.Fprintf(&b, "%s is missing. Debian: apt-get install %s\n", program, packages)
	}
	return b.String()
}

//go:embed needs.txt
var needs string

// How a shell, env, timeout and this package say that there is no such program.
var notFound = []*regexp.Regexp{
	regexp.MustCompile(`(?m)[: ]([^ :\n]+): (?:command )?not found$`),
	regexp.MustCompile(`(?m)^env: .([^:\n]+).: No such file or directory$`),
	regexp.MustCompile(`(?m)^timeout: failed to run command .(.+).: No such file or directory$`),
}

// missing is the program that was not found.
func missing(output string) string {
	for _, re := range notFound {
		if m := re.FindStringSubmatch(output); m != nil {
			return m[1]
		}
	}
	return ""
}
