package nvrm

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// The requests. Each is _IOWR('F', nr, struct). A struct of a wrong size, or a request on the wrong kind of file,
// is EINVAL. A client is of the file and of the process that made it, and ends with the last close of the file.

// Caller is the thread that makes a request, and waits for the answer.
type Caller interface {
	Read(addr uint64, b []byte) error  // its memory
	Write(addr uint64, b []byte) error // the same
	Process() int
	IsOf(process int) bool // whether it is a thread of the process
	File(fd int) *File     // that it has as descriptor fd; nil: none of this driver's
	// Give opens a descriptor in the caller, too. There it has another number. Replace puts it
	// in place of the descriptor that the request is on.
	Give(fd int, cloexec bool) (there int, err error)
	Replace(fd int) (there int, err error)
	GiveFile(f *File) (there int, err error)
}

// request is one under way.
type request struct {
	Caller
	file *File
	arg  args
}

const errInvalid = unix.EINVAL

// bytes are a struct's, or a part of it.
type bytes []byte

var order = binary.NativeEndian

func (b bytes) u32(at int) uint32      { return order.Uint32(b[at:]) }
func (b bytes) put32(at int, v uint32) { order.PutUint32(b[at:], v) }

// kind is a kind of request. args is its struct, of uapi.go; "": do looks at what it gets. Where the struct has no status
// do returns errnos.
type kind struct {
	nr   uint32
	on   Kind
	args string
	name string
	do   func(d *Driver, q *request) error
}

// ownRequests and later ones are the double's own.
const ownRequests = 0xf0

var requests []kind

func init() {
	requests = []kind{
		{0x2b, Control, "rm_alloc", "ALLOC", (*Driver).alloc},
		{0x29, Control, "rm_free", "FREE", (*Driver).free},
		{0x2a, Control, "rm_control", "CONTROL", (*Driver).control},
		{0x34, Control, "rm_dup_object", "DUP_OBJECT", (*Driver).dupObject},
		{0x35, Control, "rm_share", "SHARE", (*Driver).share},
		{0x4e, Control, "rm_map_memory", "MAP_MEMORY", (*Driver).mapMemory},
		{0x4f, Control, "rm_unmap_memory", "UNMAP_MEMORY", (*Driver).unmapMemory},
		{200, Control, "", "CARD_INFO", (*Driver).cardInfo},
		{201, Device, "rm_register_fd", "REGISTER_FD", (*Driver).registerFD},
		{210, Control, "rm_version", "VERSION", (*Driver).version},
		{217, Device, "", "EXPORT_DMABUF", (*Driver).exportDMABuf},
		{0xf0, Control, "rm_sim_stats", "STATS", (*Driver).stats},
		{0xf1, Control | Device | DMABuf, "rm_sim_mmap", "MMAP", (*Driver).mmap},
		{0xf2, Control, "rm_sim_cuda", "CUDA", (*Driver).cuda},
		{0xf3, Control, "rm_sim_info", "INFO", (*Driver).info},
		{0xf4, Control | Device | DMABuf, "rm_sim_cuda", "HOLDS", (*Driver).holds},
		{0xf5, Control, "rm_sim_live", "LIVE", (*Driver).live},
		{0xf6, Control, "rm_sim_fail", "FAIL", (*Driver).fail},
	}
}

// Size is the bytes of a request's struct.
func Size(cmd uint32) int { return int(cmd >> 16 & 0x3fff) }

// IsMMap says whether the request is RM_SIM_MMAP.
func IsMMap(cmd uint32) bool { return cmd&0xffff == 'F'<<8|0xf1 }

