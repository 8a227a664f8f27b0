package guest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gdrapi/core/dl"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// standin is a stand-in for libcuda that is loaded: tests/rm/watched.c.
type standin struct {
	library
	export uintptr
}

// build compiles it. The flags say how it reaches ioctl.
func build(t *testing.T, name string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=gnu11", "-shared", "-fPIC", "-o", path, "../../tests/rm/watched.c"}, flags...)
	out, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func load(t *testing.T, path string) standin {
	t.Helper()
	handle, err := purego.Dlopen(path, purego.RTLD_LAZY|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, purego.Dlclose(handle)) })
	export, err := purego.Dlsym(handle, "watched_export")
	require.NoError(t, err)
	for _, l := range libraries() {
		if l.holds(uint64(export), 1) {
			return standin{l, export}
		}
	}
	require.Fail(t, "the loader does not list it", path)
	return standin{}
}

// access is "r--p" and so on, of the page that addr lies in.
func access(t *testing.T, addr uint64) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var low, high uint64
		var got string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &low, &high, &got); n == 3 && addr >= low && addr < high {
			return got
		}
	}
	return "none"
}

var (
	lazy  = []string{"-fplt", "-Wl,-z,lazy"}
	relro = []string{"-fplt", "-Wl,-z,now", "-Wl,-z,relro"}
	named = append([]string{"-Wl,-soname,libcuda.so.1"}, lazy...)
)

// The slot in a library that was linked in each way, or none. Once it has called ioctl, the slot has the address.
func TestSlotOfALibrary(t *testing.T) {
	ioctl, err := purego.Dlsym(purego.RTLD_DEFAULT, "ioctl")
	require.NoError(t, err)
	for _, c := range []struct {
		name           string
		flags          []string
		none, readOnly bool
	}{
		{name: "lazy", flags: lazy},
		{name: "relro", flags: relro, readOnly: true},
		{name: "a table that is no slot", flags: []string{"-fno-plt"}, none: true},
		{name: "by no name", flags: []string{"-DWATCHED_ABSENT"}, none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := load(t, build(t, "standin.so", c.flags...))
			got := findSlot([]library{s.library}, uint64(s.export))
			if c.none {
				assert.Zero(t, got)
				return
			}
			dl.Call(s.export, -1, 0, 0)
			has := make([]byte, 8)
			require.True(t, readMemory(got.at, has))
			assert.EqualValues(t, ioctl, binary.NativeEndian.Uint64(has))
			assert.Equal(t, c.readOnly, got.readOnly)
			assert.Equal(t, c.readOnly, access(t, got.at) == "r--p", access(t, got.at))
			assert.Equal(t, s.base, got.low)
			assert.True(t, got.at < got.high && uint64(s.export) < got.high, "the library ends behind them")
			assert.Less(t, got.high-got.low, uint64(1<<20))
		})
	}
}

// In which of several libraries the slot is looked for.
func TestWhichLibrary(t *testing.T) {
	one, two := load(t, build(t, "one.so", lazy...)), load(t, build(t, "two.so", lazy...))
	assert.Equal(t, two.base, findSlot(libraries(), uint64(two.export)).low)
	cuda, cuda2 := load(t, build(t, "cuda.so", named...)), load(t, build(t, "cuda2.so", named...))
	shim := load(t, build(t, "shim.so", "-DWATCHED_ABSENT", "-Wl,-soname,libcuda.so.1"))
	unlike := load(t, build(t, "unlike.so", append([]string{"-Wl,-soname,libcudart.so.1"}, lazy...)...))
	for _, c := range []struct {
		name   string
		all    []standin
		export standin
		want   standin
	}{
		{"the one that export lies in", []standin{one, two}, two, two},
		{"whichever is first", []standin{two, one}, two, two},
		{"libcuda and not the tool before it", []standin{one, cuda}, one, cuda},
		{"nor the tool behind it", []standin{cuda, one}, one, cuda},
		{"of two libcudas the one that export lies in", []standin{cuda, cuda2}, cuda2, cuda2},
		{"for a tool's export the first", []standin{one, cuda2, cuda}, one, cuda2},
		{"a libcuda without a slot leads to the next", []standin{shim, cuda, cuda2}, shim, cuda},
		{"or back to the tool", []standin{shim, one}, one, one},
		{"another name is no libcuda's", []standin{unlike, one}, one, one},
		{"export lies in none", []standin{one, two, shim}, cuda, standin{}},
	} {
		var all []library
		for _, s := range c.all {
			all = append(all, s.library)
		}
		assert.Equal(t, c.want.base, findSlot(all, uint64(c.export.export)).low, c.name)
	}
}

// What cannot be watched is not called.
func TestNotWatched(t *testing.T) {
	_, err := Ears{}.Watch(0x10, 0, 1)
	assert.ErrorIs(t, err, unix.ENOTSUP)
}

func TestReadMemory(t *testing.T) {
	all := libraries()
	assert.False(t, readMemory(0x10, make([]byte, 1)))
	assert.False(t, readMemory(all[0].base, nil), "nothing is asked for")
	assert.False(t, readMemory(all[0].base, make([]byte, 1<<28)), "no library is so long")
}
