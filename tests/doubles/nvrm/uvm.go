package nvrm

import "slices"

// The requests of /dev/nvidia-uvm (UVM, unified virtual memory), whose numbers carry no size: where a GPU's
// addresses lie, and which memory objects are mapped there. The functions in brackets are those of
// kernel-open/nvidia-uvm in open-gpu-kernel-modules 595.45.04.

// More of NV_STATUS.
const (
	InvalidAddress Status = 0x1e
	InvalidOffset  Status = 0x37 // the map reaches past the object
	AddressInUse   Status = 0x68 // by a range
	inUse          Status = 0x17
)

const (
	smallPage     = 4 << 10
	gpuPage       = 64 << 10
	attributeSize = 36 // of what is told of a GPU: its UUID, and 20 bytes that are 0
)

// vaSpace is what UVM keeps for an open file.
type vaSpace struct {
	ranges []*vaRange
	gpus   []*spaceGPU
	mm     bool // a second file holds on to the process's memory
}

// spaceGPU is a GPU that was registered.
type spaceGPU struct {
	gpu    *GPU
	active bool // its address space is registered, too
}

// vaRange is a range of addresses. It overlaps no other one.
type vaRange struct {
	base, length uint64
	external     bool      // of 73: it takes maps
	maps         []*extMap // no two of one GPU overlap
}

// extMap is one GPU's map of a part of a range.
type extMap struct {
	gpu          *GPU
	base, length uint64
	page         uint64
	memory       *Memory // UVM's own reference; nil: sparse
}

func (m *extMap) end() uint64 { return m.base + m.length }

// uvmKind is a kind of request. args is its struct, of uapi.go.
type uvmKind struct {
	name, args string
	do         func(d *Driver, q *request) error
}

var uvmRequests map[uint32]uvmKind

func init() {
	uvmRequests = map[uint32]uvmKind{
		25: {"UVM_REGISTER_SPACE", "uvm_vaspace", (*Driver).uvmRegisterSpace},
		26: {"UVM_UNREGISTER_SPACE", "uvm_uuid", (*Driver).uvmUnregisterSpace},
		29: {"UVM_ENABLE_PEER", "uvm_peers", (*Driver).uvmPeer},
		30: {"UVM_DISABLE_PEER", "uvm_peers", (*Driver).uvmDisablePeer},
		33: {"UVM_MAP", "uvm_map", (*Driver).uvmMap},
		34: {"UVM_FREE", "uvm_range", (*Driver).uvmFree},
		37: {"UVM_REGISTER_GPU", "uvm_gpu", (*Driver).uvmRegisterGPU},
		38: {"UVM_UNREGISTER_GPU", "uvm_uuid", (*Driver).uvmUnregisterGPU},
		65: {"UVM_REGION", "uvm_part", (*Driver).uvmRegion},
		66: {"UVM_UNMAP", "uvm_part", (*Driver).uvmUnmap},
		68: {"UVM_POOL", "uvm_pool", (*Driver).uvmPool},
		72: {"UVM_VALIDATE", "uvm_range", (*Driver).uvmValidate},
		73: {"UVM_CREATE", "uvm_range", (*Driver).uvmCreate},
		74: {"UVM_SPARSE", "uvm_part", (*Driver).uvmSparse},
		75: {"UVM_MM", "uvm_mm", (*Driver).uvmMM},
		78: {"UVM_P2P", "uvm_p2p", (*Driver).uvmP2P},
	}
}

// attributesMost is how many GPUs the structs have room for. [uvm_types.h, UVM_MAX_GPUS]
func (d *Driver) attributesMost() int {
	if d.Version < 550 {
		return 32
	}
	return 256
}

// uvmLayout is a request's struct in this driver; its size is 0 where there is none.
func (d *Driver) uvmLayout(nr uint32) layout {
	switch {
	case nr == 78 && d.Version < 570:
		return layout{}
	case nr == 34 && d.Version >= 590:
		return layouts["uvm_free_590"]
	}
	return d.in(uvmRequests[nr].args)
}

