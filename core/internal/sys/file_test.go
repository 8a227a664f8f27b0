package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("12345"), 0o600))
	b, err := ReadFile(path, 5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(b))
	_, err = ReadFile(path, 4)
	require.ErrorIs(t, err, unix.EFBIG)
	_, err = ReadFile(path+"x", 4)
	require.ErrorIs(t, err, unix.ENOENT)
	_, err = ReadFile(filepath.Dir(path), 4)
	require.ErrorIs(t, err, unix.EISDIR)
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for _, name := range []string{"a", "b.json", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		want = append(want, name)
	}
	names, err := ReadDir(dir)
	require.NoError(t, err)
	require.ElementsMatch(t, want, names)
	_, err = ReadDir(filepath.Join(dir, "a"))
	require.ErrorIs(t, err, unix.ENOTDIR)
}
