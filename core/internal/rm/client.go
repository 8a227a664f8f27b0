package rm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

const controlPath = "/dev/nvidiactl"

func devicePath(minor uint32) string { return fmt.Sprintf("/dev/nvidia%d", minor) }

// client is a client of the resource manager. It has an open /dev/nvidiactl, a root
// object, and a device object for each GPU that has been pinned on. The driver frees
// all of them when the descriptor is closed. Only the device objects change.
type client struct {
	ioctl  func(fd int, code uint32, arg unsafe.Pointer) error // sys.Ioctl, or a test's
	fd     int
	file   sys.FileID
	root   handle
	attach sync.Mutex // held while the kernel makes a device object, and while the client ends; after process.mu
	gpus   sync.Map   // *gpu by CUDA's ordinal, an int; for memory of descriptors by the driver's device instance, a uint32
}

// gpu is our device object of one GPU. It does not change.
type gpu struct {
	client  *client
	ordinal int    // CUDA's; of an import 0
	id      uint32 // the driver's
	at      cuda.PCIAddress
	proofs  *proofs
	path    string // of its device node
	fd      int    // keeps the GPU attached to the client
	file    sys.FileID
	device  handle

	maybeMIG bool                // the driver cannot say whether the GPU is divided
	oneRange bool                // the driver needs one range of BAR1 for a window
	coherent bool                // the CPU may cache the GPU's memory
	soc      bool                // the GPU's memory is the system's
	bar1     backend.MappingType // how the CPU maps BAR1
}

// newClient opens a client. It does not touch CUDA.
func newClient() (_ *client, err error) {
	fd, err := sys.Open(controlPath, unix.O_RDWR)
	if err != nil {
		return nil, explainOpen(controlPath, err)
	}
	c := &client{ioctl: sys.Ioctl, fd: fd}
	defer func() {
		if err != nil {
			_ = sys.Close(fd)
		}
	}()
	if c.file, err = sys.Own(fd); err != nil {
		return nil, err
	}
	args := allocArgs{class: classRoot}
	if err := do(c, "RM_ALLOC of a client", nrAlloc, &args, &args.status); err != nil {
		return nil, err
	}
	c.root = args.object
	return c, nil
}

func explainOpen(path string, err error) error {
	switch {
	case err == unix.ENOENT || err == unix.ENXIO || err == unix.ENODEV || err == unix.EIO:
		return fmt.Errorf("%s does not open, so no NVIDIA driver can be reached; in a container ask for the GPU with the capabilities compute,utility: %w", path, err)
	case err == unix.EACCES || err == unix.EPERM:
		return fmt.Errorf("%s may not be opened by this user, or by this container's device rules: %w", path, err)
	}
	return fmt.Errorf("open %s: %w", path, sys.ExplainFDs(err))
}

// close frees everything. The host may have closed one of our descriptors, and may use
// its number for a file of its own. close leaves such a descriptor alone.
func (c *client) close() error {
	c.attach.Lock() // a device object that is being made is one of all
	defer c.attach.Unlock()
	var err error
	for _, g := range c.all() {
		err = errors.Join(err, sys.CloseOwn(g.fd, g.file))
	}
	if !c.answers() {
		return err
	}
	return errors.Join(err, sys.CloseOwn(c.fd, c.file))
}

// all lists the client's device objects.
func (c *client) all() (all []*gpu) {
	for _, g := range c.gpus.Range {
		all = append(all, g.(*gpu))
	}
	return all
}

// answers asks the driver, which does not know the client on another open of the device. The
// file ID does not show that where another copy of the library in the process has marked it alike.
func (c *client) answers() bool {
	_, err := c.idInfo(0)
	return !errors.Is(err, statusInvalidClient)
}

