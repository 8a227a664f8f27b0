// Package cuda calls the CUDA driver, libcuda.so.1. It loads the driver at run time, so
// a build needs no header, stub or toolkit.
//
// The error of a function has an errno: that of the [Result] in it, or another,
// such as [unix.ENOTSUP] where the installed driver is too old to have the function.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"gdrapi/core/dl"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// library is the file name of the driver. Every CUDA program links that name.
const library = "libcuda.so.1"

// symbol is a function of the driver, by its index in names.
type symbol int

// names has what libcuda.so.1 exports. A suffix names the revision of the function's ABI. The
// calls below pass the arguments of that revision.
var names []string

func function(name string) symbol {
	names = append(names, name)
	return symbol(len(names) - 1)
}

// A new function of the driver is a line here.
var (
	symInit                            = function("cuInit")
	symDriverGetVersion                = function("cuDriverGetVersion")
	symDeviceGetCount                  = function("cuDeviceGetCount")
	symDeviceGet                       = function("cuDeviceGet")
	symDeviceGetAttribute              = function("cuDeviceGetAttribute")
	symDeviceGetPCIBusID               = function("cuDeviceGetPCIBusId")
	symCtxPushCurrent                  = function("cuCtxPushCurrent_v2")
	symCtxPopCurrent                   = function("cuCtxPopCurrent_v2")
	symDevicePrimaryCtxRetain          = function("cuDevicePrimaryCtxRetain")
	symDevicePrimaryCtxRelease         = function("cuDevicePrimaryCtxRelease_v2")
	symDevicePrimaryCtxGetState        = function("cuDevicePrimaryCtxGetState")
	symPointerGetAttribute             = function("cuPointerGetAttribute")
	symPointerGetAttributes            = function("cuPointerGetAttributes")
	symPointerSetAttribute             = function("cuPointerSetAttribute")
	symMemGetAddressRange              = function("cuMemGetAddressRange_v2")
	symMemGetHandleForAddressRange     = function(ExportName)
	symIPCGetMemHandle                 = function("cuIpcGetMemHandle")
	symMemRetainAllocationHandle       = function("cuMemRetainAllocationHandle")
	symMemExportToShareableHandle      = function("cuMemExportToShareableHandle")
	symMemGetAllocationGranularity     = function("cuMemGetAllocationGranularity")
	symMemCreate                       = function("cuMemCreate")
	symMemRelease                      = function("cuMemRelease")
	symMemAddressReserve               = function("cuMemAddressReserve")
	symMemAddressFree                  = function("cuMemAddressFree")
	symMemMap                          = function("cuMemMap")
	symMemUnmap                        = function("cuMemUnmap")
	symMemSetAccess                    = function("cuMemSetAccess")
	symStreamCreate                    = function("cuStreamCreate")
	symStreamDestroy                   = function("cuStreamDestroy_v2")
	symStreamSynchronize               = function("cuStreamSynchronize")
	symMemAlloc                        = function("cuMemAlloc_v2")
	symMemcpyHtoDAsync                 = function("cuMemcpyHtoDAsync_v2")
	symThreadExchangeStreamCaptureMode = function("cuThreadExchangeStreamCaptureMode")
)

// ExportName is the function that exports memory as a dma-buf. A Loader finds with it how its
// requests are watched.
const ExportName = "cuMemGetHandleForAddressRange"

// functions has the address of each symbol, 0 where this driver lacks the function.
type functions [64]uintptr

// Driver is the loaded CUDA driver. Its methods may be called from any thread at any
// time. The doc of a method says where it needs a current context.
type Driver struct {
	fn      *functions
	relaxed bool // its calls are those of one Relaxed
}

// Loader loads the driver and finds its functions. A library in somebody else's process
// has its own: a forked child must not load again what its memory has.
type Loader struct {
	Load   func() error                   // loads the driver, unless it is loaded
	Loaded func() bool                    // whether anybody in this process has loaded it
	Find   func(names []string) []uintptr // their addresses; 0: the driver has none of that name
}

// UseLoader sets the Loader. It must be called before the first Load.
func UseLoader(l Loader) { loader = l }