// Request answers a request of a caller on a file. bytes has the struct, of SizeOn(f, cmd) bytes. The
// error is an errno.
func (d *Driver) Request(c Caller, f *File, cmd uint32, bytes []byte) error {
	if f.Kind == UVM {
		return d.uvmRequest(f, cmd, bytes)
	}
	i := slices.IndexFunc(requests, func(k kind) bool { return k.nr == cmd&0xff })
	if i < 0 || requests[i].on&f.Kind == 0 || requests[i].args != "" && layouts[requests[i].args].size != len(bytes) {
		return errInvalid
	}
	k := requests[i]
	arg := args{bytes, layouts[k.args]}
	_, hasStatus := arg.fields["status"]
	var err error
	if refusal := d.refusal(f, k, arg); refusal != nil {
		err = refusal
	} else if failure := d.fault(f, k, arg); failure != 0 && hasStatus {
		err = Status(failure)
	} else if failure != 0 {
		return unix.Errno(failure)
	} else {
		err = k.do(d, &request{c, f, arg})
	}
	status, isStatus := err.(Status)
	if !hasStatus || err != nil && !isStatus {
		return err
	}
	arg.put32("status", uint32(status))
	return nil
}

// refusal is how a sandbox refuses what is not in Pass, as gVisor does: a request, a class, a control.
// [google/gvisor 3c5eee17, pkg/sentry/devices/nvproxy/frontend.go: Ioctl, rmAlloc, rmControl]
func (d *Driver) refusal(f *File, k kind, arg args) error {
	passes := func(code uint32) bool { return slices.Contains(d.Pass, code) }
	switch {
	case d.Pass == nil || k.nr >= ownRequests || d.isCUDAs(f) && !asksForObject(k, arg):
		return nil
	case !passes(k.nr):
		return errInvalid
	case k.name == "ALLOC" && !passes(arg.u32("class")):
		return InvalidClass
	case k.name == "CONTROL" && !passes(arg.u32("cmd")):
		return NotSupported
	}
	return nil
}

// asksForObject says whether a request is one of the controls that tell of an object. The simulated libcuda makes
// none of them. So on its file, too, they are another's.
func asksForObject(k kind, arg args) bool {
	if k.name != "CONTROL" {
		return false
	}
	switch arg.u32("cmd") {
	case 0xd01, 0xd02, 0x800293, 0x20800142:
		return true
	}
	return false
}

func (d *Driver) fault(f *File, k kind, arg args) int32 {
	if asksForObject(k, arg) {
		return d.Fault(nil, k.name)
	}
	return d.Fault(f, k.name)
}

// own is the client that the caller may use, by this file; nil: none.
func (d *Driver) own(q *request, handle uint32) *Client {
	if c := d.Client(handle); c != nil && c.File == q.file && q.IsOf(c.Process) {
		return c
	}
	return nil
}

func (d *Driver) isWholePages(n ...uint64) bool {
	return !slices.ContainsFunc(n, func(n uint64) bool { return n%d.Page != 0 })
}

// lost says whether the GPU has fallen off the bus.
func (d *Driver) lost(q *request) bool { return d.Fault(q.file, "LOST") != 0 }

const (
	classLocked       = 0x27 // the host's memory, as cuMemAllocHost has it; parent: a device
	classHost         = 0x3e // the host's memory; parent: a device
	classMemory       = 0x40 // of a GPU; parent: a device
	classClient       = 0x41
	classDevice       = 0x80   // parent: the client
	classFabric       = 0xf8   // parent: a subdevice
	classSubdevice    = 0x2080 // parent: a device
	classPeer         = 0x503b // parent: the client
	classDebugger     = 0x83de // the same
	classConfidential = 0xcb33 // the same
)

func (d *Driver) alloc(q *request) error {
	a, class := q.arg, q.arg.u32("class")
	if class == classClient {
		if !a.isZero("root", "class") {
			return InvalidArgument
		}
		a.put32("object", d.NewClient(q.file, q.Process()).Handle)
		return nil
	}
	c := d.own(q, a.u32("root"))
	if c == nil {
		return InvalidClient
	}
	var o *Object
	var err error
	switch {
	case class == classConfidential:
		o, err = c.allocConfidential(a)
	case d.lost(q):
		return GPUIsLost
	case class == classDevice:
		o, err = d.allocDevice(q, c)
	case class == classMemory || class == classHost || class == classLocked || class == classFabric:
		o, err = d.allocMemory(q, c, class)
	case class == classSubdevice:
		o, err = c.allocSubdevice(a)
	case class == classPeer || class == classDebugger:
		o, err = c.allocChild(a, class)
	default:
		return InvalidClass
	}
	if err == nil {
		a.put32("object", o.Handle)
	}
	return err
}

