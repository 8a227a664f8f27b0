package vulkan

import (
	"fmt"
	"sync"

	"gdrapi/core/log"

	"golang.org/x/sys/unix"
)

// instance is the process's Vulkan instance. To make one takes half a second (H200), so
// the process keeps the first that works.
type instance struct {
	api  *api
	gpus []*gpu
}

// gpu is a physical device that can map imported memory. The first pin makes its logical
// device, which takes 77 ms (H200). The process keeps that device.
type gpu struct {
	api        *api
	physical   physicalDeviceHandle
	uuid       [16]byte
	memoryType uint32 // local to the device, and a WC mapping for the host

	mu     sync.Mutex
	device deviceHandle // 0 until the first pin
}

var shared struct {
	mu       sync.Mutex
	instance *instance
}

// processInstance gives the kept instance, or makes it.
func processInstance() (*instance, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.instance != nil {
		return shared.instance, nil
	}
	i, err := newInstance()
	if err == nil {
		shared.instance = i
	}
	return i, err
}

func newInstance() (*instance, error) {
	a, err := loadAPI()
	if err != nil {
		return nil, err
	}
	h, err := a.createInstance()
	if err != nil {
		return nil, fmt.Errorf("no Vulkan driver starts; %s: %w", installHint, err)
	}
	gpus, err := usableGPUs(a, h)
	if err != nil {
		a.destroyInstance(h)
		return nil, err
	}
	return &instance{api: a, gpus: gpus}, nil
}

// usableGPUs finds the devices that can do what Pin and Map need. It fails where there is
// none.
func usableGPUs(a *api, h instanceHandle) ([]*gpu, error) {
	list, err := a.physicalDevices(h)
	if err != nil {
		return nil, err
	}
	var gpus []*gpu
	for _, pd := range list {
		uuid, deviceType := a.identity(pd)
		if deviceType == physicalDeviceTypeCPU {
			continue // a software renderer
		}
		ok, err := a.hasExtension(pd, externalMemoryFd)
		if err != nil {
			return nil, err
		}
		memoryType, found := mappableType(a.memoryProperties(pd))
		if !ok || !found {
			log.Debugf("Vulkan device %x: extension %s %v, mappable device memory %v", uuid, externalMemoryFd, ok, found)
			continue
		}
		gpus = append(gpus, &gpu{api: a, physical: pd, uuid: uuid, memoryType: memoryType})
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("none of the %d Vulkan devices has %s and device memory that the CPU can map: %w", len(list), externalMemoryFd, unix.ENODEV)
	}
	return gpus, nil
}

// mappableType finds the type of device memory that the CPU maps through the BAR,
// write-combined. A type that the CPU caches is not it.
func mappableType(p *memoryProperties) (uint32, bool) {
	const want = memoryDeviceLocal | memoryHostVisible | memoryHostCoherent
	for i := range min(p.typeCount, maxMemoryTypes) {
		if p.types[i].propertyFlags&(want|memoryHostCached) == want {
			return i, true
		}
	}
	return 0, false
}

// find gives the GPU with the UUID.
func (i *instance) find(uuid [16]byte) (*gpu, error) {
	for _, g := range i.gpus {
		if g.uuid == uuid {
			return g, nil
		}
	}
	return nil, fmt.Errorf("the memory is on the GPU %x, which no Vulkan driver offers; look at VK_DRIVER_FILES: %w", uuid, unix.ENODEV)
}

// open gives the logical device.
func (g *gpu) open() (deviceHandle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.device != 0 {
		return g.device, nil
	}
	dev, err := g.api.createDevice(g.physical)
	if err == nil {
		g.device = dev
	}
	return dev, err
}