// SizeOn is the bytes of a request's struct on a file.
func (d *Driver) SizeOn(f *File, cmd uint32) int {
	if f.Kind != UVM {
		return Size(cmd)
	}
	return d.uvmLayout(cmd).size
}

// uvmRequest answers a request on a file of UVM's. A number that UVM does not know is EINVAL.
func (d *Driver) uvmRequest(c Caller, f *File, nr uint32, bytes []byte) error {
	k, arg := uvmRequests[nr], args{bytes, d.uvmLayout(nr)}
	if arg.size == 0 || len(bytes) != arg.size {
		return errInvalid
	}
	var failure int32
	if nr != 33 { // it takes away what it overlaps before it can fail
		failure = d.Fault(f, k.name)
	}
	err := error(Status(failure))
	if failure == 0 {
		err = k.do(d, &request{c, f, arg})
	}
	status, isStatus := err.(Status)
	if err != nil && !isStatus {
		return err
	}
	arg.put32("status", uint32(status))
	return nil
}

// invalidRange: page is a power of 2. [uvm_api.h, uvm_api_range_invalid_aligned]
func invalidRange(base, length, page uint64) bool {
	return base%page != 0 || length%page != 0 || base == 0 || length == 0 || base+length < base
}

// registered is the GPU of a UUID that was registered; active: its address space, too. nil: none.
// [uvm_va_space.c, uvm_va_space_get_gpu_by_uuid_with_gpu_va_space]
func (s *vaSpace) registered(uuid []byte, active bool) *spaceGPU {
	for _, g := range s.gpus {
		if own := g.gpu.UUID(); string(own[:]) == string(uuid[:16]) && (g.active || !active) {
			return g
		}
	}
	return nil
}

// find is the range with that address.
func (s *vaSpace) find(addr uint64) *vaRange {
	for _, r := range s.ranges {
		if addr >= r.base && addr-r.base < r.length {
			return r
		}
	}
	return nil
}

// external is the range of 73 that all of the addresses are in.
func (s *vaSpace) external(base, length uint64) *vaRange {
	if r := s.find(base); r != nil && r.external && base+length <= r.base+r.length {
		return r
	}
	return nil
}

// add makes a range. [uvm_range_tree.c, uvm_range_tree_add]
func (s *vaSpace) add(base, length uint64, external bool) error {
	for _, r := range s.ranges {
		if base < r.base+r.length && r.base < base+length {
			return AddressInUse
		}
	}
	s.ranges = append(s.ranges, &vaRange{base: base, length: length, external: external})
	return nil
}

// drop ends the maps of a range that is chooses.
func (d *Driver) drop(r *vaRange, is func(m *extMap) bool) {
	r.maps = slices.DeleteFunc(r.maps, func(m *extMap) bool {
		gone := is(m)
		if gone {
			d.put(m.memory)
		}
		return gone
	})
}

// split cuts a map in two. [uvm_map_external.c, uvm_ext_gpu_map_split]
func (r *vaRange) split(m *extMap, at uint64) error {
	if at%m.page != 0 {
		return InvalidAddress
	}
	upper := *m
	upper.base, upper.length = at, m.end()-at
	m.length = at - m.base
	if upper.memory != nil {
		upper.memory.get()
	}
	r.maps = append(r.maps, &upper)
	return nil
}

// unmapIn ends one GPU's maps of a part of a range; what lies outside of it stays.
// [uvm_map_external.c, uvm_unmap_external_in_range]
func (d *Driver) unmapIn(r *vaRange, g *GPU, base, length uint64) error {
	end := base + length
	for _, m := range slices.Clone(r.maps) {
		if m.gpu == g && m.base < base && m.end() > base {
			if err := r.split(m, base); err != nil {
				return err
			}
		}
	}
	for _, m := range slices.Clone(r.maps) {
		if m.gpu == g && m.base < end && m.base >= base && m.end() > end {
			if err := r.split(m, end); err != nil {
				return err
			}
		}
	}
	d.drop(r, func(m *extMap) bool { return m.gpu == g && m.base >= base && m.end() <= end })
	return nil
}

