package core

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestChoose(t *testing.T) {
	names := func(o Options) []string {
		bs, err := choose(o)
		require.NoError(t, err)
		var ns []string
		for _, b := range bs {
			ns = append(ns, b.Name())
		}
		return ns
	}
	require.Equal(t, []string{"gdrdrv", "dmabuf", "rm"}, names(Options{}), "vulkan is taken on request alone")
	require.Equal(t, []string{"dmabuf"}, names(Options{ForceDMABuf: true}))
	require.Equal(t, []string{"vulkan"}, names(Options{Backend: "vulkan", ForceDMABuf: true}))
	require.Equal(t, []string{"rm"}, names(Options{Backend: "rm"}))
	for _, bad := range []string{"Vulkan", "dmabuf ", "x"} {
		_, err := choose(Options{Backend: bad})
		require.Equal(t, unix.EINVAL, Errno(err))
	}
}

func TestBackends(t *testing.T) {
	var names []string
	for _, b := range Backends(Options{}) {
		names = append(names, b.Name())
	}
	require.Equal(t, []string{"gdrdrv", "dmabuf", "rm", "vulkan"}, names)
}

type coded struct{}

func (coded) Error() string     { return "coded" }
func (coded) Errno() unix.Errno { return unix.EDOM }

func TestErrno(t *testing.T) {
	require.Zero(t, Errno(nil))
	require.Equal(t, unix.EDOM, Errno(fmt.Errorf("a: %w", coded{})))
	require.Equal(t, unix.EPERM, Errno(fmt.Errorf("a: %w", unix.EPERM)))
	require.Equal(t, unix.EPERM, Errno(errors.Join(errors.New("x"), unix.EPERM)))
	require.Equal(t, unix.EDOM, Errno(errors.Join(errors.New("x"), fmt.Errorf("a: %w", coded{}), unix.EPERM)))
	require.Equal(t, unix.EDOM, Errno(fmt.Errorf("%w: %w", errors.New("x"), coded{})))
	require.Equal(t, unix.EIO, Errno(errors.New("x")))
	require.Equal(t, unix.EIO, Errno(errors.Join(errors.New("x"), fmt.Errorf("%w", errors.New("y")))))
}

func TestOutcome(t *testing.T) {
	require.Zero(t, Outcome("gdr_map", nil, nil))
	require.Equal(t, unix.EAGAIN, Outcome("gdr_map", unix.EAGAIN, nil))
	require.Equal(t, unix.EIO, Outcome("gdr_map", nil, "a defect"))
	require.Equal(t, unix.EIO, Outcome("gdr_map", unix.EAGAIN, errors.New("a defect")))
}
