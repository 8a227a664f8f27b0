package nvrm

// What differs between machines, and the requests that tell. The functions in brackets are
// those of open-gpu-kernel-modules 595.45.04.

// Machine is what kind of machine a GPU is in, as NVRM_SIM_MACHINE names it.
type Machine string

// README.md says what each is.
var machines = []Machine{"pcie", "grace", "cdmm", "gb10", "mig", "mig-empty", "cc", "ppcie", "vgpu", "tegra"}

// GPU is a GPU.
type GPU struct {
	Domain          uint32
	Bus, Slot       uint8
	ID              uint32 // gpu_id
	Minor, Instance uint32
	Flags           uint32 // of GET_ID_INFO
	Answer          uint32 // of RM_MAP_MEMORY
	Space           uint32 // where memory is
	Device          uint16 // PCI device
	BARUsed         uint64

	machine  Machine
	attached bool // a file of it was opened once
	used     uint64
}

// The GPUs in the order of their PCI addresses, which is the order of CUDA's ordinals. Minors,
// instances and RM_CARD_INFO have other orders.
var places = []GPU{
	{Domain: 0, Bus: 0x17, Slot: 0, Minor: 2, Instance: 1},
	{Domain: 1, Bus: 0x17, Slot: 0, Minor: 0, Instance: 3},
	{Domain: 1, Bus: 0x3b, Slot: 0, Minor: 3, Instance: 0},
	{Domain: 1, Bus: 0x3b, Slot: 1, Minor: 1, Instance: 2},
	{Domain: 2, Bus: 0x17, Slot: 0, Minor: 6, Instance: 5},
	{Domain: 2, Bus: 0x3b, Slot: 0, Minor: 4, Instance: 7},
	{Domain: 2, Bus: 0x3b, Slot: 2, Minor: 7, Instance: 4},
	{Domain: 3, Bus: 0x01, Slot: 0, Minor: 5, Instance: 6},
}

// Flags of GET_ID_INFO.
const (
	idSOC        = 1 << 5
	IDATS        = 1 << 6 // coherent
	idSOCDisplay = 1 << 7 // from 580 on, as the next one
	idSOCIGPU    = 2 << 7
)

// MapAnswer is what RM_MAP_MEMORY answers in its flags: bits 16:15 the mapping, bits 25:23 the
// cache type.
func MapAnswer(mapping, cache uint32) uint32 { return mapping<<15 | cache<<23 }

const mapAnswerMask = 3<<15 | 7<<23

// Address spaces of memory.
const (
	spaceSystem = 1
	spaceVideo  = 2
	spaceFabric = 4
)

func (d *Driver) newGPU(ordinal int, m Machine) *GPU {
	g := places[ordinal]
	g.ID = g.Domain<<16 | uint32(g.Bus)<<8 | uint32(g.Slot)
	g.machine = m
	g.Answer, g.Space = MapAnswer(2, 2), spaceVideo // write-combined, through BAR1
	g.Device = 0x2335                               // H200
	switch {
	case g.coherent():
		g.Flags, g.Answer, g.Device = IDATS, MapAnswer(0, 6), 0x2342 // GH200
	case g.isSystem():
		g.Flags, g.Answer, g.Space, g.Device = idSOC, MapAnswer(1, 6), spaceSystem, 0x2E12
		if d.Version >= 580 {
			g.Flags |= idSOCIGPU
		}
	case m == "tegra" && d.Version >= 580:
		g.Flags = idSOCDisplay
	}
	if d.Answer != 0 {
		g.Answer = d.Answer
	}
	return &g
}

func (g *GPU) coherent() bool { return g.machine == "grace" || g.machine == "cdmm" }
func (g *GPU) isSystem() bool { return g.machine == "gb10" }

// hasBAR says whether mappings are in BAR1.
func (g *GPU) hasBAR() bool { return !g.coherent() && !g.isSystem() }

// log is a line that a failing request prints in the real driver.
func (d *Driver) log(line string) {
	d.Log("NVRM: " + line)
}

// hides says whether confidential computing is on, or protected PCIe. The first GPU decides.
func (d *Driver) hides() bool {
	return len(d.GPUs) > 0 && (d.GPUs[0].machine == "cc" || d.GPUs[0].machine == "ppcie")
}

