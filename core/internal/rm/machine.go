package rm

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gdrapi/core/backend"
	"gdrapi/core/cuda"
	"gdrapi/core/internal/sys"
	"gdrapi/core/log"
	"gdrapi/core/nvml"

	"golang.org/x/sys/unix"
)

// This file asks the driver what kind of machine this is. A driver that does not know a
// question, or a sandbox that does not let it pass, leaves the answer unknown. Only what
// is known refuses a GPU.

// Why the backend cannot serve a GPU.
var (
	errConfidential = fmt.Errorf("confidential computing is on, and hides GPU memory from the CPU: copy by cuMemcpy, or turn the mode off on the host: %w", unix.ENOTSUP)
	errNoGPU        = fmt.Errorf("the NVIDIA driver has no GPU: %w", unix.ENODEV)
	errCoherent     = fmt.Errorf("a GPU of this machine is coherent with the CPU, and the rm backend cannot map its memory through PCIe, as programs expect; set GDRCOPY_BACKEND=rm for cached mappings, or load gdrdrv: %w", unix.ENOTSUP)
	errTegraDisplay = fmt.Errorf("the NVIDIA display driver of this Tegra has no GPU that computes: %w", unix.ENODEV)
)

func errMIG(gpu string) error {
	return fmt.Errorf("the GPU %s is divided into instances (MIG), whose memory the rm backend does not map; load gdrdrv, or turn MIG off (nvidia-smi -mig 0): %w", gpu, unix.ENOTSUP)
}

// isCoherent reports whether the CPU may cache a GPU's memory. The driver says it of a GPU
// that some process has open. Else it is so for the PCI devices that the driver takes for a
// Grace's (595.45.04, kernel-open/nvidia/detect-self-hosted.h), and for a GPU without BAR1, as
// GB10 is.
func (c *client) isCoherent(card cardInfo) bool {
	if !card.onPCI() {
		return false
	}
	if id, err := c.idInfo(card.gpuID); err == nil {
		return id.flags&(idATS|idSOC) != 0
	}
	switch d := card.device; {
	case d >= 0x2340 && d < 0x2380, d >= 0x2940 && d < 0x2980, d >= 0x31C0 && d < 0x3200, d == 0x31A1:
		return true
	}
	return card.fbSize == 0
}

// anyUsable is an error where the process can use none of the GPUs through this backend. shown
// says which GPUs CUDA has in this process. It is asked where some are usable and some are not,
// and answers nil where it is not known.
func (c *client) anyUsable(cards []cardInfo, access func(path string) error, shown func() map[cuda.PCIAddress]bool) error {
	open := new(attached)
	switch err := control(c, "GET_ATTACHED_IDS", c.root, controlAttached, open); {
	case err != nil:
		log.Debugf("whether a GPU is open is not known: %v", err)
	case open[0] != noGPU:
		if err := c.checkConfidential(); err != nil {
			return err
		}
	}
	var usable []cuda.PCIAddress
	refused := errNoGPU
	divided, _ := c.divided()
	for i := range cards {
		if err := cards[i].check(divided, access); err != nil {
			refused = err
			continue
		}
		usable = append(usable, cards[i].at())
	}
	if len(usable) == 0 {
		return refused
	}
	if len(usable) == len(cards) {
		return nil
	}
	log.Debugf("rm serves %d of %d GPUs: %v", len(usable), len(cards), refused)
	seen := shown()
	if seen == nil || slices.ContainsFunc(usable, func(at cuda.PCIAddress) bool { return seen[at] }) {
		return nil
	}
	return refused
}

func (card *cardInfo) at() cuda.PCIAddress {
	return cuda.PCIAddress{Domain: card.domain, Bus: card.bus, Slot: card.slot}
}

// onPCI is false for the display of a Tegra.
func (card *cardInfo) onPCI() bool {
	return card.vendor != 0 && (card.at() != cuda.PCIAddress{} || card.fbSize != 0)
}

// check says why the backend cannot serve a GPU.
func (card *cardInfo) check(divided func(gpuID uint32) bool, access func(path string) error) error {
	path := devicePath(card.minor)
	switch {
	case !card.onPCI():
		return errTegraDisplay
	case divided(card.gpuID):
		return errMIG(card.at().String())
	}
	if err := access(path); err != nil {
		return explainOpen(path, err)
	}
	return nil
}