// closeSpace is the last close of the file.
func (d *Driver) closeSpace(s *vaSpace) {
	if s == nil {
		return
	}
	for _, r := range s.ranges {
		d.drop(r, func(*extMap) bool { return true })
	}
}

// [uvm_map_external.c, uvm_create_external_range]
func (d *Driver) uvmCreate(q *request) error {
	base, length := q.arg.u64("base"), q.arg.u64("length")
	if invalidRange(base, length, smallPage) {
		return InvalidAddress
	}
	return q.file.space.add(base, length, true)
}

// userMemory is the memory object that a request names. The real driver does not look at the descriptor.
// [uvm_map_external.c, uvm_map_external_allocation_on_gpu]
func (d *Driver) userMemory(q *request, fd int, client, handle uint32) (*Object, error) {
	control, c := q.File(fd), d.Client(client)
	if control == nil || c == nil || c.File != control || !q.IsOf(c.Process) {
		return nil, InvalidClient
	}
	switch o := c.Object(handle); {
	case o == nil:
		return nil, NotFound
	case o.Memory == nil:
		return nil, InvalidObject
	default:
		return o, nil
	}
}

// mapOn is one GPU's part of a map. [uvm_map_external.c, uvm_map_external_allocation_on_gpu]
func (d *Driver) mapOn(q *request, r *vaRange, g *GPU, fd int, client, handle uint32) error {
	base, length, offset := q.arg.u64("base"), q.arg.u64("length"), q.arg.u64("offset")
	if err := d.unmapIn(r, g, base, length); err != nil {
		return err
	}
	if failure := d.Fault(q.file, "UVM_MAP"); failure != 0 {
		return Status(failure)
	}
	o, err := d.userMemory(q, fd, client, handle)
	if err != nil {
		return err
	}
	// [set_ext_gpu_map_location]
	if o.Class != classFabric && !slices.ContainsFunc(q.file.space.gpus, func(s *spaceGPU) bool { return s.gpu == o.GPU }) {
		return InvalidDevice
	}
	m := &extMap{gpu: g, base: base, length: length, memory: o.Memory, page: smallPage}
	for _, page := range []uint64{gpuPage, hugePage} {
		if (o.Memory.Size|base|length|offset)%page == 0 {
			m.page = page
		}
	}
	if (o.Memory.Size|base|length|offset)%smallPage != 0 {
		return InvalidAddress
	}
	// [uvm_va_range_map_rm_allocation]
	if offset+length > o.Memory.Size {
		return InvalidOffset
	}
	m.memory.get()
	r.maps = append(r.maps, m)
	return nil
}

// [uvm_map_external.c, uvm_map_external_allocation]
func (d *Driver) uvmMap(q *request) error {
	a, s := q.arg, q.file.space
	base, length := a.u64("base"), a.u64("length")
	n := a.u64("count")
	if invalidRange(base, length, smallPage) {
		return InvalidAddress
	}
	if n == 0 || n > uint64(d.attributesMost()) {
		return InvalidArgument
	}
	r := s.external(base, length)
	if r == nil {
		return InvalidAddress
	}
	var made []*GPU
	for i := range int(n) {
		g, err := s.registered(a.from("gpus")[i*attributeSize:], true), error(InvalidDevice)
		if g != nil {
			err = d.mapOn(q, r, g.gpu, a.fd("ctl_fd"), a.u32("client"), a.u32("object"))
		}
		if err != nil {
			for _, g := range made {
				_ = d.unmapIn(r, g, base, length)
			}
			return err
		}
		made = append(made, g.gpu)
	}
	return nil
}

