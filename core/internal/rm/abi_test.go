package rm

import (
	"testing"
	"unsafe"

	"gdrapi/tests/ctest"

	"github.com/stretchr/testify/require"
)

// structsInC has the requests as the driver declares them.
const structsInC = `
#include <stdint.h>
#include <sys/ioctl.h>

struct alloc {
	uint32_t root, parent, object, class;
	uint64_t params, rights;
	uint32_t params_size, flags, status, pad;
};
struct release {
	uint32_t root, parent, object, status;
};
struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};
struct dup {
	uint32_t client, parent, object, client_src, object_src, flags, status;
};
struct map {
	uint32_t client, device, memory, pad;
	uint64_t offset, length, linear;
	uint32_t status, flags;
	int32_t fd;
	uint32_t pad2;
};
struct unmap {
	uint32_t client, device, memory, pad;
	uint64_t linear;
	uint32_t status, flags;
};
struct card {
	uint8_t valid;
	struct {
		uint32_t domain;
		uint8_t bus, slot, function;
		uint16_t vendor, device;
	} pci;
	uint32_t gpu_id;
	uint16_t interrupt_line;
	uint64_t reg_address, reg_size, fb_address, fb_size;
	uint32_t minor;
	uint8_t dev_name[10];
};
struct register_fd {
	int32_t ctl_fd;
};
struct id_info {
	uint32_t gpu_id, flags, device_instance, subdevice_instance, sli_status, board_id, gpu_instance;
	int32_t numa_id;
};
struct device_params {
	uint32_t device_instance, client_share, target_client, target_device, flags;
	uint64_t va_size, va_start, va_limit;
	uint32_t va_mode;
};
struct import_fd {
	int32_t fd;
	uint32_t type, device, parent, object;
};
struct active_devices {
	uint32_t n;
	struct {
		uint32_t gpu_id, gpu_instance, compute_instance;
	} list[256];
};
struct attached {
	uint32_t gpu_ids[32];
};
struct confidential {
	uint8_t cpu, gpus, environment, feature, dev_tools, multi_gpu_mode;
};
struct chipset {
	uint16_t ids[8];
	uint32_t sli_bond;
	uint8_t names[4][32];
	uint32_t flags;
};
struct address_space {
	uint32_t object, map_flags, space;
};
struct surface_item {
	uint32_t index, data;
};
struct surface_info {
	uint32_t n;
	uint64_t list;
};
struct version {
	uint32_t cmd, reply;
	char text[64];
};
`

