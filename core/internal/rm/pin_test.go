package rm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/sys"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// told are Ears that a test tells what each look finds; the last answer stays.
type told struct {
	deaf
	looks   []string
	dropped int
	ends    uint64  // one more at each look at unheard memory
	learned []Heard // each with the Ends of its Hearing as the number
	size    uint64  // of each object
	lost    bool    // the driver does not know the client
	stopped int
}

const firstPage = 7 << 32

// At has a letter for each page: a memory, x if its end was heard, - if it is unheard. A and B lie in one object, behind
// each other; a is A freed and made anew. C's owner does not answer, D is another GPU's, and G is one's without memory
// of its own. O is all of the range.
func (t *told) At(first, end uint64) (h Hearing, entries []Heard) {
	look := t.looks[0]
	t.looks = t.looks[min(1, len(t.looks)-1):]
	for i, c := range look {
		base := uint64(firstPage + i*gpuPage)
		e := Heard{Base: base, End: base + gpuPage, Number: uint64(c), Client: 5, Object: uint32(c), GPU: 1}
		switch c {
		case 'x':
			return Hearing{Gone: true}, nil
		case '-':
			t.ends++
			return Hearing{Ends: t.ends}, nil
		case 'O':
			e.Base, e.End = first, end
		case 'a':
			e.Object = 'A'
		case 'B':
			e.Object, e.Offset = 'A', gpuPage
		case 'C':
			e.GPU = 0
		case 'D':
			e.GPU = 2
		case 'G':
			e.GPU = 3
		}
		entries = append(entries, e)
	}
	return Hearing{Heard: true}, entries
}

func (t *told) Keep(e Heard) {
	if e.Parent == 0 {
		t.dropped++
	}
}

func (t *told) Stop() { t.stopped++ }

func (t *told) Learn(h Hearing, e Heard) {
	e.Number = h.Ends
	t.learned = append(t.learned, e)
}

// Watch is an export whose request names an object.
func (t *told) Watch(uintptr, uint64, uint64) (Seen, error) {
	return Seen{FD: -1, Client: 5, Object: 'W'}, nil
}

// open is a session whose driver notes what is duplicated and freed. refuses says whether it refuses to duplicate.
func (t *told) open(test *testing.T, v verdict, refuses func() bool) (s *session, made *string) {
	driver, err := cuda.Load()
	require.NoError(test, err)
	fd, err := sys.Open("/dev/null", unix.O_RDWR)
	require.NoError(test, err)
	file, err := sys.Identify(fd)
	require.NoError(test, err)
	made = new(string)
	c := &client{fd: fd, file: file, root: 9}
	c.ioctl = func(_ int, code uint32, arg unsafe.Pointer) error {
		switch code & 0xff {
		case nrDup:
			d := (*dupArgs)(arg)
			if refuses() {
				d.status = statusInvalidObject
				return nil
			}
			*made += fmt.Sprintf("+%c", d.objectSource)
			d.object = d.objectSource
		case nrFree:
			*made += fmt.Sprintf("-%c", (*freeArgs)(arg).object)
		case nrControl:
			args := (*controlArgs)(arg)
			if t.lost {
				args.status = statusInvalidClient
				return nil
			}
			if args.command != controlSurfaceInfo {
				return unix.EPERM
			}
			list := (*surfaceInfo)(sys.Pointer(uintptr(args.params)))
			(*surfaceItem)(sys.Pointer(uintptr(list.list))).data = uint32(t.size / surfacePage)
		case nrMapMemory:
			(*mapArgs)(arg).flags = 2<<15 | 2<<23
		case nrUnmapMemory:
		default:
			return unix.EPERM
		}
		return nil
	}
	proofs := new(proofs)
	proofs[byHearing].verdict.Store(int32(v))
	for i := range 3 {
		c.gpus.Store(i, &gpu{client: c, ordinal: i, proofs: proofs, soc: i == 2})
	}
	process.client, process.holders = c, 1
	process.devices.Store(3)
	process.ordinals.Store(&map[uint32]int{1: 0, 2: 1, 3: 2})
	process.proven.Store(true)
	test.Cleanup(func() {
		require.NoError(test, sys.CloseOwn(fd, file))
		process.client, process.holders = nil, 0
		process.devices.Store(0)
		process.ordinals.Store(nil)
		process.proven.Store(false)
	})
	return &session{cuda: driver, ears: t, client: c}, made
}

