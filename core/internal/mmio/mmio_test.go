package mmio

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// device is memory of size bytes, whose pages lie between pages that fault.
func device(t *testing.T, size int) (va uintptr, mem []byte) {
	page := unix.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	mem = all[page : page+size]
	require.NoError(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE))
	return uintptr(unsafe.Pointer(&mem[0])), mem
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// Two mappings begin at a time. The last change counts both.
func TestCountAtATime(t *testing.T) {
	for range 100_000 {
		var both sync.WaitGroup
		both.Add(2)
		for _, typ := range []backend.MappingType{backend.WC, backend.Caching} {
			go func() { defer both.Done(); Count(typ, 1) }()
		}
		both.Wait()
		require.True(t, Mixed())
		Count(backend.WC, -1)
		Count(backend.Caching, -1)
	}
	require.False(t, Mixed())
}

var types = map[string]backend.MappingType{"WC": backend.WC, "cached": backend.Caching, "device": backend.Device}

// check writes and reads n bytes at off, from and to host memory of any alignment.
func check(t *testing.T, mem []byte, va uintptr, off, n, host int, typ backend.MappingType) {
	want := bytes.Clone(mem)
	from := random(n + host)[host:]
	copy(want[off:], from)
	Write(va+uintptr(off), from, typ)
	if !bytes.Equal(want, mem) {
		t.Fatalf("a write of %d bytes at %d from %d", n, off, host)
	}
	to := random(host + n + lineBytes)
	around := bytes.Clone(to)
	copy(around[host:], from)
	Read(to[host:host+n], va+uintptr(off), typ)
	if !bytes.Equal(around, to) {
		t.Fatalf("a read of %d bytes at %d to %d", n, off, host)
	}
}

// Every size and every alignment within some lines. At both ends of the memory no access passes its pages.
func TestEveryByteAndNoOther(t *testing.T) {
	va, all := device(t, 1)
	mem := all[:1024] // what is compared each time
	for name, typ := range types {
		t.Run(name, func(t *testing.T) {
			for n := range 3*lineBytes + 2 {
				for off := range lineBytes + 1 {
					check(t, mem, va, off, n, (off+n)%17, typ)
				}
			}
			for _, n := range []int{255, 256, 257, 512, 700, 1024} {
				for off := range min(lineBytes, len(mem)-n) + 1 {
					check(t, mem, va, off, n, off%17, typ)
				}
			}
			for n := range 130 {
				check(t, all, va, len(all)-n, n, 3, typ)
			}
		})
	}
}

// A CPU with SSE4.1 alone.
func TestWithoutAVX2(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("the other tests do that here")
	}
	cpu.X86.HasAVX2 = false
	defer func() { cpu.X86.HasAVX2 = true }()
	TestEveryByteAndNoOther(t)
}

// More than one call of the assembly moves.
func TestLongCopies(t *testing.T) {
	const size = 3*writeBytes + 5*lineBytes
	va, mem := device(t, size)
	for name, typ := range types {
		t.Run(name, func(t *testing.T) {
			for _, off := range []int{0, 1, 64, 67} {
				for _, n := range []int{readBytes - 1, readBytes + 1, writeBytes, writeBytes + 65, 2*writeBytes + 7, size - 67} {
					check(t, mem, va, off, n, off%3, typ)
				}
			}
		})
	}
}

// instruction is one of a function's. The name of a call is its callee's.
type instruction struct {
	line, at int // of the source, and its address
	name     string
	operands string
}

