// Package dltest builds shared libraries for tests.
package dltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Library builds a shared library of C source, and is its path. Args are the compiler's. The
// test is skipped where there is no C compiler.
func Library(t *testing.T, source string, args ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	dir := t.TempDir()
	file, lib := filepath.Join(dir, "library.c"), filepath.Join(dir, "library.so")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	out, err := exec.Command(cc, append(args, "-shared", "-fPIC", "-o", lib, file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return lib
}
