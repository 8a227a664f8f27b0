package log_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"gdrapi/core/log"
	"gdrapi/core/log/logtest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func all() {
	log.Debugf("a %s of %d\n\n", "detail", 4)
	log.Infof("the %s", "choice")
	log.Warnf("less %s\n", "well")
	log.Errorf("it fails: %v", unix.EPERM)
}

var lines = []string{"DBG:  a detail of 4", "INFO: the choice", "WARN: less well", "ERR:  it fails: operation not permitted"}

// A level shows its own lines and those above it, each as one line with its prefix.
func TestLevels(t *testing.T) {
	for level := log.Debug; level <= log.Off; level++ {
		want := strings.Join(lines[level-log.Debug:], "\n")
		require.Equal(t, want, strings.TrimSuffix(logtest.Lines(t, level, all), "\n"), "level %d", level)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("GDR_TEST_LOGS") != "" {
		all()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Until somebody sets a level there are no lines.
func TestSilentAtFirst(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GDR_TEST_LOGS=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(out))
}

// replace has fd in the place of standard error while f runs; -1: nothing.
func replace(t *testing.T, fd int, f func()) {
	t.Helper()
	saved, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	if fd < 0 {
		require.NoError(t, unix.Close(2))
	} else {
		require.NoError(t, unix.Dup3(fd, 2, 0))
	}
	log.SetThreshold(log.Error)
	f()
	log.SetThreshold(log.Off)
	require.NoError(t, unix.Dup3(saved, 2, 0))
	require.NoError(t, unix.Close(saved))
}

// A line is lost where standard error takes none of it, or part of it. The call goes on.
func TestNoRoom(t *testing.T) {
	replace(t, -1, func() { log.Errorf("nowhere") })
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	room, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 4096)
	require.NoError(t, err)
	replace(t, p[1], func() { log.Errorf("%s", strings.Repeat("x", 2*room)) })
	got := make([]byte, 3*room)
	n, err := unix.Read(p[0], got)
	require.NoError(t, err)
	require.Equal(t, "ERR:  "+strings.Repeat("x", room-6), string(got[:n]))
	require.NoError(t, unix.Close(p[0]))
	require.NoError(t, unix.Close(p[1]))
}
