// Package nvrm is a simulated resource manager (RM) of NVIDIA's kernel driver: clients,
// objects, memory, mappings, and the requests. It is test code, and never ships.
//
// It has no system calls of a program's in it: tests/doubles/rm_sim serves other processes with it.
package nvrm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Status is an NV_STATUS.
type Status uint32

const (
	GPUIsLost       Status = 0x0f
	DuplicateName   Status = 0x19 // the new handle is in use
	NoResources     Status = 0x1a // BAR1 is full
	NoPermission    Status = 0x1b // the source is another process's
	InvalidArgument Status = 0x1f
	InvalidBase     Status = 0x20 // the offset is past the end
	InvalidClass    Status = 0x22
	InvalidClient   Status = 0x23 // unknown, or of another process or file
	InvalidDevice   Status = 0x26
	InvalidLimit    Status = 0x2e // offset + length is past the end
	InvalidLock     Status = 0x2f // a GPU must be open
	InvalidObject   Status = 0x31 // not of a kind that the request takes
	InvalidHandle   Status = 0x33 // of an object
	InvalidParent   Status = 0x36
	InvalidStruct   Status = 0x3a // params_size is not that of the params
	InvalidParam    Status = 0x3b
	NoMemory        Status = 0x51
	NotSupported    Status = 0x56
	NotFound        Status = 0x57 // no such object, or no such mapping
	OutOfRange      Status = 0x5b
	StateInUse      Status = 0x63 // the file has served a MAP_MEMORY
)

func (s Status) Error() string { return fmt.Sprintf("NV_STATUS %#x", uint32(s)) }

// Driver is one machine's. One goroutine at a time may use it.
type Driver struct {
	Config
	GPUs    []*GPU
	Files   []*File
	Clients []*Client

	// Log gets a line of the kernel's log.
	Log func(line string)

	faults     []*rule
	linear     uint64
	lastClient uint32
}

const (
	firstClient = 0xc1d00001
	firstLinear = 0x38 << 40 // where a BAR might be
	gpuMemory   = 64 << 30   // bytes of each GPU
)

// New makes a driver.
func New(c Config) *Driver {
	d := &Driver{Config: c, linear: firstLinear, lastClient: firstClient - 1}
	for i, m := range c.Machines {
		d.GPUs = append(d.GPUs, d.newGPU(i, m))
	}
	return d
}

// Kind of file. A file is the kind's bit.
type Kind uint32

const (
	Control Kind = 1 << iota // /dev/nvidiactl
	Device                   // of a GPU
	DMABuf
	UVM // /dev/nvidia-uvm
)

// File is an open file.
type File struct {
	Kind Kind
	GPU  *GPU // nil: of a control file
	CUDA bool // a control file of the simulated libcuda

	registered     *File   // a GPU's file: its control file
	exports        *export // a control file: what was exported into it; nil: nothing
	memory         *Memory // a dma-buf's
	offset, length uint64  // a dma-buf's part of it that mmap gives
	size           uint64  // a dma-buf's
	linear         uint64  // the mapping that it serves; 0: none
	mapper         uint32  // the client of that mapping
}

// Open opens a file. Only a dma-buf and a GPU's own file have a GPU.
func (d *Driver) Open(k Kind, g *GPU) *File {
	f := &File{Kind: k, GPU: g}
	if k == Device {
		g.attached = true
	}
	d.Files = append(d.Files, f)
	return f
}

// Close is the close of a file's last copy. Its clients end.
func (d *Driver) Close(f *File) {
	for _, c := range slices.Clone(d.Clients) {
		if c.File == f {
			d.EndClient(c)
		}
	}
	d.put(f.memory)
	if f.exports != nil {
		for _, m := range f.exports.memory {
			d.put(m)
		}
	}
	d.Files = slices.DeleteFunc(d.Files, func(x *File) bool { return x == f })
}

