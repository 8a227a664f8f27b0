package nvrm

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// The requests, by byte offsets. Each is _IOWR('F', nr, struct). A struct of a wrong size, or a request on the wrong kind of file,
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
	// Revoke is told of mappings whose pages are taken away.
	Revoke(process int, memory *Memory, m *Mapping)
}

// request is one under way.
type request struct {
	Caller
	file *File
	arg  bytes
}

const errInvalid = unix.EINVAL

// bytes are a struct's.
type bytes []byte

var order = binary.NativeEndian

func (b bytes) u16(at int) uint16      { return order.Uint16(b[at:]) }
func (b bytes) u32(at int) uint32      { return order.Uint32(b[at:]) }
func (b bytes) u64(at int) uint64      { return order.Uint64(b[at:]) }
func (b bytes) put16(at int, v uint16) { order.PutUint16(b[at:], v) }
func (b bytes) put32(at int, v uint32) { order.PutUint32(b[at:], v) }
func (b bytes) put64(at int, v uint64) { order.PutUint64(b[at:], v) }
func (b bytes) fd(at int) int          { return int(int32(b.u32(at))) }
func (b bytes) isZero(from, to int) bool {
	return !slices.ContainsFunc(b[from:to], func(x byte) bool { return x != 0 })
}

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
		{0xf7, Control | Device, "rm_sim_mapped", "MAPPED", (*Driver).mapped},
	}
}

// Size is the bytes of a request's struct.
func Size(cmd uint32) int { return int(cmd >> 16 & 0x3fff) }

// IsMMap says whether the request is RM_SIM_MMAP.
func IsMMap(cmd uint32) bool { return cmd&0xffff == 'F'<<8|0xf1 }

// Request answers a request of a caller on a file. arg has the struct, of SizeOn(f, cmd) bytes. The
// error is an errno.
func (d *Driver) Request(c Caller, f *File, cmd uint32, arg []byte) error {
	if f.Kind == UVM {
		return d.uvmRequest(c, f, cmd, arg)
	}
	i := slices.IndexFunc(requests, func(k kind) bool { return k.nr == cmd&0xff })
	if i < 0 || requests[i].on&f.Kind == 0 || requests[i].args != "" && layouts[requests[i].args].size != len(arg) {
		return errInvalid
	}
	k := requests[i]
	at := layouts[k.args].status
	var err error
	if refusal := d.refusal(f, k, arg); refusal != nil {
		err = refusal
	} else if failure := d.fault(f, k, arg); failure != 0 && at != 0 {
		err = Status(failure)
	} else if failure != 0 {
		return unix.Errno(failure)
	} else {
		err = k.do(d, &request{c, f, arg})
	}
	status, isStatus := err.(Status)
	if at == 0 || err != nil && !isStatus {
		return err
	}
	bytes(arg).put32(at, uint32(status))
	return nil
}

// refusal is how a sandbox refuses what is not in Pass, as gVisor does: a request, a class, a control.
// [google/gvisor 3c5eee17, pkg/sentry/devices/nvproxy/frontend.go: Ioctl, rmAlloc, rmControl]
func (d *Driver) refusal(f *File, k kind, arg bytes) error {
	passes := func(code uint32) bool { return slices.Contains(d.Pass, code) }
	switch {
	case d.Pass == nil || k.nr >= ownRequests || d.isCUDAs(f) && !asksForObject(k, arg):
		return nil
	case !passes(k.nr):
		return errInvalid
	case k.name == "ALLOC" && !passes(arg.u32(12)):
		return InvalidClass
	case k.name == "CONTROL" && !passes(arg.u32(8)):
		return NotSupported
	}
	return nil
}

// asksForObject says whether a request is one of the controls that tell of an object. The simulated libcuda makes
// none of them. So on its file, too, they are another's.
func asksForObject(k kind, arg bytes) bool {
	if k.name != "CONTROL" {
		return false
	}
	switch arg.u32(8) {
	case 0xd01, 0xd02, 0x800293, 0x20800142:
		return true
	}
	return false
}