// A pin duplicates each object once, and only what it finds again after that. What is not known to be heard is asked
// for, unless it has changed: here CUDA knows no such memory.
func TestPinOfHeardMemory(t *testing.T) {
	sim := cudatest.Need(t)
	for _, c := range []struct {
		looks   []string
		refuses bool // the driver refuses to duplicate
		verdict verdict
		want    error
		made    string
		dropped int
		asked   bool
	}{
		{[]string{"A"}, false, right, nil, "+A", 0, false},
		{[]string{"AB"}, false, right, nil, "+A", 0, false},
		{[]string{"BA"}, false, right, nil, "+A+A", 0, false},
		{[]string{"AE"}, false, right, nil, "+A+E", 0, false},
		{[]string{"A", "a"}, false, right, nil, "+A-A+A", 0, false},
		{[]string{"A", "x"}, false, right, unix.EINVAL, "+A-A", 0, false},
		{[]string{"A", "AB"}, false, right, nil, "+A-A+A", 0, false},
		{slices.Repeat([]string{"A", "a"}, 2*attempts), false, right, unix.EINVAL, strings.Repeat("+A-A", attempts), 0, false},
		{[]string{"x"}, false, right, unix.EINVAL, "", 0, false},
		{[]string{"A"}, true, right, unix.ENOTSUP, "", 1, false},
		{[]string{"AE"}, true, right, unix.ENOTSUP, "", 2, false},
		{[]string{"A", "a", "x"}, true, right, unix.EINVAL, "", 0, false},
		{[]string{"AD"}, false, right, unix.EINVAL, "", 0, false},
		{[]string{"AD", "A"}, false, right, nil, "+A", 0, false},
		{[]string{"C", "A"}, false, right, nil, "+A", 0, false},
		{[]string{"C"}, false, right, unix.EINVAL, "", 0, true},
		{[]string{"-"}, false, right, unix.EINVAL, "", 0, true},
		{[]string{"G"}, false, right, unix.EINVAL, "", 0, true},
		{[]string{"A"}, false, wrong, unix.EINVAL, "", 0, true},
	} {
		ears := &told{looks: c.looks}
		s, made := ears.open(t, c.verdict, func() bool { return c.refuses })
		size := uint64(len(c.looks[len(c.looks)-1])) * gpuPage
		_ = sim.Called()
		p, err := s.Pin(backend.PinRequest{Addr: firstPage, Size: size, Skip: size})
		require.ErrorIs(t, err, c.want, "%v", c.looks)
		require.Equal(t, c.want == nil, p != nil, "%v", c.looks)
		require.Equal(t, c.made, *made, "%v", c.looks)
		require.Equal(t, c.dropped, ears.dropped, "%v", c.looks)
		require.Equal(t, c.asked, slices.Contains(sim.Called(), "cuPointerGetAttributes"), "%v", c.looks)
	}
}

// If the driver refuses an object that CUDA was asked for, that is for good only while the memory is the same.
func TestPinOfAskedMemory(t *testing.T) {
	sim := cudatest.Need(t)
	defer sim.WithContext(0)()
	for _, frees := range []bool{false, true} {
		var addr uint64
		sim.Must("cuMemAlloc_v2", cudatest.Address(&addr), 1<<20)
		refused := 0
		ears := &told{looks: []string{"-"}}
		s, made := ears.open(t, right, func() bool {
			if refused++; frees {
				sim.Must("cuMemFree_v2", uintptr(addr))
			}
			return true
		})
		want := unix.ENOTSUP
		if frees {
			want = unix.EINVAL
		}
		_, err := s.Pin(backend.PinRequest{Addr: addr, Size: gpuPage})
		require.ErrorIs(t, err, want)
		require.Equal(t, 1, refused)
		require.Empty(t, *made)
		if !frees {
			sim.Must("cuMemFree_v2", uintptr(addr))
		}
	}
}

// What CUDA was asked for is heard from then on, unless something has ended since the question began.
func TestAskedMemoryIsLearned(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(0, 1<<20)
	ears := &told{looks: []string{"-"}}
	s, made := ears.open(t, right, func() bool { return false })
	p, err := s.Pin(backend.PinRequest{Addr: addr, Size: gpuPage})
	require.NoError(t, err)
	i, err := p.Info()
	require.NoError(t, err)
	require.Equal(t, []Heard{{Base: i.VA, End: i.VA + i.MappedSize, Client: 5, Object: 'W', Number: 2}}, ears.learned)
	require.NoError(t, p.Unpin())
	require.Equal(t, "+W-W", *made)
}