// export is what a control file keeps: memory of one GPU.
type export struct {
	gpu      *GPU
	memory   []*Memory // nil: none in this place
	metadata [64]byte
	fabric   bool // the second place has the fabric's name of the memory in the first
}

// FDInfo is what the kernel says of a file in /proc/self/fdinfo; nil: nothing that matters.
// [drivers/dma-buf/dma-buf.c, dma_buf_show_fdinfo; nv-dmabuf.c, nv_dma_buf_create]
func (d *Driver) FDInfo(f *File) []byte {
	if f.Kind != DMABuf {
		return nil
	}
	exporter := "nv_dmabuf"
	if d.Fault(nil, "EXPORTER") != 0 {
		exporter = "udmabuf"
	}
	return fmt.Appendf(nil, "pos:\t0\nflags:\t02000002\nsize:\t%d\ncount:\t1\nexp_name:\t%s\n", f.size, exporter)
}

// Memory is device memory that has one user at least, an object or a file: a memfd.
type Memory struct {
	FD     int
	Size   uint64
	GPU    *GPU
	Answer uint32 // of RM_MAP_MEMORY
	Space  uint32 // where it is, as GET_SURFACE_INFO answers

	refs    int
	counted bool // in what the GPU has used
}

// newMemory makes memory of whole pages, with one reference. Only a GPU's own counts.
func (d *Driver) newMemory(g *GPU, size uint64, counted bool) (*Memory, error) {
	if counted && size > gpuMemory-g.used {
		return nil, NoMemory
	}
	fd, err := unix.MemfdCreate("rm_sim", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, NoMemory
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, NoMemory
	}
	if counted {
		g.used += size
	}
	return &Memory{FD: fd, Size: size, GPU: g, Answer: g.Answer, Space: g.Space, refs: 1, counted: counted}, nil
}

func (m *Memory) get() *Memory {
	m.refs++
	return m
}

// put drops a reference. m may be nil.
func (d *Driver) put(m *Memory) {
	if m == nil {
		return
	}
	if m.refs--; m.refs > 0 {
		return
	}
	if m.counted {
		m.GPU.used -= m.Size
	}
	unix.Close(m.FD)
}

// Client is of one file and one process.
type Client struct {
	Handle  uint32
	File    *File
	Process int
	Objects []*Object

	last uint32 // handle that the driver chose
}

// NewClient makes a client.
func (d *Driver) NewClient(f *File, process int) *Client {
	d.lastClient++
	c := &Client{Handle: d.lastClient, File: f, Process: process}
	d.Clients = append(d.Clients, c)
	return c
}

// Client finds a client by its handle; nil: there is none.
func (d *Driver) Client(handle uint32) *Client {
	for _, c := range d.Clients {
		if c.Handle == handle {
			return c
		}
	}
	return nil
}

// EndClient frees a client, and all its objects.
func (d *Driver) EndClient(c *Client) {
	for len(c.Objects) > 0 {
		d.End(c, c.Objects[0])
	}
	d.Clients = slices.DeleteFunc(d.Clients, func(x *Client) bool { return x == c })
}

// Object is a device, a subdevice or memory below one, or another thing of a client's, as the capabilities of
// confidential computing.
type Object struct {
	Handle   uint32
	Class    uint32
	GPU      *GPU
	Memory   *Memory // nil: it is none
	Device   *Object // the parent of memory and of a subdevice; nil: the client is
	Mappings []*Mapping

	shared bool // any process may duplicate it
}

// newObject makes an object with the handle that the caller chose, or with one of the driver's
// choice if that is 0. Different clients get the same handles. So a handle without its client
// names the wrong object.
func (c *Client) newObject(handle, class uint32) (*Object, error) {
	if handle != 0 && (handle == c.Handle || c.Object(handle) != nil) {
		return nil, DuplicateName
	}
	for handle == 0 || c.Object(handle) != nil {
		c.last++
		handle = 0xcaf00000 | c.last
	}
	o := &Object{Handle: handle, Class: class}
	c.Objects = append(c.Objects, o)
	return o, nil
}

