package core

import (
	"testing"

	"gdrapi/core/backend"
	"gdrapi/core/backend/backendtest"

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

// Close waits for the running call, and undoes nothing twice.
func TestCloseWaitsForUnpin(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	inUnpin, goOn := make(chan struct{}), make(chan struct{})
	f.OnUnpin = func() {
		close(inUnpin)
		<-goOn
	}
	unpinned, closed := make(chan error), make(chan error)
	go func() { unpinned <- b.Close() }()
	<-inUnpin
	go func() { closed <- d.Close() }()
	for d.mu.TryRLock() { // false once Close waits
		d.mu.RUnlock()
	}
	close(goOn)
	require.NoError(t, <-unpinned)
	require.NoError(t, <-closed)
	require.Equal(t, []string{"open", "pin", "unpin", "close"}, f.Calls)
}