// A pin may end past its allocation, but not past the object.
func TestPinPastTheEnd(t *testing.T) {
	sim := cudatest.Need(t)
	addr := sim.MemAlloc(0, 1<<20)
	for size, want := range map[uint64]string{2 << 20: "+W", 2<<20 - gpuPage: "+W-W"} {
		ears := &told{looks: []string{"-"}, size: size}
		s, made := ears.open(t, right, func() bool { return false })
		p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 2 << 20, Tail: 1 << 20})
		require.Equal(t, want, *made)
		if want == "+W" {
			require.NoError(t, err)
			require.NoError(t, p.Unpin())
		} else {
			require.ErrorIs(t, err, unix.EINVAL)
		}
	}
}

// Before a proof nobody believes that memory is gone.
func TestPinOfGoneMemory(t *testing.T) {
	sim := cudatest.Need(t)
	for _, v := range []verdict{right, wrong} {
		s, _ := (&told{looks: []string{"x"}}).open(t, v, nil)
		process.proven.Store(false)
		_ = sim.Called()
		_, err := s.Pin(backend.PinRequest{Addr: firstPage, Size: gpuPage})
		require.ErrorIs(t, err, unix.EINVAL)
		require.Equal(t, v == wrong, slices.Contains(sim.Called(), "cuPointerGetAttributes"))
	}
}

// An object that does not show what was written to our own memory is not that memory's.
func TestProofOfOtherMemory(t *testing.T) {
	cudatest.Need(t)
	other := filepath.Join(t.TempDir(), "memory")
	require.NoError(t, os.WriteFile(other, make([]byte, hostPage), 0o600))
	ears := &told{looks: []string{"O"}, size: spaceVideo * surfacePage}
	s, made := ears.open(t, untried, func() bool { return false })
	g, err := s.gpuAt(0)
	require.NoError(t, err)
	g.path, g.bar1 = other, backend.WC
	for _, line := range []string{"^WARN: .* differs .* requests of libcuda .*\n$", "^$"} {
		require.Regexp(t, line, cudatest.Lines(t, func() { require.False(t, s.proves(g, byHearing)) }))
	}
	require.Equal(t, wrong, g.proofs[byHearing].of())
	require.Equal(t, 1, ears.stopped)
	require.Equal(t, "+O-O", *made)
}

// The GPU of a parent is asked for once, and anew when a client's devices may be others. 6 is a device, 7 a subdevice.
func TestGPUOfParent(t *testing.T) {
	cudatest.Need(t)
	s, _ := (&told{}).open(t, right, nil)
	process.owners.Store(nil)
	t.Cleanup(func() { process.owners.Store(nil) })
	var asked uint32
	s.client.ioctl = func(_ int, _ uint32, arg unsafe.Pointer) error {
		switch a := (*controlArgs)(arg); {
		case a.command == controlSubdevice && a.object == 6:
			(*subdevice)(sys.Pointer(uintptr(a.params))).object = 60
		case a.command == controlGPUID && (a.object == 60 || a.object == 7):
			asked++
			*(*uint32)(sys.Pointer(uintptr(a.params))) = asked
		default:
			a.status = statusInvalidObject
		}
		return nil
	}
	for _, c := range []struct{ clients, client, parent, want uint32 }{
		{1, 5, 6, 1}, {1, 5, 6, 1}, {1, 4, 6, 2}, {1, 5, 7, 3}, {1, 5, 6, 1}, {2, 5, 6, 4},
	} {
		got, err := s.gpuOfParent(Hearing{Clients: c.clients}, Heard{Client: c.client, Parent: c.parent, Control: s.client.fd})
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// The last session that holds the client closes it. A client that the host has closed is abandoned.
func TestHold(t *testing.T) {
	cudatest.NeedRaw(t)
	if unix.Access(controlPath, unix.F_OK) == nil {
		t.Skipf("%s exists here", controlPath)
	}
	ears := &told{}
	s, _ := ears.open(t, right, nil)
	c, other := s.client, new(session)
	for _, of := range []*session{s, other, s, other} {
		got, err := of.hold()
		require.NoError(t, err)
		require.Same(t, c, got)
	}
	require.Equal(t, 2, process.holders)
	require.NoError(t, s.Close())
	require.True(t, c.file.IsStill(c.fd))
	require.NoError(t, other.Close())
	require.False(t, c.file.IsStill(c.fd))
	require.Nil(t, process.client)

	for _, closes := range []bool{false, true} { // else only the driver shows it
		s, _ := ears.open(t, right, nil)
		ears.lost = !closes
		of := new(session)
		if closes {
			of = s
			require.NoError(t, sys.Close(s.client.fd))
		}
		_, err := of.hold()
		require.ErrorIs(t, err, unix.ENOENT, "there is no driver to make another client of")
		require.Nil(t, process.client)
		require.Zero(t, process.holders)
		require.NoError(t, s.Close())
	}
}
