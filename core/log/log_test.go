package log_test

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

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

// smallPipe has both ends of a pipe, and how many bytes it takes.
func smallPipe(t *testing.T, flags int) (p [2]int, room int) {
	t.Helper()
	require.NoError(t, unix.Pipe2(p[:], flags|unix.O_CLOEXEC))
	room, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 4096)
	require.NoError(t, err)
	return p, room
}

// A line is lost where standard error takes none of it, or part of it. The call goes on.
func TestNoRoom(t *testing.T) {
	replace(t, -1, func() { log.Errorf("nowhere") })
	p, room := smallPipe(t, unix.O_NONBLOCK)
	replace(t, p[1], func() { log.Errorf("%s", strings.Repeat("x", 2*room)) })
	got := make([]byte, 3*room)
	n, err := unix.Read(p[0], got)
	require.NoError(t, err)
	require.Equal(t, "ERR:  "+strings.Repeat("x", room-6), string(got[:n]))
	require.NoError(t, unix.Close(p[0]))
	require.NoError(t, unix.Close(p[1]))
}

// withoutRestart has calls that sig interrupts fail with EINTR, as a host's handler may.
func withoutRestart(t *testing.T, sig unix.Signal) {
	t.Helper()
	var action struct { // the kernel's, of 64-bit machines
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const restart = 0x10000000 // SA_RESTART, asm-generic/signal-defs.h
	_, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
	require.Zero(t, err)
	require.NotZero(t, action.handler)
	action.flags &^= restart
	_, _, err = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	require.Zero(t, err)
}

// A line that waits for room is whole, however often a signal interrupts the write.
func TestInterruptedWrite(t *testing.T) {
	came := make(chan os.Signal, 1)
	signal.Notify(came, unix.SIGUSR1)
	defer signal.Stop(came)
	withoutRestart(t, unix.SIGUSR1)

	p, room := smallPipe(t, 0)
	_, err := unix.Write(p[1], make([]byte, room))
	require.NoError(t, err)

	replace(t, p[1], func() {
		tid, done := make(chan int), make(chan bool)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			log.Errorf("a line")
			close(done)
		}()
		writer := <-tid
		for range 50 { // the last ones find it in its write
			require.NoError(t, unix.Tgkill(os.Getpid(), writer, unix.SIGUSR1))
			<-came
			time.Sleep(time.Millisecond)
		}
		n, err := unix.Read(p[0], make([]byte, room))
		require.NoError(t, err)
		require.Equal(t, room, n)
		<-done
	})
	require.NoError(t, unix.Close(p[1]))
	got := make([]byte, 100)
	n, err := unix.Read(p[0], got)
	require.NoError(t, err)
	require.Equal(t, "ERR:  a line\n", string(got[:n]))
	require.NoError(t, unix.Close(p[0]))
}
