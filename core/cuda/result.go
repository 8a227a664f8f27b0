package cuda

import (
	"strconv"

	"gdrapi/core/internal/results"

	"golang.org/x/sys/unix"
)

// Result is a CUresult other than success.
type Result int32

// Results by name. The others that are known have their numbers alone.
const (
	ErrInvalidValue   Result = 1
	ErrOutOfMemory    Result = 2
	ErrNotInitialized Result = 3
	ErrDeinitialized  Result = 4
	ErrNoDevice       Result = 100
	ErrInvalidDevice  Result = 101
	ErrInvalidContext Result = 201
	ErrNotPermitted   Result = 800
	ErrNotSupported   Result = 801
	ErrUnknown        Result = 999
)

// known is the only table from a CUresult to its name and its errno.
//
// NOT_INITIALIZED is EINVAL, not ENODEV. This library calls cuInit before it allocates,
// so the result only ever answers an address of the caller's. While CUDA is not
// initialised, no address is a device pointer. DEINITIALIZED means that the process is
// ending.
var known = results.Table[Result]{
	ErrInvalidValue:   {Name: "CUDA_ERROR_INVALID_VALUE", Errno: unix.EINVAL},
	ErrOutOfMemory:    {Name: "CUDA_ERROR_OUT_OF_MEMORY", Errno: unix.ENOMEM},
	ErrNotInitialized: {Name: "CUDA_ERROR_NOT_INITIALIZED", Errno: unix.EINVAL},
	ErrDeinitialized:  {Name: "CUDA_ERROR_DEINITIALIZED", Errno: unix.ENODEV},
	34:                {Name: "CUDA_ERROR_STUB_LIBRARY", Errno: unix.ENODEV},
	46:                {Name: "CUDA_ERROR_DEVICE_UNAVAILABLE", Errno: unix.EBUSY},
	ErrNoDevice:       {Name: "CUDA_ERROR_NO_DEVICE", Errno: unix.ENODEV},
	ErrInvalidDevice:  {Name: "CUDA_ERROR_INVALID_DEVICE", Errno: unix.ENODEV},
	ErrInvalidContext: {Name: "CUDA_ERROR_INVALID_CONTEXT", Errno: unix.EINVAL},
	205:               {Name: "CUDA_ERROR_MAP_FAILED", Errno: unix.ENOMEM},
	206:               {Name: "CUDA_ERROR_UNMAP_FAILED", Errno: unix.EIO},
	214:               {Name: "CUDA_ERROR_ECC_UNCORRECTABLE", Errno: unix.EIO},
	304:               {Name: "CUDA_ERROR_OPERATING_SYSTEM", Errno: unix.EIO},
	400:               {Name: "CUDA_ERROR_INVALID_HANDLE", Errno: unix.EINVAL},
	500:               {Name: "CUDA_ERROR_NOT_FOUND", Errno: unix.EINVAL},
	700:               {Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Errno: unix.EIO},
	709:               {Name: "CUDA_ERROR_CONTEXT_IS_DESTROYED", Errno: unix.EINVAL},
	ErrNotPermitted:   {Name: "CUDA_ERROR_NOT_PERMITTED", Errno: unix.EPERM},
	ErrNotSupported:   {Name: "CUDA_ERROR_NOT_SUPPORTED", Errno: unix.ENOTSUP},
	802:               {Name: "CUDA_ERROR_SYSTEM_NOT_READY", Errno: unix.ENODEV},
	803:               {Name: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Errno: unix.ENODEV},
	804:               {Name: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Errno: unix.ENODEV},
	ErrUnknown:        {Name: "CUDA_ERROR_UNKNOWN", Errno: unix.EIO},
}

// Error gives the driver's name of r and its number.
func (r Result) Error() string { return known.Text(r, "CUDA error", strconv.Itoa(int(r))) }

// Unwrap gives the errno value that a caller of this library gets for r.
func (r Result) Unwrap() error { return known.Errno(r) }
