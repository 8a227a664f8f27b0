package vulkan

import "unsafe"

// This file has the structures of the Vulkan API that this package uses, with their
// layout on 64-bit machines. The Go names are the API's names without the prefix.
// structs_test compares each size, offset and constant with the C headers. A handle has
// 64 bits. 0 names nothing.

// Structure types (VkStructureType).
const (
	typeApplicationInfo           = 0
	typeInstanceCreateInfo        = 1
	typeDeviceQueueCreateInfo     = 2
	typeDeviceCreateInfo          = 3
	typeMemoryAllocateInfo        = 5
	typePhysicalDeviceProperties2 = 1000059001
	typePhysicalDeviceIDProps     = 1000071004
	typeImportMemoryFdInfo        = 1000074000
)

const (
	apiVersion11          = 1<<22 | 1<<12
	handleTypeOpaqueFD    = 1 // VkExternalMemoryHandleTypeFlagBits
	memoryDeviceLocal     = 1 // VkMemoryPropertyFlagBits
	memoryHostVisible     = 2
	memoryHostCoherent    = 4
	memoryHostCached      = 8
	maxMemoryTypes        = 32
	maxMemoryHeaps        = 16
	maxExtensionNameSize  = 256
	externalMemoryFd      = "VK_KHR_external_memory_fd"
	physicalDeviceTypeCPU = 4
)

type header struct {
	sType uint32
	next  unsafe.Pointer
}

type applicationInfo struct {
	header
	applicationName    *byte
	applicationVersion uint32
	engineName         *byte
	engineVersion      uint32
	apiVersion         uint32
}

type instanceCreateInfo struct {
	header
	flags           uint32
	applicationInfo *applicationInfo
	layerCount      uint32
	layers          **byte
	extensionCount  uint32
	extensions      **byte
}

type deviceQueueCreateInfo struct {
	header
	flags            uint32
	queueFamilyIndex uint32
	queueCount       uint32
	queuePriorities  *float32
}

type deviceCreateInfo struct {
	header
	flags                uint32
	queueCreateInfoCount uint32
	queueCreateInfos     *deviceQueueCreateInfo
	layerCount           uint32
	layers               **byte
	extensionCount       uint32
	extensions           **byte
	features             unsafe.Pointer
}

type memoryAllocateInfo struct {
	header
	allocationSize  uint64
	memoryTypeIndex uint32
}

type importMemoryFdInfo struct {
	header
	handleType uint32
	fd         int32
}

type memoryType struct {
	propertyFlags uint32
	heapIndex     uint32
}

type memoryHeap struct {
	_     uint64 // size
	flags uint32
}

type memoryProperties struct {
	typeCount uint32
	types     [maxMemoryTypes]memoryType
	heapCount uint32
	heaps     [maxMemoryHeaps]memoryHeap
}

// physicalDeviceProperties2 is VkPhysicalDeviceProperties2. Only the properties before
// rest have names here.
type physicalDeviceProperties2 struct {
	header
	apiVersion uint32
	_          uint32 // driverVersion
	vendorID   uint32
	_          uint32 // deviceID
	deviceType uint32
	deviceName [256]byte
	rest       [548]byte
}

type physicalDeviceIDProperties struct {
	header
	deviceUUID      [16]byte
	driverUUID      [16]byte
	deviceLUID      [8]byte
	deviceNodeMask  uint32
	deviceLUIDValid uint32
}

type extensionProperties struct {
	extensionName [maxExtensionNameSize]byte
	specVersion   uint32
}