var loader = Loader{
	Load: func() error {
		_, err := open()
		return err
	},
	Loaded: func() bool {
		_, err := purego.Dlopen(library, purego.RTLD_NOW|rtldNoload)
		return err == nil
	},
	Find: func(names []string) []uintptr {
		found := make([]uintptr, len(names))
		if lib, err := open(); err == nil {
			for i, name := range names {
				found[i], _ = purego.Dlsym(lib, name)
			}
		}
		return found
	},
}

// open loads the driver, and gives its handle.
func open() (uintptr, error) {
	lib, err := dl.Open(library)
	if err != nil {
		return 0, fmt.Errorf("%w (%v)", unix.ENODEV, err)
	}
	return lib, nil
}

// rtldNoload is RTLD_NOLOAD of Linux.
const rtldNoload = 4

var driver atomic.Pointer[Driver]

// Load loads the driver, once in a process. It does not initialise CUDA. No lock is held
// meanwhile: a constructor of a library that another thread is loading may call Load.
func Load() (*Driver, error) {
	if d := driver.Load(); d != nil {
		return d, nil
	}
	if err := loader.Load(); err != nil {
		return nil, fmt.Errorf("cannot load the CUDA driver: %w", err)
	}
	// A driver older than a function is fine until the function is needed.
	d := &Driver{fn: new(functions)}
	copy(d.fn[:], loader.Find(names))
	driver.CompareAndSwap(nil, d)
	return driver.Load(), nil
}

// Loaded is Load in a process where anybody has loaded the driver. In another process
// it returns ENOTSUP.
func Loaded() (*Driver, error) {
	if driver.Load() == nil && !loader.Loaded() {
		return nil, fmt.Errorf("this process has not loaded %s; allocate GPU memory with CUDA first: %w", library, unix.ENOTSUP)
	}
	return Load()
}

// captureModeRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED: calls that may wait for the GPU are
// allowed, and end no capture.
const captureModeRelaxed = 2

// Relaxed calls fn with a Driver whose calls end no capture of a stream, of this thread or of
// another. They are all made on one thread, so a context that fn makes current stays current for
// them. Each call of another Driver is in a Relaxed of its own.
func (d *Driver) Relaxed(fn func(in *Driver) error) error {
	if d.relaxed {
		return fn(d)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	in := &Driver{fn: d.fn, relaxed: true}
	mode := int32(captureModeRelaxed)
	// Where that fails there are no captures: CUDA is older than 10.1, or not initialised.
	if in.do(symThreadExchangeStreamCaptureMode, &mode) == nil {
		defer func() {
			if err := in.do(symThreadExchangeStreamCaptureMode, &mode); err != nil {
				log.Warnf("this thread's stream capture mode stays relaxed: %v", err)
			}
		}()
	}
	return fn(in)
}

// call calls s in a Relaxed. Of args dl.Call has the rules.
func (d *Driver) call(s symbol, args ...any) error {
	return d.Relaxed(func(in *Driver) error { return in.do(s, args...) })
}

// do calls s.
func (d *Driver) do(s symbol, args ...any) error {
	fn := d.fn[s]
	if fn == 0 {
		return fmt.Errorf("this CUDA driver has no %s; update the driver: %w", names[s], unix.ENOTSUP)
	}
	if r := Result(dl.Call(fn, args...)); r != 0 {
		return fmt.Errorf("%s: %w", names[s], r)
	}
	return nil
}

// Device is a CUdevice. A Context is a CUcontext, 0 for none. A MemHandle is
// a CUmemGenericAllocationHandle.
type (
	Device    int32
	Context   uintptr
	MemHandle uint64
)

// DeviceAttribute is a CUdevice_attribute.
type DeviceAttribute int32

const (
	HostPageTables       DeviceAttribute = 100 // coherent: the GPU walks the CPU's page tables
	VMMSupported         DeviceAttribute = 102
	PosixFDSupported     DeviceAttribute = 103
	RDMAWithVMMSupported DeviceAttribute = 110
	DMABufSupported      DeviceAttribute = 124
	DMABufMmapSupported  DeviceAttribute = 152 // CUDA 13.3
)

// Handle types of memory allocations and of address ranges.
const (
	handleTypePosixFD = 1 // a bit of CUmemAllocationHandleType
	rangeDMABufFD     = 1 // CUmemRangeHandleType
	rangeFlagPCIe     = 1 // the dma-buf maps through the PCIe BAR
)

// Init initialises CUDA in this process. A child that is forked after that cannot use
// CUDA: Init returns ENODEV in it.
func (d *Driver) Init() error {
	err := d.call(symInit, 0)
	if errors.Is(err, ErrNotInitialized) {
		return fmt.Errorf("CUDA does not work in a child that was forked after its parent initialised it; fork first, or exec: %w (%v)", unix.ENODEV, err)
	}
	return err
}

// Version is the CUDA version of the driver, 1000*major + 10*minor. It works
// before Init.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.call(symDriverGetVersion, &v)
	return int(v), err
}

