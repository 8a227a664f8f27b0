package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gdrapi/core/log"
	"gdrapi/core/log/logtest"

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
	require.Equal(t, []string{"gdrdrv", "dmabuf", "rm"}, names(Options{}))
	require.Equal(t, []string{"dmabuf"}, names(Options{ForceDMABuf: true}))
	require.Equal(t, []string{"gdrdrv"}, names(Options{Backend: "gdrdrv", ForceDMABuf: true}))
	require.Equal(t, []string{"rm"}, names(Options{Backend: "rm"}))
	for _, bad := range []string{"vulkan", "RM", "dmabuf ", "x"} {
		_, err := choose(Options{Backend: bad})
		require.Equal(t, unix.EINVAL, Errno(err))
	}
}

func TestErrno(t *testing.T) {
	require.Zero(t, Errno(nil))
	require.Equal(t, unix.EPERM, Errno(errors.Join(errors.New("x"), fmt.Errorf("a: %w", unix.EPERM))))
	require.Equal(t, unix.EIO, Errno(errors.New("x")))
}

func TestOutcome(t *testing.T) {
	require.Zero(t, Outcome("gdr_map", nil, nil))
	require.Equal(t, unix.EAGAIN, Outcome("gdr_map", unix.EAGAIN, nil))
	require.Equal(t, unix.EIO, Outcome("gdr_map", nil, "a defect"))
	require.Equal(t, unix.EIO, Outcome("gdr_map", unix.EAGAIN, errors.New("a defect")))

	lines := logtest.Lines(t, log.Error, func() {
		Outcome("gdr_map", nil, nil)
		Outcome("gdr_map", fmt.Errorf("it is mapped: %w", unix.EAGAIN), nil)
		Outcome("gdr_map", nil, "a defect")
	})
	first, rest, _ := strings.Cut(lines, "\n")
	require.Equal(t, "ERR:  gdr_map: it is mapped: resource temporarily unavailable (errno 11)", first, "a success has no line")
	require.Regexp(t, "^ERR:  gdr_map: internal error, please report it: a defect\ngoroutine ", rest)
	require.Empty(t, logtest.Lines(t, log.Off, func() { Outcome("gdr_map", unix.EAGAIN, nil) }))
}