func (d *Driver) fault(f *File, k kind, arg bytes) int32 {
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

// root, parent, object, class, params, rights, params_size, flags
func (d *Driver) alloc(q *request) error {
	a, class := q.arg, q.arg.u32(12)
	if class == classClient {
		if !a.isZero(0, 12) {
			return InvalidArgument
		}
		a.put32(8, d.NewClient(q.file, q.Process()).Handle)
		return nil
	}
	c := d.own(q, a.u32(0))
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
		a.put32(8, o.Handle)
	}
	return err
}

func (c *Client) allocConfidential(a bytes) (*Object, error) {
	if a.u32(4) != c.Handle {
		return nil, InvalidParent
	}
	if a.u64(16) != 0 || a.u32(32) != 0 {
		return nil, InvalidStruct
	}
	return c.newObject(a.u32(8), classConfidential)
}

// allocChild makes an object that does nothing here. Its parameters are not looked at.
func (c *Client) allocChild(a bytes, class uint32) (*Object, error) {
	if a.u32(4) != c.Handle {
		return nil, InvalidParent
	}
	return c.newObject(a.u32(8), class)
}

// number, which is 0
func (c *Client) allocSubdevice(a bytes) (*Object, error) {
	device := c.device(a.u32(4))
	if device == nil {
		return nil, InvalidParent
	}
	o, err := c.newObject(a.u32(8), classSubdevice)
	if err == nil {
		o.GPU, o.Device = device.GPU, device
	}
	return o, err
}

// instance, client_share, target_client, target_device, flags, the va range, va_mode
func (d *Driver) allocDevice(q *request, c *Client) (*Object, error) {
	p := make(bytes, 56)
	if q.arg.u32(4) != c.Handle {
		return nil, InvalidParent
	}
	if q.arg.u32(32) != uint32(len(p)) {
		return nil, InvalidStruct
	}
	if q.Read(q.arg.u64(16), p) != nil {
		return nil, InvalidArgument
	}
	share := p.u32(4)
	if share != 0 && share != c.Handle || !p.isZero(8, 20) || !p.isZero(24, 48) || p.u32(48) > 2 {
		return nil, InvalidArgument
	}
	g := d.gpu(func(g *GPU) bool { return g.Instance == p.u32(0) })
	registered := slices.ContainsFunc(d.Files, func(f *File) bool { return f.Kind == Device && f.GPU == g && f.registered == q.file })
	if g == nil || !registered {
		return nil, InvalidDevice
	}
	o, err := c.newObject(q.arg.u32(8), classDevice)
	if err == nil {
		o.GPU = g
	}
	return o, err
}

