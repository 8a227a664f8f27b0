package guest

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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
	path   string
	export uintptr
	unload func()
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
	unload := sync.OnceFunc(func() { assert.NoError(t, purego.Dlclose(handle)) })
	t.Cleanup(unload)
	export, err := purego.Dlsym(handle, "watched_export")
	require.NoError(t, err)
	for _, l := range libraries() {
		if l.holds(uint64(export), 1) {
			return standin{l, path, export, unload}
		}
	}
	require.Fail(t, "the loader does not list it", path)
	return standin{}
}

// want is the slot of ioctl by the tables of the file.
func (s standin) want(t *testing.T) uint64 {
	t.Helper()
	f, err := elf.Open(s.path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	table, err := f.Section(".rela.plt").Data()
	require.NoError(t, err)
	for ; len(table) > 0; table = table[24:] {
		if symbols[f.ByteOrder.Uint32(table[12:])-1].Name == "ioctl" {
			return s.base + f.ByteOrder.Uint64(table)
		}
	}
	return 0
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

// The slot in a library that was linked in each way, or none.
func TestSlotOfALibrary(t *testing.T) {
	for _, c := range []struct {
		name           string
		flags          []string
		none, readOnly bool
	}{
		{name: "lazy", flags: lazy},
		{name: "relro", flags: relro, readOnly: true},
		{name: "named", flags: named},
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
			assert.Equal(t, s.want(t), got.at)
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
	path := build(t, "lazy.so", lazy...)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	again := filepath.Join(t.TempDir(), "again.so") // to the loader another library
	require.NoError(t, os.WriteFile(again, file, 0o600))
	one, two := load(t, path), load(t, again)
	assert.Equal(t, one.want(t), findSlot(libraries(), uint64(one.export)).at)
	assert.Equal(t, two.want(t), findSlot(libraries(), uint64(two.export)).at)

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
		var want uint64
		if c.want.path != "" {
			want = c.want.want(t)
		}
		assert.Equal(t, want, findSlot(all, uint64(c.export.export)).at, c.name)
	}
}

// A library of another namespace has a C library of its own: nobody watches it.
func TestOtherNamespace(t *testing.T) {
	open, err := purego.Dlsym(purego.RTLD_DEFAULT, "dlmopen")
	require.NoError(t, err)
	path := append([]byte(build(t, "far.so", lazy...)), 0)
	handle := dl.Call(open, -1, &path[0], purego.RTLD_LAZY)
	if handle == 0 {
		t.Skip("this C library has no other namespace")
	}
	export, err := purego.Dlsym(handle, "watched_export")
	require.NoError(t, err)
	for _, l := range libraries() {
		assert.False(t, l.holds(uint64(export), 1))
	}
}

// Another thread may unload a library at any time.
func TestUnloadedMeanwhile(t *testing.T) {
	s := load(t, build(t, "standin.so", lazy...))
	s.unload()
	require.Equal(t, "none", access(t, uint64(s.export)))
	assert.Zero(t, findSlot([]library{s.library}, uint64(s.export)))
}

// What cannot be watched is not called.
func TestNotWatched(t *testing.T) {
	_, err := Ears{}.Watch(0x10, 0, 1)
	assert.ErrorIs(t, err, unix.ENOTSUP)
}

func TestLibraries(t *testing.T) {
	all := libraries()
	require.Greater(t, len(all), 2)
	var names []string
	for _, l := range all {
		d := l.dynamic()
		name := make([]byte, 9)
		if l.read(d[dtStrTab]+d[dtSoname], name) {
			names = append(names, string(name))
		}
		assert.NotEmpty(t, l.headers)
	}
	assert.Contains(t, names, "libc.so.6")
	assert.False(t, readMemory(0x10, make([]byte, 1)))
	assert.False(t, readMemory(all[0].base, nil), "nothing is asked for")
	assert.False(t, readMemory(all[0].base, make([]byte, 1<<28)), "no library is so long")
}
