// SPDX-License-Identifier: MIT

package suite

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// counts are how many tests passed, failed and were skipped.
type counts struct{ passed, failed, skipped int }

func (c *counts) add(o counts) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

var (
	closing = regexp.MustCompile(`^(?:[A-Za-z_-]+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$`)
	tapLine = regexp.MustCompile(`^(not )?ok \d+( .*)?$`)
	goLine  = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP)`)
	goBroke = regexp.MustCompile(`^(FAIL|panic:)`)
)

// count counts a program's output. wrong says why that cannot be right.
func count(how Count, output string) (c counts, wrong string) {
	lines := strings.Split(output, "\n")
	switch how {
	case Status:
		return counts{passed: 1}, ""
	case GoTest:
		return countGo(lines)
	}
	return countTAP(lines)
}

func countTAP(lines []string) (c counts, wrong string) {
	var printed counts
	closed := false
	for _, line := range lines {
		if m := tapLine.FindStringSubmatch(line); m != nil {
			switch {
			case m[1] != "":
				printed.failed++
			case strings.Contains(m[2], "# SKIP"):
				printed.skipped++
			default:
				printed.passed++
			}
		} else if m := closing.FindStringSubmatch(line); m != nil {
			closed = true
			c = counts{atoi(m[1]), atoi(m[2]), atoi(m[3])}
		}
	}
	switch {
	case !closed:
		return printed, "it ended without counts"
	case printed != counts{} && printed != c:
		return printed, fmt.Sprintf("it says %v, and its lines are %v", c, printed)
	case c == counts{}:
		return c, "it ran no test"
	}
	return c, ""
}

func countGo(lines []string) (c counts, wrong string) {
	broke := false
	for _, line := range lines {
		if m := goLine.FindStringSubmatch(line); m != nil {
			switch m[1] {
			case "PASS":
				c.passed++
			case "FAIL":
				c.failed++
			case "SKIP":
				c.skipped++
			}
		}
		broke = broke || goBroke.MatchString(line)
	}
	switch {
	case broke && c.failed == 0:
		return c, "a test panicked, or a package does not build"
	case c == counts{}:
		return c, "it ran no test"
	}
	return c, ""
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s) // \d+ or nothing
	return n
}