// addMemory makes an object of memory, below a device of its client.
func (c *Client) addMemory(handle, class uint32, device *Object, m *Memory) (*Object, error) {
	o, err := c.newObject(handle, class)
	if err == nil {
		o.GPU, o.Device, o.Memory = m.GPU, device, m.get()
	}
	return o, err
}

// Object finds an object by its handle; nil: there is none.
func (c *Client) Object(handle uint32) *Object {
	for _, o := range c.Objects {
		if o.Handle == handle {
			return o
		}
	}
	return nil
}

// device finds a device by its handle.
func (c *Client) device(handle uint32) *Object {
	if o := c.Object(handle); o != nil && o.Class == classDevice {
		return o
	}
	return nil
}

// End frees an object, all below it and its mappings.
func (d *Driver) End(c *Client, o *Object) {
	for _, below := range slices.Clone(c.Objects) {
		if below.Device == o {
			d.End(c, below)
		}
	}
	for len(o.Mappings) > 0 {
		d.unmap(o, o.Mappings[0])
	}
	d.put(o.Memory)
	c.Objects = slices.DeleteFunc(c.Objects, func(x *Object) bool { return x == o })
}

// Mapping is the result of one RM_MAP_MEMORY. It ends before its object does.
type Mapping struct {
	Linear, Offset, Length uint64

	counted bool   // in the GPU's BAR1
	at      uint64 // and its place there
}

// barGap finds the first gap of that length in BAR1. Drivers from 565 on put a mapping into
// several gaps. [kbusMapFbAperture_GM107]
func (d *Driver) barGap(g *GPU, length uint64) (at uint64, ok bool) {
	if d.Version >= 565 {
		return 0, true
	}
	var taken []*Mapping
	for _, c := range d.Clients {
		for _, o := range c.Objects {
			for _, m := range o.Mappings {
				if o.GPU == g && m.counted {
					taken = append(taken, m)
				}
			}
		}
	}
	slices.SortFunc(taken, func(a, b *Mapping) int { return int(int64(a.at) - int64(b.at)) })
	for _, m := range taken {
		if m.at < at+length && at < m.at+m.Length {
			at = m.at + m.Length
		}
	}
	return at, at+length <= d.BAR
}

// newMapping makes a mapping. counted is false for the simulated libcuda's own view of memory.
func (d *Driver) newMapping(o *Object, offset, length uint64, counted bool) (*Mapping, error) {
	m := &Mapping{Linear: d.linear, Offset: offset, Length: length, counted: counted}
	if counted {
		at, ok := d.barGap(o.GPU, length)
		if !ok || length > d.BAR-o.GPU.BARUsed {
			return nil, NoResources
		}
		m.at = at
		o.GPU.BARUsed += length
	}
	d.linear += length
	o.Mappings = append(o.Mappings, m)
	return m, nil
}

func (d *Driver) unmap(o *Object, m *Mapping) {
	if m.counted {
		o.GPU.BARUsed -= m.Length
	}
	o.Mappings = slices.DeleteFunc(o.Mappings, func(x *Mapping) bool { return x == m })
}

// mapping finds a mapping of the client, and its object.
func (c *Client) mapping(linear uint64) (*Object, *Mapping) {
	if c == nil {
		return nil, nil
	}
	for _, o := range c.Objects {
		for _, m := range o.Mappings {
			if m.Linear == linear {
				return o, m
			}
		}
	}
	return nil, nil
}

// Mapped is the mapping that a file serves, and its memory; nil: none.
func (d *Driver) Mapped(f *File) (*Memory, *Mapping) {
	o, m := d.Client(f.mapper).mapping(f.linear)
	if m == nil {
		return nil, nil
	}
	return o.Memory, m
}
