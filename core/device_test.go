package core

import (
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
)

// open opens a device whose only backend is a fake.
func open(t testing.TB) (*Device, *backendtest.Fake) {
	t.Helper()
	f := backendtest.New()
	d, err := Open(Options{Backends: []backend.Backend{f}})
	require.NoError(t, err)
	return d, f
}

var request = PinRequest{Addr: 0x10000, Size: 3 * 4096}

// Close waits for no call. The last one closes the session, and nothing is undone twice.
func TestCloseBesideACall(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	f.OnUnpin = func() {
		require.NoError(t, d.Close())
		require.ErrorIs(t, d.Close(), ErrClosed)
	}
	require.NoError(t, b.Close())
	require.Equal(t, []string{"open", "pin", "unpin", "close"}, f.Calls)
}

// What is made while another thread closes the device ends at once.
func TestMadeWhileClosed(t *testing.T) {
	for name, pin := range map[string]func(*Device) error{
		"pin":   func(d *Device) error { _, err := d.Pin(request); return err },
		"pinFD": func(d *Device) error { _, err := d.PinFD(3); return err },
		"map":   func(d *Device) error { _, err := d.Map(request.Addr, 8); return err },
	} {
		d, f := open(t)
		f.OnPin = func() { require.NoError(t, d.Close()) }
		require.ErrorIs(t, pin(d), ErrClosed, name)
		made := f.Made()
		require.Equal(t, []string{"unpin", "close"}, made[len(made)-2:], name)
		require.Zero(t, f.Live)
	}
	sim := cudatest.Need(t)
	d, _ := open(t)
	live := sim.Live()
	a, err := cuda.Alloc(0, 4096)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, err = d.addMemory(a)
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, live, sim.Live())
}