func (c *Client) allocConfidential(a args) (*Object, error) {
	if a.u32("parent") != c.Handle {
		return nil, InvalidParent
	}
	if a.u64("params") != 0 || a.u32("params_size") != 0 {
		return nil, InvalidStruct
	}
	return c.newObject(a.u32("object"), classConfidential)
}

// allocChild makes an object that does nothing here. Its parameters are not looked at.
func (c *Client) allocChild(a args, class uint32) (*Object, error) {
	if a.u32("parent") != c.Handle {
		return nil, InvalidParent
	}
	return c.newObject(a.u32("object"), class)
}

func (c *Client) allocSubdevice(a args) (*Object, error) {
	device := c.device(a.u32("parent"))
	if device == nil {
		return nil, InvalidParent
	}
	o, err := c.newObject(a.u32("object"), classSubdevice)
	if err == nil {
		o.GPU, o.Device = device.GPU, device
	}
	return o, err
}

func (d *Driver) allocDevice(q *request, c *Client) (*Object, error) {
	p := newArgs(layouts["rm_device_params"])
	if q.arg.u32("parent") != c.Handle {
		return nil, InvalidParent
	}
	if q.arg.u32("params_size") != uint32(p.size) {
		return nil, InvalidStruct
	}
	if q.Read(q.arg.u64("params"), p.bytes) != nil {
		return nil, InvalidArgument
	}
	share := p.u32("client_share")
	if share != 0 && share != c.Handle || !p.isZero("target_client", "va_mode") || p.u32("va_mode") > 2 {
		return nil, InvalidArgument
	}
	g := d.gpu(func(g *GPU) bool { return g.Instance == p.u32("instance") })
	registered := slices.ContainsFunc(d.Files, func(f *File) bool { return f.Kind == Device && f.GPU == g && f.registered == q.file })
	if g == nil || !registered {
		return nil, InvalidDevice
	}
	o, err := c.newObject(q.arg.u32("object"), classDevice)
	if err == nil {
		o.GPU = g
	}
	return o, err
}

func (d *Driver) allocMemory(q *request, c *Client, class uint32) (*Object, error) {
	parent, p := c.Object(q.arg.u32("parent")), newArgs(layouts["rm_sim_memory"])
	want := uint32(classDevice)
	if class == classFabric {
		want = classSubdevice
	}
	if parent == nil || parent.Class != want {
		return nil, InvalidParent
	}
	if q.arg.u32("params_size") != uint32(p.size) {
		return nil, InvalidStruct
	}
	if q.Read(q.arg.u64("params"), p.bytes) != nil || p.u64("size") == 0 || !d.isWholePages(p.u64("size")) || p.u64("flags") != 0 {
		return nil, InvalidArgument
	}
	m, err := d.newMemory(parent.GPU, p.u64("size"), class == classMemory)
	if err != nil {
		return nil, err
	}
	defer d.put(m)
	switch class {
	case classHost, classLocked:
		m.Space, m.Answer = spaceSystem, MapAnswer(1, 6)
	case classFabric:
		m.Space = spaceFabric
	}
	return c.addMemory(q.arg.u32("object"), class, parent, m)
}

// duplicateBelow makes an object of memory below a device. Below that of another GPU a GPU's own memory shows
// other bytes: the driver takes that GPU's memory at the same place (580.159.04, two H200s).
func (d *Driver) duplicateBelow(c *Client, parent uint32, from *Object, handle uint32) (*Object, error) {
	device, m := c.device(parent), from.Memory
	switch {
	case device == nil:
		return nil, InvalidParent
	case device.GPU == m.GPU || m.Space == spaceSystem:
		return c.addMemory(handle, from.Class, device, m)
	}
	other, err := d.newMemory(device.GPU, m.Size, false)
	if err != nil {
		return nil, err
	}
	defer d.put(other)
	return c.addMemory(handle, from.Class, device, other)
}