// divided says of each GPU whether it is divided into instances (MIG). known is false for
// 535, which does not know the question.
func (c *client) divided() (is func(gpuID uint32) bool, known bool) {
	all := new(activeDevices)
	err := control(c, "GET_ACTIVE_DEVICE_IDS", c.root, controlActiveDevices, all)
	if err != nil || all.n > maxActiveDevices {
		log.Debugf("whether GPUs are divided (MIG) is not known: %v", err)
		return func(uint32) bool { return false }, false
	}
	return func(gpuID uint32) bool {
		for _, d := range all.list[:all.n] {
			if d.gpuID == gpuID {
				return d.instance != noInstance
			}
		}
		return true // and has no instance
	}, true
}

// dividedByNVML is the same by NVML, for a driver that does not know the question.
func dividedByNVML(at cuda.PCIAddress) (divided bool) {
	err := nvml.At(at.String(), func(gpu nvml.Device) (err error) {
		divided, err = gpu.MIG()
		return err
	})
	return err == nil && divided
}

// checkConfidential is an error where confidential computing is on. MAP_MEMORY would fail
// then, with lines in the kernel's log. The question itself has such lines where no
// process has a GPU open.
func (c *client) checkConfidential() error {
	args := allocArgs{root: c.root, parent: c.root, class: classConfidential}
	if err := do(c, "RM_ALLOC of NV_CONFIDENTIAL_COMPUTE", nrAlloc, &args, &args.status); err != nil {
		log.Debugf("the driver knows no confidential computing: %v", err)
		return nil
	}
	p := new(confidential)
	err := control(c, "SYSTEM_GET_CAPABILITIES", args.object, controlConfidential, p)
	if err != nil {
		err = control(c, "SYSTEM_GET_CAPABILITIES", args.object, controlConfidential, &p.before550)
	}
	if err != nil {
		log.Debugf("whether confidential computing is on is not known: %v", err)
	}
	if err := c.free(c.root, args.object); err != nil {
		log.Warnf("an object of the driver's is lost: %v", err)
	}
	if err == nil && (p.feature != 0 || p.multiGPUMode != 0) {
		return errConfidential
	}
	return nil
}

// bar1Type is how the CPU maps BAR1. On arm64 a driver may map it as Device memory, and
// say that it is write-combined. An access that is not aligned is SIGBUS there.
func (c *client) bar1Type(major int) backend.MappingType {
	if runtime.GOARCH != "arm64" {
		return backend.WC
	}
	return c.bar1TypeOfArm(major, "/sys/bus/pci/devices")
}

// The first drivers that say whether BAR1 is Device memory on Arm, and that put a window
// into several ranges of BAR1.
const (
	firstThatSays     = 590
	firstThatScatters = 565
)

func (c *client) bar1TypeOfArm(major int, pci string) backend.MappingType {
	p := new(chipset)
	err := control(c, "SYSTEM_GET_CHIPSET_INFO", c.root, controlChipset, p)
	switch {
	case err == nil && p.flags&chipsetUnaligned != 0:
		return backend.WC
	case err == nil && major < firstThatSays && combinesWrites(pci):
		return backend.WC
	}
	log.Debugf("BAR1 is taken for Device memory (chipset flags %#x, %v)", p.flags, err)
	return backend.Device
}

// version is the driver's.
func (c *client) version() (n Version) {
	v := version{command: versionQuery}
	if err := do(c, "CHECK_VERSION_STR", nrVersion, &v, nil); err != nil {
		log.Debugf("%v", err)
		return n
	}
	text, _, _ := bytes.Cut(v.text[:], []byte{0})
	for i, part := range strings.SplitN(string(text), ".", len(n)) {
		number, err := strconv.Atoi(part)
		if err != nil || number <= 0 && i == 0 {
			log.Debugf("the driver's version %q is not known", text)
			return Version{}
		}
		n[i] = number
	}
	return n
}

// major is the first number of the driver's version. Where it is not known it is a newer driver's.
func (c *client) major() int {
	if major := c.version()[0]; major != 0 {
		return major
	}
	return 999
}

