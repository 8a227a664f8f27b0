// Package scripttest runs the scripts of tests. Nothing that ships imports it.
package scripttest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Run runs a script, whose words are
//
//	CALL            one of calls, which succeeds; CALL:ARGUMENT gives it an argument
//	CALL{SCRIPT}    the argument is a script, whose words commas part
//	CALL=ERRNO      it fails so; CALL=ERRNO~TEXT: and says that, each dot of which is any character
//	-FUNCTION=HOW   fails has a function of the driver fail so
//	+FUNCTION       it works again: HOW is ""
func Run(t testing.TB, script string, calls map[string]func(argument string) error, fails func(function, how string)) {
	t.Helper()
	for _, word := range strings.Fields(script) {
		head, want, _ := strings.Cut(word, "=")
		if strings.ContainsAny(head[:1], "+-") {
			fails(head[1:], want)
			continue
		}
		name, argument, _ := strings.Cut(head, ":")
		if outer, rest, found := strings.Cut(word, "{"); found {
			end := strings.LastIndex(rest, "}")
			name, argument, want = outer, strings.ReplaceAll(rest[:end], ",", " "), strings.TrimPrefix(rest[end+1:], "=")
		}
		require.Contains(t, calls, name, "%s in %q", word, script)
		err := calls[name](argument)
		errno, text, _ := strings.Cut(want, "~")
		if errno == "" {
			require.NoError(t, err, "%s in %q", word, script)
			continue
		}
		var is unix.Errno
		require.ErrorAs(t, err, &is, "%s in %q", word, script)
		require.Equal(t, errno, unix.ErrnoName(is), "%s in %q: %v", word, script, err)
		require.Regexp(t, text, err.Error(), "%s in %q", word, script)
	}
}

// Errno is the errno of a name.
func Errno(t testing.TB, name string) unix.Errno {
	for e := range unix.Errno(256) {
		if unix.ErrnoName(e) == name {
			return e
		}
	}
	t.Fatalf("%q is no errno", name)
	return 0
}