// layoutInGo is every size, offset and request number, by its C expression.
func layoutInGo() map[string]uintptr {
	var (
		al  allocArgs
		fr  freeArgs
		co  controlArgs
		du  dupArgs
		ma  mapArgs
		un  unmapArgs
		ca  cardInfo
		re  registerFD
		id  gpuIDInfo
		dev deviceParams
		im  importFD
		ad  activeDevices
		cc  confidential
		ch  chipset
		as  addressSpace
		it  surfaceItem
		su  surfaceInfo
		ve  version
	)
	m := map[string]uintptr{}
	size := func(of string, n uintptr) { m["sizeof(struct "+of+")"] = n }
	off := func(of, field string, n uintptr) { m["offsetof(struct "+of+", "+field+")"] = n }

	size("alloc", unsafe.Sizeof(al))
	off("alloc", "root", unsafe.Offsetof(al.root))
	off("alloc", "parent", unsafe.Offsetof(al.parent))
	off("alloc", "object", unsafe.Offsetof(al.object))
	off("alloc", "class", unsafe.Offsetof(al.class))
	off("alloc", "params", unsafe.Offsetof(al.params))
	off("alloc", "rights", unsafe.Offsetof(al.rights))
	off("alloc", "params_size", unsafe.Offsetof(al.paramsSize))
	off("alloc", "flags", unsafe.Offsetof(al.flags))
	off("alloc", "status", unsafe.Offsetof(al.status))

	size("release", unsafe.Sizeof(fr))
	off("release", "root", unsafe.Offsetof(fr.root))
	off("release", "parent", unsafe.Offsetof(fr.parent))
	off("release", "object", unsafe.Offsetof(fr.object))
	off("release", "status", unsafe.Offsetof(fr.status))

	size("control", unsafe.Sizeof(co))
	off("control", "client", unsafe.Offsetof(co.client))
	off("control", "object", unsafe.Offsetof(co.object))
	off("control", "cmd", unsafe.Offsetof(co.command))
	off("control", "flags", unsafe.Offsetof(co.flags))
	off("control", "params", unsafe.Offsetof(co.params))
	off("control", "params_size", unsafe.Offsetof(co.paramsSize))
	off("control", "status", unsafe.Offsetof(co.status))

	size("dup", unsafe.Sizeof(du))
	off("dup", "client", unsafe.Offsetof(du.client))
	off("dup", "parent", unsafe.Offsetof(du.parent))
	off("dup", "object", unsafe.Offsetof(du.object))
	off("dup", "client_src", unsafe.Offsetof(du.clientSource))
	off("dup", "object_src", unsafe.Offsetof(du.objectSource))
	off("dup", "flags", unsafe.Offsetof(du.flags))
	off("dup", "status", unsafe.Offsetof(du.status))

	size("map", unsafe.Sizeof(ma))
	off("map", "client", unsafe.Offsetof(ma.client))
	off("map", "device", unsafe.Offsetof(ma.device))
	off("map", "memory", unsafe.Offsetof(ma.memory))
	off("map", "offset", unsafe.Offsetof(ma.offset))
	off("map", "length", unsafe.Offsetof(ma.length))
	off("map", "linear", unsafe.Offsetof(ma.linear))
	off("map", "status", unsafe.Offsetof(ma.status))
	off("map", "flags", unsafe.Offsetof(ma.flags))
	off("map", "fd", unsafe.Offsetof(ma.fd))

	size("unmap", unsafe.Sizeof(un))
	off("unmap", "client", unsafe.Offsetof(un.client))
	off("unmap", "device", unsafe.Offsetof(un.device))
	off("unmap", "memory", unsafe.Offsetof(un.memory))
	off("unmap", "linear", unsafe.Offsetof(un.linear))
	off("unmap", "status", unsafe.Offsetof(un.status))
	off("unmap", "flags", unsafe.Offsetof(un.flags))

	size("card", unsafe.Sizeof(ca))
	off("card", "valid", unsafe.Offsetof(ca.valid))
	off("card", "pci.domain", unsafe.Offsetof(ca.domain))
	off("card", "pci.bus", unsafe.Offsetof(ca.bus))
	off("card", "pci.slot", unsafe.Offsetof(ca.slot))
	off("card", "gpu_id", unsafe.Offsetof(ca.gpuID))
	off("card", "minor", unsafe.Offsetof(ca.minor))

	size("register_fd", unsafe.Sizeof(re))

	size("id_info", unsafe.Sizeof(id))
	off("id_info", "gpu_id", unsafe.Offsetof(id.gpuID))
	off("id_info", "flags", unsafe.Offsetof(id.flags))
	off("id_info", "device_instance", unsafe.Offsetof(id.deviceInstance))

	size("device_params", unsafe.Sizeof(dev))
	off("device_params", "device_instance", unsafe.Offsetof(dev.deviceInstance))
	off("device_params", "client_share", unsafe.Offsetof(dev.clientShare))
	off("device_params", "flags", unsafe.Offsetof(dev.flags))
	off("device_params", "va_mode", unsafe.Offsetof(dev.vaMode))

	size("import_fd", unsafe.Sizeof(im))
	off("import_fd", "fd", unsafe.Offsetof(im.fd))
	off("import_fd", "type", unsafe.Offsetof(im.kind))
	off("import_fd", "device", unsafe.Offsetof(im.device))
	off("import_fd", "parent", unsafe.Offsetof(im.parent))
	off("import_fd", "object", unsafe.Offsetof(im.object))

	off("card", "pci.vendor", unsafe.Offsetof(ca.vendor))
	off("card", "fb_size", unsafe.Offsetof(ca.fbSize))

	size("active_devices", unsafe.Sizeof(ad))
	off("active_devices", "list[1].gpu_instance", unsafe.Offsetof(ad.list)+unsafe.Sizeof(ad.list[0])+unsafe.Offsetof(ad.list[0].instance))
	size("attached", unsafe.Sizeof(attached{}))
	size("confidential", unsafe.Sizeof(cc))
	off("confidential", "feature", unsafe.Offsetof(cc.feature))
	off("confidential", "multi_gpu_mode", unsafe.Offsetof(cc.multiGPUMode))
	size("chipset", unsafe.Sizeof(ch))
	off("chipset", "flags", unsafe.Offsetof(ch.flags))
	size("address_space", unsafe.Sizeof(as))
	off("address_space", "space", unsafe.Offsetof(as.space))
	size("surface_item", unsafe.Sizeof(it))
	off("surface_item", "data", unsafe.Offsetof(it.data))
	size("surface_info", unsafe.Sizeof(su))
	off("surface_info", "list", unsafe.Offsetof(su.list))
	size("version", unsafe.Sizeof(ve))
	off("version", "text", unsafe.Offsetof(ve.text))

	number := func(expr string, n uint32) { m["_IOWR('F', "+expr+")"] = uintptr(n) }
	number("0x29, struct release", request(nrFree, unsafe.Sizeof(fr)))
	number("0x2A, struct control", request(nrControl, unsafe.Sizeof(co)))
	number("0x2B, struct alloc", request(nrAlloc, unsafe.Sizeof(al)))
	number("0x34, struct dup", request(nrDup, unsafe.Sizeof(du)))
	number("0x4E, struct map", request(nrMapMemory, unsafe.Sizeof(ma)))
	number("0x4F, struct unmap", request(nrUnmapMemory, unsafe.Sizeof(un)))
	number("200, struct card[32]", request(nrCardInfo, unsafe.Sizeof([maxCards]cardInfo{})))
	number("210, struct version", request(nrVersion, unsafe.Sizeof(ve)))
	number("201, struct register_fd", request(nrRegisterFD, unsafe.Sizeof(re)))
	return m
}

// The C compiler decides every size, offset and request number.
func TestLayoutAgainstC(t *testing.T) {
	want := map[string]uint64{}
	for expr, n := range layoutInGo() {
		want[expr] = uint64(n)
	}
	ctest.Agree(t, structsInC, want)
}

// The sizes in the driver's request numbers.
func TestSizes(t *testing.T) {
	for of, size := range map[string]uintptr{
		"alloc": 48, "release": 16, "control": 32, "dup": 28, "map": 56, "unmap": 32, "card": 72,
		"register_fd": 4, "id_info": 32, "device_params": 56, "import_fd": 20,
		"active_devices": 3076, "attached": 128, "confidential": 6, "chipset": 152, "address_space": 12, "surface_item": 8, "surface_info": 16, "version": 72,
	} {
		require.Equal(t, size, layoutInGo()["sizeof(struct "+of+")"], of)
	}
}

func TestAnswer(t *testing.T) {
	for cache := range uint32(8) {
		for mapping := range uint32(4) {
			m := mapArgs{flags: ^uint32(7<<23|3<<15) | cache<<23 | mapping<<15}
			require.Equal(t, answer{mapping, cache}, m.answer())
		}
	}
}