// instructions are those of this package's functions, as they are linked.
func instructions(t *testing.T) map[string][]instruction {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64's instructions alone are looked at")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	const here = "gdrapi/core/internal/mmio."
	program := filepath.Join(t.TempDir(), "mmio.test") // go test strips its own
	out, err := exec.Command("go", "test", "-c", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("go", "tool", "objdump", "-s", "^"+regexp.QuoteMeta(here), program).Output()
	require.NoError(t, err)
	symbol := func(s string) string {
		s, _, _ = strings.Cut(strings.TrimPrefix(s, here), "(")
		return strings.TrimSuffix(s, ".abi0")
	}
	found := map[string][]instruction{}
	function := ""
	line := regexp.MustCompile(`^\s+\S+:(\d+)\s+0x(\w+)\s+\w+\s+(\S+)\s*(.*?)\s*$`) // place, address, bytes, instruction, operands
	for _, text := range strings.Split(string(out), "\n") {
		if name, begins := strings.CutPrefix(text, "TEXT "); begins {
			function = symbol(name)
		} else if m := line.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[1])
			at, err := strconv.ParseInt(m[2], 16, 64)
			require.NoError(t, err, text)
			i := instruction{n, int(at), m[3], m[4]}
			if i.name == "CALL" {
				i.name = symbol(m[4])
			}
			found[function] = append(found[function], i)
		}
	}
	return found
}

// branch gives the functions that a function calls next where a variable that it looks at is
// zero, and where it is not.
func branch(t *testing.T, code []instruction, variable string) (zero, other string) {
	t.Helper()
	next := func(from int) string {
		for _, i := range code {
			if i.at >= from && strings.Contains(i.operands, "(SB)") && !strings.HasPrefix(i.name, "MOV") {
				return i.name
			}
		}
		return ""
	}
	looks := false
	for _, i := range code {
		looks = looks || strings.Contains(i.operands, "mmio."+variable+"(SB)")
		if !looks || i.name != "JE" && i.name != "JNE" {
			continue
		}
		to, err := strconv.ParseInt(i.operands, 0, 64)
		require.NoError(t, err)
		zero, other = next(int(to)), next(i.at+1)
		if i.name == "JNE" {
			zero, other = other, zero
		}
		return zero, other
	}
	t.Fatalf("no branch by %s", variable)
	return "", ""
}

// Each kind of copy has its fences, each fence is the instruction that it must be, lines are
// stored past the cache and loaded by streaming loads, and the thread stays.
func TestFences(t *testing.T) {
	found := instructions(t)
	only := func(function string, names ...string) (left []string) {
		inSource := slices.Clone(found[function])
		slices.SortStableFunc(inSource, func(a, b instruction) int { return a.line - b.line })
		for _, i := range inSource {
			if slices.Contains(names, i.name) {
				left = append(left, i.name)
			}
		}
		return left
	}
	for name, want := range map[string]string{
		"storeFence": "SFENCE", "fullFence": "MFENCE", "loadFence": "LFENCE", "linesFence": "MFENCE", "endFence": "LFENCE",
	} {
		require.Equal(t, []string{want}, only(name, "SFENCE", "MFENCE", "LFENCE"), name)
	}
	const lock, unlock = "runtime.LockOSThread", "runtime.UnlockOSThread"
	require.Equal(t, []string{lock, "storeLines", "store", "fullFence", "storeFence", unlock},
		only("Write", lock, unlock, "storeLines", "store", "storeFence", "fullFence"))
	require.Equal(t, []string{lock, "loadFence", "readWords", "linesFence", "readLines", "endFence", unlock},
		only("Read", lock, unlock, "loadFence", "readWords", "linesFence", "readLines", "endFence"), "each way of reading has its fence")
	for function, c := range map[string]struct{ variable, zero, other string }{
		"Write": {"mixed", "storeFence", "fullFence"},
		"Read":  {"lineLoads", "loadFence", "linesFence"},
	} {
		zero, other := branch(t, found[function], c.variable)
		require.Equal(t, []string{c.zero, c.other}, []string{zero, other}, function)
	}
	require.Len(t, only("storeLines", "MOVNTDQ"), 4, "a line is four stores")
	require.Empty(t, only("loadLinesSSE", "MOVNTDQ"))
	require.Len(t, only("loadLinesSSE", "MOVNTDQA"), 16+4, "four lines, and one")
	require.NotEmpty(t, only("loadLinesAVX2", "VMOVNTDQA"))
}
