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

// nvmlInC is an NVML of two GPUs. The second GPU is older and has no MIG.
const nvmlInC = `
#include <string.h>
static char first, second;
static int refusal, shutdowns;
void nvmlRefuse(int result) { refusal = result; }
int nvmlShutdowns(void) { return shutdowns; }
struct pci { char legacy[16]; unsigned int numbers[5]; char id[32]; };
int nvmlInit_v2(void) { return FAIL_INIT; }
int nvmlShutdown(void) { shutdowns++; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return refusal == 7 ? 7 : 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **d)
{
	*d = i ? &second : &first;
	return i < 2 ? refusal : 2;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d)
{
	*d = &second;
	return strcmp(id, "0001:8d:02.0") ? 6 : 0;
}
int nvmlDeviceGetPciInfo_v3(void *d, struct pci *p)
{
	strcpy(p->id, d == &first ? "00000000:18:00.0" : "00000001:8D:02.0");
	return refusal;
}
int nvmlDeviceGetBAR1MemoryInfo(void *d, unsigned long long m[3])
{
	m[0] = (unsigned long long)(d == &first ? 128 : 64) << 30;
	m[1] = 60ull << 30;
	m[2] = m[0] - m[1];
	return refusal;
}
int nvmlDeviceGetMigMode(void *d, unsigned int *now, unsigned int *next)
{
	*now = 1;
	*next = 0;
	return d == &first ? 0 : 3;
}
int nvmlDeviceGetVirtualizationMode(void *d, int *mode)
{
	*mode = d == &first ? 1 : 2;
	return refusal;
}
int nvmlSystemGetConfComputeState(unsigned int s[3])
{
	s[0] = s[2] = 0;
	s[1] = 1;
	return refusal;
}
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
	t.Run("two GPUs", func(t *testing.T) {
		find := load(t, "0")
		l, err := Open()
		require.NoError(t, err)
		all, err := l.Devices()
		require.NoError(t, err)
		require.Len(t, all, 2)

		pci, err := all[0].PCI()
		require.NoError(t, err)
		require.Equal(t, "00000000:18:00.0", pci)
		mig, err := all[0].MIG()
		require.NoError(t, err)
		require.True(t, mig)
		_, err = all[1].MIG()
		require.ErrorIs(t, err, Result(3))
		vgpu, err := all[0].VGPU()
		require.NoError(t, err)
		require.False(t, vgpu)
		vgpu, err = all[1].VGPU()
		require.NoError(t, err)
		require.True(t, vgpu)
		cc, err := l.ConfidentialComputing()
		require.NoError(t, err)
		require.True(t, cc)

		at, err := l.deviceAt("0001:8d:02.0")
		require.NoError(t, err)
		require.Equal(t, all[1], at)
		bar, err := at.BAR1()
		require.NoError(t, err)
		require.Equal(t, BAR1{Total: 64 << 30, Free: 60 << 30}, bar)
		bar, err = all[0].BAR1()
		require.NoError(t, err)
		require.Equal(t, BAR1{Total: 128 << 30, Free: 60 << 30}, bar)
		_, err = l.deviceAt("0000:00:00.0")
		require.ErrorIs(t, err, Result(6))
		require.ErrorIs(t, l.call("nvmlNotThere"), unix.ENOTSUP)
		require.EqualError(t, Result(12), "NVML answered 12")

		last := func(_ any, err error) error { return err }
		for _, result := range []Result{7, 15} { // the count itself is refused, or what follows it
			dl.Call(find("nvmlRefuse"), int32(result))
			for what, err := range map[string]error{
				"devices": last(l.Devices()), "PCI": last(at.PCI()), "BAR1": last(at.BAR1()),
				"virtualization": last(at.VGPU()), "computing": last(l.ConfidentialComputing()),
			} {
				require.ErrorIs(t, err, result, what)
			}
		}
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
