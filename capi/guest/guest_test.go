package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// in runs the test again, in a process of its own that finds libcuda in dir. GDR_TEST_ROW is row
// there.
func in(t *testing.T, row, dir string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(os.Args[0], "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), "GDR_TEST_ROW="+row, "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
	require.Contains(t, string(out), "--- PASS: ")
}

// What mmap and munmap are given, and their errors.
func TestMapping(t *testing.T) {
	page := uintptr(unix.Getpagesize())
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("a", int(page))+strings.Repeat("b", int(page))), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()

	room, err := Mmap(0, 3*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON, -1, 0)
	require.NoError(t, err)
	assert.Equal(t, "---p", access(t, uint64(room)))
	va, err := Mmap(room+page, page, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED, int(f.Fd()), uint64(page))
	require.NoError(t, err)
	assert.Equal(t, room+page, va)
	assert.Equal(t, "r--s", access(t, uint64(va)))
	assert.Equal(t, strings.Repeat("b", int(page)), string(unsafe.Slice((*byte)(Pointer(va)), page)))
	assert.NoError(t, Munmap(va, page))
	assert.Equal(t, "none", access(t, uint64(va)))
	assert.Equal(t, "---p", access(t, uint64(room+2*page)), "no more than it was told")
	assert.NoError(t, Munmap(room, 3*page))
	assert.Equal(t, "none", access(t, uint64(room)))

	for _, c := range []struct {
		name            string
		size            uintptr
		prot, flags, fd int
		offset          uint64
		want            unix.Errno
	}{
		{name: "no bytes", flags: unix.MAP_PRIVATE | unix.MAP_ANON, fd: -1, want: unix.EINVAL},
		{name: "no file", size: page, flags: unix.MAP_SHARED, fd: -1, want: unix.EBADF},
		{name: "a file that may not be written", size: page, prot: unix.PROT_WRITE, flags: unix.MAP_SHARED, fd: int(f.Fd()), want: unix.EACCES},
		{name: "an offset in a page", size: page, prot: unix.PROT_READ, flags: unix.MAP_SHARED, fd: int(f.Fd()), offset: 1, want: unix.EINVAL},
		{name: "all memory", size: 1 << 60, flags: unix.MAP_PRIVATE | unix.MAP_ANON, fd: -1, want: unix.ENOMEM},
	} {
		va, err := Mmap(0, c.size, c.prot, c.flags, c.fd, c.offset)
		assert.Equal(t, []any{uintptr(0), error(c.want)}, []any{va, err}, c.name)
	}
	assert.Equal(t, unix.EINVAL, Munmap(1, page))
	assert.Equal(t, unix.EINVAL, Munmap(room, 0))
}

// The driver of a process: there is none, it is broken, it is loaded by us or by somebody else.
func TestDriver(t *testing.T) {
	row := os.Getenv("GDR_TEST_ROW")
	if row != "" {
		driverRow(t, row)
		return
	}
	broken, good := t.TempDir(), filepath.Dir(build(t, "libcuda.so.1", named...))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "libcuda.so.1"), []byte("no library"), 0o600))
	for row, dir := range map[string]string{"none": t.TempDir(), "broken": broken, "ours": good, "theirs": good} {
		t.Run(row, func(t *testing.T) { in(t, row, dir) })
	}
}

func driverRow(t *testing.T, row string) {
	if row == "theirs" {
		_, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW)
		require.NoError(t, err)
	}
	if row == "none" && Driver.Loaded() {
		t.Skip("this machine's driver is loaded")
	}
	assert.Equal(t, row == "theirs", Driver.Loaded())
	err := Driver.Load()
	if row == "none" && err == nil {
		t.Skip("this machine has a driver")
	}
	assert.Equal(t, err == nil, Driver.Loaded())
	if row == "none" || row == "broken" {
		assert.ErrorIs(t, err, unix.ENODEV)
		assert.ErrorContains(t, err, "libcuda.so.1")
		return
	}
	require.NoError(t, err)
	assert.NoError(t, Driver.Load(), "again")
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW)
	require.NoError(t, err)
	var want []uintptr
	for _, name := range []string{"watched_export", "watched_ioctl"} {
		at, err := purego.Dlsym(lib, name)
		require.NoError(t, err)
		want = append(want, at)
	}
	want = []uintptr{want[0], 0, want[1]}
	found := Driver.Find([]string{"watched_export", "watched", "watched_ioctl"})
	assert.Equal(t, want, found)
	clear(found)
	// Once: the names are the same each time.
	assert.Equal(t, want, Driver.Find([]string{"a", "b", "c"}))
	assert.NoError(t, Driver.Load(), "known")
}