// From 590 on there is no length. [uvm_va_range.c, uvm_free]
func (d *Driver) uvmFree(q *request) error {
	s, base := q.file.space, q.arg.u64("base")
	if d.Version < 590 && invalidRange(base, q.arg.u64("length"), smallPage) {
		return InvalidAddress
	}
	r := s.find(base)
	if r == nil || r.base != base || d.Version < 590 && r.length != q.arg.u64("length") {
		return InvalidAddress
	}
	d.drop(r, func(*extMap) bool { return true })
	s.ranges = slices.DeleteFunc(s.ranges, func(x *vaRange) bool { return x == r })
	return nil
}

// externalOf is the range of 73 and the GPU that a request names. page and active are those of
// invalidRange and registered.
func externalOf(q *request, page uint64, active bool) (*vaRange, *GPU, error) {
	s, base, length := q.file.space, q.arg.u64("base"), q.arg.u64("length")
	if invalidRange(base, length, page) {
		return nil, nil, InvalidAddress
	}
	r := s.external(base, length)
	if r == nil {
		return nil, nil, InvalidAddress
	}
	g := s.registered(q.arg.from("uuid"), active)
	if g == nil {
		return nil, nil, InvalidDevice
	}
	return r, g.gpu, nil
}

// [uvm_map_external.c, uvm_unmap_external]
func (d *Driver) uvmUnmap(q *request) error {
	r, gpu, err := externalOf(q, smallPage, false)
	if err != nil {
		return err
	}
	return d.unmapIn(r, gpu, q.arg.u64("base"), q.arg.u64("length"))
}

// No memory, without a fault [uvm_map_external.c, uvm_map_external_sparse]
func (d *Driver) uvmSparse(q *request) error {
	r, gpu, err := externalOf(q, gpuPage, true)
	if err != nil {
		return err
	}
	base, length := q.arg.u64("base"), q.arg.u64("length")
	if err := d.unmapIn(r, gpu, base, length); err != nil {
		return err
	}
	r.maps = append(r.maps, &extMap{gpu: gpu, base: base, length: length, page: gpuPage})
	return nil
}

// One page of the GPU's [uvm_va_range.c, uvm_map_sked_reflected_range]
func (d *Driver) uvmRegion(q *request) error {
	base, length := q.arg.u64("base"), q.arg.u64("length")
	switch {
	case invalidRange(base, length, smallPage):
		return InvalidAddress
	case q.file.space.registered(q.arg.from("uuid"), true) == nil:
		return InvalidDevice
	case base%length != 0 || length != smallPage && length != gpuPage && length != hugePage:
		return InvalidAddress
	}
	return q.file.space.add(base, length, false)
}

// [uvm_va_range.c, uvm_api_alloc_semaphore_pool]
func (d *Driver) uvmPool(q *request) error {
	base, length := q.arg.u64("base"), q.arg.u64("length")
	if invalidRange(base, length, smallPage) {
		return InvalidAddress
	}
	if n := q.arg.u64("count"); n > uint64(d.attributesMost()) {
		return InvalidArgument
	}
	return q.file.space.add(base, length, false)
}

// [uvm_va_range_device_p2p.c, uvm_api_alloc_device_p2p]
func (d *Driver) uvmP2P(q *request) error {
	base, length, offset := q.arg.u64("base"), q.arg.u64("length"), q.arg.u64("offset")
	if invalidRange(base, length, smallPage) || offset%smallPage != 0 || offset+length < offset {
		return InvalidArgument
	}
	if q.file.space.registered(q.arg.from("uuid"), false) == nil {
		return InvalidDevice
	}
	o, err := d.userMemory(q, q.arg.fd("ctl_fd"), q.arg.u32("client"), q.arg.u32("object"))
	if err != nil {
		return err
	}
	if offset+length > o.Memory.Size {
		return InvalidArgument
	}
	return q.file.space.add(base, length, false)
}

// [uvm_va_range.c, uvm_api_validate_va_range]
func (d *Driver) uvmValidate(q *request) error {
	r := q.file.space.find(q.arg.u64("base"))
	if r == nil || r.base != q.arg.u64("base") || r.length != q.arg.u64("length") {
		return InvalidAddress
	}
	return nil
}