func (d *Driver) gpu(is func(g *GPU) bool) *GPU {
	for _, g := range d.GPUs {
		if is(g) {
			return g
		}
	}
	return nil
}

func (d *Driver) gpuByID(id uint32) *GPU { return d.gpu(func(g *GPU) bool { return g.ID == id }) }

// ByMinor is the GPU of /dev/nvidiaN; nil: there is none.
func (d *Driver) ByMinor(n uint32) *GPU { return d.gpu(func(g *GPU) bool { return g.Minor == n }) }

// checkDuplicate says whether a client that has subscribed to no instance may have a duplicate.
// [vidmemCheckCopyPermissions]
func checkDuplicate(q *request, g *GPU) error {
	if g.machine == "mig" && !q.file.CUDA {
		return NotFound
	}
	return nil
}

const hugePage = 2 << 20 // a physical page of large objects

// passesEnd: with Scattered pages lie in falling order, and the object's first one ends where
// the onlined memory ends. The driver takes the range for contiguous from its first page on.
// [RmCreateMmapContextLocked]
func (d *Driver) passesEnd(m *Memory, offset, length uint64) bool {
	return d.Scattered && m.Size > hugePage && offset%hugePage+length > hugePage
}

// checkMap says whether the machine lets the CPU map it. Libcuda's own view is the double's,
// not CUDA's.
func (d *Driver) checkMap(q *request, m *Memory, offset, length uint64) error {
	switch {
	case q.file.CUDA:
		return nil
	case d.hides():
		d.log("BAR1 mapping to CPR vidmem not supported")
		return NotSupported
	case m.GPU.coherent() && d.passesEnd(m, offset, length) && d.Version < 590:
		return NotFound
	case m.GPU.coherent() && d.passesEnd(m, offset, length):
		return InvalidArgument
	}
	return nil
}

// cardInfo answers in reverse, so that an index is not an ordinal. A platform device has no PCI
// address. [nv.c, nvidia_read_card_info]
func (d *Driver) cardInfo(q *request) error {
	card := layouts["rm_card_info"]
	if len(q.arg.bytes)%card.size != 0 || len(q.arg.bytes)/card.size < len(d.GPUs) {
		return errInvalid
	}
	clear(q.arg.bytes)
	for i, g := range d.GPUs {
		e := args{q.arg.bytes[(len(d.GPUs)-1-i)*card.size:], card}
		e.bytes[0] = 1
		e.put32("gpu_id", g.ID)
		e.put32("minor", g.Minor)
		if g.machine == "tegra" {
			continue
		}
		e.put32("pci_domain", g.Domain)
		e.from("pci_bus")[0], e.from("pci_slot")[0] = g.Bus, g.Slot
		e.put16("pci_vendor", 0x10de)
		e.put16("pci_device", g.Device)
		if !g.isSystem() {
			e.put64("fb_size", max(d.BAR, 1<<20)) // none is smaller
		}
	}
	return nil
}

// [gpumgrGetGpuIdInfoV2]
func (d *Driver) idInfo(q *request, _ *Object, p args) error {
	g := d.gpuByID(p.u32("gpu_id"))
	if g == nil || !g.attached {
		return InvalidArgument
	}
	clear(p.from("flags"))
	p.put32("flags", g.Flags)
	p.put32("instance", g.Instance)
	return nil
}

// attachedIDs lists the GPUs that were opened. Here a GPU stays attached.
// [gpumgrGetAttachedGpuIds]
func (d *Driver) attachedIDs(_ *request, _ *Object, p args) error {
	for i := range p.bytes {
		p.bytes[i] = 0xff
	}
	n := 0
	for _, g := range d.GPUs {
		if g.attached {
			p.bytes.put32(4*n, g.ID)
			n++
		}
	}
	return nil
}

// activeDevices needs no GPU to be open. [gpumgrCacheGetActiveDeviceIds]
func (d *Driver) activeDevices(_ *request, _ *Object, p args) error {
	if d.Version < 550 {
		return NotSupported
	}
	clear(p.bytes)
	n := 0
	for i := len(d.GPUs) - 1; i >= 0; i-- {
		g := d.GPUs[i]
		if g.machine == "mig-empty" {
			continue
		}
		instance, compute := ^uint32(0), ^uint32(0)
		if g.machine == "mig" {
			instance, compute = 1, 0
		}
		entry := p.from("list")[12*n:]
		entry.put32(0, g.ID)
		entry.put32(4, instance)
		entry.put32(8, compute)
		n++
	}
	p.put32("n", uint32(n))
	return nil
}

