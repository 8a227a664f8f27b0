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
	closing = regexp.MustCompile(`(?m)^(?:[A-Za-z_-]+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$`)
	verdict = map[Count]*regexp.Regexp{
		TAP:    regexp.MustCompile(`(?m)^(not )?ok \d+( .*)?$`),
		GoTest: regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP)(.*)`),
	}
	goBroke = regexp.MustCompile(`(?m)^(FAIL|panic:)`)
)

// count counts a program's output. wrong says why that cannot be right.
func count(how Count, output string) (c counts, wrong string) {
	if how == Status {
		return counts{passed: 1}, ""
	}
	for _, m := range verdict[how].FindAllStringSubmatch(output, -1) {
		switch {
		case m[1] == "not " || m[1] == "FAIL":
			c.failed++
		case m[1] == "SKIP" || strings.Contains(m[2], "# SKIP"):
			c.skipped++
		default:
			c.passed++
		}
	}
	said := c
	if how == TAP {
		all := closing.FindAllStringSubmatch(output, -1)
		if all == nil {
			return c, "it ended without counts"
		}
		said = counts{atoi(all[len(all)-1][1]), atoi(all[len(all)-1][2]), atoi(all[len(all)-1][3])}
	}
	switch {
	case how == GoTest && c.failed == 0 && goBroke.MatchString(output):
		wrong = "a test panicked, or a package does not build"
	case said == counts{}:
		wrong = "it ran no test"
	case c == counts{}:
		return said, "" // It printed no test alone.
	case c != said:
		wrong = fmt.Sprintf("it says %v, and its lines are %v", said, c)
	}
	return c, wrong
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s) // \d+ or nothing
	return n
}
