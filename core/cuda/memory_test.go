package cuda

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"gdrapi/core/cuda/cudatest"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// with is a driver with one function: fn, which purego makes callable from C.
func with(s symbol, fn any) *Driver {
	d := &Driver{fn: new(functions)}
	d.fn[s] = purego.NewCallback(fn)
	return d
}

// A driver before CUDA 11.7 does not know what one object is mapped to.
func TestMemoryAtOfAnOldDriver(t *testing.T) {
	if !cudatest.InChild(t, "CUDA_SIM_DRIVER_VERSION=11060") {
		return
	}
	sim := cudatest.Need(t)
	d := load1(t)
	p := sim.MemAlloc(0, 3<<20)
	for range 2 {
		m, err := d.MemoryAt(p)
		require.NoError(t, err)
		require.NotZero(t, m.Context)
		require.NotZero(t, m.ID)
		m.Context, m.ID = 0, 0
		require.Equal(t, MemoryInfo{Legacy: true, Start: p, Size: 3 << 20}, m)
		require.True(t, noMappings.Load())
		_, err = d.MemoryAt(4096)
		require.ErrorIs(t, err, unix.EINVAL)
	}
}

// What a driver may answer that no double does.
func TestMemoryOfOtherDrivers(t *testing.T) {
	defer func(was bool) { noMappings.Store(was) }(noMappings.Load())
	noMappings.Store(false)
	for _, c := range []struct {
		ordinal int32
		result  Result
		err     error
	}{
		{0, ErrInvalidValue, ErrInvalidValue}, // it refuses the address, not the names
		{-1, 0, unix.EINVAL},
		{-2, 0, unix.EINVAL},
	} {
		d := with(symPointerGetAttributes, func(n uintptr, names *[10]pointerAttribute, places *[10]unsafe.Pointer, addr uintptr) uintptr {
			*(*int32)(places[0]), *(*int32)(places[1]) = memoryTypeDevice, c.ordinal
			return uintptr(c.result)
		})
		_, err := d.MemoryAt(0x700000000000)
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.ordinal < 0, strings.Contains(err.Error(), "no CUDA device pointer"), "%v", err)
		require.False(t, noMappings.Load())
	}
}

// smallBuffers is n buffers of 512 bytes, and a function that frees one.
func smallBuffers(t *testing.T, sim *cudatest.Sim, n int) (addrs []uint64, free func(uint64)) {
	leave := sim.WithContext(0)
	live := map[uint64]bool{}
	for range n {
		var p uint64
		sim.Must("cuMemAlloc_v2", uintptr(unsafe.Pointer(&p)), 512)
		addrs = append(addrs, p)
		live[p] = true
	}
	free = func(p uint64) {
		sim.Must("cuMemFree_v2", uintptr(p))
		delete(live, p)
	}
	t.Cleanup(func() {
		for p := range live {
			free(p)
		}
		leave()
	})
	return addrs, free
}

// All memory in a range gets the attribute, and none beside it. Of several failures one line says so.
func TestSyncMemopsOfARange(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	addrs, _ := smallBuffers(t, sim, 4)
	d.SyncMemops(addrs[0], 0)
	sim.Fail("cuPointerSetAttribute", int(ErrUnknown), 1)
	lines := cudatest.Lines(t, func() { d.SyncMemops(addrs[1], addrs[2]+1-addrs[1]) })
	require.Equal(t, 1, strings.Count(lines, "WARN: "), lines)
	sim.Heal("cuPointerSetAttribute")
	require.Empty(t, cudatest.Lines(t, func() { d.SyncMemops(addrs[1], addrs[2]+1-addrs[1]) }))
	for i, addr := range addrs {
		require.Equal(t, i == 1 || i == 2, hasSyncMemops(t, d, addr), "buffer %d", i)
	}
}

// A call by the first memory of a range that fails goes on with the next one, where the first has gone.
func TestOnMemory(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	for _, c := range []struct {
		what  string
		goes  int // so many go while fn has them
		tried int
		want  error
	}{
		{"none goes", 0, 1, unix.EMLINK},
		{"the first goes", 1, 2, unix.EMLINK},
		{"all go", 3, 3, unix.EINVAL},
	} {
		t.Run(c.what, func(t *testing.T) {
			addrs, free := smallBuffers(t, sim, 3)
			var tried []uint64
			err := d.OnMemory(addrs[0], addrs[2]+1-addrs[0], func(m MemoryInfo, at uint64) error {
				if tried = append(tried, at); len(tried) <= c.goes {
					free(at)
				}
				return unix.EMLINK
			})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, addrs[:c.tried], tried)
			if c.want == unix.EINVAL {
				require.ErrorContains(t, err, fmt.Sprintf("the memory at %#x was freed while it was being pinned", addrs[2]))
			}
		})
	}
	require.ErrorIs(t, d.OnMemory(4096, 1<<16, func(MemoryInfo, uint64) error { t.Error("fn ran"); return nil }), unix.EINVAL)
}

func TestPCIAddress(t *testing.T) {
	for _, c := range []struct {
		text string
		want PCIAddress
		name string // "": it is none
	}{
		{"0000:1B:00.0", PCIAddress{0, 0x1b, 0}, "0000:1b:00.0"},
		{"0000:8d:1f.0", PCIAddress{0, 0x8d, 0x1f}, "0000:8d:1f.0"},
		{"00010000:FF:02.0", PCIAddress{0x10000, 0xff, 2}, "10000:ff:02.0"},
		{text: ""}, {text: "x"}, {text: "0000"}, {text: "0000:1b"}, {text: "0000:1bb:00"}, {text: "0000:zz:00.0"},
		{text: "0123456789012345678901234567890123"},
	} {
		d := with(symDeviceGetPCIBusID, func(text uintptr, n int32, dev int32) uintptr {
			require.EqualValues(t, 3, dev)
			copy(cudatest.Bytes(text, int(n)), c.text+"\x00garbage")
			return 0
		})
		d.fn[symDeviceGet] = purego.NewCallback(func(dev *Device, ordinal int32) uintptr { *dev = Device(ordinal); return 0 })
		got, err := d.PCIAddress(3)
		require.Equal(t, c.want, got)
		if c.name == "" {
			require.ErrorIs(t, err, unix.EIO, c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.name, got.String())
	}
}
