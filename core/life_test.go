package core

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/internal/mmio"
	"gdrapi/core/internal/scripttest"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"
	"gdrapi/core/log/logtest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var request = PinRequest{Addr: 0x10000, Size: 3 * 4096}

// life is a device on one fake backend, or on two, and what its script has made last.
type life struct {
	*testing.T
	d             *Device
	f, other      *half
	mem           []byte // behind each mapping; nil: nothing
	b             *Buffer
	m, old        *Mapping
	inMunmap      func() // runs once
	munmapAnswers error
	munmaps       int // that went well
}

// live opens a device on these halves. The host's munmap is the script's.
func live(t *testing.T, halves ...*half) *life {
	t.Helper()
	l := &life{T: t, f: halves[0], other: halves[len(halves)-1]}
	var all []backend.Backend
	for _, h := range halves {
		backendtest.NoMemory(h.VA)
		all = append(all, h)
	}
	was := sys.HostMemory()
	t.Cleanup(func() { sys.UseMemory(was) })
	sys.UseMemory(sys.Memory{Mmap: was.Mmap, Munmap: func(va, size uintptr) error {
		if hook := l.inMunmap; hook != nil {
			l.inMunmap = nil
			hook()
		}
		err := cmp.Or(l.munmapAnswers, was.Munmap(va, size))
		if err == nil {
			l.munmaps++
		}
		return err
	}})
	var err error
	l.d, err = Open(Options{Backends: all})
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() { // a call that has failed may hold a lock
			_ = l.d.Close() // a mapping that stays counts in other tests
		}
	})
	return l
}