// [cliresCtrlCmdSystemGetChipsetInfo]
func (d *Driver) chipset(_ *request, _ *Object, p args) error {
	clear(p.bytes)
	p.put32("flags", d.Chipset)
	return nil
}

// surface answers n items; the first that it does not know ends it. Of what it knows, nobody
// asks the rest. [memCtrlCmdGetSurfaceInfoLvm_IMPL]
func (d *Driver) surface(q *request, o *Object, p args) error {
	item := make(bytes, 8)
	for i := range uint64(p.u32("n")) {
		at := p.u64("items") + 8*i
		if q.Read(at, item) != nil {
			return InvalidArgument
		}
		switch item.u32(0) {
		case 7: // size of the whole object, in units of 4 KiB
			item.put32(4, uint32(o.Memory.Size>>12))
		case 8: // bits 31:29: how system memory is cached
			item.put32(4, d.PhysAttr<<29|0x1234)
		case 9:
			item.put32(4, o.Memory.Space)
		default:
			return InvalidArgument
		}
		if q.Write(at, item) != nil {
			return InvalidArgument
		}
	}
	return nil
}

// [client_resource.c, cliresCtrlCmdClientGetAddrSpaceType_IMPL]
func (d *Driver) addressSpace(_ *request, o *Object, p args) error {
	switch {
	case o == nil:
		return NotFound
	case o.Memory == nil:
		return InvalidObject
	}
	p.put32("type", o.Memory.Space)
	return nil
}

// [client_resource.c, cliresCtrlCmdClientGetHandleInfo_IMPL]
func (d *Driver) handleInfo(q *request, o *Object, p args) error {
	parent, class := q.arg.u32("client"), uint32(0)
	switch {
	case o == nil && p.u32("object") == q.arg.u32("client"):
		parent, class = 0, classClient
	case o == nil:
		return NotFound
	default:
		class = o.Class
		if o.Device != nil {
			parent = o.Device.Handle
		}
	}
	switch p.u32("index") {
	case 1:
		p.put64("result", uint64(parent))
	case 2:
		p.put64("result", uint64(class))
	default:
		return InvalidArgument
	}
	return nil
}

// findSubdevice finds the object of the client below the device. [NV0080_CTRL_CMD_GPU_FIND_SUBDEVICE_HANDLE]
func (d *Driver) findSubdevice(q *request, _ *Object, p args) error {
	c := d.Client(q.arg.u32("client"))
	for _, o := range c.Objects {
		if p.u32("number") == 0 && o.Class == classSubdevice && o.Device.Handle == q.arg.u32("object") {
			p.put32("object", o.Handle)
			return nil
		}
	}
	return NotFound
}

// [subdeviceCtrlCmdGpuGetId_IMPL]
func (d *Driver) subdeviceGPU(_ *request, o *Object, p args) error {
	p.put32("gpu_id", o.GPU.ID)
	return nil
}

func (d *Driver) pageSize(_ *request, o *Object, p args) error {
	size := uint64(64 << 10)
	if o.Memory.Size > hugePage {
		size = hugePage
	}
	p.put64("size", size)
	return nil
}

// capabilities of confidential computing. Without a GPU that is attached there are no locks to
// own. Protected PCIe is no feature.
// [confComputeApiCtrlCmdSystemGetCapabilities, _rmGpuLockIsOwner]
func (d *Driver) capabilities(_ *request, _ *Object, p args) error {
	if d.gpu(func(g *GPU) bool { return g.attached }) == nil {
		d.log("Assertion failed: rmapiLockIsOwner() && rmGpuLockIsOwner()")
		return InvalidLock
	}
	on := d.GPUs[0].machine
	clear(p.bytes)
	if d.hides() {
		copy(p.bytes, []byte{2, 2, 2})
	}
	if on == "cc" {
		p.from("feature")[0] = 2
	}
	if on == "ppcie" && d.Version >= 550 {
		p.from("multi")[0] = 1
	}
	return nil
}