// memoryBelow makes an object of memory below a device of its GPU.
func (c *Client) memoryBelow(parent uint32, m *Memory, handle uint32) (*Object, error) {
	device := c.device(parent)
	if device == nil || device.GPU != m.GPU {
		return nil, InvalidParent
	}
	class := uint32(classMemory)
	if m.Space == spaceSystem && m.GPU.Space != spaceSystem {
		class = classHost
	}
	return c.addMemory(handle, class, device, m)
}

func (d *Driver) free(q *request) error {
	c, handle := d.own(q, q.arg.u32("root")), q.arg.u32("object")
	if c == nil {
		return InvalidClient
	}
	if handle == c.Handle {
		d.EndClient(c)
		return nil
	}
	o := c.Object(handle)
	if o == nil {
		return NotFound
	}
	d.End(c, o)
	return nil
}

// target is what a control is made on.
type target int

const (
	onClient target = iota
	onMemory
	onDevice
	onSubdevice
	onConfidential
)

// controls: do gets the object that the control is made on, or the one that the parameters name in the field named;
// nil: there is none.
var controls = map[uint32]struct {
	on    target
	args  string
	do    func(d *Driver, q *request, o *Object, p args) error
	named string
}{
	0x104:      {onClient, "rm_chipset", (*Driver).chipset, ""},
	0x201:      {onClient, "rm_attached", (*Driver).attachedIDs, ""},
	0x205:      {onClient, "rm_id_info", (*Driver).idInfo, ""},
	0x288:      {onClient, "rm_active_devices", (*Driver).activeDevices, ""},
	0xd01:      {onClient, "rm_address_space", (*Driver).addressSpace, "object"},
	0xd02:      {onClient, "rm_handle_info", (*Driver).handleInfo, "object"},
	0x3d05:     {onClient, "rm_export_fd", (*Driver).exportFD, "object"},
	0x3d06:     {onClient, "rm_import_fd", (*Driver).importFD, ""},
	0x3d08:     {onClient, "rm_export_info", (*Driver).exportInfo, ""},
	0x3d0b:     {onClient, "rm_export_objects", (*Driver).exportObjects, "device"},
	0x3d0c:     {onClient, "rm_import_objects", (*Driver).importObjects, ""},
	0x410110:   {onMemory, "rm_surface", (*Driver).surface, ""},
	0x410118:   {onMemory, "rm_page_size", (*Driver).pageSize, ""},
	0x800293:   {onDevice, "rm_subdevice", (*Driver).findSubdevice, ""},
	0x20800142: {onSubdevice, "rm_gpu_id", (*Driver).subdeviceGPU, ""},
	0xcb330101: {onConfidential, "rm_capabilities", (*Driver).capabilities, ""},
}

func (c *Client) isTarget(handle uint32, t target) bool {
	o := c.Object(handle)
	switch t {
	case onMemory:
		return o != nil && o.Memory != nil
	case onDevice:
		return o != nil && o.Class == classDevice
	case onSubdevice:
		return o != nil && o.Class == classSubdevice
	case onConfidential:
		return o != nil && o.Class == classConfidential
	}
	return handle == c.Handle
}

func (d *Driver) control(q *request) error {
	a := q.arg
	c := d.own(q, a.u32("client"))
	if c == nil {
		return InvalidClient
	}
	k, ok := controls[a.u32("cmd")]
	if !ok {
		return NotSupported
	}
	if !c.isTarget(a.u32("object"), k.on) {
		return InvalidObject
	}
	p := newArgs(d.in(k.args))
	// Seen on 580.159.
	if int(a.u32("params_size")) != p.size || a.u32("flags") != 0 || q.Read(a.u64("params"), p.bytes) != nil {
		return InvalidArgument
	}
	handle := a.u32("object")
	if k.named != "" {
		handle = p.u32(k.named)
	}
	err := k.do(d, q, c.Object(handle), p)
	if q.Write(a.u64("params"), p.bytes) != nil {
		return InvalidArgument
	}
	return err
}

