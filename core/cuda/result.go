package cuda

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Result is a CUresult other than success.
type Result int32

// The results that this project distinguishes. Any other result is an I/O error, whose
// text has the number.
const (
	ErrInvalidValue         Result = 1
	ErrOutOfMemory          Result = 2
	ErrNotInitialized       Result = 3
	ErrDeinitialized        Result = 4
	ErrStubLibrary          Result = 34
	ErrDeviceUnavailable    Result = 46
	ErrNoDevice             Result = 100
	ErrInvalidDevice        Result = 101
	ErrInvalidContext       Result = 201
	ErrMapFailed            Result = 205
	ErrUnmapFailed          Result = 206
	ErrECCUncorrectable     Result = 214
	ErrOperatingSystem      Result = 304
	ErrInvalidHandle        Result = 400
	ErrNotFound             Result = 500
	ErrIllegalAddress       Result = 700
	ErrContextIsDestroyed   Result = 709
	ErrNotPermitted         Result = 800
	ErrNotSupported         Result = 801
	ErrSystemNotReady       Result = 802
	ErrSystemDriverMismatch Result = 803
	ErrCompatNotSupported   Result = 804
	ErrUnknown              Result = 999
)

// results is the only table from a CUresult to its name and its errno.
//
// NOT_INITIALIZED is EINVAL, not ENODEV. This library calls cuInit before it allocates,
// so the result only ever answers an address of the caller's. While CUDA is not
// initialised, no address is a device pointer. DEINITIALIZED means that the process is
// ending.
var results = map[Result]struct {
	name  string
	errno unix.Errno
}{
	ErrInvalidValue:         {"CUDA_ERROR_INVALID_VALUE", unix.EINVAL},
	ErrOutOfMemory:          {"CUDA_ERROR_OUT_OF_MEMORY", unix.ENOMEM},
	ErrNotInitialized:       {"CUDA_ERROR_NOT_INITIALIZED", unix.EINVAL},
	ErrDeinitialized:        {"CUDA_ERROR_DEINITIALIZED", unix.ENODEV},
	ErrStubLibrary:          {"CUDA_ERROR_STUB_LIBRARY", unix.ENODEV},
	ErrDeviceUnavailable:    {"CUDA_ERROR_DEVICE_UNAVAILABLE", unix.EBUSY},
	ErrNoDevice:             {"CUDA_ERROR_NO_DEVICE", unix.ENODEV},
	ErrInvalidDevice:        {"CUDA_ERROR_INVALID_DEVICE", unix.ENODEV},
	ErrInvalidContext:       {"CUDA_ERROR_INVALID_CONTEXT", unix.EINVAL},
	ErrMapFailed:            {"CUDA_ERROR_MAP_FAILED", unix.ENOMEM},
	ErrUnmapFailed:          {"CUDA_ERROR_UNMAP_FAILED", unix.EIO},
	ErrECCUncorrectable:     {"CUDA_ERROR_ECC_UNCORRECTABLE", unix.EIO},
	ErrOperatingSystem:      {"CUDA_ERROR_OPERATING_SYSTEM", unix.EIO},
	ErrInvalidHandle:        {"CUDA_ERROR_INVALID_HANDLE", unix.EINVAL},
	ErrNotFound:             {"CUDA_ERROR_NOT_FOUND", unix.EINVAL},
	ErrIllegalAddress:       {"CUDA_ERROR_ILLEGAL_ADDRESS", unix.EIO},
	ErrContextIsDestroyed:   {"CUDA_ERROR_CONTEXT_IS_DESTROYED", unix.EINVAL},
	ErrNotPermitted:         {"CUDA_ERROR_NOT_PERMITTED", unix.EPERM},
	ErrNotSupported:         {"CUDA_ERROR_NOT_SUPPORTED", unix.ENOTSUP},
	ErrSystemNotReady:       {"CUDA_ERROR_SYSTEM_NOT_READY", unix.ENODEV},
	ErrSystemDriverMismatch: {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", unix.ENODEV},
	ErrCompatNotSupported:   {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", unix.ENODEV},
	ErrUnknown:              {"CUDA_ERROR_UNKNOWN", unix.EIO},
}

// Error gives the driver's name of r and its number.
func (r Result) Error() string {
	if e, ok := results[r]; ok {
		return fmt.Sprintf("%s (%d)", e.name, int32(r))
	}
	return fmt.Sprintf("CUDA error %d", int32(r))
}

// Errno is the errno value that a caller of this library gets for r.
func (r Result) Errno() unix.Errno {
	if e, ok := results[r]; ok {
		return e.errno
	}
	return unix.EIO
}

// As lets errors.As find the errno of r in a chain of wrapped errors, as it finds the
// errno of a system call.
func (r Result) As(target any) bool {
	p, ok := target.(*unix.Errno)
	if ok {
		*p = r.Errno()
	}
	return ok
}

// Is makes errors.Is(err, unix.ENOMEM) hold for a result that maps to it.
func (r Result) Is(target error) bool {
	errno, ok := target.(unix.Errno)
	return ok && errno == r.Errno()
}
