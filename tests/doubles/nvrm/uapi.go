package nvrm

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// structs are those of the requests and of their parameters, in C's alignment. Header makes C of them, for the simulated
// libcuda. NAME_535 is what drivers before 550 have; uvm_map and uvm_pool have room for 32 GPUs there.
const structs = `
rm_alloc          u32 root parent object class; u64 params rights; u32 params_size flags status
rm_device_params  u32 instance client_share target_client target_device flags; u64 va_size va_start va_limit; u32 va_mode
rm_sim_memory     u64 size flags
rm_free           u32 root parent object status
rm_control        u32 client object cmd flags; u64 params; u32 params_size status
rm_id_info        u32 gpu_id flags instance subdevice sli board gpu_instance; s32 numa
rm_chipset        u8 rest[148]; u32 flags
rm_attached       u32 gpus[32]
rm_active_devices u32 n list[256][3]
rm_address_space  u32 object flags type
rm_handle_info    u32 object index; u64 result
rm_surface        u64 n items
rm_page_size      u64 size
rm_subdevice      u32 number object
rm_gpu_id         u32 gpu_id
rm_capabilities   u8 cpu gpu environment feature tools multi
rm_capabilities_535 u8 cpu gpu environment feature tools
rm_export_fd      u32 type device parent object; s32 fd; u32 flags
rm_import_fd      s32 fd; u32 type device parent object
rm_export_info    s32 fd; u32 instance mig; u16 most; u8 label[64]
rm_export_info_535 s32 fd; u32 instance; u16 most; u8 label[64]
rm_export_objects s32 fd; u32 device; u16 most; u8 label[64]; u32 objects[512]; u16 n index
rm_import_objects s32 fd; u32 parent objects[128]; u8 kinds[128]; u16 n index
rm_dup_object     u32 client parent object client_src object_src flags status
rm_share          u32 client object policy[3] status
rm_map_memory     u32 client device memory; u64 offset length linear; u32 status flags; s32 fd
rm_unmap_memory   u32 client device memory; u64 linear; u32 status flags
rm_card_info      u8 valid; u32 pci_domain; u8 pci_bus pci_slot pci_function; u16 pci_vendor pci_device; u32 gpu_id; u16 interrupt; u64 reg_address reg_size fb_address fb_size; u32 minor; u8 name[10]
rm_register_fd    s32 ctl_fd
rm_version        u32 cmd reply; u8 text[64]
rm_dmabuf         s32 fd; u32 client total_objects objects index; u64 total_size; u8 mapping_type allow_mmap; u32 handles[128]; u64 offsets[128] sizes[128]; u32 status
rm_dmabuf_2600    s32 fd; u32 client total_objects objects index; u64 total_size; u32 handles[128]; u64 offsets[128] sizes[128]; u32 status
rm_sim_stats      u32 gpu_id status; u64 total used
rm_sim_mmap       u64 length offset; s32 out_fd; u32 address
rm_sim_cuda       u32 zero
rm_sim_info       u32 client object; u64 size; u32 status gpu_id
rm_sim_live       u32 objects mappings
rm_sim_fail       u8 name[32]; s32 result; u32 nth
uvm_range         u64 base length; u32 status
uvm_free_590      u64 base; u32 status
uvm_part          u64 base length; u8 uuid[16]; u32 status
uvm_map           u64 base length offset; u8 gpus[256][36]; u64 count; s32 ctl_fd; u32 client object status
uvm_pool          u64 base length; u8 gpus[256][36]; u64 count; u32 status
uvm_uuid          u8 uuid[16]; u32 status
uvm_vaspace       u8 uuid[16]; s32 ctl_fd; u32 client vaspace status
uvm_gpu           u8 uuid[16] numa; s32 node ctl_fd; u32 client part status
uvm_mm            s32 uvm_fd; u32 status
`

// layout is a struct: its size, where its fields are, and what they are in C.
type layout struct {
	size   int
	fields map[string]int
	c      string
}

var layouts = func() map[string]layout {
	all := map[string]layout{}
	for line := range strings.Lines(strings.TrimSpace(structs)) {
		name, fields, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = parseLayout(fields)
		if before := strings.Replace(fields, "gpus[256]", "gpus[32]", 1); before != fields {
			all[name+"_535"] = parseLayout(before)
		}
	}
	return all
}()

var dimension = regexp.MustCompile(`\[(\d+)\]`)

func parseLayout(fields string) layout {
	l, align := layout{fields: map[string]int{}}, 1
	for _, some := range strings.Split(fields, ";") {
		names := strings.Fields(some)
		bits, _ := strconv.Atoi(names[0][1:])
		align = max(align, bits/8)
		for _, name := range names[1:] {
			l.size = (l.size + bits/8 - 1) / (bits / 8) * (bits / 8)
			l.fields[strings.Split(name, "[")[0]] = l.size
			n := bits / 8
			for _, m := range dimension.FindAllStringSubmatch(name, -1) {
				times, _ := strconv.Atoi(m[1])
				n *= times
			}
			l.size += n
			l.c += fmt.Sprintf("\t__%s %s;\n", names[0], name)
		}
	}
	l.size = (l.size + align - 1) / align * align
	return l
}