// DeviceCount counts the devices. Before Init it returns ErrNotInitialized.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call(symDeviceGetCount, &n)
	return int(n), err
}

// device gives the device with the ordinal.
func (d *Driver) device(ordinal int) (Device, error) {
	var dev Device
	err := d.call(symDeviceGet, &dev, ordinal)
	return dev, err
}

// DeviceAttribute reads an attribute of the device with the ordinal.
func (d *Driver) DeviceAttribute(a DeviceAttribute, ordinal int) (int, error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return 0, err
	}
	var v int32
	err = d.call(symDeviceGetAttribute, &v, a, dev)
	return int(v), err
}

// BufferID is the ID of the allocation that addr lies in. No two allocations of a
// process ever have the same ID. 0 is no ID.
func (d *Driver) BufferID(addr uint64) (id uint64, err error) {
	err = d.call(symPointerGetAttribute, &id, bufferID, addr)
	return id, err
}

// AllocationRange gives the first address and the size in bytes of the allocation that
// addr lies in.
func (d *Driver) AllocationRange(addr uint64) (base, size uint64, err error) {
	if err = d.call(symPointerGetAttribute, &base, rangeStartAddr, addr); err != nil {
		return 0, 0, err
	}
	err = d.call(symPointerGetAttribute, &size, rangeSize, addr)
	return base, size, err
}

// PointerGetAttribute is the address of cuPointerGetAttribute, for C. It is 0 where the
// driver lacks the function.
func (d *Driver) PointerGetAttribute() uintptr { return d.fn[symPointerGetAttribute] }

// MemGetAddressRange gives the allocation, or the one VMM mapping, that addr
// lies in. It needs a current context.
func (d *Driver) MemGetAddressRange(addr uint64) (base, size uint64, err error) {
	err = d.call(symMemGetAddressRange, &base, &size, addr)
	return base, size, err
}

// MemExportRange exports [addr, addr+size), which is whole host pages, as a dma-buf with
// FD_CLOEXEC set. With pcie a mapping of it goes through the PCIe BAR, even where the
// GPU has a coherent link. It returns EMFILE where the process is out of file
// descriptors. It needs a current context.
func (d *Driver) MemExportRange(addr, size uint64, pcie bool) (int, error) {
	var flags uintptr
	if pcie {
		flags = rangeFlagPCIe
	}
	var fd int32 = -1
	err := d.call(symMemGetHandleForAddressRange, &fd, addr, size, rangeDMABufFD, flags)
	return ownFD(fd, err)
}

// MemRetainAllocationHandle takes a reference to the VMM allocation that addr
// is mapped to; MemRelease drops it.
func (d *Driver) MemRetainAllocationHandle(addr uint64) (MemHandle, error) {
	var h MemHandle
	err := d.call(symMemRetainAllocationHandle, &h, addr)
	return h, err
}

// MemExport exports the allocation as a POSIX file descriptor with FD_CLOEXEC set. It
// returns EMFILE where the process is out of file descriptors.
func (d *Driver) MemExport(h MemHandle) (int, error) {
	var fd int32 = -1
	err := d.call(symMemExportToShareableHandle, &fd, h, handleTypePosixFD, 0)
	return ownFD(fd, err)
}

// MemRelease drops a reference to an allocation.
func (d *Driver) MemRelease(h MemHandle) error { return d.call(symMemRelease, uintptr(h)) }

// ownFD takes over a descriptor that the driver made, and sets FD_CLOEXEC on it. After a
// failure it finds out whether the process is out of descriptors, because the driver has
// no result for that.
func ownFD(fd int32, err error) (int, error) {
	if err != nil {
		return -1, sys.ExplainFDs(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return -1, fmt.Errorf("the CUDA driver exported a descriptor that cannot be made close-on-exec: %w", err)
	}
	return int(fd), nil
}
