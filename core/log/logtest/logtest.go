// Package logtest catches log lines, for tests. Nothing that ships imports it.
package logtest

import (
	"io"
	"os"
	"testing"

	"gdrapi/core/log"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Lines is what f logs at level and above. No other test runs meanwhile.
func Lines(t testing.TB, level log.Level, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "log")
	require.NoError(t, err)
	defer file.Close()
	stderr, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	defer unix.Close(stderr)
	require.NoError(t, unix.Dup3(int(file.Fd()), 2, 0))
	log.SetThreshold(level)
	defer func() {
		log.SetThreshold(log.Off)
		require.NoError(t, unix.Dup3(stderr, 2, 0))
	}()
	f()
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	text, err := io.ReadAll(file)
	require.NoError(t, err)
	return string(text)
}