// do makes a request on the client's descriptor. args is the request's struct, and st the status
// in it, or nil. A driver whose struct has another size does not know the request's number.
func do[T any](c *client, what string, nr uintptr, args *T, st *status) error {
	err := c.ioctl(c.fd, request(nr, unsafe.Sizeof(*args)), unsafe.Pointer(args))
	if err == unix.EINVAL || err == unix.ENOTTY {
		return fmt.Errorf("%s: this NVIDIA driver does not know the request, as 535 to 595 do, or a sandbox (gVisor) refuses it; update the driver, load gdrdrv, or leave the sandbox: %w (%v)", what, unix.ENOTSUP, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if st != nil && *st != statusOK {
		return fmt.Errorf("%s: %w", what, *st)
	}
	return nil
}

// control makes a control request on an object of the client. params is the command's struct.
func control[T any](c *client, what string, object handle, command uint32, params *T) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	args := controlArgs{
		client: c.root, object: object, command: command,
		params: address(&pins, params), paramsSize: uint32(unsafe.Sizeof(*params)),
	}
	return do(c, what, nrControl, &args, &args.status)
}

// address is the address of a struct that another struct points to. The struct stays in place
// while it is pinned.
func address[T any](pins *runtime.Pinner, p *T) uint64 {
	pins.Pin(p)
	return uint64(uintptr(unsafe.Pointer(p)))
}

// handleInfo answers an index of handleInfo for an object.
func (c *client) handleInfo(object handle, index uint32) (uint32, error) {
	info := handleInfo{object: object, index: index}
	err := control(c, "GET_HANDLE_INFO", c.root, controlHandleInfo, &info)
	return uint32(info.result), err
}

// cards lists the GPUs that the driver has.
func (c *client) cards() ([]cardInfo, error) {
	all := new([maxCards]cardInfo)
	if err := do(c, "CARD_INFO", nrCardInfo, all, nil); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all[:], func(card cardInfo) bool { return card.valid == 0 }), nil
}

// idInfo asks what a GPU is that some process has open.
func (c *client) idInfo(gpuID uint32) (gpuIDInfo, error) {
	id := gpuIDInfo{gpuID: gpuID}
	err := control(c, "GET_ID_INFO", c.root, controlGPUIDInfo, &id)
	return id, err
}

// newGPU makes a device object of a GPU of the driver's. The caller holds attach.
func (c *client) newGPU(card cardInfo) (_ *gpu, err error) {
	at := card.at()
	divided, known := c.divided()
	if divided(card.gpuID) {
		return nil, errMIG(at.String())
	}
	kept, _ := process.proofs.LoadOrStore(at, new(proofs))
	g := &gpu{client: c, id: card.gpuID, at: at, proofs: kept.(*proofs), path: devicePath(card.minor), maybeMIG: !known}
	if g.fd, err = sys.Open(g.path, unix.O_RDWR); err != nil {
		return nil, explainOpen(g.path, err)
	}
	defer func() {
		if err != nil {
			_ = sys.Close(g.fd)
		}
	}()
	if g.file, err = sys.Own(g.fd); err != nil {
		return nil, err
	}
	if err := c.register(g.fd); err != nil {
		return nil, err
	}
	id, err := c.idInfo(card.gpuID)
	if err != nil {
		return nil, err
	}
	// With the GPU open, the driver knows it.
	if err := c.checkConfidential(); err != nil {
		return nil, err
	}
	g.coherent, g.soc = id.flags&idATS != 0, id.flags&idSOC != 0
	major := c.major()
	g.oneRange = major < firstThatScatters
	g.bar1 = c.bar1Type(major)
	g.device, err = c.allocDevice(id.deviceInstance)
	return g, err
}

// register makes an open device one of the client's. The driver knows this request, for it
// knows RM_ALLOC. It refuses every request to a GPU that was unplugged.
func (c *client) register(fd int) error {
	args := registerFD{control: int32(c.fd)}
	err := c.ioctl(fd, request(nrRegisterFD, unsafe.Sizeof(args)), unsafe.Pointer(&args))
	if err == unix.EINVAL {
		return fmt.Errorf("REGISTER_FD is refused, so the GPU is lost: look into dmesg for lines of NVRM (Xid): %w (%v)", unix.ENODEV, err)
	}
	if err != nil {
		return fmt.Errorf("REGISTER_FD: %w", err)
	}
	return nil
}

func (c *client) allocDevice(instance uint32) (handle, error) {
	params := &deviceParams{deviceInstance: instance, clientShare: c.root, vaMode: vaModePrivate}
	var pins runtime.Pinner
	defer pins.Unpin()
	args := allocArgs{
		root: c.root, parent: c.root, class: classDevice,
		params: address(&pins, params), paramsSize: uint32(unsafe.Sizeof(*params)),
	}
	err := do(c, "RM_ALLOC of a device", nrAlloc, &args, &args.status)
	return args.object, err
}

// errRefused is for an object that is not this process's to duplicate.
var errRefused = fmt.Errorf("memory of another process (MPS server, cudaIpcOpenMemHandle) cannot be mapped by the rm backend: pin it where it was allocated, or load gdrdrv: %w", unix.ENOTSUP)

