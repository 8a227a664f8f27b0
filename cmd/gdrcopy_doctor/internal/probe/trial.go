package probe

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core/cuda"
)

const (
	gpuPage = 1 << 16 // bytes; a mapping begins on one
	word    = 4       // bytes of a timed copy
)

// failed is an error with the step that it came from.
type failed struct {
	step string
	err  error
}

func (f *failed) Error() string { return f.step + ": " + f.err.Error() }

func step(name string, err error) error {
	if err == nil {
		return nil
	}
	return &failed{name, err}
}

// try uses a libgdrapi as a consumer does, on each GPU. The environment is the caller's.
func try(library string) facts.Trial {
	runtime.LockOSThread() // a context is current on one thread
	defer runtime.UnlockOSThread()
	var t facts.Trial
	var f *failed
	if err := use(&t, library); errors.As(err, &f) {
		t.Step, t.Error = f.step, f.err.Error()
	} else if err != nil {
		t.Step, t.Error = "trial", err.Error()
	}
	return t
}

// mapping is GPU memory that the CPU sees.
type mapping struct {
	library *library
	handle  uint64 // gdr_mh_t
	va      uintptr
}

func use(t *facts.Trial, library string) (err error) {
	l, err := load(library)
	if err != nil {
		return step("dlopen", err)
	}
	// gdr_open comes before cuInit, as in consumers that fork.
	g, err := l.call("gdr_open")
	if err != nil {
		return step("gdr_open", err)
	}
	if g == 0 {
		return step("gdr_open", errors.New("NULL"))
	}
	defer func() { err = errors.Join(err, l.errno("gdr_close", g)) }()
	t.Backend = l.backend(g)
	cu, err := cuda.Load()
	if err != nil {
		return step("cuInit", err)
	}
	if err := cu.Init(); err != nil {
		return step("cuInit", err)
	}
	n, err := cu.DeviceCount()
	if err != nil {
		return step("cuInit", err)
	}
	for ordinal := range max(n, 1) {
		err := cu.WithPrimary(ordinal, func(*cuda.Driver) error { return onGPU(t, l, g, ordinal) })
		var f *failed
		if errors.As(err, &f) {
			return step(f.step, onThis(ordinal, f.err))
		}
		if err != nil {
			return onThis(ordinal, err)
		}
		t.GPUs++
	}
	return nil
}

// onGPU tries plain memory of a GPU, and memory of a pool of its. It needs the GPU's context.
func onGPU(t *facts.Trial, l *library, g uintptr, ordinal int) error {
	addr, free, err := allocate()
	if err != nil {
		return step("cuMemAlloc", err)
	}
	defer free()
	err = copies(t, l, g, addr, ordinal == 0)
	if err != nil || t.Pool != "" && t.Pool != facts.PoolWorks {
		return err
	}
	addr, free, err = allocatePool()
	if err != nil {
		return nil // there are none, or nothing is left in them
	}
	defer free()
	t.Pool = facts.PoolWorks
	if err := copies(t, l, g, addr, false); err != nil {
		t.Pool = onThis(ordinal, err).Error()
	}
	return nil
}

// onThis names the GPU of an error. The first one's needs no name.
func onThis(ordinal int, err error) error {
	if ordinal == 0 {
		return err
	}
	return fmt.Errorf("on CUDA device %d: %w", ordinal, err)
}

// backend is the name of the library's choice, "gdrdrv" of a library that has no other.
func (l *library) backend(g uintptr) string {
	var name [16]byte
	if err := l.errno("gdr_get_backend", g, uintptr(unsafe.Pointer(&name)), uintptr(len(name))); err != nil {
		return "gdrdrv"
	}
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text)
}

// allocate gives the address of a GPU page that is ours. It is plain memory, as a
// program's usually is. It needs a current context.
func allocate() (addr uint64, free func(), err error) {
	var raw uint64
	if err := ask("cuMemAlloc_v2", uintptr(unsafe.Pointer(&raw)), 2*gpuPage); err != nil {
		return 0, nil, err
	}
	free = func() { _ = ask("cuMemFree_v2", uintptr(raw)) }
	return pageAt(raw), free, nil
}

