package guest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core"
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

// other is a library that has a function of ioctl's name in another version.
func other(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	version := filepath.Join(dir, "map")
	require.NoError(t, os.WriteFile(version, []byte("WATCHED_OTHER { global: ioctl; local: *; };"), 0o600))
	path := filepath.Join(dir, "libother.so")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, "../../tests/rm/watched_other.c", "-Wl,--version-script,"+version).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// The slot in a library that was linked in each way; no slot, or more than one: none.
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
		{name: "two", flags: append([]string{"-DWATCHED_TWO", other(t)}, lazy...), none: true},
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

// A library whose dynamic section is read-only: the loader leaves its addresses as they are in
// the file. The bit in the file says so; not every linker can be told to clear it.
func TestReadOnlyDynamicSection(t *testing.T) {
	path := build(t, "standin.so", lazy...)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(file))
	require.NoError(t, err)
	for i, p := range f.Progs {
		if p.Type == elf.PT_DYNAMIC {
			at := f.ByteOrder.Uint64(file[32:]) + uint64(i)*56 + 4
			f.ByteOrder.PutUint32(file[at:], uint32(p.Flags&^elf.PF_W))
		}
	}
	require.NoError(t, os.WriteFile(path, file, 0o600))
	s := load(t, path)
	assert.Equal(t, s.want(t), findSlot([]library{s.library}, uint64(s.export)).at)
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
	all := libraries()
	s.unload()
	require.Equal(t, "none", access(t, uint64(s.export)))
	assert.Zero(t, findSlot([]library{s.library}, uint64(s.export)))
	assert.NotZero(t, firstCopy(all))
}

// What cannot be watched is not called.
func TestNotWatched(t *testing.T) {
	_, err := Watch(0x10, 0, 1)
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

// The first library that has the note of watch.c is the one that watches.
func TestFirstCopy(t *testing.T) {
	copyOf := func(kind string) standin {
		source, err := os.ReadFile("watch.c")
		require.NoError(t, err)
		dir := t.TempDir()
		changed := strings.Replace(string(source), ".long 7, 8, 2", ".long "+kind, 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "watch.c"), []byte(changed), 0o600))
		return load(t, build(t, "copy.so", "-I.", filepath.Join(dir, "watch.c")))
	}
	address := func(s standin) uint64 {
		f, err := elf.Open(s.path)
		require.NoError(t, err)
		defer f.Close()
		symbols, err := f.Symbols()
		require.NoError(t, err)
		for _, sym := range symbols {
			if sym.Name == "gdr_watch_export" {
				return s.base + sym.Value
			}
		}
		return 0
	}
	all := libraries()
	assert.True(t, all[0].holds(firstCopy(all), 1), "this program itself has one, and is the first")
	one, two, old := copyOf("7, 8, 2"), copyOf("7, 8, 2"), copyOf("7, 8, 1")
	none := load(t, build(t, "standin.so", lazy...))
	assert.NotZero(t, address(one))
	assert.Equal(t, address(one), firstCopy([]library{none.library, old.library, one.library, two.library}))
	assert.Equal(t, address(two), firstCopy([]library{two.library, one.library}))
	assert.Zero(t, firstCopy([]library{none.library, old.library}), "another contract")
}

// The struct of the request in both of its forms, and in none.
func TestRequested(t *testing.T) {
	head := func(objects uint32, object, offset int) []byte {
		b := bytes.Repeat([]byte{0xee}, 576)
		binary.NativeEndian.PutUint32(b[4:], 0xc1d00001)
		binary.NativeEndian.PutUint32(b[12:], objects)
		binary.NativeEndian.PutUint32(b[object:], 0x5c000011)
		binary.NativeEndian.PutUint64(b[offset:], 0x123450000)
		return b
	}
	for _, c := range []struct {
		size           uint32
		objects        uint32
		object, offset int
		known          bool
	}{
		{2608, 1, 36, 552, true},
		{2600, 1, 32, 544, true},
		{2608, 128, 36, 552, true},
		{2608, 0, 36, 552, false},
		{2600, 0, 32, 544, false},
		{2616, 1, 36, 552, false},
		{8, 1, 36, 552, false},
		{0, 1, 36, 552, false},
	} {
		client, object, offset := requested(c.size, head(c.objects, c.object, c.offset))
		if c.known {
			assert.Equal(t, []any{uint32(0xc1d00001), uint32(0x5c000011), uint64(0x123450000)}, []any{client, object, offset}, c)
		} else {
			assert.Equal(t, []any{uint32(0), uint32(0), uint64(0)}, []any{client, object, offset}, c)
		}
	}
}

// More libraries than there is room for at first.
func TestManyLibraries(t *testing.T) {
	file, err := os.ReadFile(build(t, "standin.so", lazy...))
	require.NoError(t, err)
	dir, had := t.TempDir(), len(libraries())
	var last standin
	for i := had; i < 300; i++ {
		path := filepath.Join(dir, fmt.Sprintf("%d.so", i))
		require.NoError(t, os.WriteFile(path, file, 0o600))
		handle, err := purego.Dlopen(path, purego.RTLD_LAZY|purego.RTLD_LOCAL)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, purego.Dlclose(handle)) })
		export, err := purego.Dlsym(handle, "watched_export")
		require.NoError(t, err)
		last = standin{path: path, export: export}
		if n := i + 1; n < 255 || n > 273 && n < 300 {
			continue
		}
		all := libraries()
		require.Len(t, all, i+1)
		require.True(t, all[i].holds(uint64(export), 1), "the last one is there")
	}
	all := libraries()
	last.library = all[len(all)-1]
	assert.Equal(t, last.want(t), findSlot(all, uint64(last.export)).at)
}