// duplicate gives our client a handle of an extent's object of CUDA's. The driver allows
// that in the process that made the object.
func (g *gpu) duplicate(e extent) (handle, error) {
	c := g.client
	args := dupArgs{client: c.root, parent: g.device, clientSource: e.client, objectSource: e.from}
	err := do(c, "DUP_OBJECT", nrDup, &args, &args.status)
	if args.status == statusObjectNotFound && g.maybeMIG && dividedByNVML(g.at) {
		return 0, fmt.Errorf("%w (%v)", errMIG(g.at.String()), err)
	}
	switch args.status {
	case statusInsufficientRights, statusInvalidClient, statusInvalidObject, statusInvalidObjectHandle, statusObjectNotFound:
		return 0, fmt.Errorf("%v: %w", err, errRefused)
	}
	return args.object, err
}

// importMemory makes an object of our client for the memory that CUDA exported as fd.
func (g *gpu) importMemory(fd int) (handle, error) {
	args := &importFD{fd: int32(fd), kind: importTypeMemory, device: g.device, parent: g.device}
	err := control(g.client, "IMPORT_OBJECT_FROM_FD", g.client.root, controlImportFD, args)
	return args.object, err
}

// free frees an object of the client. Mappings of memory in BAR1 read zeros from then on.
func (c *client) free(parent, object handle) error {
	args := freeArgs{root: c.root, parent: parent, object: object}
	return do(c, "RM_FREE", nrFree, &args, &args.status)
}

// process is what the sessions of a process share.
var process struct {
	mu      sync.Mutex
	client  *client  // nil: no session holds one
	holders int      // sessions that hold client
	proofs  sync.Map // *proofs by cuda.PCIAddress

	devices  atomic.Int32                   // that CUDA shows; 0: not asked yet
	ordinals atomic.Pointer[map[uint32]int] // CUDA's, by the driver's IDs; nil: not asked yet

	proven atomic.Bool            // what is heard leads to the memory of one GPU
	owners atomic.Pointer[owners] // nil: none is known
}

// gpuAt gives the device object of a GPU, by CUDA's ordinal. It holds no lock while CUDA is asked.
func (s *session) gpuAt(ordinal int) (*gpu, error) {
	c, err := s.hold()
	if err != nil {
		return nil, err
	}
	if g, ok := c.gpus.Load(ordinal); ok {
		return g.(*gpu), nil
	}
	coherent, err := s.cuda.DeviceAttribute(cuda.HostPageTables, ordinal)
	if err != nil {
		return nil, err
	}
	at, err := s.cuda.PCIAddress(ordinal)
	if err != nil {
		return nil, err
	}
	c.attach.Lock()
	defer c.attach.Unlock()
	if g, ok := c.gpus.Load(ordinal); ok {
		return g.(*gpu), nil // another thread's by now
	}
	cards, err := c.cards()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(cards, func(card cardInfo) bool { return card.at() == at })
	if i < 0 {
		return nil, fmt.Errorf("the NVIDIA driver lists no GPU at %v, but CUDA does: %w", at, unix.ENODEV)
	}
	g, err := c.newGPU(cards[i])
	if err != nil {
		return nil, err
	}
	g.ordinal, g.coherent = ordinal, g.coherent || coherent != 0
	c.gpus.Store(ordinal, g)
	return g, nil
}

// hold gives the process's client, which the session holds from then on.
func (s *session) hold() (*client, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	c := process.client
	if c != nil && s.hasLost(c) {
		c.abandon()
		c = nil
	}
	if c == nil {
		var err error
		if c, err = newClient(); err != nil {
			return nil, err
		}
		process.client = c
	}
	if s.client != c {
		s.client = c
		process.holders++
	}
	return c, nil
}

// hasLost reports whether the host has closed the client's descriptor. A session that does not hold the
// client yet asks the driver, too. The caller holds process.mu.
func (s *session) hasLost(c *client) bool {
	return !c.file.IsStill(c.fd) || c != s.client && !c.answers()
}

// abandon has the process make another client. The caller holds process.mu.
func (c *client) abandon() {
	log.Warnf("the host closed descriptor %d, which was the library's; buffers pinned before are lost", c.fd)
	_ = c.close()
	process.client, process.holders = nil, 0
}

// Close ends the session's hold. The last one closes the client.
func (s *session) Close() error {
	process.mu.Lock()
	defer process.mu.Unlock()
	c := s.client
	s.client = nil
	if c == nil || c != process.client {
		return nil // abandon has closed it
	}
	if process.holders--; process.holders > 0 {
		return nil
	}
	process.client = nil
	return c.close()
}
