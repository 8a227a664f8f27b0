package rm

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/cuda/cudatest"
	"gdrapi/core/dl"
	"gdrapi/core/dl/dltest"
	"gdrapi/core/internal/sys"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernel itself, with a plain file instead of the device.
func TestLinux(t *testing.T) {
	var k kernel = linux{}
	page := uintptr(hostPage)
	path := filepath.Join(t.TempDir(), "memory")
	require.NoError(t, os.WriteFile(path, make([]byte, 2*page), 0o600))
	fd, err := k.open(path)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags)
	var arg registerFD
	require.Equal(t, unix.ENOTTY, k.ioctl(fd, request(nrRegisterFD, unsafe.Sizeof(arg)), unsafe.Pointer(&arg)))

	va, err := k.mmap(fd, 2*page)
	require.NoError(t, err)
	require.NoError(t, k.dontFork(va, 2*page))
	range1, err := k.reserve(3 * page)
	require.NoError(t, err)
	require.True(t, cudatest.Faults(range1))
	require.NoError(t, k.mmapInto(range1+page, fd, page))
	cudatest.Bytes(va, 8)[7] = 77
	require.Equal(t, byte(77), cudatest.Bytes(range1+page, 8)[7])
	require.NoError(t, k.munmap(va, 2*page))
	require.NoError(t, k.munmap(range1, 3*page))

	first, err := k.identity(fd)
	require.NoError(t, err)
	null, err := k.open("/dev/null")
	require.NoError(t, err)
	other, err := k.identity(null)
	require.NoError(t, err)
	require.NotEqual(t, first, other)
	again, err := k.open("/dev/null")
	require.NoError(t, err)
	same, err := k.identity(again)
	require.NoError(t, err)
	require.Equal(t, other, same)
	for _, fd := range []int{fd, null, again} {
		require.NoError(t, k.close(fd))
	}
	_, err = k.identity(fd)
	require.Equal(t, unix.EBADF, err)
	_, err = k.open(path + "x")
	require.Equal(t, unix.ENOENT, err)
}

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

// A fake NVML: 60 of 64 GiB of BAR1 are free, on one GPU.
const nvmlInC = `
#include <string.h>
#ifndef FAIL_INIT
#define FAIL_INIT 0
#endif
#ifndef FAIL_ASK
#define FAIL_ASK 0
#endif
#ifndef MIG
#define MIG 1
#endif
int nvmlInit_v2(void) { return FAIL_INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
	*current = MIG;
	*pending = !MIG;
	return FAIL_ASK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
	*device = (void *)7;
	return strcmp(id, "0001:8d:02.0") ? 6 : 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void *device, unsigned long long m[3])
{
	m[0] = 64ull << 30;
	m[1] = 60ull << 30;
	m[2] = 4ull << 30;
	return device == (void *)7 ? FAIL_ASK : 2;
}
`

// NVML is asked when an error is written, not when it is made, and once a second at most.
func TestBAR1IsAskedForTheLog(t *testing.T) {
	w := newWorld(t)
	asked := 0
	askBAR1 = func(cuda.PCIAddress) string { asked++; return "none of it is free" }
	t.Cleanup(func() { askBAR1 = bar1Use; bar1Asked.Store(0) })
	bar1Asked.Store(0)
	p := w.pinned(w.cuda.memAlloc(0, 2*mib).start, 1)
	var err error
	for range 30 {
		w.rm.fail("MAP_MEMORY", 1, statusInsufficient)
		_, _, err = p.Map(4096, backend.None)
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorIs(t, err, statusInsufficient)
	}
	require.Zero(t, asked)
	require.Contains(t, err.Error(), "none of it is free")
	require.Equal(t, 1, asked)
	require.Contains(t, err.Error(), "nvidia-smi")
	require.Equal(t, 1, asked)
	bar1Asked.Add(-2e9)
	require.Contains(t, err.Error(), "none of it is free")
	require.Equal(t, 2, asked)
	require.NoError(t, p.Unpin())
	w.end()
}

