package core

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// Device is an open backend: a way to the memory of all GPUs of this process.
type Device struct {
	session backend.Session

	// Held for a moment: no call runs under it. So a host that hooks mmap, or a function of CUDA,
	// may call any method there.
	mu     sync.Mutex
	closed bool // nothing new is made
	users  int  // of the session: the open device, each buffer, each call. The last one closes it

	buffers  set[*Buffer]
	memories set[*Memory]
	contexts set[*cuda.Primary] // made for memories

	page atomic.Uint64 // the backend's page in bytes, as far as PinBytes has found out; 0: unknown
}

// set are the objects of one kind that were made through a device.
type set[T any] struct{ of sync.Map }

func (s *set[T]) add(x T)    { s.of.Store(x, nil) }
func (s *set[T]) remove(x T) { s.of.Delete(x) }

func (s *set[T]) all() (all []T) {
	for x := range s.of.Range {
		all = append(all, x.(T))
	}
	return all
}

// HostMemory are the functions of the host that make and end mappings.
type HostMemory = sys.Memory

// UseMemory sets them. It must be called before the first mapping.
func UseMemory(m HostMemory) { sys.UseMemory(m) }

// UseLoader sets how the CUDA driver is loaded. It must be called before the first open.
func UseLoader(driver cuda.Loader) { cuda.UseLoader(driver) }

// Open opens the backend that opts name, or else the first one that opens. It does not
// initialise CUDA. Errors: ENODEV (no backend opens; the text has the reason of each), EINVAL
// (opts name no backend).
func Open(opts Options) (*Device, error) {
	candidates, err := choose(opts)
	if err != nil {
		return nil, err
	}
	session, err := openFirst(candidates)
	if err != nil {
		return nil, err
	}
	return &Device{session: session, users: 1}, nil
}

// NoBackend is the error of Open if no backend opens. It has the reason of each.
type NoBackend []error

func (e NoBackend) Error() string { return fmt.Sprintf("no backend opens: %v", errors.Join(e...)) }
func (e NoBackend) Unwrap() error { return unix.ENODEV }

// openFirst opens the first candidate that opens. Where that one cannot pin all memory, the
// next one that opens stands by.
func openFirst(candidates []backend.Backend) (backend.Session, error) {
	var reasons []error
	var tentative backend.Tentative
	for _, b := range candidates {
		session, err := b.Open()
		if err != nil {
			reasons = append(reasons, fmt.Errorf("the %s backend does not open: %w", b.Name(), err))
			continue
		}
		if tentative != nil {
			return newFallback(tentative, session), nil
		}
		if u, ok := session.(backend.Tentative); ok {
			tentative = u
			continue
		}
		log.Infof("gdr_open: using the %s backend", b.Name())
		return session, nil
	}
	if tentative != nil {
		// A pin may need one of those.
		for _, err := range reasons {
			log.Infof("gdr_open: %v", err)
		}
		log.Infof("gdr_open: using the %s backend", tentative.Name())
		return tentative, nil
	}
	return nil, NoBackend(reasons)
}

// ErrClosed is in the error of a method whose object, or whose Device, is closed already. It
// unwraps to EINVAL.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string { return unix.EINVAL.Error() }
func (closedError) Unwrap() error { return unix.EINVAL }

// enter begins a call, which uses the session until leave.
func (d *Device) enter() error { return d.unlessClosed(func() { d.users++ }) }

func (d *Device) leave() {
	if err := d.release(); err != nil {
		log.Warnf("another thread has closed the gdr_t (%v); close it after the last call", err)
	}
}

// release is leave with the error of the session's Close.
func (d *Device) release() error {
	d.mu.Lock()
	d.users--
	last := d.users == 0
	d.mu.Unlock()
	if last {
		return d.session.Close()
	}
	return nil
}

func (d *Device) unlessClosed(do func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("the device is closed, by gdr_close or Device.Close; use it before you close it: %w", ErrClosed)
	}
	do()
	return nil
}

// IsClosed reports whether Close has begun.
func (d *Device) IsClosed() bool { return d.unlessClosed(func() {}) != nil }

// Close ends all mappings, buffers and allocations that were made through the
// device, and the device. When a step fails, Close goes on. It returns the first error. Of
// several Closes one succeeds. It waits for no other call: one that makes something is refused, and
// ends that itself, as one does that maps or unmaps a buffer.
func (d *Device) Close() error {
	if err := d.unlessClosed(func() { d.closed = true }); err != nil {
		return err
	}
	var err error
	for _, b := range d.buffers.all() {
		if e := b.Close(); !errors.Is(e, ErrClosed) {
			err = cmp.Or(err, e)
		}
	}
	for _, m := range d.memories.all() {
		if e := m.Close(); !errors.Is(e, ErrClosed) {
			err = cmp.Or(err, e)
		}
	}
	for _, context := range d.contexts.all() {
		context.Release()
	}
	return cmp.Or(err, d.release())
}

// Attribute answers an attribute of the open backend. Errors: EINVAL (there is no such
// attribute).
func (d *Device) Attribute(a backend.Attr) (int, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	if !a.IsKnown() {
		return 0, fmt.Errorf("unknown attribute %d: %w", a, unix.EINVAL)
	}
	return d.session.Attribute(a)
}

// Version is the version of gdrdrv. On other backends it is this library's, but 2.4 on rm where
// a GPU is coherent with the CPU: programs that check it do not count on forced PCIe then.
func (d *Device) Version() (major, minor int, err error) {
	if err := d.enter(); err != nil {
		return 0, 0, err
	}
	defer d.leave()
	major, minor = d.session.Version()
	return major, minor, nil
}

// Backend is the name of the backend that pins. While the first pin has not decided between
// two, it is both names with a bar between them.
func (d *Device) Backend() (string, error) {
	if err := d.enter(); err != nil {
		return "", err
	}
	defer d.leave()
	return d.session.Name(), nil
}