// combinesWrites is true where the PCI devices of a machine are known, and no root port is
// of a CPU for which drivers before 590 map BAR1 as Device memory: BlueField-3, and
// revision 0 of Ampere Altra. The same list is in gdrdrv.
func combinesWrites(pci string) bool {
	names, err := sys.ReadDir(pci)
	seen := false
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue
		}
		id := [3]string{}
		for i, file := range []string{"vendor", "device", "revision"} {
			text, err := sys.ReadFile(path.Join(pci, name, file), 64)
			if err != nil {
				return false
			}
			id[i] = strings.TrimSpace(string(text))
		}
		switch id[0] + id[1] {
		case "0x15b30xa2da", "0x15b30xa2db":
			return false
		case "0x1def0xe000", "0x1def0xe00d", "0x1def0xe00e", "0x1def0xe010", "0x1def0xe100", "0x1def0xe110":
			if id[2] == "0x00" {
				return false
			}
		}
		seen = true
	}
	return seen && err == nil
}

// kind is the memory type of the CPU's mapping of a window.
func (g *gpu) kind(w window) (backend.MappingType, error) {
	switch a := w.answer; {
	case a == answerBAR1:
		return g.bar1, nil
	case a == answerBAR1Registers:
		return backend.Device, nil
	case a == answerCoherent && g.coherent:
		return backend.Caching, nil
	case a == answerSystemMemory:
		return g.systemType(w.object), nil
	}
	return 0, fmt.Errorf("the NVIDIA driver answered the mapping %d and the cache type %d (coherent: %v), which this library does not know; load gdrdrv: %w",
		w.answer.mapping, w.answer.cache, g.coherent, unix.ENOTSUP)
}

// systemType is how the CPU's mapping of system memory is cached. WC is right for memory
// of another kind, too: its copies end with fences.
func (g *gpu) systemType(object handle) backend.MappingType {
	attr, err := g.surface(object, surfaceAttr)
	if err != nil {
		log.Debugf("how memory is cached is not known: %v", err)
		return backend.WC
	}
	switch attr >> 29 {
	case 1, 3, 4, 5: // cached, write-through, write-protect, write-back
		return backend.Caching
	}
	return backend.WC
}

// surface answers an index of surfaceItem for an object.
func (g *gpu) surface(object handle, index uint32) (uint32, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	item := &surfaceItem{index: index}
	list := &surfaceInfo{n: 1, list: address(&pins, item)}
	err := control(g.client, "GET_SURFACE_INFO", object, controlSurfaceInfo, list)
	return item.data, err
}

// sizeOf is the size of an object in bytes.
func (g *gpu) sizeOf(object handle) (uint64, error) {
	pages, err := g.surface(object, surfacePages)
	return uint64(pages) * surfacePage, err
}

// node is the device through which an extent is mapped: the GPU's own, or the control device
// where the memory is the system's.
func (g *gpu) node(e extent) (path string, err error) {
	space := e.space
	if space == 0 {
		space, err = g.spaceOfObject(e.object)
	}
	switch {
	case err != nil:
		return "", err
	case space == spaceVideo:
		return g.path, nil
	case space == spaceSystem && (g.coherent || g.soc):
		return controlPath, nil
	}
	return "", fmt.Errorf("the memory is in the driver's address space %d, which is not this GPU's (the host's, or another node's?): %w", space, unix.ENOTSUP)
}

// spaceOfObject is where an object is.
func (g *gpu) spaceOfObject(object handle) (uint32, error) {
	space, err := g.surface(object, surfaceSpace)
	if errors.Is(err, unix.ENOTSUP) {
		return spaceVideo, nil // a sandbox that does not let it pass has no other GPU
	}
	return space, err
}

// pageSize is the size of an object's physical pages, in bytes.
func (g *gpu) pageSize(object handle) uint64 {
	const usual = 2 << 20
	size := new(uint64)
	err := control(g.client, "GET_MEM_PAGE_SIZE", object, controlPageSize, size)
	if err != nil || *size < gpuPage || *size&(*size-1) != 0 {
		log.Debugf("pages are taken for %d bytes: %v, %d", usual, err, *size)
		return usual
	}
	return *size
}

// mapsLeft is an error where n more mappings may be more than a process may have.
func mapsLeft(n int) error {
	const others = 4096
	text, err := sys.ReadFile("/proc/sys/vm/max_map_count", 64)
	if err != nil {
		return nil
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && n+others > limit {
		return fmt.Errorf("the driver maps this buffer only in %d pieces, and the process may have %d mappings; raise vm.max_map_count, or map less: %w", n, limit, unix.ENOMEM)
	}
	return nil
}