// withNVML calls f where NVML is nvmlInC, also where another one is installed.
func withNVML(t *testing.T, define string, f func()) {
	const unloaded = 4 // RTLD_NOLOAD
	if _, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|unloaded); err == nil {
		t.Skip("an NVML is loaded already")
	}
	// The loader recognises a loaded library by its soname.
	lib := dltest.Library(t, nvmlInC, "-D"+define, "-Wl,-soname,libnvidia-ml.so.1")
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	f()
	require.NoError(t, purego.Dlclose(h))
}

func TestBAR1Use(t *testing.T) {
	at := cuda.PCIAddress{Domain: 1, Bus: 0x8d, Slot: 2}
	for _, c := range []struct {
		define string
		at     cuda.PCIAddress
		want   string
	}{
		{"FAIL_NOTHING", at, "of 65536 MiB of BAR1 61440 MiB are free"},
		{"FAIL_NOTHING", cuda.PCIAddress{Bus: 1}, "nvidia-smi"},
		{"FAIL_INIT=9", at, "nvidia-smi"},
		{"FAIL_ASK=9", at, "nvidia-smi"},
	} {
		withNVML(t, c.define, func() { require.Contains(t, bar1Use(c.at), c.want) })
	}
	require.Contains(t, bar1Use(at), "nvidia-smi", "without NVML")
}

// 535 does not say that a GPU is divided, and refuses its memory. NVML says it.
func TestDividedByNVML(t *testing.T) {
	for _, c := range []struct {
		define  string
		slot    uint8
		version int
		refusal status // of the memory
		want    string
	}{
		{"MIG=1", 2, 535, statusObjectNotFound, "divided into instances"},
		{"MIG=1", 2, 535, statusInsufficientRights, "MPS server"},
		{"MIG=0", 2, 535, statusObjectNotFound, "another process"},
		{"MIG=1", 3, 535, statusObjectNotFound, "another process"}, // NVML does not know the GPU
		{"FAIL_INIT=9", 2, 535, statusObjectNotFound, "another process"},
		{"FAIL_ASK=9", 2, 535, statusObjectNotFound, "another process"},
		{"MIG=1", 2, 550, statusObjectNotFound, "another process"}, // the driver said no
	} {
		withNVML(t, c.define, func() {
			w := newWorld(t, "mig")
			w.allRight()
			w.rm.setVersion(c.version)
			gpu := w.rm.GPUs[0]
			gpu.Domain, gpu.Bus, gpu.Slot = 1, 0x8d, c.slot
			w.allRight()
			w.rm.answered = func(call string, b []byte) {
				if call == "RM_CONTROL 0x288" {
					order.PutUint32(params(b)[8:], noInstance)
				}
			}
			w.rm.fail("DUP_OBJECT", 1, c.refusal)
			w.notPinned(w.cuda.memAlloc(0, 2*mib).start, 1, unix.ENOTSUP, c.want)
			w.end()
		})
	}
}

// What this process's CUDA shows, and gives as memory of the library's own.
func TestLiveCUDA(t *testing.T) {
	if !cudatest.InChild(t, "CUDA_SIM_DEVICES=3", "CUDA_SIM_RM=0") {
		return
	}
	cu, err := cuda.Load()
	require.NoError(t, err)
	ask := shown(cu)
	require.Nil(t, ask(), "CUDA is not initialised")
	sim := cudatest.Need(t)
	require.Equal(t, map[cuda.PCIAddress]bool{{Bus: 1}: true, {Bus: 2}: true, {Bus: 3}: true}, ask())
	for _, name := range []string{"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetPCIBusId"} {
		sim.Fail(name, int(cuda.ErrNotPermitted), 1)
		require.Nil(t, ask(), name)
		sim.Heal(name)
	}
	in := live{cu}
	for ordinal := range 3 {
		addr, err := in.exportable(ordinal, ownSize)
		require.NoError(t, err)
		m, err := in.MemoryAt(addr)
		require.NoError(t, err)
		require.Equal(t, ordinal, m.Ordinal)
		h, err := in.MemRetainAllocationHandle(addr)
		require.NoError(t, err)
		fd, err := in.MemExport(h)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		require.NoError(t, in.MemRelease(h))
		require.NoError(t, in.withMemory(m, addr, func(in driver) error {
			require.NotZero(t, sim.Current())
			return in.WriteOut(addr+ownSize-8, make([]byte, 8))
		}))
		require.Zero(t, sim.Current())
	}
	_, err = in.exportable(3, ownSize)
	require.Error(t, err)
}

