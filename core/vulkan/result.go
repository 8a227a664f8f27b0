package vulkan

import (
	"fmt"

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

// results is the only table from a VkResult to its name and its errno.
//
// MEMORY_MAP_FAILED is ENOMEM: a mapping can run out of address space or of room in the
// BAR. INVALID_EXTERNAL_HANDLE is ENOTSUP: the descriptor comes from CUDA, never from the
// caller, so Vulkan refuses that kind of memory.
var results = map[Result]struct {
	name  string
	errno unix.Errno
}{
	incomplete:              {"VK_INCOMPLETE", unix.EAGAIN},
	errOutOfHostMemory:      {"VK_ERROR_OUT_OF_HOST_MEMORY", unix.ENOMEM},
	errOutOfDeviceMemory:    {"VK_ERROR_OUT_OF_DEVICE_MEMORY", unix.ENOMEM},
	errInitializationFailed: {"VK_ERROR_INITIALIZATION_FAILED", unix.ENODEV},
	errDeviceLost:           {"VK_ERROR_DEVICE_LOST", unix.EIO},
	errMemoryMapFailed:      {"VK_ERROR_MEMORY_MAP_FAILED", unix.ENOMEM},
	errLayerNotPresent:      {"VK_ERROR_LAYER_NOT_PRESENT", unix.ENODEV},
	errExtensionNotPresent:  {"VK_ERROR_EXTENSION_NOT_PRESENT", unix.ENOTSUP},
	errFeatureNotPresent:    {"VK_ERROR_FEATURE_NOT_PRESENT", unix.ENOTSUP},
	errIncompatibleDriver:   {"VK_ERROR_INCOMPATIBLE_DRIVER", unix.ENODEV},
	errTooManyObjects:       {"VK_ERROR_TOO_MANY_OBJECTS", unix.ENOMEM},
	errUnknown:              {"VK_ERROR_UNKNOWN", unix.EIO},
	errInvalidHandle:        {"VK_ERROR_INVALID_EXTERNAL_HANDLE", unix.ENOTSUP},
}

// Error gives the name of r in the Vulkan specification and its number.
func (r Result) Error() string {
	if e, ok := results[r]; ok {
		return fmt.Sprintf("%s (%d)", e.name, int32(r))
	}
	return fmt.Sprintf("Vulkan error %d", int32(r))
}

// Errno is the errno value that a caller of this library gets for r.
func (r Result) Errno() unix.Errno {
	if e, ok := results[r]; ok {
		return e.errno
	}
	return unix.EIO
}

// As lets errors.As find the errno of r in a chain of wrapped errors.
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
