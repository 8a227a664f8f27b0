// Package ctest evaluates C expressions with a C compiler. Tests use it to compare
// structs and numbers of Go with those of C. Nothing that ships imports it.
package ctest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Compiler is the path of the C compiler. The test is skipped where there is none.
func Compiler(t testing.TB) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	return cc
}

// Agree compares each value of want with the C expression that is its key. source is the
// C text before the expressions. flags are the compiler's. A signed expression is
// compared after C's conversion to unsigned long long.
func Agree(t testing.TB, source string, want map[string]uint64, flags ...string) {
	t.Helper()
	require.NotEmpty(t, want)
	src := bytes.NewBufferString("#include <stddef.h>\n#include <stdio.h>\n" + source + "\nint main(void)\n{\n")
	for expr := range want {
		fmt.Fprintf(src, "\tprintf(\"%%s=%%llu\\n\", %q, (unsigned long long)(%s));\n", expr, expr)
	}
	src.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	file, prog := filepath.Join(dir, "values.c"), filepath.Join(dir, "values")
	require.NoError(t, os.WriteFile(file, src.Bytes(), 0o600))
	out, err := exec.Command(Compiler(t), append(flags, "-o", prog, file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(prog).Output()
	require.NoError(t, err)

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, len(want))
	for _, line := range lines {
		at := strings.LastIndex(line, "=")
		got, err := strconv.ParseUint(line[at+1:], 10, 64)
		require.NoError(t, err, line)
		require.Equal(t, got, want[line[:at]], line[:at])
	}
}
