package rm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	statusOK                  status = 0x00
	statusInsufficient        status = 0x1A
	statusInsufficientRights  status = 0x1B
	statusInvalidArgument     status = 0x1F
	statusInvalidBase         status = 0x20
	statusInvalidClient       status = 0x23
	statusInvalidDevice       status = 0x26
	statusInvalidLimit        status = 0x2E
	statusInvalidObject       status = 0x31
	statusInvalidObjectHandle status = 0x33
	statusInvalidState        status = 0x40
	statusNoMemory            status = 0x51
	statusNotSupported        status = 0x56
	statusObjectNotFound      status = 0x57
	statusStateInUse          status = 0x63
)

// statuses is the only table from an NV_STATUS to its name, its errno and its advice to
// the user.
var statuses = map[status]struct {
	name   string
	errno  unix.Errno
	advice string
}{
	statusInsufficient:        {"NV_ERR_INSUFFICIENT_RESOURCES", unix.ENOMEM, "the GPU's BAR1 or the driver's memory is used up: unpin buffers, or pin smaller ones"},
	statusInsufficientRights:  {"NV_ERR_INSUFFICIENT_PERMISSIONS", unix.EPERM, "the memory belongs to another process or user"},
	statusInvalidArgument:     {"NV_ERR_INVALID_ARGUMENT", unix.EINVAL, ""},
	statusInvalidBase:         {"NV_ERR_INVALID_BASE", unix.EINVAL, "the range begins past the memory"},
	statusInvalidClient:       {"NV_ERR_INVALID_CLIENT", unix.EACCES, "the driver's client is another process's: call gdr_open in this one"},
	statusInvalidDevice:       {"NV_ERR_INVALID_DEVICE", unix.ENODEV, ""},
	statusInvalidLimit:        {"NV_ERR_INVALID_LIMIT", unix.EINVAL, "the range ends past the memory"},
	statusInvalidObject:       {"NV_ERR_INVALID_OBJECT", unix.EINVAL, ""},
	statusInvalidObjectHandle: {"NV_ERR_INVALID_OBJECT_HANDLE", unix.EINVAL, ""},
	statusInvalidState:        {"NV_ERR_INVALID_STATE", unix.EIO, ""},
	statusNoMemory:            {"NV_ERR_NO_MEMORY", unix.ENOMEM, "the driver has no memory left"},
	statusNotSupported:        {"NV_ERR_NOT_SUPPORTED", unix.ENOTSUP, "the driver cannot do this on this GPU"},
	statusObjectNotFound:      {"NV_ERR_OBJECT_NOT_FOUND", unix.EINVAL, "the driver does not know the memory (any more)"},
	statusStateInUse:          {"NV_ERR_STATE_IN_USE", unix.EBUSY, ""},
}

// Error gives the driver's name of s, its number and the advice.
func (s status) Error() string {
	e, ok := statuses[s]
	switch {
	case !ok:
		return fmt.Sprintf("NV_STATUS %#x", uint32(s))
	case e.advice == "":
		return fmt.Sprintf("%s (%#x)", e.name, uint32(s))
	}
	return fmt.Sprintf("%s (%#x): %s", e.name, uint32(s), e.advice)
}

// Errno is the errno value that a caller of this library gets for s.
func (s status) Errno() unix.Errno {
	if e, ok := statuses[s]; ok {
		return e.errno
	}
	return unix.EIO
}

// Is makes errors.Is(err, unix.ENOMEM) hold for a status that maps to it.
func (s status) Is(target error) bool {
	errno, ok := target.(unix.Errno)
	return ok && errno == s.Errno()
}