const fdObject = 1 // type: an object

// exporting finds the file that objects go into. [os.c, _initializeExportObjectFd]
func (d *Driver) exporting(q *request, fd int, device *Object, most uint16) (*File, error) {
	f := q.File(fd)
	switch {
	case f == nil || f.Kind != Control || most == 0:
		return nil, InvalidParam
	case f.exports != nil || slices.ContainsFunc(d.Clients, func(c *Client) bool { return c.File == f }):
		return nil, StateInUse
	case device == nil:
		return nil, NotFound
	case device.Class != classDevice:
		return nil, InvalidParam
	}
	f.exports = &export{gpu: device.GPU, memory: make([]*Memory, most)}
	return f, nil
}

// exported finds the file that objects were exported into.
func (q *request) exported(fd int) (*export, error) {
	if f := q.File(fd); f != nil && f.Kind == Control && f.exports != nil {
		return f.exports, nil
	}
	return nil, InvalidParam
}

// [os.c, cliresCtrlCmdOsUnixExportObjectToFd_IMPL]
func (d *Driver) exportFD(q *request, o *Object, p args) error {
	switch {
	case p.u32("type") != fdObject || p.u32("flags")&1 != 0:
		return InvalidParam
	case o == nil:
		return NotFound
	case o.Memory == nil:
		return InvalidObject
	case o.Device.Handle != p.u32("device"):
		return InvalidParent
	}
	f, err := d.exporting(q, p.fd("fd"), o.Device, 1)
	if err == nil {
		f.exports.memory[0] = o.Memory.get()
	}
	return err
}

// [os.c, cliresCtrlCmdOsUnixExportObjectsToFd_IMPL]
func (d *Driver) exportObjects(q *request, device *Object, p args) error {
	c, most, n := d.Client(q.arg.u32("client")), p.u16("most"), p.u16("n")
	f, err := d.exporting(q, p.fd("fd"), device, most)
	if err != nil {
		return err
	}
	var memory []*Memory
	for i := range int(n) {
		o := c.Object(p.from("objects").u32(4 * i))
		if p.from("objects").u32(4*i) == 0 && n <= most && n <= 512 {
			memory = append(memory, nil)
			continue
		}
		switch {
		case n > 512:
			err = InvalidParam
		case n > most:
			err = OutOfRange
		case o == nil:
			err = NotFound
		case o.Memory == nil:
			err = InvalidObject
		case o.GPU != device.GPU:
			err = InvalidParam
		}
		if err != nil {
			f.exports = nil
			return err
		}
		memory = append(memory, o.Memory)
	}
	for i, m := range memory {
		if m != nil {
			f.exports.memory[i] = m.get()
		}
	}
	copy(f.exports.metadata[:], p.from("label"))
	f.exports.fabric = c.File.CUDA && n == 1 && most == 2
	return nil
}

// [os.c, cliresCtrlCmdOsUnixImportObjectFromFd_IMPL]
func (d *Driver) importFD(q *request, _ *Object, p args) error {
	e, err := q.exported(p.fd("fd"))
	switch {
	case p.u32("type") != fdObject || err != nil || e.memory[0] == nil:
		return InvalidParam
	case p.u32("device") != p.u32("parent"):
		return InvalidParent
	}
	o, err := d.importOne(q, p.u32("parent"), e.memory[0], p.u32("object"))
	if err == nil {
		p.put32("object", o.Handle)
	}
	return err
}

func (d *Driver) importOne(q *request, parent uint32, m *Memory, handle uint32) (*Object, error) {
	if err := checkDuplicate(q, m.GPU); err != nil {
		return nil, err
	}
	return d.Client(q.arg.u32("client")).memoryBelow(parent, m, handle)
}

