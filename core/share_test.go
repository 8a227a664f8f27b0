package core

import (
	"testing"

	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestExport(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	fd, err := b.Export(ExportWhole)
	require.NoError(t, err)
	require.EqualValues(t, request.Addr, fd)
	_, err = b.Export(2)
	require.ErrorIs(t, err, unix.EINVAL)
	f.Fail["export"] = unix.EPERM
	_, err = b.Export(0)
	require.ErrorIs(t, err, unix.EPERM)
	require.NoError(t, b.Close())
	_, err = b.Export(0)
	require.ErrorIs(t, err, ErrClosed)
}

func TestObject(t *testing.T) {
	d, f := open(t)
	b, err := d.Pin(request)
	require.NoError(t, err)
	o, err := b.Object()
	require.NoError(t, err)
	require.Equal(t, Object{Offset: request.Addr, Length: request.Addr + request.Size, Count: 1}, o)
	f.Fail["object"] = unix.ENOTSUP
	_, err = b.Object()
	require.ErrorIs(t, err, unix.ENOTSUP)
	require.NoError(t, b.Close())
	_, err = b.Object()
	require.ErrorIs(t, err, ErrClosed)
}

// A buffer of a descriptor is one like any other.
func TestPinFD(t *testing.T) {
	d, f := open(t)
	b, err := d.PinFD(1 << 16)
	require.NoError(t, err)
	m, err := b.Map(100, AnyType)
	require.NoError(t, err)
	require.EqualValues(t, 1<<16, m.GPU())
	f.Fail["info"] = unix.EIO
	_, err = d.PinFD(1 << 16)
	require.ErrorIs(t, err, unix.EIO)
	require.Equal(t, 1, f.Live)
	f.Fail["pin"] = unix.EINVAL
	_, err = d.PinFD(1 << 16)
	require.ErrorIs(t, err, unix.EINVAL)
	require.NoError(t, d.Close())
	require.Zero(t, f.Live)
	_, err = d.PinFD(1 << 16)
	require.ErrorIs(t, err, ErrClosed)
}

// The descriptor says which backend it is of. Nothing is decided by it.
func TestDescriptorOfEitherBackend(t *testing.T) {
	for _, c := range []struct {
		what  string
		first error
		pins  [2]int
		want  unix.Errno
	}{
		{"of the first", nil, [2]int{1, 0}, 0},
		{"of the standby", backend.NotServed{Reason: unix.ENOTSUP}, [2]int{1, 1}, 0},
		{"of neither", unix.EINVAL, [2]int{1, 0}, unix.EINVAL},
	} {
		able, other := newHalf("able", true), newHalf("other", false)
		able.Fail["pin"] = c.first
		d := openHalves(t, able, other)
		_, err := d.PinFD(1 << 16)
		require.Equal(t, c.want, Errno(err), c.what)
		require.Equal(t, c.pins, [2]int{able.count("pin"), other.count("pin")}, c.what)
		require.Equal(t, "able|other", nameOf(t, d), c.what)
		require.NoError(t, d.Close())
	}
}
