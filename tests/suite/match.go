// SPDX-License-Identifier: MIT

package suite

import (
	"regexp"
	"strings"
)

// split cuts a pattern at sep, but not inside () or [].
func split(pattern string, sep byte) []string {
	var parts []string
	depth, class, from := 0, false, 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == sep && depth == 0:
			parts = append(parts, pattern[from:i])
			from = i + 1
		}
	}
	return append(parts, pattern[from:])
}

// picks says whether the pattern of -run or -skip picks the test with this path, as
// package testing reads it: alternatives by |, elements by /, each a regular expression.
// more are the alternatives' elements after the path's: patterns of cases. With whole,
// as in -skip, an alternative that has more does not pick.
func picks(pattern, path string, whole bool) (picked bool, more []string) {
	every := false
	for _, alternative := range split(pattern, '|') {
		elements := split(alternative, '/')
		names := strings.Split(path, "/")
		if whole && len(elements) > len(names) || !each(elements, names) {
			continue
		}
		picked = true
		if len(elements) > len(names) {
			more = append(more, elements[len(names)])
		} else {
			every = true
		}
	}
	if every {
		more = nil
	}
	return picked, more
}

func each(elements, names []string) bool {
	for i, name := range names {
		if i >= len(elements) {
			return true
		}
		if ok, err := regexp.MatchString(blank(elements[i]), name); err != nil || !ok {
			return false
		}
	}
	return true
}

// names says whether the pattern's first element names the group, as a whole: fuzz is not
// fuzz_long.
func names(pattern, group string) bool {
	for _, alternative := range split(pattern, '|') {
		first := split(alternative, '/')[0]
		if ok, err := regexp.MatchString("^(?:"+first+")$", "Test_"+group); err == nil && ok {
			return true
		}
		if ok, err := regexp.MatchString("^(?:"+first+")$", group); err == nil && ok {
			return true
		}
	}
	return false
}

// blank is the name of a test as -run sees it: without blanks.
func blank(name string) string { return strings.ReplaceAll(name, " ", "_") }
