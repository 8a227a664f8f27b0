package core

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzOptions: whatever the environment has, one of three things happens. All backends
// are tried in their order, the named one is tried, or the answer is EINVAL.
func FuzzOptions(f *testing.F) {
	for _, name := range []string{"", "gdrdrv", "dmabuf", "rm", "GDRDRV", "dmabuf ", "1", "\x00", "gdrdrv,dmabuf"} {
		f.Add(name, false)
		f.Add(name, true)
	}
	known := map[string]bool{}
	for _, b := range Backends(Options{}) {
		known[b.Name()] = true
	}
	f.Fuzz(func(t *testing.T, name string, force bool) {
		opts := Options{Backend: name, ForceDMABuf: force}
		got, err := choose(opts)
		switch {
		case name == "" && !force:
			require.NoError(t, err)
			require.Len(t, got, 3)
		case name == "":
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.Equal(t, "dmabuf", got[0].Name())
		case known[name]:
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.Equal(t, name, got[0].Name())
		default:
			require.ErrorIs(t, err, unix.EINVAL)
			require.Equal(t, unix.EINVAL, Errno(err))
			require.Empty(t, got)
			require.ErrorContains(t, err, "GDRCOPY_BACKEND")
		}
	})
}
