package nvml

import (
	"os"
	"os/exec"
	"testing"

	"gdrapi/core/dl"
	"gdrapi/core/dl/dltest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// nvmlInC is an NVML that refuses all but one call.
const nvmlInC = `
static int shutdowns;
int nvmlShutdowns(void) { return shutdowns; }
int nvmlInit_v2(void) { return FAIL_INIT; }
int nvmlShutdown(void) { shutdowns++; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d) { return i ? 15 : 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d) { return 6; }
int nvmlSystemGetConfComputeState(unsigned int s[3]) { s[1] = 1; return 3; }
`

// load builds an NVML and loads it. The loader recognises a loaded library by its soname, also
// where another one is installed.
func load(t *testing.T, init string) (find func(name string) uintptr) {
	t.Helper()
	if _, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|unloaded); err == nil {
		t.Skip("an NVML is loaded already")
	}
	lib := dltest.Library(t, nvmlInC, "-DFAIL_INIT="+init, "-Wl,-soname,libnvidia-ml.so.1")
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, purego.Dlclose(h))
		_, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|unloaded)
		require.Error(t, err, "each Open has an end, also one that fails")
	})
	return func(name string) uintptr {
		fn, err := purego.Dlsym(h, name)
		require.NoError(t, err)
		return fn
	}
}

const unloaded = 4 // RTLD_NOLOAD

func TestNVML(t *testing.T) {
	t.Run("no init", func(t *testing.T) {
		load(t, "9")
		_, err := Open()
		require.ErrorIs(t, err, Result(9))
		require.ErrorContains(t, err, "nvmlInit_v2")
	})
	t.Run("errors", func(t *testing.T) {
		find := load(t, "0")
		l, err := Open()
		require.NoError(t, err)
		_, err = l.Devices()
		require.ErrorIs(t, err, Result(15))
		_, err = l.deviceAt("0000:00:00.0")
		require.ErrorIs(t, err, Result(6))
		_, err = l.ConfidentialComputing()
		require.ErrorIs(t, err, Result(3))
		require.ErrorIs(t, l.call("nvmlNotThere"), unix.ENOTSUP)
		require.EqualError(t, Result(12), "NVML answered 12")
		require.Zero(t, dl.Call(find("nvmlShutdowns")))
		l.Close()
		require.EqualValues(t, 1, dl.Call(find("nvmlShutdowns")), "each Open is ended")
	})
}

// The simulated drivers, which LD_LIBRARY_PATH may name, have an NVML.
func TestNone(t *testing.T) {
	if os.Getenv("LD_LIBRARY_PATH") != "" {
		again := exec.Command(os.Args[0], "-test.run=^TestNone$", "-test.v")
		again.Env = append(os.Environ(), "LD_LIBRARY_PATH=")
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "TestNone")
		return
	}
	l, err := Open()
	if err == nil {
		l.Close()
		t.Skip("an NVML is installed here")
	}
	require.ErrorIs(t, err, unix.ENODEV)
}