// withMemory is live on a fake whose mappings are of 64 KiB of memory.
func withMemory(t *testing.T) *life {
	l := live(t, newHalf("fake", false))
	mem, err := unix.Mmap(-1, 0, 1<<16+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	require.NoError(t, unix.Mprotect(mem[1<<16:], unix.PROT_NONE), "what lies behind it is nobody's")
	l.mem, l.f.VA = mem[:1<<16], uintptr(unsafe.Pointer(&mem[0]))
	return l
}

func (l *life) pinned(b *Buffer, err error) error {
	if err == nil {
		l.b = b
	}
	return err
}

func (l *life) mapped(m *Mapping, err error) error {
	if err == nil {
		l.old, l.m = l.m, m
	}
	return err
}

func (l *life) isLast(m *Mapping, err error) error {
	require.True(l, err != nil || m == l.m)
	return err
}

func failed(_ any, err error) error { return err }

// calls are the words of a script that may fail.
var calls = map[string]func(l *life) error{
	"pin":       func(l *life) error { return l.pinned(l.d.Pin(request)) },
	"pinFD":     func(l *life) error { return l.pinned(l.d.PinFD(1 << 16)) },
	"map":       func(l *life) error { return l.mapped(l.b.Map(4096, AnyType)) },
	"map2":      func(l *life) error { return l.mapped(l.b.Map(8192, AnyType)) },
	"Map":       func(l *life) error { return l.mapped(l.d.Map(request.Addr, 100)) },
	"unmap":     func(l *life) error { return l.m.Close() },
	"unmapOld":  func(l *life) error { return l.old.Close() },
	"unpin":     func(l *life) error { return l.b.Close() },
	"close":     func(l *life) error { return l.d.Close() },
	"read":      func(l *life) error { return failed(l.m.ReadAt(make([]byte, 8), 0)) },
	"write":     func(l *life) error { return failed(l.m.WriteAt([]byte("bytes"), 0)) },
	"info":      func(l *life) error { return failed(l.b.Info()) },
	"revoked":   func(l *life) error { return failed(l.b.Revoked()) },
	"mapping":   func(l *life) error { return l.isLast(l.b.Mapping()) },
	"export":    func(l *life) error { return failed(l.b.Export(ExportWhole)) },
	"export2":   func(l *life) error { return failed(l.b.Export(2)) },
	"object":    func(l *life) error { return failed(l.b.Object()) },
	"alloc":     func(l *life) error { return failed(l.d.Alloc(0, 8)) },
	"attribute": func(l *life) error { return failed(l.d.Attribute(backend.AttrForcePCIe)) },
	"backend":   func(l *life) error { return failed(l.d.Backend()) },
	"version":   func(l *life) error { _, _, err := l.d.Version(); return err },
	"isMapped":  func(l *life) error { return l.is(true) },
	"isFree":    func(l *life) error { return l.is(false) },
	"panic":     func(*life) error { panic("a defect") },
}

func (l *life) is(mapped bool) error {
	i, err := l.b.Info()
	require.Equal(l, mapped, i.Mapped)
	require.Equal(l, mapped, l.m != nil && l.m.IsOpen())
	return err
}

// errno is what a Go program makes of an error.
func errno(err error) unix.Errno {
	var e unix.Errno
	errors.As(err, &e)
	return e
}

// run runs a script of scripttest's, whose words are calls, and is:BACKEND. CALL{SCRIPT} runs the script within the call, in
// the driver's function or in the host's mmap or munmap. What fails is a function of the driver, or munmap; 2WHAT is that of
// the other backend. ErrClosed is ESHUTDOWN here, for others are EINVAL, too.
func (l *life) run(script string) {
	l.Helper()
	words := map[string]func(string) error{"is": func(want string) error {
		name, err := l.d.Backend()
		require.Equal(l, want, name, script)
		return err
	}}
	for name, call := range calls {
		words[name] = func(within string) error {
			l.callWith(name, within)
			err := call(l)
			if errors.Is(err, ErrClosed) {
				require.Equal(l, unix.EINVAL, errno(err))
				return unix.ESHUTDOWN
			}
			return err
		}
	}
	scripttest.Run(l, script, words, func(what, how string) {
		var err error
		if how == "NOTSERVED" {
			err = fmt.Errorf("with context: %w", backend.NotServed{Reason: unix.EINVAL})
		} else if how != "" {
			err = scripttest.Errno(l, how)
		}
		if other, found := strings.CutPrefix(what, "2"); found {
			l.other.Fail[other] = err
		} else if what == "munmap" {
			l.munmapAnswers = err
		} else {
			l.f.Fail[what] = err
		}
	})
}

// callWith has a script run in the next call.
func (l *life) callWith(call, script string) {
	if script == "" {
		return
	}
	ran := false
	hook := func() {
		if !ran { // a script has one such word
			ran = true
			l.run(script)
		}
	}
	place := map[string]*func(){"map": &l.f.OnMap, "unmap": &l.inMunmap, "unpin": &l.f.OnUnpin, "close": &l.f.OnUnpin}[call]
	if place == nil {
		place = &l.f.OnPin
	}
	*place = hook
	l.Cleanup(func() { require.True(l, ran, "%q did not run in %s", script, call) })
}

// end closes the device. What stays is what munmap has left.
func (l *life) end(script string, stays int) {
	l.Helper()
	_ = l.d.Close()
	require.Equal(l, stays, l.f.Live, script)
	require.Equal(l, 1-stays, l.f.count("close"), script)
	require.Equal(l, l.f.count("unmap"), l.munmaps, "a range is unmapped once: %s", script)
	require.Empty(l, l.d.buffers.all(), script)
	if stays > 0 {
		mmio.Count(l.m.typ, -1) // other tests count the live ones
	}
}

// asked lists the calls of the driver, but for those that only ask.
func (h *half) asked() string {
	return strings.Join(slices.DeleteFunc(h.Made(), func(c string) bool { return c == "info" || c == "flag" }), " ")
}

const onBuffer = " unpin=ESHUTDOWN map=ESHUTDOWN mapping=ESHUTDOWN info=ESHUTDOWN revoked=ESHUTDOWN unmap=ESHUTDOWN read=ESHUTDOWN write=ESHUTDOWN export=ESHUTDOWN object=ESHUTDOWN"
const onDevice = " pin=ESHUTDOWN pinFD=ESHUTDOWN Map=ESHUTDOWN alloc=ESHUTDOWN attribute=ESHUTDOWN version=ESHUTDOWN backend=ESHUTDOWN close=ESHUTDOWN"

func TestLives(t *testing.T) {
	for _, c := range []struct{ script, driver string }{
		// A failed unmap of the driver's leaves no mapping; an old mapping does not close the next one.
		{"pin map -unmap=EDOM unmap=EDOM +unmap isFree unmap=ESHUTDOWN map map=EAGAIN isMapped unmap", "pin map unmap map unmap unpin"},
		{"pin map unmap map2 unmapOld=ESHUTDOWN isMapped mapping unmap unpin", "pin map unmap map unmap unpin"},
		// The first error is told. What has failed is not tried again.
		{"pin map -unmap=EDOM unpin=EDOM unpin=ESHUTDOWN close", "pin map unmap unpin"},
		{"pin map -unpin=EXDEV unpin=EXDEV unpin=ESHUTDOWN close", "pin map unmap unpin"},
		{"pin map -unmap=EDOM -unpin=EXDEV unpin=EDOM unpin=ESHUTDOWN close", "pin map unmap unpin"},
		{"Map -unmap=EDOM -unpin=EXDEV unmap=EDOM unmap=ESHUTDOWN close", "pin map unmap unpin"},
		{"Map -unpin=EXDEV unmap=EXDEV unmap=ESHUTDOWN close", "pin map unmap unpin"},
		{"pin pin -unpin=EXDEV close=EXDEV", "pin pin unpin unpin"},
		{"pin -close=EXDEV close=EXDEV", "pin unpin"},
		{"-pin=ENOTSUP Map=ENOTSUP pin=ENOTSUP +pin -info=EIO pinFD=EIO Map=EIO -map=ENOMEM +info Map=ENOMEM -pin=EIO pin=EIO", "pin pin pin unpin pin unpin pin map unpin pin"},
		{"pin export export2=EINVAL -export=EPERM export=EPERM", "pin export export unpin"},
		{"pin object -object=ENOTSUP object=ENOTSUP", "pin object object unpin"},
		{"pinFD map -pin=EINVAL pinFD=EINVAL", "pin map pin unmap unpin"},
		// Closed while another call is under way: nothing is lost, or ends twice.
		{"pin unpin{close,close=ESHUTDOWN}", "pin unpin"},
		{"pin pin pin close{close=ESHUTDOWN}", "pin pin pin unpin unpin unpin"},
		{"pin map unmap{unmap=ESHUTDOWN} unmap=ESHUTDOWN", "pin map unmap unpin"},
		{"Map unmap{unmap=ESHUTDOWN} unmap=ESHUTDOWN", "pin map unmap unpin"},
		{"pin{close}=ESHUTDOWN", "pin unpin"},
		{"pinFD{close}=ESHUTDOWN", "pin unpin"},
		{"Map{close}=ESHUTDOWN", "pin unpin"},
		// What is closed refuses each call, and asks the driver nothing.
		{"pin map unpin" + onBuffer + onBuffer + " close" + onBuffer + onDevice + onBuffer + onDevice, "pin map unmap unpin"},
		{"pin map -munmap=EPERM unmap=EPERM isMapped write +munmap unmap", "pin map unmap unpin"},
		// A defect on the way to the driver loses no buffer: it is as before, and gone after Close.
		{"pin map{panic}=EIO~a.defect isFree map unmap{panic}=EIO~a.defect isMapped write unmap", "pin map map unmap unpin"},
		{"pin map{unpin,panic}=EIO~a.defect unpin=ESHUTDOWN", "pin map unpin"},
	} {
		l := withMemory(t)
		l.run(c.script)
		l.end(c.script, 0)
		require.Equal(t, "open "+c.driver+" close", l.f.asked(), c.script)
	}
}

// The log says where a defect is.
func TestPanicsHaveAStack(t *testing.T) {
	l := withMemory(t)
	l.run("pin")
	for _, script := range []string{"map{panic}=EIO~a.defect", "map unmap{panic}=EIO~a.defect"} {
		lines := logtest.Lines(t, log.Error, func() { l.run(script) })
		require.Regexp(t, "(?s)^ERR:  internal error, please report it: .*life_test.go", lines)
	}
}

// A host that hooks mmap and munmap may call any method there, also of the buffer that is mapped or
// unmapped. Where munmap fails the mapping stays; what was to be unpinned stays pinned.
func TestCallsInMmapAndMunmap(t *testing.T) {
	for words, ends := range map[string]bool{
		"info": false, "revoked": false, "export": false, "mapping=EINVAL": false, "map=EAGAIN": false, "pin": false, "unpin": true,
		"unpin,unpin=ESHUTDOWN": true, "close": true, "close,unpin=ESHUTDOWN": true,
	} {
		closed, stays, after := "", 0, " isMapped +munmap unmap"
		if words == "pin" {
			after = " write +munmap unmap"
		}
		if ends {
			closed, stays, after = "=ESHUTDOWN", 1, " write=ESHUTDOWN unmap=ESHUTDOWN +munmap"
		}
		for script, stays := range map[string]int{
			"pin map{" + words + "}" + closed:                            0,
			"pin map unmap{" + words + "} unmap=ESHUTDOWN":               0,
			"pin map -munmap=ENOMEM unmap{" + words + "}=ENOMEM" + after: stays,
		} {
			t.Run(script, func(t *testing.T) {
				l := withMemory(t)
				l.run(script)
				l.end(script, stays)
			})
		}
	}
	l, script := withMemory(t), "pin map -munmap=EPERM unpin=EPERM write=ESHUTDOWN unmap=ESHUTDOWN +munmap"
	l.run(script)
	l.end(script, 1)
}

// Writes have the full fence while mappings of several types are live, and only then.
func TestMappingsAreCounted(t *testing.T) {
	l := withMemory(t)
	one := func(typ MappingType, mixed bool) *Mapping {
		l.f.Type = typ
		l.run("Map")
		require.Equal(t, mixed, mmio.Mixed())
		return l.m
	}
	for range 2 {
		wc, wc2, cached := one(WriteCombined, false), one(WriteCombined, false), one(Cached, true)
		require.NoError(t, wc.Close())
		require.True(t, mmio.Mixed())
		l.run("-unmap=EIO")
		require.Equal(t, unix.EIO, errno(wc2.Close()))
		require.False(t, mmio.Mixed(), "also where the driver fails")
		device := one(DeviceMemory, true)
		l.run("+unmap -map=EIO")
		require.NoError(t, cached.Close())
		l.f.Type = WriteCombined
		l.run("Map=EIO +map")
		require.False(t, mmio.Mixed(), "what was not mapped does not count")
		require.NoError(t, device.Close())
	}
}

// Buffers end before memory is freed. What is allocated while another thread closes the device is freed.
func TestMemory(t *testing.T) {
	sim := cudatest.Need(t)
	l := live(t, newHalf("fake", false))
	l.run("pin alloc -unpin=EDOM")
	sim.Fail("cuMemUnmap", int(cuda.ErrUnknown), 1)
	l.run("close=EDOM")
	l = live(t, newHalf("fake", false))
	before := sim.Live()
	a, err := cuda.Alloc(0, 4096)
	require.NoError(t, err)
	l.run("close")
	require.ErrorIs(t, failed(l.d.addMemory(a)), ErrClosed)
	require.Equal(t, before, sim.Live())
}
