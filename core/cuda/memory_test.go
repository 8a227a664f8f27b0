package cuda

import (
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

// A driver before CUDA 11.7 does not know what one object is mapped to, and is not asked again.
func TestMemoryAtOfAnOldDriver(t *testing.T) {
	if !cudatest.InChild(t, "CUDA_SIM_DRIVER_VERSION=11060") {
		return
	}
	p := cudatest.Need(t).MemAlloc(0, 3<<20)
	for range 2 {
		m, err := load1(t).MemoryAt(p)
		require.NoError(t, err)
		require.EqualValues(t, 3<<20, m.Size)
		require.True(t, noMappings.Load())
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

// All memory in a range gets the attribute, and none beside it. Of several failures one line says so.
func TestSyncMemopsOfARange(t *testing.T) {
	sim := cudatest.Need(t)
	d := load1(t)
	defer sim.WithContext(0)()
	var addrs [4]uint64
	for i := range addrs {
		sim.Must("cuMemAlloc_v2", uintptr(unsafe.Pointer(&addrs[i])), 512)
		defer func() { sim.Must("cuMemFree_v2", uintptr(addrs[i])) }()
	}
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