// [os.c, cliresCtrlCmdOsUnixImportObjectsFromFd_IMPL]
func (d *Driver) importObjects(q *request, _ *Object, p args) error {
	c, n, index := d.Client(q.arg.u32("client")), int(p.u16("n")), int(p.u16("index"))
	e, err := q.exported(p.fd("fd"))
	switch {
	case err != nil || n > 128:
		return InvalidParam
	case n+index > len(e.memory):
		return OutOfRange
	}
	var made []*Object
	for i, m := range e.memory[index : index+n] {
		p.from("kinds")[i] = 0
		if e.fabric && i+index == 1 {
			err = InvalidParent // [mem_fabric_imported_ref.c: of a subdevice alone]
		}
		if m == nil && err == nil {
			continue
		}
		var o *Object
		if err == nil {
			o, err = d.importOne(q, p.u32("parent"), m, 0)
		}
		if err != nil {
			for _, o := range made {
				d.End(c, o)
			}
			return err
		}
		made = append(made, o)
		p.from("objects").put32(4*i, o.Handle)
		p.from("kinds")[i] = 1
		if m.Space == spaceSystem {
			p.from("kinds")[i] = 2
		}
	}
	return nil
}

// [os.c, cliresCtrlCmdOsUnixGetExportObjectInfo_IMPL]
func (d *Driver) exportInfo(q *request, _ *Object, p args) error {
	e, err := q.exported(p.fd("fd"))
	if err != nil {
		return err
	}
	p.put32("instance", e.gpu.Instance)
	if d.Version >= 550 {
		p.put32("mig", 0xffffffff)
		if e.gpu.machine == "mig" {
			p.put32("mig", 1)
		}
	}
	p.put16("most", uint16(len(e.memory)))
	copy(p.from("label"), e.metadata[:])
	return nil
}

func (d *Driver) dupObject(q *request) error {
	a := q.arg
	c, source := d.own(q, a.u32("client")), d.Client(a.u32("client_src"))
	if c == nil || source == nil {
		return InvalidClient
	}
	from := source.Object(a.u32("object_src"))
	switch {
	case from == nil:
		return NotFound
	case !from.shared && !q.IsOf(source.Process):
		return NoPermission
	case from.Memory == nil:
		return InvalidObject
	case a.u32("flags") != 0:
		return InvalidArgument
	}
	if err := checkDuplicate(q, from.GPU); err != nil {
		return err
	}
	o, err := d.duplicateBelow(c, a.u32("parent"), from, a.u32("object"))
	if err == nil {
		a.put32("object", o.Handle)
	}
	return err
}

// ownMemory finds the memory object that a request names.
func (d *Driver) ownMemory(q *request) (*Object, error) {
	c := d.own(q, q.arg.u32("client"))
	if c == nil {
		return nil, InvalidClient
	}
	o := c.Object(q.arg.u32("object"))
	if o == nil || o.Memory == nil {
		return nil, NotFound
	}
	return o, nil
}

func (d *Driver) share(q *request) error {
	o, err := d.ownMemory(q)
	if err != nil {
		return err
	}
	if !q.arg.isZero("policy", "status") {
		return NotSupported
	}
	o.shared = true
	return nil
}

// findMemory finds the memory object that a request names, below its device.
func (d *Driver) findMemory(q *request) (*Client, *Object, error) {
	c := d.own(q, q.arg.u32("client"))
	if c == nil {
		return nil, nil, InvalidClient
	}
	o, device := c.Object(q.arg.u32("memory")), c.device(q.arg.u32("device"))
	switch {
	case o == nil || device == nil:
		return nil, nil, NotFound
	case o.Memory == nil:
		return nil, nil, InvalidObject
	case o.Device != device:
		return nil, nil, InvalidParent
	}
	return c, o, nil
}