// size
func (d *Driver) allocMemory(q *request, c *Client, class uint32) (*Object, error) {
	parent, p := c.Object(q.arg.u32(4)), make(bytes, 16)
	want := uint32(classDevice)
	if class == classFabric {
		want = classSubdevice
	}
	if parent == nil || parent.Class != want {
		return nil, InvalidParent
	}
	if q.arg.u32(32) != uint32(len(p)) {
		return nil, InvalidStruct
	}
	if q.Read(q.arg.u64(16), p) != nil || p.u64(0) == 0 || !d.isWholePages(p.u64(0)) || p.u64(8) != 0 {
		return nil, InvalidArgument
	}
	m, err := d.newMemory(parent.GPU, p.u64(0), class == classMemory)
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
	return c.addMemory(q.arg.u32(8), class, parent, m)
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

// revoke takes away the mappings of an object, or of all that are below it; top nil: of all.
func (d *Driver) revoke(q *request, c *Client, top *Object) {
	for _, o := range c.Objects {
		if o.Memory == nil || top != nil && o != top && o.Device != top {
			continue
		}
		for _, m := range o.Mappings {
			if m.Addr != 0 && o.GPU.HasBAR() {
				q.Revoke(c.Process, o.Memory, m)
			}
		}
	}
}

// root, parent, object
func (d *Driver) free(q *request) error {
	c, handle := d.own(q, q.arg.u32(0)), q.arg.u32(8)
	if c == nil {
		return InvalidClient
	}
	if handle == c.Handle {
		d.revoke(q, c, nil)
		d.EndClient(c)
		return nil
	}
	o := c.Object(handle)
	if o == nil {
		return NotFound
	}
	d.revoke(q, c, o)
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

// controls: do gets the object that the control is made on, or the one that the word at named
// in the parameters names; nil: there is none. size 0 is that of the capabilities.
var controls = map[uint32]struct {
	on    target
	size  int
	do    func(d *Driver, q *request, o *Object, p bytes) error
	named int
}{
	0x104:      {onClient, 152, (*Driver).chipset, 0},
	0x201:      {onClient, 128, (*Driver).attachedIDs, 0},
	0x205:      {onClient, 32, (*Driver).idInfo, 0},
	0x288:      {onClient, 3076, (*Driver).activeDevices, 0},
	0xd01:      {onClient, 12, (*Driver).addressSpace, 0},
	0xd02:      {onClient, 16, (*Driver).handleInfo, 0},
	0x3d05:     {onClient, 24, (*Driver).exportFD, 12},
	0x3d06:     {onClient, 20, (*Driver).importFD, 0},
	0x3d08:     {onClient, 80, (*Driver).exportInfo, 0},
	0x3d0b:     {onClient, 2128, (*Driver).exportObjects, 4},
	0x3d0c:     {onClient, 652, (*Driver).importObjects, 4},
	0x410110:   {onMemory, 16, (*Driver).surface, 0},
	0x410118:   {onMemory, 8, (*Driver).pageSize, 0},
	0x800293:   {onDevice, 8, (*Driver).findSubdevice, 0},
	0x20800142: {onSubdevice, 4, (*Driver).subdeviceGPU, 0},
	0xcb330101: {onConfidential, 0, (*Driver).capabilities, 0},
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

// client, object, cmd, flags, params, params_size
func (d *Driver) control(q *request) error {
	a := q.arg
	c := d.own(q, a.u32(0))
	if c == nil {
		return InvalidClient
	}
	k, ok := controls[a.u32(8)]
	if !ok {
		return NotSupported
	}
	if !c.isTarget(a.u32(4), k.on) {
		return InvalidObject
	}
	if k.size == 0 {
		k.size = 6
		if d.Version < 550 {
			k.size = 5
		}
	}
	if a.u32(8) == 0x3d08 && d.Version < 550 {
		k.size = 76
	}
	p := make(bytes, k.size)
	// Seen on 580.159.
	if int(a.u32(24)) != k.size || a.u32(12) != 0 || q.Read(a.u64(16), p) != nil {
		return InvalidArgument
	}
	handle := a.u32(4)
	if k.on == onClient {
		handle = p.u32(k.named)
	}
	err := k.do(d, q, c.Object(handle), p)
	if q.Write(a.u64(16), p) != nil {
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

// type, device, parent, object, fd, flags [os.c, cliresCtrlCmdOsUnixExportObjectToFd_IMPL]
func (d *Driver) exportFD(q *request, o *Object, p bytes) error {
	switch {
	case p.u32(0) != fdObject || p.u32(20)&1 != 0:
		return InvalidParam
	case o == nil:
		return NotFound
	case o.Memory == nil:
		return InvalidObject
	case o.Device.Handle != p.u32(4):
		return InvalidParent
	}
	f, err := d.exporting(q, p.fd(16), o.Device, 1)
	if err == nil {
		f.exports.memory[0] = o.Memory.get()
	}
	return err
}

// fd, device, most, metadata at 10, objects at 76, n at 2124, index
// [os.c, cliresCtrlCmdOsUnixExportObjectsToFd_IMPL]
func (d *Driver) exportObjects(q *request, device *Object, p bytes) error {
	c, most, n := d.Client(q.arg.u32(0)), p.u16(8), p.u16(2124)
	f, err := d.exporting(q, p.fd(0), device, most)
	if err != nil {
		return err
	}
	var memory []*Memory
	for i := range int(n) {
		o := c.Object(p.u32(76 + 4*i))
		if p.u32(76+4*i) == 0 && n <= most && n <= 512 {
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
	copy(f.exports.metadata[:], p[10:])
	f.exports.fabric = c.File.CUDA && n == 1 && most == 2
	return nil
}

// fd, type, device, parent, object [os.c, cliresCtrlCmdOsUnixImportObjectFromFd_IMPL]
func (d *Driver) importFD(q *request, _ *Object, p bytes) error {
	e, err := q.exported(p.fd(0))
	switch {
	case p.u32(4) != fdObject || err != nil || e.memory[0] == nil:
		return InvalidParam
	case p.u32(8) != p.u32(12):
		return InvalidParent
	}
	o, err := d.importOne(q, p.u32(12), e.memory[0], p.u32(16))
	if err == nil {
		p.put32(16, o.Handle)
	}
	return err
}

func (d *Driver) importOne(q *request, parent uint32, m *Memory, handle uint32) (*Object, error) {
	if err := checkDuplicate(q, m.GPU); err != nil {
		return nil, err
	}
	return d.Client(q.arg.u32(0)).memoryBelow(parent, m, handle)
}

// fd, parent, objects at 8, kinds at 520, n at 648, index
// [os.c, cliresCtrlCmdOsUnixImportObjectsFromFd_IMPL]
func (d *Driver) importObjects(q *request, _ *Object, p bytes) error {
	c, n, index := d.Client(q.arg.u32(0)), int(p.u16(648)), int(p.u16(650))
	e, err := q.exported(p.fd(0))
	switch {
	case err != nil || n > 128:
		return InvalidParam
	case n+index > len(e.memory):
		return OutOfRange
	}
	var made []*Object
	for i, m := range e.memory[index : index+n] {
		p[520+i] = 0
		if e.fabric && i+index == 1 {
			err = InvalidParent // [mem_fabric_imported_ref.c: of a subdevice alone]
		}
		if m == nil && err == nil {
			continue
		}
		var o *Object
		if err == nil {
			o, err = d.importOne(q, p.u32(4), m, 0)
		}
		if err != nil {
			for _, o := range made {
				d.End(c, o)
			}
			return err
		}
		made = append(made, o)
		p.put32(8+4*i, o.Handle)
		p[520+i] = 1
		if m.Space == spaceSystem {
			p[520+i] = 2
		}
	}
	return nil
}

// fd, instance, mig, most at 12, metadata at 14; 535 has no mig
// [os.c, cliresCtrlCmdOsUnixGetExportObjectInfo_IMPL]
func (d *Driver) exportInfo(q *request, _ *Object, p bytes) error {
	e, err := q.exported(p.fd(0))
	if err != nil {
		return err
	}
	p.put32(4, e.gpu.Instance)
	at := 8
	if d.Version >= 550 {
		at = 12
		p.put32(8, 0xffffffff)
		if e.gpu.machine == "mig" {
			p.put32(8, 1)
		}
	}
	p.put16(at, uint16(len(e.memory)))
	copy(p[at+2:], e.metadata[:])
	return nil
}

// client, parent, object, client_src, object_src, flags
func (d *Driver) dupObject(q *request) error {
	a := q.arg
	c, source := d.own(q, a.u32(0)), d.Client(a.u32(12))
	if c == nil || source == nil {
		return InvalidClient
	}
	from := source.Object(a.u32(16))
	switch {
	case from == nil:
		return NotFound
	case !from.shared && !q.IsOf(source.Process):
		return NoPermission
	case from.Memory == nil:
		return InvalidObject
	case a.u32(20) != 0:
		return InvalidArgument
	}
	if err := checkDuplicate(q, from.GPU); err != nil {
		return err
	}
	o, err := d.duplicateBelow(c, a.u32(4), from, a.u32(8))
	if err == nil {
		a.put32(8, o.Handle)
	}
	return err
}

// ownMemory finds the memory object that the first two handles name: client, object.
func (d *Driver) ownMemory(q *request) (*Object, error) {
	c := d.own(q, q.arg.u32(0))
	if c == nil {
		return nil, InvalidClient
	}
	o := c.Object(q.arg.u32(4))
	if o == nil || o.Memory == nil {
		return nil, NotFound
	}
	return o, nil
}

// client, object, policy
func (d *Driver) share(q *request) error {
	o, err := d.ownMemory(q)
	if err != nil {
		return err
	}
	if !q.arg.isZero(8, 20) {
		return NotSupported
	}
	o.shared = true
	return nil
}

// findMemory finds the memory object that the three handles name: client, device, memory.
func (d *Driver) findMemory(q *request) (*Client, *Object, error) {
	c := d.own(q, q.arg.u32(0))
	if c == nil {
		return nil, nil, InvalidClient
	}
	o, device := c.Object(q.arg.u32(8)), c.device(q.arg.u32(4))
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

// client, device, memory, offset at 16, length, linear, status, flags, fd
func (d *Driver) mapMemory(q *request) error {
	a := q.arg
	c, o, err := d.findMemory(q)
	if err != nil {
		return err
	}
	offset, length := a.u64(16), a.u64(24)
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
	want, f := Device, q.File(a.fd(48))
	if o.Memory.Space == spaceSystem {
		want = Control
	}
	if f == nil || f.Kind != want || want == Device && f.GPU != o.GPU {
		return InvalidArgument
	}
	if f.linear != 0 {
		return StateInUse
	}
	m, err := d.newMapping(o, offset, length, !q.file.CUDA && o.GPU.HasBAR() && o.Memory.Space == spaceVideo)
	if err != nil {
		return err
	}
	f.linear, f.mapper = m.Linear, c.Handle
	a.put64(32, m.Linear)
	// Bits beside the answer's are not 0.
	a.put32(44, a.u32(44)&^mapAnswerMask|o.Memory.Answer|1<<26|1<<22|1<<17|1)
	return nil
}

// client, device, memory, linear at 16
func (d *Driver) unmapMemory(q *request) error {
	c, o, err := d.findMemory(q)
	if err != nil {
		return err
	}
	of, m := c.mapping(q.arg.u64(16))
	if m == nil || of != o {
		return NotFound
	}
	d.unmap(o, m)
	return nil
}

// registerFD is on a GPU's file.
func (d *Driver) registerFD(q *request) error {
	f := q.File(q.arg.fd(0))
	if f == nil || f.Kind != Control || q.file.registered != nil {
		return errInvalid
	}
	q.file.registered = f
	return nil
}

// cmd, reply, version
func (d *Driver) version(q *request) error {
	text := make([]byte, 64)
	copy(text, d.VersionText)
	if cmd := q.arg.u32(0); cmd != '2' && (cmd != 0 || string(q.arg[8:]) != string(text)) {
		q.arg.put32(4, 0)
		return errInvalid
	}
	copy(q.arg[8:], text)
	q.arg.put32(4, 1)
	return nil
}

// exportDMABuf: fd, client, total_objects, objects, index, total_size at 24, and in arrays of
// 128 handles, offsets, sizes. Drivers before 570 have a struct without mapping_type and
// allow_mmap, which stand before the handles.
func (d *Driver) exportDMABuf(q *request) error {
	a, handles, size := q.arg, 36, 2608
	if d.Version < 570 {
		handles, size = 32, 2600
	}
	if len(a) != size {
		return errInvalid
	}
	var kinds [2]byte // mapping_type, allow_mmap
	if handles == 36 {
		copy(kinds[:], a[32:])
	}
	offsets := (handles + 4*128 + 7) &^ 7
	fd, status := d.exportOne(q, kinds, a.u32(handles), a.u64(offsets), a.u64(offsets+8*128))
	a.put32(0, uint32(int32(fd)))
	a.put32(offsets+2*8*128, uint32(status))
	return nil
}

// exportOne exports one part of one object. The simulated libcuda exports nothing else.
func (d *Driver) exportOne(q *request, kinds [2]byte, handle uint32, offset, size uint64) (fd int, s Status) {
	c := d.Client(q.arg.u32(4))
	if c == nil || !q.IsOf(c.Process) {
		return -1, InvalidClient
	}
	o := c.Object(handle)
	switch {
	case q.arg.fd(0) != -1 || q.arg.u32(16) != 0 || kinds[0] != 0 || kinds[1] > 1:
		return -1, InvalidArgument
	case q.arg.u32(8) != 1 || q.arg.u32(12) != 1:
		return -1, NotSupported
	case o == nil:
		return -1, NotFound
	case o.Memory == nil || o.GPU != q.file.GPU:
		return -1, InvalidObject
	case o.GPU.machine == "vgpu":
		return -1, NotSupported
	case size == 0 || !d.isWholePages(offset, size) || size > o.Memory.Size || offset > o.Memory.Size-size || q.arg.u64(24) != size:
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