// [uvm_va_space.c, uvm_va_space_register_gpu: more than once is none]
func (d *Driver) uvmRegisterGPU(q *request) error {
	g := d.gpu(func(g *GPU) bool { own := g.UUID(); return string(own[:]) == string(q.arg.bytes[:16]) })
	if g == nil || !g.attached {
		return InvalidDevice
	}
	q.arg.from("numa")[0] = 0
	q.arg.put32("node", ^uint32(0))
	if g.machine == "grace" {
		q.arg.from("numa")[0] = 1
		q.arg.put32("node", uint32(1+g.ordinal))
	}
	if q.file.space.registered(q.arg.bytes, false) == nil {
		q.file.space.gpus = append(q.file.space.gpus, &spaceGPU{gpu: g})
	}
	return nil
}

// [uvm_va_space.c, check_gpu_va_space]
func (d *Driver) uvmRegisterSpace(q *request) error {
	g, control, c := q.file.space.registered(q.arg.bytes, false), q.File(q.arg.fd("ctl_fd")), d.Client(q.arg.u32("client"))
	switch {
	case g == nil || g.active:
		return InvalidDevice
	case control == nil || c == nil || c.File != control || !q.IsOf(c.Process):
		return InvalidClient
	case c.Object(q.arg.u32("vaspace")) == nil:
		return NotFound
	}
	g.active = true
	return nil
}

// endMaps ends all that a GPU has mapped. [uvm_va_range.c, uvm_va_range_remove_gpu_va_space]
func (d *Driver) endMaps(s *vaSpace, g *spaceGPU) {
	g.active = false
	for _, r := range s.ranges {
		d.drop(r, func(m *extMap) bool { return m.gpu == g.gpu })
	}
}

// UUID [uvm_va_space.c, uvm_va_space_unregister_gpu_va_space]
func (d *Driver) uvmUnregisterSpace(q *request) error {
	g := q.file.space.registered(q.arg.bytes, true)
	if g == nil {
		return InvalidDevice
	}
	d.endMaps(q.file.space, g)
	return nil
}

// UUID: maps of its memory on other GPUs end, too [uvm_va_space.c, uvm_va_space_unregister_gpu]
func (d *Driver) uvmUnregisterGPU(q *request) error {
	s := q.file.space
	g := s.registered(q.arg.bytes, false)
	if g == nil {
		return InvalidDevice
	}
	d.endMaps(s, g)
	for _, r := range s.ranges {
		d.drop(r, func(m *extMap) bool { return m.memory != nil && m.memory.GPU == g.gpu })
	}
	s.gpus = slices.DeleteFunc(s.gpus, func(x *spaceGPU) bool { return x == g })
	return nil
}

// Two UUIDs. GPUs here reach each other without it.
func (d *Driver) uvmPeer(q *request) error {
	a, b := q.file.space.registered(q.arg.bytes, false), q.file.space.registered(q.arg.from("second"), false)
	if a == nil || b == nil || a == b {
		return InvalidDevice
	}
	return nil
}

// The maps that each of the two has of the other one's memory end. [uvm_va_space.c, disable_peers]
func (d *Driver) uvmDisablePeer(q *request) error {
	s := q.file.space
	if err := d.uvmPeer(q); err != nil {
		return err
	}
	a, b := s.registered(q.arg.bytes, false).gpu, s.registered(q.arg.from("second"), false).gpu
	for _, r := range s.ranges {
		d.drop(r, func(m *extMap) bool {
			return m.memory != nil && (m.gpu == a && m.memory.GPU == b || m.gpu == b && m.memory.GPU == a)
		})
	}
	return nil
}

// The file of the process's own space [uvm.c, uvm_api_mm_initialize]
func (d *Driver) uvmMM(q *request) error {
	f := q.File(q.arg.fd("uvm_fd"))
	switch {
	case f == nil || f.Kind != UVM:
		return InvalidArgument
	case f == q.file || f.space.mm:
		return inUse
	}
	f.space.mm = true
	return nil
}