// allocatePool is allocate from the GPU's memory pool.
func allocatePool() (addr uint64, free func(), err error) {
	const stream = 0
	var raw uint64
	if err := ask("cuMemAllocAsync", uintptr(unsafe.Pointer(&raw)), 2*gpuPage, stream); err != nil {
		return 0, nil, err
	}
	free = func() {
		_ = ask("cuMemFreeAsync", uintptr(raw), stream)
		_ = ask("cuStreamSynchronize", stream)
	}
	if err := ask("cuStreamSynchronize", stream); err != nil {
		free()
		return 0, nil, err
	}
	return pageAt(raw), free, nil
}

// ask calls a function of libcuda's that answers a CUresult.
//
//go:uintptrescapes
func ask(name string, args ...uintptr) error {
	lib, err := load("libcuda.so.1")
	if err != nil {
		return err
	}
	r, err := lib.call(name, args...)
	if err == nil && int32(r) != 0 {
		err = cuda.Result(int32(r))
	}
	return err
}

// pageAt is where the first GPU page from an address on begins.
func pageAt(addr uint64) uint64 { return (addr + gpuPage - 1) &^ (gpuPage - 1) }

// copies pins and maps a page, writes to it and reads it back. It may be timed, too.
func copies(t *facts.Trial, l *library, g uintptr, addr uint64, timed bool) (err error) {
	m := mapping{library: l}
	if err := l.errno("gdr_pin_buffer", g, uintptr(addr), gpuPage, 0, 0, uintptr(unsafe.Pointer(&m.handle))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.errno("gdr_unpin_buffer", g, uintptr(m.handle))) }()
	t.Backend = l.backend(g) // the first pin may have decided
	if err := l.errno("gdr_map", g, uintptr(m.handle), uintptr(unsafe.Pointer(&m.va)), gpuPage); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.errno("gdr_unmap", g, uintptr(m.handle), m.va, gpuPage)) }()
	if err := m.compare(); err != nil || !timed {
		return err
	}
	return m.time(time.Now, t)
}

// compare writes bytes, reads them back and compares the two. It does so twice, with other
// bytes: those of an earlier trial may still be there.
func (m mapping) compare() error {
	for _, factor := range []int{7, 11} {
		sent, got := make([]byte, 256), make([]byte, 256)
		for i := range sent {
			sent[i] = byte(i*factor + 1)
		}
		if err := m.write(sent); err != nil {
			return err
		}
		if err := m.read(got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return step("comparison", fmt.Errorf("what was read (% x...) is not what was written (% x...)", got[:8], sent[:8]))
		}
	}
	return nil
}

func (m mapping) write(b []byte) error {
	return m.library.errno("gdr_copy_to_mapping", uintptr(m.handle), m.va, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
}

func (m mapping) read(b []byte) error {
	return m.library.errno("gdr_copy_from_mapping", uintptr(m.handle), uintptr(unsafe.Pointer(&b[0])), m.va, uintptr(len(b)))
}

// time measures a copy of one word each way, less what a call from here takes by
// itself.
func (m mapping) time(now func() time.Time, t *facts.Trial) (err error) {
	b := make([]byte, word)
	var major, minor int32
	// It answers nothing: what is in the register of an answer may be any number.
	empty := func() error {
		_, err := m.library.call("gdr_runtime_get_version", uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))
		return err
	}
	if t.WriteNS, err = beyond(now, empty, func() error { return m.write(b) }); err != nil {
		return err
	}
	t.ReadNS, err = beyond(now, empty, func() error { return m.read(b) })
	return err
}

// beyond is how much longer a call takes than an empty one, in nanoseconds. The two are
// timed in turns, and the quickest round of each counts, for the CPU's speed changes.
func beyond(now func() time.Time, empty, call func() error) (float64, error) {
	const rounds = 50
	base, all := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range rounds {
		for _, c := range []struct {
			do    func() error
			least *time.Duration
		}{{empty, &base}, {call, &all}} {
			d, err := round(now, c.do)
			if err != nil {
				return 0, err
			}
			*c.least = min(*c.least, d)
		}
	}
	return max(float64((all-base).Nanoseconds())/callsOfRound, 1), nil
}

const callsOfRound = 100

func round(now func() time.Time, do func() error) (time.Duration, error) {
	start := now()
	for range callsOfRound {
		if err := do(); err != nil {
			return 0, err
		}
	}
	return now().Sub(start), nil
}
