package dmabuf

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memfd stands for a dma-buf of two pages.
func memfd(t *testing.T) int {
	fd, err := unix.MemfdCreate("some_dmabuf", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(2*page)))
	return fd
}

// mapped lists the mappings of a memfd, in pages from va on, less those that forked children inherit.
func mapped(t *testing.T, va uintptr) string {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	var list []string
	place := ""
	for scan := bufio.NewScanner(f); scan.Scan(); {
		line := scan.Text()
		var first, end uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &first, &end); n == 2 {
			place = ""
			if strings.Contains(line, "some_dmabuf") {
				place = fmt.Sprint((first-va)/uintptr(page), "-", (end-va)/uintptr(page))
			}
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && place != "" {
			require.Contains(t, strings.Fields(flags), "dc", "not for forked children")
			list = append(list, place)
		}
	}
	return strings.Join(list, " ")
}

// A driver may map less of a dma-buf than the library wants.
func TestLastByteIsMissing(t *testing.T) {
	fd := memfd(t)
	for _, c := range []struct {
		sizes []uint64 // of the parts, in pages; 0: one whose descriptor is closed
		pages uint64
		want  string // no mapping: an error
		err   error
	}{
		{[]uint64{1}, 1, "0-1", nil},
		{[]uint64{2}, 2, "0-2", nil},
		{[]uint64{3}, 3, "", unix.ENOTSUP},
		{[]uint64{4}, 4, "", unix.ENOTSUP},
		{[]uint64{2, 3}, 5, "", unix.ENOTSUP},
		{[]uint64{3, 2}, 5, "", unix.ENOTSUP},
		{[]uint64{2, 2, 3}, 7, "", unix.ENOTSUP},
		{[]uint64{2, 2}, 3, "0-2 2-3", nil}, // no page more than was asked for
		{[]uint64{2, 0}, 4, "", unix.EBADF},
	} {
		var parts []part
		for _, n := range c.sizes {
			parts = append(parts, part{fd: fd, size: n * page})
			if n == 0 {
				parts[len(parts)-1] = part{fd: -1, size: 2 * page}
			}
		}
		va, err := mmap(parts, uintptr(c.pages*page))
		require.ErrorIs(t, err, c.err, "%+v", c)
		require.Equal(t, c.want, mapped(t, va), "%+v", c)
		if err == nil {
			require.NoError(t, sys.Munmap(va, uintptr(c.pages*page)))
		} else if c.err == unix.ENOTSUP {
			require.ErrorContains(t, err, "pin each allocation by itself")
		}
	}
	file, err := sys.Own(fd)
	require.NoError(t, err)
	p := &pin{first: page, size: 4 * page, parts: []part{{fd, file, 4 * page}}, mappingType: backend.WC}
	_, _, err = p.Map(4*page, backend.None)
	require.ErrorIs(t, err, unix.ENOTSUP)
	va, got, err := p.Map(2*page, backend.None)
	require.NoError(t, err, "what is there can be mapped")
	require.Equal(t, backend.WC, got)
	require.True(t, sys.Readable(va+uintptr(2*page)-8))
	require.NoError(t, sys.Munmap(va, uintptr(2*page)))
	require.NoError(t, p.Unmap())
}

// The errors of mmap and madvise. What mmap gives has a hole at its start.
func TestMmapFails(t *testing.T) {
	fd := memfd(t)
	hole, err := unix.Mmap(-1, 0, int(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	va := cudatest.Address(&hole[0])
	_, _, errno := unix.Syscall(unix.SYS_MUNMAP, va, uintptr(page), 0)
	require.Zero(t, errno)
	defer sys.UseMemory(sys.HostMemory())
	for _, c := range []struct {
		answer, err error
		parts       uint64
		text        string
		taken       int // mappings taken down
	}{
		{unix.Errno(524), unix.ENOTSUP, 1, "cannot mmap its dma-bufs", 0},
		{unix.EMLINK, unix.EMLINK, 1, "mmap of the dma-buf", 0},
		{unix.EMLINK, unix.EMLINK, 2, fmt.Sprintf("no %d bytes of address space", 4*page), 0},
		{nil, unix.ENOMEM, 1, "MADV_DONTFORK", 1},
	} {
		at, taken := va, 0
		if c.answer != nil {
			at = 0
		}
		sys.UseMemory(sys.Memory{
			Mmap:   func(uintptr, uintptr, int, int, int, uint64) (uintptr, error) { return at, c.answer },
			Munmap: func(uintptr, uintptr) error { taken++; return nil },
		})
		_, err = mmap([]part{{fd: fd, size: 2 * page}, {fd: fd, size: 2 * page}}, uintptr(c.parts*2*page))
		require.ErrorIs(t, err, c.err, c.text)
		require.ErrorContains(t, err, c.text)
		require.Equal(t, c.taken, taken, c.text)
	}
}
