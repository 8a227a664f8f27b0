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
	statusInvalidLimit        status = 0x2E
	statusInvalidObject       status = 0x31
	statusInvalidObjectHandle status = 0x33
	statusInvalidParamStruct  status = 0x3A
	statusInvalidParameter    status = 0x3B
	statusNoMemory            status = 0x51
	statusNotSupported        status = 0x56
	statusObjectNotFound      status = 0x57
)

const lost = "the GPU is lost: look into dmesg for lines of NVRM (Xid), then reset the GPU or reboot"

// statuses is the only table from an NV_STATUS to its name, its errno and its advice to
// the user.
var statuses = results.Table[status]{
	0x03:                      {Name: "NV_ERR_BUSY_RETRY", Errno: unix.EAGAIN, Advice: "the driver is busy: try again"},
	0x0F:                      {Name: "NV_ERR_GPU_IS_LOST", Errno: unix.ENODEV, Advice: lost},
	0x10:                      {Name: "NV_ERR_GPU_IN_FULLCHIP_RESET", Errno: unix.EAGAIN, Advice: "the GPU is being reset: try again"},
	0x11:                      {Name: "NV_ERR_GPU_NOT_FULL_POWER", Errno: unix.EAGAIN, Advice: "the GPU is being suspended or woken: try again"},
	0x17:                      {Name: "NV_ERR_IN_USE", Errno: unix.EIO},
	statusInsufficient:        {Name: "NV_ERR_INSUFFICIENT_RESOURCES", Errno: unix.ENOMEM, Advice: "the GPU's BAR1 or the driver's memory is used up: unpin buffers, or pin smaller ones"},
	statusInsufficientRights:  {Name: "NV_ERR_INSUFFICIENT_PERMISSIONS", Errno: unix.EPERM, Advice: "the driver refuses it to this process: the memory is another user's, or a sandbox is in the way"},
	statusInvalidArgument:     {Name: "NV_ERR_INVALID_ARGUMENT", Errno: unix.EINVAL},
	statusInvalidBase:         {Name: "NV_ERR_INVALID_BASE", Errno: unix.EINVAL, Advice: "the range begins past the memory"},
	0x22:                      {Name: "NV_ERR_INVALID_CLASS", Errno: unix.EIO},
	statusInvalidClient:       {Name: "NV_ERR_INVALID_CLIENT", Errno: unix.EACCES, Advice: "the driver's client is another process's: call gdr_open in this one"},
	0x26:                      {Name: "NV_ERR_INVALID_DEVICE", Errno: unix.ENODEV},
	statusInvalidLimit:        {Name: "NV_ERR_INVALID_LIMIT", Errno: unix.EINVAL, Advice: "the range ends past the memory"},
	statusInvalidObject:       {Name: "NV_ERR_INVALID_OBJECT", Errno: unix.EINVAL},
	statusInvalidObjectHandle: {Name: "NV_ERR_INVALID_OBJECT_HANDLE", Errno: unix.EINVAL},
	0x36:                      {Name: "NV_ERR_INVALID_OBJECT_PARENT", Errno: unix.ENOTSUP, Advice: "the memory is another GPU's, a part's of one (MIG), or none that a GPU has by itself (a fabric's); pin it where it was allocated"},
	statusInvalidParamStruct:  {Name: "NV_ERR_INVALID_PARAM_STRUCT", Errno: unix.ENOTSUP, Advice: "this driver differs from the known ones, or from that of the process that exported: report its version"},
	statusInvalidParameter:    {Name: "NV_ERR_INVALID_PARAMETER", Errno: unix.EINVAL},
	0x3F:                      {Name: "NV_ERR_INVALID_REQUEST", Errno: unix.EIO},
	0x40:                      {Name: "NV_ERR_INVALID_STATE", Errno: unix.EIO},
	statusNoMemory:            {Name: "NV_ERR_NO_MEMORY", Errno: unix.ENOMEM, Advice: "the driver has no memory left"},
	statusNotSupported:        {Name: "NV_ERR_NOT_SUPPORTED", Errno: unix.ENOTSUP, Advice: "the driver cannot do this on this GPU (vGPU, MIG, confidential computing): load gdrdrv, or use another GPU"},
	statusObjectNotFound:      {Name: "NV_ERR_OBJECT_NOT_FOUND", Errno: unix.EINVAL, Advice: "the driver does not know the memory (any more)"},
	0x5B:                      {Name: "NV_ERR_OUT_OF_RANGE", Errno: unix.EINVAL, Advice: "the descriptor has fewer memory objects than its label says"},
	0x62:                      {Name: "NV_ERR_RESET_REQUIRED", Errno: unix.ENODEV, Advice: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot"},
	0x63:                      {Name: "NV_ERR_STATE_IN_USE", Errno: unix.EBUSY},
	0x65:                      {Name: "NV_ERR_TIMEOUT", Errno: unix.EIO, Advice: "look into dmesg for lines of NVRM"},
	0x6E:                      {Name: "NV_ERR_RESOURCE_LOST", Errno: unix.ENODEV, Advice: lost},
	0xFFFF:                    {Name: "NV_ERR_GENERIC", Errno: unix.EIO, Advice: "look into dmesg for lines of NVRM"},
}

// Error gives the driver's name of s, its advice and its number.
func (s status) Error() string {
	return statuses.Text(s, "NV_STATUS", "0x"+strconv.FormatUint(uint64(s), 16))
}

// Unwrap gives the errno value that a caller of this library gets for s.
func (s status) Unwrap() error { return statuses.Errno(s) }
