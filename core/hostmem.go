package core

import (
	"fmt"

	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"

	"golang.org/x/sys/unix"
)

// hostKey names memory of one gdr_host_register by the address of its first byte.
type hostKey struct {
	owner *context
	addr  uintptr
}

// HostRegister page-locks the size bytes of the process at addr, until HostUnregister or
// Close.
func (l *Library) HostRegister(g Handle, addr uintptr, size uint64) error {
	c, err := l.enter(g)
	if err != nil {
		return err
	}
	defer c.leave()
	switch {
	case addr == 0 || size == 0:
		return fmt.Errorf("registration of %d bytes at %#x: neither may be 0: %w", size, addr, unix.EINVAL)
	case uint64(addr)+size < size:
		return fmt.Errorf("registration of %d bytes at %#x: the range wraps: %w", size, addr, unix.EINVAL)
	case !sys.IsMapped(addr, size):
		// A driver answers "out of memory" for a range that is too long (H200, driver 580.159).
		return fmt.Errorf("registration of %d bytes at %#x: the process does not have all of this memory: %w", size, addr, unix.EINVAL)
	}
	m, err := cuda.RegisterHost(addr, size)
	if err != nil {
		return fmt.Errorf("registration of %d bytes at %#x: %w", size, addr, err)
	}
	key := hostKey{c, addr}
	l.mu.Lock()
	lost := l.hosts[key]
	l.hosts[key] = m
	l.mu.Unlock()
	if lost != nil {
		// The host has reset the GPU since, which ended that registration.
		lost.Release()
	}
	return nil
}

// HostUnregister ends a registration of HostRegister.
func (l *Library) HostUnregister(g Handle, addr uintptr) error {
	c, err := l.enter(g)
	if err != nil {
		return err
	}
	defer c.leave()
	return l.unregister(hostKey{c, addr})
}

// unregister forgets the registration even when the driver fails, because a caller could
// do nothing with it.
func (l *Library) unregister(key hostKey) error {
	l.mu.Lock()
	m := l.hosts[key]
	delete(l.hosts, key)
	l.mu.Unlock()
	if m == nil {
		return fmt.Errorf("no memory registered through this gdr_t begins at %#x: %w", key.addr, unix.EINVAL)
	}
	if err := m.Unregister(); err != nil {
		return fmt.Errorf("end of the registration at %#x: %w", key.addr, err)
	}
	return nil
}

// unregisterAll ends the registrations of a context that is being closed. It returns the
// first error.
func (l *Library) unregisterAll(c *context) error {
	var keys []hostKey
	l.mu.RLock()
	for key := range l.hosts {
		if key.owner == c {
			keys = append(keys, key)
		}
	}
	l.mu.RUnlock()
	var err error
	for _, key := range keys {
		err = first(err, l.unregister(key))
	}
	return err
}
