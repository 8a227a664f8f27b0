package rm

import (
	"testing"

	"gdrapi/core/cuda/cudatest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAccess(t *testing.T) {
	require.NoError(t, access("/dev/null"))
	require.Equal(t, unix.ENOENT, access("/dev/nothing of this name"))
}

// On a machine without the driver the real kernel says so.
func TestOpenWithoutTheDriver(t *testing.T) {
	cudatest.NeedRaw(t)
	if err := unix.Access(controlPath, unix.F_OK); err == nil {
		t.Skipf("%s exists here", controlPath)
	}
	_, err := Backend{}.Open()
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorContains(t, err, "compute,utility")
	require.Equal(t, "rm", Backend{}.Name())
}
