package vulkan

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"gdrapi/core/dl"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// loaderName is the file name of the Vulkan loader. The loader exports every function of
// the core API. This package uses no others.
const loaderName = "libvulkan.so.1"

type symbol int

const (
	symCreateInstance symbol = iota
	symDestroyInstance
	symEnumeratePhysicalDevices
	symEnumerateDeviceExtensionProperties
	symGetPhysicalDeviceProperties2
	symGetPhysicalDeviceMemoryProperties
	symCreateDevice
	symAllocateMemory
	symFreeMemory
	symMapMemory
	symUnmapMemory
	symbolCount
)

var names = [symbolCount]string{
	symCreateInstance:                     "vkCreateInstance",
	symDestroyInstance:                    "vkDestroyInstance",
	symEnumeratePhysicalDevices:           "vkEnumeratePhysicalDevices",
	symEnumerateDeviceExtensionProperties: "vkEnumerateDeviceExtensionProperties",
	symGetPhysicalDeviceProperties2:       "vkGetPhysicalDeviceProperties2",
	symGetPhysicalDeviceMemoryProperties:  "vkGetPhysicalDeviceMemoryProperties",
	symCreateDevice:                       "vkCreateDevice",
	symAllocateMemory:                     "vkAllocateMemory",
	symFreeMemory:                         "vkFreeMemory",
	symMapMemory:                          "vkMapMemory",
	symUnmapMemory:                        "vkUnmapMemory",
}

// Handles of the API; 0 is no object.
type (
	instanceHandle       uint64
	physicalDeviceHandle uint64
	deviceHandle         uint64
	memoryHandle         uint64
)

// api is the loaded Vulkan loader.
type api struct{ fn [symbolCount]uintptr }

// loadAPI loads the loader, once in a process.
var loadAPI = sync.OnceValues(func() (*api, error) {
	lib, err := dl.Open(loaderName)
	if err != nil {
		return nil, fmt.Errorf("cannot load the Vulkan loader, which Debian has in libvulkan1: %w (%v)", unix.ENODEV, err)
	}
	a := new(api)
	for i, name := range names {
		if a.fn[i], err = purego.Dlsym(lib, name); err != nil {
			return nil, fmt.Errorf("the Vulkan loader is too old, it has no %s: %w", name, unix.ENOTSUP)
		}
	}
	return a, nil
})

// call calls s, whose result is a VkResult. The caller pins the objects that objects in args
// point to.
func (a *api) call(s symbol, args ...any) error {
	if r := Result(dl.Call(a.fn[s], args...)); r != 0 {
		return fmt.Errorf("%s: %w", names[s], r)
	}
	return nil
}

// callVoid calls s, which returns nothing.
func (a *api) callVoid(s symbol, args ...any) { dl.Call(a.fn[s], args...) }

func (a *api) createInstance() (instanceHandle, error) {
	app := &applicationInfo{header: header{sType: typeApplicationInfo}, apiVersion: apiVersion11}
	info := &instanceCreateInfo{header: header{sType: typeInstanceCreateInfo}, applicationInfo: app}
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(app)
	var h instanceHandle
	err := a.call(symCreateInstance, info, 0, &h)
	return h, err
}

func (a *api) destroyInstance(h instanceHandle) { a.callVoid(symDestroyInstance, h, 0) }

// enumerate asks get for a count, then for the elements. It repeats both until the count
// does not change between them.
func enumerate[T any](get func(n *uint32, first *T) error) ([]T, error) {
	for {
		var n uint32
		if err := get(&n, nil); err != nil || n == 0 {
			return nil, err
		}
		list := make([]T, n)
		err := get(&n, &list[0])
		if err == nil {
			return list[:n], nil
		}
		if !errors.Is(err, incomplete) {
			return nil, err
		}
	}
}

func (a *api) physicalDevices(h instanceHandle) ([]physicalDeviceHandle, error) {
	return enumerate[physicalDeviceHandle](func(n *uint32, first *physicalDeviceHandle) error {
		return a.call(symEnumeratePhysicalDevices, h, n, first)
	})
}

// hasExtension reports whether a device has the extension.
func (a *api) hasExtension(pd physicalDeviceHandle, name string) (bool, error) {
	list, err := enumerate[extensionProperties](func(n *uint32, first *extensionProperties) error {
		return a.call(symEnumerateDeviceExtensionProperties, pd, 0, n, first)
	})
	for i := range list {
		if got, _, _ := bytes.Cut(list[i].extensionName[:], []byte{0}); string(got) == name {
			return true, nil
		}
	}
	return false, err
}

// identity gives the UUID of a device and its VkPhysicalDeviceType. CUDA has the same
// UUID for the device.
func (a *api) identity(pd physicalDeviceHandle) (uuid [16]byte, deviceType uint32) {
	id := &physicalDeviceIDProperties{header: header{sType: typePhysicalDeviceIDProps}}
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(id)
	props := &physicalDeviceProperties2{header: header{sType: typePhysicalDeviceProperties2, next: unsafe.Pointer(id)}}
	a.callVoid(symGetPhysicalDeviceProperties2, pd, props)
	return id.deviceUUID, props.deviceType
}

func (a *api) memoryProperties(pd physicalDeviceHandle) *memoryProperties {
	props := new(memoryProperties)
	a.callVoid(symGetPhysicalDeviceMemoryProperties, pd, props)
	return props
}

// createDevice makes a device that can import memory. It has one queue of family 0,
// because the API requires a queue. Nothing is ever submitted to that queue.
func (a *api) createDevice(pd physicalDeviceHandle) (deviceHandle, error) {
	name := append([]byte(externalMemoryFd), 0)
	extension := &name[0]
	priority := new(float32)
	queue := &deviceQueueCreateInfo{header: header{sType: typeDeviceQueueCreateInfo}, queueCount: 1, queuePriorities: priority}
	info := &deviceCreateInfo{
		header:               header{sType: typeDeviceCreateInfo},
		queueCreateInfoCount: 1,
		queueCreateInfos:     queue,
		extensionCount:       1,
		extensions:           &extension,
	}
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(extension)
	p.Pin(&extension)
	p.Pin(priority)
	p.Pin(queue)
	var h deviceHandle
	err := a.call(symCreateDevice, pd, info, 0, &h)
	return h, err
}

// importMemory makes a memory object of size bytes out of fd. On success Vulkan owns fd.
// On an error the caller still owns it.
func (a *api) importMemory(dev deviceHandle, fd int, size uint64, memoryType uint32) (memoryHandle, error) {
	from := &importMemoryFdInfo{header: header{sType: typeImportMemoryFdInfo}, handleType: handleTypeOpaqueFD, fd: int32(fd)}
	info := &memoryAllocateInfo{
		header:          header{sType: typeMemoryAllocateInfo, next: unsafe.Pointer(from)},
		allocationSize:  size,
		memoryTypeIndex: memoryType,
	}
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(from)
	var h memoryHandle
	err := a.call(symAllocateMemory, dev, info, 0, &h)
	return h, err
}

func (a *api) freeMemory(dev deviceHandle, m memoryHandle) {
	a.callVoid(symFreeMemory, dev, m, 0)
}

func (a *api) mapMemory(dev deviceHandle, m memoryHandle, offset, size uint64) (uintptr, error) {
	var va uintptr
	err := a.call(symMapMemory, dev, m, offset, size, 0, &va)
	return va, err
}

func (a *api) unmapMemory(dev deviceHandle, m memoryHandle) {
	a.callVoid(symUnmapMemory, dev, m)
}