// useLibC has memory mapped by the C library, as the library does: the simulated driver's memory
// is mapped there alone.
func useLibC(t *testing.T) {
	call := func(name string) func(args ...any) (uintptr, error) {
		fn, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
		require.NoError(t, err)
		return func(args ...any) (uintptr, error) {
			r := dl.Call(fn, args...)
			if r == ^uintptr(0) || int32(r) == -1 {
				return 0, unix.EMLINK
			}
			return r, nil
		}
	}
	mmap, munmap := call("mmap"), call("munmap")
	sys.UseMemory(sys.Memory{
		Mmap: func(addr, size uintptr, prot, flags, fd int, offset uint64) (uintptr, error) {
			return mmap(addr, size, prot, flags, fd, uintptr(offset))
		},
		Munmap: func(va, size uintptr) error { _, err := munmap(va, size); return err },
	})
}

// The backend as a program has it: the kernel's calls, CUDA, and one client for all of the
// process, on a simulated driver outside of this process.
func TestBackend(t *testing.T) {
	const mark = "GDR_TEST_CHILD"
	if os.Getenv(mark) != t.Name() {
		if os.Getenv("RM_SIM") == "" || runtime.GOARCH != "amd64" {
			t.Skip("needs tests/doubles/rm_sim; run `make check`")
		}
		cmd := exec.Command(os.Getenv("RM_SIM"), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), mark+"="+t.Name(), "NVRM_SIM_MACHINE=pcie,gb10,grace", "NVRM_SIM_DEVICES=3", "CUDA_SIM_DEVICES=3")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	sim := cudatest.Need(t)
	useLibC(t)
	var sessions [2]*session
	fds := cudatest.FDs(t)
	for i := range sessions {
		s, err := Backend{}.Open()
		require.NoError(t, err)
		sessions[i] = s.(*session)
	}
	require.Equal(t, fds, cudatest.FDs(t), "an open leaves no descriptor")
	pins := 0
	for ordinal, want := range []backend.MappingType{backend.WC, backend.WC, backend.Caching} {
		vmm, free := sim.VMM(ordinal, 2, 1)
		for _, addr := range []uint64{sim.MemAlloc(ordinal, 3*mib), vmm + mib} {
			for i, s := range sessions {
				before := cudatest.FDs(t)
				p, err := s.Pin(backend.PinRequest{Addr: addr, Size: 2 * mib})
				require.NoError(t, err, "device %d", ordinal)
				va, got, err := p.Map(2*mib, backend.None)
				require.NoError(t, err)
				require.Equal(t, want, got)
				for _, at := range []uint64{0, mib - 8, mib, 2*mib - 8} {
					word := []byte{byte(ordinal), byte(i), 7, byte(at >> 12)}
					sim.HtoD(ordinal, addr+at, word)
					require.Equal(t, word, sim.DtoH(ordinal, addr+at, 4)) // waits for the copy
					require.Equal(t, word, []byte(string(cudatest.Bytes(va+uintptr(at), 4))))
				}
				require.Contains(t, cudatest.VMFlags(t, va), "dc", "not for forked children")
				require.NoError(t, unmap(p))
				require.True(t, cudatest.Faults(va))
				require.NoError(t, p.Unpin())
				require.Same(t, process.client, s.client)
				pins++
				require.Equal(t, min(2, pins), process.holders)
				if i > 0 {
					require.Equal(t, before, cudatest.FDs(t), "the first pin opened what stays")
				}
			}
		}
		free()
		at := sessions[0].devices[ordinal].at
		require.Equal(t, right, proven.at(at).of(byIPC))
		require.Equal(t, right, proven.at(at).of(byImport))
	}
	fds = cudatest.FDs(t)
	for i, s := range sessions {
		require.NoError(t, s.Close())
		require.Equal(t, fds-4*i, cudatest.FDs(t), "the last one closes the client's and three GPUs'")
	}
}
