package core_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	"gdrapi/core"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The examples need the doubles, as TestLibrary does.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("GDR_TEST_DOUBLES") == "1" {
		cudatest.UseLibC()
	} else {
		_ = flag.Set("test.skip", "^Example")
	}
	os.Exit(m.Run())
}

// options force the backend of this run.
var options = core.Options{Backend: os.Getenv("GDRCOPY_BACKEND")}

// The way of a Go program, on a simulated driver: what the CPU writes CUDA reads, and the
// other way.
func TestLibrary(t *testing.T) {
	sim := cudatest.Need(t)
	d, err := core.Open(options)
	require.NoError(t, err)
	mem, err := d.Alloc(0, 1<<20)
	require.NoError(t, err)

	for _, at := range []struct{ off, n uint64 }{{0, 8}, {0, 1 << 20}, {100, 3}, {65536 - 4, 100}, {1<<20 - 5, 5}} {
		m, err := d.Map(mem.Addr()+at.off, at.n)
		require.NoError(t, err)
		want := make([]byte, at.n)
		for i := range want {
			want[i] = byte(i*7 + int(at.off))
		}
		n, err := m.WriteAt(want, 0)
		require.NoError(t, err)
		require.EqualValues(t, at.n, n)
		require.Equal(t, want, sim.DtoH(0, mem.Addr()+at.off, len(want)))

		want[0], want[len(want)-1] = 1, 2
		sim.HtoD(0, mem.Addr()+at.off, want)
		got, err := io.ReadAll(io.NewSectionReader(m, 0, m.Size()))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, m.Close())
	}

	var e unix.Errno
	_, err = d.Map(0x10, 8)
	require.ErrorAs(t, err, &e, "%v", err)
	require.NoError(t, d.Close())
	require.ErrorIs(t, mem.Close(), core.ErrClosed)
}

// Without cgo nobody watches libcuda. Memory that only a watched export finds is refused, and
// the error says what to do.
func TestMemoryThatNeedsTheWatch(t *testing.T) {
	if options.Backend != "rm" {
		t.Skip("only rm watches")
	}
	sim := cudatest.Need(t)
	d, err := core.Open(options)
	require.NoError(t, err)
	for handles, want := range map[uint32]unix.Errno{0: unix.ENOTSUP, 1: 0} {
		addr, free := sim.VMM(0, 1, handles)
		m, err := d.Map(addr, 4096)
		if want == 0 {
			require.NoError(t, err)
			require.NoError(t, m.Close())
		} else {
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, "cannot be watched")
			require.ErrorContains(t, err, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
		}
		free()
	}
	addr := sim.MemAlloc(0, 4096)
	m, err := d.Map(addr, 4096)
	require.NoError(t, err, "memory of cuMemAlloc needs no watch")
	require.NoError(t, m.Close())
	require.NoError(t, d.Close())
}

func Example() {
	d, err := core.Open(core.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	mem, err := d.Alloc(0, 4096) // or memory of cuMemAlloc
	if err != nil {
		log.Fatal(err)
	}
	m, err := d.Map(mem.Addr(), 4096)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	if _, err := m.WriteAt([]byte("hello, GPU"), 100); err != nil {
		log.Fatal(err)
	}
	p := make([]byte, 10)
	if _, err := m.ReadAt(p, 100); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", p)
	// Output: hello, GPU
}

// An error unwraps to a unix.Errno.
func ExampleErrno() {
	d, err := core.Open(core.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	host := 0x10000 // an address that is no GPU memory
	_, err = d.Map(uint64(host), 8)
	fmt.Println(errors.Is(err, unix.EINVAL), core.Errno(err) == unix.EINVAL)
	// Output: true true
}