// plan is a struct watched_plan of tests/rm/watched.h, request a struct watched_request.
type plan struct {
	middle, arg uintptr
	request     *request
	requests    uint64
	fd, result  int32
	calls       int32
	size        uint64
	kind        int32
	flags       uint64
}

type request struct {
	fd            int32
	request       uint64
	arg           *[4096]byte
	result, errno int32
}

// held is what a slot holds.
func held(t *testing.T, at uint64) uint64 {
	b := make([]byte, 8)
	require.True(t, readMemory(at, b))
	return binary.NativeEndian.Uint64(b)
}

// What is seen of an export in each of two libraries, in turn. The first one's slot is not bound.
func TestWatch(t *testing.T) {
	one, two := load(t, build(t, "one.so", named...)), load(t, build(t, "two.so", append([]string{"-Wl,-soname,libcuda.so.1"}, relro...)...))
	for i, s := range []standin{one, two, one, one, two} {
		var form [4096]byte
		binary.NativeEndian.PutUint32(form[4:], 0xc1d00000+uint32(i))
		binary.NativeEndian.PutUint32(form[12:], 1)
		binary.NativeEndian.PutUint32(form[36:], 0x5c000000+uint32(i))
		binary.NativeEndian.PutUint64(form[552:], 0x123450000+uint64(i))
		r := request{fd: -1, request: 3<<30 | 2608<<16 | 'F'<<8 | 217, arg: &form}
		p := plan{fd: 70 + int32(i), result: 3, request: &r, requests: 1}
		before := held(t, s.want(t))
		seen, err := Watch(s.export, uint64(uintptr(unsafe.Pointer(&p))), 65536)
		require.NoError(t, err)
		assert.Equal(t, core.Seen{
			Result: 3, FD: 70 + int32(i), Requests: 1, Size: 2608,
			Client: 0xc1d00000 + uint32(i), Object: 0x5c000000 + uint32(i), Offset: 0x123450000 + uint64(i),
		}, seen)
		assert.Equal(t, []any{int32(1), uint64(65536), int32(1), uint64(0)}, []any{p.calls, p.size, p.kind, p.flags})
		assert.Equal(t, []any{int32(-1), int32(unix.EBADF)}, []any{r.result, r.errno})
		assert.Equal(t, before, held(t, s.want(t)), "the slot is as it was")
	}
	// Without a request. Meanwhile the other one is not watched, and not called.
	var other plan
	var refused error
	middle := purego.NewCallback(func(uintptr) uintptr {
		_, refused = Watch(two.export, uint64(uintptr(unsafe.Pointer(&other))), 65536)
		return 0
	})
	p := plan{middle: middle, fd: -1}
	seen, err := Watch(one.export, uint64(uintptr(unsafe.Pointer(&p))), 65536)
	require.NoError(t, err)
	assert.Equal(t, core.Seen{FD: -1}, seen)
	assert.Equal(t, unix.ENOTSUP, refused)
	assert.Zero(t, other.calls)
}

// far is where the libraries of the tests below lie. Their memory is a test's.
const far = 0x7000_0000_0000

// inMemory is a library whose first segment has these bytes. reads counts what is read of it.
func inMemory(image []byte, reads *int, others ...header) library {
	read := func(addr uint64, to []byte) bool {
		*reads++
		return addr >= far && addr-far+uint64(len(to)) <= uint64(len(image)) && copy(to, image[addr-far:]) == len(to)
	}
	return library{far, append([]header{{Type: ptLoad, Memsz: uint64(len(image))}}, others...), read}
}

// native is the bytes of values, as a file has them.
func native(t *testing.T, values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		require.NoError(t, binary.Write(&b, binary.NativeEndian, v))
	}
	return b.Bytes()
}

// The note is looked for in notes, and is whole.
func TestNote(t *testing.T) {
	var reads int
	note := slices.Concat([]byte("another!"), noteHead, native(t, int64(-0x40)))
	size := uint64(len(note))
	at := far + size - 8 - 0x40
	for _, c := range []struct {
		name string
		h    header
		want uint64
	}{
		{"a note", header{Type: ptNote, Memsz: size}, at},
		{"cut off", header{Type: ptNote, Memsz: size - 1}, 0},
		{"without a word", header{Type: ptNote, Memsz: size - 8}, 0},
		{"without its head", header{Type: ptNote, Vaddr: 9, Memsz: size - 9}, 0},
		{"of another kind", header{Type: ptDynamic, Memsz: size}, 0},
		{"not in the library", header{Type: ptNote, Memsz: size + 1}, 0},
	} {
		assert.Equal(t, c.want, firstCopy([]library{inMemory(note, &reads, c.h)}), c.name)
	}
}
