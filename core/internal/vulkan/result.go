package vulkan

import (
	"strconv"

	"gdrapi/core/internal/results"

	"golang.org/x/sys/unix"
)

// Result is a VkResult other than success.
type Result int32

const (
	incomplete              Result = 5
	errOutOfHostMemory      Result = -1
	errOutOfDeviceMemory    Result = -2
	errInitializationFailed Result = -3
	errDeviceLost           Result = -4
	errMemoryMapFailed      Result = -5
	errLayerNotPresent      Result = -6
	errExtensionNotPresent  Result = -7
	errFeatureNotPresent    Result = -8
	errIncompatibleDriver   Result = -9
	errTooManyObjects       Result = -10
	errUnknown              Result = -13
	errInvalidHandle        Result = -1000072003
)

// known is the only table from a VkResult to its name and its errno.
//
// MEMORY_MAP_FAILED is ENOMEM: a mapping can run out of address space or of room in the
// BAR. INVALID_EXTERNAL_HANDLE is ENOTSUP: the descriptor comes from CUDA, never from the
// caller, so Vulkan refuses that kind of memory.
var known = results.Table[Result]{
	incomplete:              {Name: "VK_INCOMPLETE", Errno: unix.EAGAIN},
	errOutOfHostMemory:      {Name: "VK_ERROR_OUT_OF_HOST_MEMORY", Errno: unix.ENOMEM},
	errOutOfDeviceMemory:    {Name: "VK_ERROR_OUT_OF_DEVICE_MEMORY", Errno: unix.ENOMEM},
	errInitializationFailed: {Name: "VK_ERROR_INITIALIZATION_FAILED", Errno: unix.ENODEV},
	errDeviceLost:           {Name: "VK_ERROR_DEVICE_LOST", Errno: unix.EIO},
	errMemoryMapFailed:      {Name: "VK_ERROR_MEMORY_MAP_FAILED", Errno: unix.ENOMEM},
	errLayerNotPresent:      {Name: "VK_ERROR_LAYER_NOT_PRESENT", Errno: unix.ENODEV},
	errExtensionNotPresent:  {Name: "VK_ERROR_EXTENSION_NOT_PRESENT", Errno: unix.ENOTSUP},
	errFeatureNotPresent:    {Name: "VK_ERROR_FEATURE_NOT_PRESENT", Errno: unix.ENOTSUP},
	errIncompatibleDriver:   {Name: "VK_ERROR_INCOMPATIBLE_DRIVER", Errno: unix.ENODEV},
	errTooManyObjects:       {Name: "VK_ERROR_TOO_MANY_OBJECTS", Errno: unix.ENOMEM},
	errUnknown:              {Name: "VK_ERROR_UNKNOWN", Errno: unix.EIO},
	errInvalidHandle:        {Name: "VK_ERROR_INVALID_EXTERNAL_HANDLE", Errno: unix.ENOTSUP},
}

// Error gives the name of r in the Vulkan specification and its number.
func (r Result) Error() string { return known.Text(r, "Vulkan error", strconv.Itoa(int(r))) }

// Errno is the errno value that a caller of this library gets for r.
func (r Result) Errno() unix.Errno { return known.Errno(r) }

// Is and As find the errno of r in a chain of wrapped errors.
func (r Result) Is(target error) bool { return known.Is(r, target) }
func (r Result) As(target any) bool   { return known.As(r, target) }
