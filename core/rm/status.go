package rm

import (
	"strconv"

	"gdrapi/core/internal/results"

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
var statuses = results.Table[status]{
	statusInsufficient:        {Name: "NV_ERR_INSUFFICIENT_RESOURCES", Errno: unix.ENOMEM, Advice: "the GPU's BAR1 or the driver's memory is used up: unpin buffers, or pin smaller ones"},
	statusInsufficientRights:  {Name: "NV_ERR_INSUFFICIENT_PERMISSIONS", Errno: unix.EPERM, Advice: "the memory belongs to another process or user"},
	statusInvalidArgument:     {Name: "NV_ERR_INVALID_ARGUMENT", Errno: unix.EINVAL},
	statusInvalidBase:         {Name: "NV_ERR_INVALID_BASE", Errno: unix.EINVAL, Advice: "the range begins past the memory"},
	statusInvalidClient:       {Name: "NV_ERR_INVALID_CLIENT", Errno: unix.EACCES, Advice: "the driver's client is another process's: call gdr_open in this one"},
	statusInvalidDevice:       {Name: "NV_ERR_INVALID_DEVICE", Errno: unix.ENODEV},
	statusInvalidLimit:        {Name: "NV_ERR_INVALID_LIMIT", Errno: unix.EINVAL, Advice: "the range ends past the memory"},
	statusInvalidObject:       {Name: "NV_ERR_INVALID_OBJECT", Errno: unix.EINVAL},
	statusInvalidObjectHandle: {Name: "NV_ERR_INVALID_OBJECT_HANDLE", Errno: unix.EINVAL},
	statusInvalidState:        {Name: "NV_ERR_INVALID_STATE", Errno: unix.EIO},
	statusNoMemory:            {Name: "NV_ERR_NO_MEMORY", Errno: unix.ENOMEM, Advice: "the driver has no memory left"},
	statusNotSupported:        {Name: "NV_ERR_NOT_SUPPORTED", Errno: unix.ENOTSUP, Advice: "the driver cannot do this on this GPU"},
	statusObjectNotFound:      {Name: "NV_ERR_OBJECT_NOT_FOUND", Errno: unix.EINVAL, Advice: "the driver does not know the memory (any more)"},
	statusStateInUse:          {Name: "NV_ERR_STATE_IN_USE", Errno: unix.EBUSY},
}

// Error gives the driver's name of s, its advice and its number.
func (s status) Error() string {
	return statuses.Text(s, "NV_STATUS", "0x"+strconv.FormatUint(uint64(s), 16))
}

// Errno is the errno value that a caller of this library gets for s.
func (s status) Errno() unix.Errno { return statuses.Errno(s) }

// Is and As find the errno of s in a chain of wrapped errors.
func (s status) Is(target error) bool { return statuses.Is(s, target) }
func (s status) As(target any) bool   { return statuses.As(s, target) }