// in is a struct's layout in this driver.
func (d *Driver) in(name string) layout {
	if old, ok := layouts[name+"_535"]; ok && d.Version < 550 {
		return old
	}
	return layouts[name]
}

// args are the bytes of a struct, whose fields go by their names.
type args struct {
	bytes
	layout
}

func newArgs(l layout) args { return args{make(bytes, l.size), l} }

// from is what begins with the field.
func (a args) from(field string) bytes {
	at, ok := a.fields[field]
	if !ok {
		panic("no field " + field)
	}
	return a.bytes[at:]
}

func (a args) u16(field string) uint16      { return order.Uint16(a.from(field)) }
func (a args) u32(field string) uint32      { return order.Uint32(a.from(field)) }
func (a args) u64(field string) uint64      { return order.Uint64(a.from(field)) }
func (a args) fd(field string) int          { return int(int32(a.u32(field))) }
func (a args) put16(field string, v uint16) { order.PutUint16(a.from(field), v) }
func (a args) put32(field string, v uint32) { order.PutUint32(a.from(field), v) }
func (a args) put64(field string, v uint64) { order.PutUint64(a.from(field), v) }
func (a args) isZero(from, before string) bool {
	return !slices.ContainsFunc(a.bytes[a.fields[from]:a.fields[before]], func(x byte) bool { return x != 0 })
}

// Header is rm_uapi.h, and what sim_machine.h has of the machines.
func Header() string {
	var b strings.Builder
	b.WriteString("/* Made of tests/doubles/nvrm/uapi.go, requests.go and uvm.go. A test double. */\n#ifndef RM_UAPI_H\n#define RM_UAPI_H\n\n" +
		"#include <linux/types.h>\n#include <sys/ioctl.h>\n\n")
	for _, name := range slices.Sorted(maps.Keys(layouts)) {
		fmt.Fprintf(&b, "struct %s {\n%s};\n\n", name, layouts[name].c)
	}
	var constants, names, addresses []string
	for _, m := range machines {
		constants = append(constants, "SIM_"+strings.ToUpper(strings.ReplaceAll(string(m), "-", "_")))
		names = append(names, strconv.Quote(string(m)))
	}
	for _, g := range places {
		addresses = append(addresses, fmt.Sprintf("{ %d, %#x, %d }", g.Domain, g.Bus, g.Slot))
	}
	fmt.Fprintf(&b, "enum sim_machine { %s, SIM_MACHINES };\n\n", strings.Join(constants, ", "))
	var defines []string
	define := func(name string, value any) { defines = append(defines, fmt.Sprintf("#define %s %v\n", name, value)) }
	for _, k := range requests {
		prefix := "RM_"
		if k.nr >= ownRequests {
			prefix = "RM_SIM_"
		}
		if k.args != "" {
			define(prefix+k.name, fmt.Sprintf("_IOWR('F', %#x, struct %s)", k.nr, k.args))
		}
	}
	for nr, k := range uvmRequests {
		define(k.name, nr)
	}
	for name, value := range map[string]any{
		"SIM_MACHINE_NAMES": strings.Join(names, ", "), "SIM_PLACES": strings.Join(addresses, ", "),
		"RM_OK": 0, "RM_NO_RESOURCES": int(NoResources), "RM_NO_MEMORY": int(NoMemory), "RM_NOT_SUPPORTED": int(NotSupported),
		"RM_CLASS_LOCKED": classLocked, "RM_CLASS_HOST": classHost, "RM_CLASS_MEMORY": classMemory, "RM_CLASS_CLIENT": classClient,
		"RM_CLASS_DEVICE": classDevice, "RM_CLASS_FABRIC": classFabric, "RM_CLASS_SUBDEVICE": classSubdevice,
		"RM_CLASS_PEER": classPeer, "RM_CLASS_DEBUGGER": classDebugger,
		"RM_CTRL_ID_INFO": 0x205, "RM_CTRL_EXPORT_FD": 0x3d05, "RM_CTRL_IMPORT_FD": 0x3d06, "RM_CTRL_EXPORT_INFO": 0x3d08,
		"RM_CTRL_EXPORT_OBJECTS": 0x3d0b, "RM_FD_OBJECT": fdObject,
		"RM_CARD_INFO(n)":       "_IOC(_IOC_READ | _IOC_WRITE, 'F', 200, (n) * sizeof(struct rm_card_info))",
		"RM_EXPORT_DMABUF":      "_IOWR('F', 217, struct rm_dmabuf)",
		"RM_EXPORT_DMABUF_2600": "_IOWR('F', 217, struct rm_dmabuf_2600)",
		"RM_CTL_DEVICE":         `"/dev/nvidiactl"`, "RM_GPU_DEVICE": `"/dev/nvidia"`, "RM_UVM_DEVICE": `"/dev/nvidia-uvm"`,
	} {
		define(name, value)
	}
	slices.Sort(defines) // those of maps come in any order
	return b.String() + strings.Join(defines, "") + "\n#endif\n"
}