func (d *Driver) mapMemory(q *request) error {
	a := q.arg
	c, o, err := d.findMemory(q)
	if err != nil {
		return err
	}
	offset, length := a.u64("offset"), a.u64("length")
	switch {
	case length == 0 || !d.isWholePages(offset, length):
		return InvalidArgument
	case offset >= o.Memory.Size:
		return InvalidBase
	case length > o.Memory.Size-offset:
		return InvalidLimit
	case d.lost(q):
		return GPUIsLost
	}
	if err := d.checkMap(q, o.Memory, offset, length); err != nil {
		return err
	}
	// [rm_create_mmap_context]
	want, f := Device, q.File(a.fd("fd"))
	if o.Memory.Space == spaceSystem {
		want = Control
	}
	if f == nil || f.Kind != want || want == Device && f.GPU != o.GPU {
		return InvalidArgument
	}
	if f.linear != 0 {
		return StateInUse
	}
	m, err := d.newMapping(o, offset, length, !q.file.CUDA && o.GPU.hasBAR() && o.Memory.Space == spaceVideo)
	if err != nil {
		return err
	}
	f.linear, f.mapper = m.Linear, c.Handle
	a.put64("linear", m.Linear)
	// Bits beside the answer's are not 0.
	a.put32("flags", a.u32("flags")&^mapAnswerMask|o.Memory.Answer|1<<26|1<<22|1<<17|1)
	return nil
}

func (d *Driver) unmapMemory(q *request) error {
	c, o, err := d.findMemory(q)
	if err != nil {
		return err
	}
	of, m := c.mapping(q.arg.u64("linear"))
	if m == nil || of != o {
		return NotFound
	}
	d.unmap(o, m)
	return nil
}

// registerFD is on a GPU's file.
func (d *Driver) registerFD(q *request) error {
	f := q.File(q.arg.fd("ctl_fd"))
	if f == nil || f.Kind != Control || q.file.registered != nil {
		return errInvalid
	}
	q.file.registered = f
	return nil
}

func (d *Driver) version(q *request) error {
	text := make([]byte, 64)
	copy(text, d.VersionText)
	if cmd := q.arg.u32("cmd"); cmd != '2' && (cmd != 0 || string(q.arg.from("text")) != string(text)) {
		q.arg.put32("reply", 0)
		return errInvalid
	}
	copy(q.arg.from("text"), text)
	q.arg.put32("reply", 1)
	return nil
}

// exportDMABuf exports parts of objects. Drivers before 570 have a struct without mapping_type and allow_mmap.
func (d *Driver) exportDMABuf(q *request) error {
	q.arg.layout = layouts["rm_dmabuf"]
	if d.Version < 570 {
		q.arg.layout = layouts["rm_dmabuf_2600"]
	}
	if len(q.arg.bytes) != q.arg.size {
		return errInvalid
	}
	var kinds [2]byte // mapping_type, allow_mmap
	if d.Version >= 570 {
		copy(kinds[:], q.arg.from("mapping_type"))
	}
	fd, status := d.exportOne(q, kinds, q.arg.u32("handles"), q.arg.u64("offsets"), q.arg.u64("sizes"))
	q.arg.put32("fd", uint32(int32(fd)))
	q.arg.put32("status", uint32(status))
	return nil
}

// exportOne exports one part of one object. The simulated libcuda exports nothing else.
func (d *Driver) exportOne(q *request, kinds [2]byte, handle uint32, offset, size uint64) (fd int, s Status) {
	c := d.Client(q.arg.u32("client"))
	if c == nil || !q.IsOf(c.Process) {
		return -1, InvalidClient
	}
	o := c.Object(handle)
	switch {
	case q.arg.fd("fd") != -1 || q.arg.u32("index") != 0 || kinds[0] != 0 || kinds[1] > 1:
		return -1, InvalidArgument
	case q.arg.u32("total_objects") != 1 || q.arg.u32("objects") != 1:
		return -1, NotSupported
	case o == nil:
		return -1, NotFound
	case o.Memory == nil || o.GPU != q.file.GPU:
		return -1, InvalidObject
	case o.GPU.machine == "vgpu":
		return -1, NotSupported
	case size == 0 || !d.isWholePages(offset, size) || size > o.Memory.Size || offset > o.Memory.Size-size || q.arg.u64("total_size") != size:
		return -1, InvalidArgument
	}
	f := d.Open(DMABuf, o.GPU)
	f.memory, f.size = o.Memory.get(), size
	if kinds[1] == 1 {
		f.offset, f.length = offset, size
	}
	fd, err := q.GiveFile(f)
	if err != nil {
		return -1, NoResources
	}
	return fd, 0
}
