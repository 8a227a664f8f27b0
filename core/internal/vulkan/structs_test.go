package vulkan

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"unsafe"

	"gdrapi/tests/ctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// layout is every number of structs.go and result.go, by its C expression.
func layout() map[string]uint64 {
	var (
		app   applicationInfo
		inst  instanceCreateInfo
		queue deviceQueueCreateInfo
		dev   deviceCreateInfo
		alloc memoryAllocateInfo
		imp   importMemoryFdInfo
		mt    memoryType
		mh    memoryHeap
		mp    memoryProperties
		pd    physicalDeviceProperties2
		id    physicalDeviceIDProperties
		ext   extensionProperties
	)
	m := map[string]uint64{}
	size := func(name string, n uintptr) { m["sizeof("+name+")"] = uint64(n) }
	off := func(name, field string, n uintptr) {
		m["offsetof("+name+", "+field+")"] = uint64(n)
	}

	size("VkApplicationInfo", unsafe.Sizeof(app))
	off("VkApplicationInfo", "pNext", unsafe.Offsetof(app.next))
	off("VkApplicationInfo", "pApplicationName", unsafe.Offsetof(app.applicationName))
	off("VkApplicationInfo", "applicationVersion", unsafe.Offsetof(app.applicationVersion))
	off("VkApplicationInfo", "pEngineName", unsafe.Offsetof(app.engineName))
	off("VkApplicationInfo", "engineVersion", unsafe.Offsetof(app.engineVersion))
	off("VkApplicationInfo", "apiVersion", unsafe.Offsetof(app.apiVersion))

	size("VkInstanceCreateInfo", unsafe.Sizeof(inst))
	off("VkInstanceCreateInfo", "flags", unsafe.Offsetof(inst.flags))
	off("VkInstanceCreateInfo", "pApplicationInfo", unsafe.Offsetof(inst.applicationInfo))
	off("VkInstanceCreateInfo", "enabledLayerCount", unsafe.Offsetof(inst.layerCount))
	off("VkInstanceCreateInfo", "ppEnabledLayerNames", unsafe.Offsetof(inst.layers))
	off("VkInstanceCreateInfo", "enabledExtensionCount", unsafe.Offsetof(inst.extensionCount))
	off("VkInstanceCreateInfo", "ppEnabledExtensionNames", unsafe.Offsetof(inst.extensions))

	size("VkDeviceQueueCreateInfo", unsafe.Sizeof(queue))
	off("VkDeviceQueueCreateInfo", "flags", unsafe.Offsetof(queue.flags))
	off("VkDeviceQueueCreateInfo", "queueFamilyIndex", unsafe.Offsetof(queue.queueFamilyIndex))
	off("VkDeviceQueueCreateInfo", "queueCount", unsafe.Offsetof(queue.queueCount))
	off("VkDeviceQueueCreateInfo", "pQueuePriorities", unsafe.Offsetof(queue.queuePriorities))

	size("VkDeviceCreateInfo", unsafe.Sizeof(dev))
	off("VkDeviceCreateInfo", "flags", unsafe.Offsetof(dev.flags))
	off("VkDeviceCreateInfo", "queueCreateInfoCount", unsafe.Offsetof(dev.queueCreateInfoCount))
	off("VkDeviceCreateInfo", "pQueueCreateInfos", unsafe.Offsetof(dev.queueCreateInfos))
	off("VkDeviceCreateInfo", "enabledLayerCount", unsafe.Offsetof(dev.layerCount))
	off("VkDeviceCreateInfo", "ppEnabledLayerNames", unsafe.Offsetof(dev.layers))
	off("VkDeviceCreateInfo", "enabledExtensionCount", unsafe.Offsetof(dev.extensionCount))
	off("VkDeviceCreateInfo", "ppEnabledExtensionNames", unsafe.Offsetof(dev.extensions))
	off("VkDeviceCreateInfo", "pEnabledFeatures", unsafe.Offsetof(dev.features))

	size("VkMemoryAllocateInfo", unsafe.Sizeof(alloc))
	off("VkMemoryAllocateInfo", "allocationSize", unsafe.Offsetof(alloc.allocationSize))
	off("VkMemoryAllocateInfo", "memoryTypeIndex", unsafe.Offsetof(alloc.memoryTypeIndex))

	size("VkImportMemoryFdInfoKHR", unsafe.Sizeof(imp))
	off("VkImportMemoryFdInfoKHR", "handleType", unsafe.Offsetof(imp.handleType))
	off("VkImportMemoryFdInfoKHR", "fd", unsafe.Offsetof(imp.fd))

	size("VkMemoryType", unsafe.Sizeof(mt))
	off("VkMemoryType", "heapIndex", unsafe.Offsetof(mt.heapIndex))
	size("VkMemoryHeap", unsafe.Sizeof(mh))
	off("VkMemoryHeap", "flags", unsafe.Offsetof(mh.flags))

	size("VkPhysicalDeviceMemoryProperties", unsafe.Sizeof(mp))
	off("VkPhysicalDeviceMemoryProperties", "memoryTypes", unsafe.Offsetof(mp.types))
	off("VkPhysicalDeviceMemoryProperties", "memoryHeapCount", unsafe.Offsetof(mp.heapCount))
	off("VkPhysicalDeviceMemoryProperties", "memoryHeaps", unsafe.Offsetof(mp.heaps))

	size("VkPhysicalDeviceProperties2", unsafe.Sizeof(pd))
	off("VkPhysicalDeviceProperties2", "properties.apiVersion", unsafe.Offsetof(pd.apiVersion))
	off("VkPhysicalDeviceProperties2", "properties.vendorID", unsafe.Offsetof(pd.vendorID))
	off("VkPhysicalDeviceProperties2", "properties.deviceType", unsafe.Offsetof(pd.deviceType))
	off("VkPhysicalDeviceProperties2", "properties.deviceName", unsafe.Offsetof(pd.deviceName))
	off("VkPhysicalDeviceProperties2", "properties.pipelineCacheUUID", unsafe.Offsetof(pd.rest))

	size("VkPhysicalDeviceIDProperties", unsafe.Sizeof(id))
	off("VkPhysicalDeviceIDProperties", "deviceUUID", unsafe.Offsetof(id.deviceUUID))
	off("VkPhysicalDeviceIDProperties", "driverUUID", unsafe.Offsetof(id.driverUUID))
	off("VkPhysicalDeviceIDProperties", "deviceLUID", unsafe.Offsetof(id.deviceLUID))
	off("VkPhysicalDeviceIDProperties", "deviceNodeMask", unsafe.Offsetof(id.deviceNodeMask))
	off("VkPhysicalDeviceIDProperties", "deviceLUIDValid", unsafe.Offsetof(id.deviceLUIDValid))

	size("VkExtensionProperties", unsafe.Sizeof(ext))
	off("VkExtensionProperties", "specVersion", unsafe.Offsetof(ext.specVersion))

	for handle, n := range map[string]uintptr{
		"VkInstance":       unsafe.Sizeof(instanceHandle(0)),
		"VkPhysicalDevice": unsafe.Sizeof(physicalDeviceHandle(0)),
		"VkDevice":         unsafe.Sizeof(deviceHandle(0)),
		"VkDeviceMemory":   unsafe.Sizeof(memoryHandle(0)),
		"VkResult":         unsafe.Sizeof(Result(0)),
		"VkDeviceSize":     unsafe.Sizeof(uint64(0)),
	} {
		size(handle, n)
	}
	for name, v := range map[string]uint64{
		"VK_STRUCTURE_TYPE_APPLICATION_INFO":              typeApplicationInfo,
		"VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO":          typeInstanceCreateInfo,
		"VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO":      typeDeviceQueueCreateInfo,
		"VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO":            typeDeviceCreateInfo,
		"VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO":          typeMemoryAllocateInfo,
		"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2":  typePhysicalDeviceProperties2,
		"VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES": typePhysicalDeviceIDProps,
		"VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR":     typeImportMemoryFdInfo,
		"VK_API_VERSION_1_1":                              apiVersion11,
		"VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT":    handleTypeOpaqueFD,
		"VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT":             memoryDeviceLocal,
		"VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT":             memoryHostVisible,
		"VK_MEMORY_PROPERTY_HOST_COHERENT_BIT":            memoryHostCoherent,
		"VK_MEMORY_PROPERTY_HOST_CACHED_BIT":              memoryHostCached,
		"VK_MAX_MEMORY_TYPES":                             maxMemoryTypes,
		"VK_MAX_MEMORY_HEAPS":                             maxMemoryHeaps,
		"VK_MAX_EXTENSION_NAME_SIZE":                      maxExtensionNameSize,
		"VK_PHYSICAL_DEVICE_TYPE_CPU":                     physicalDeviceTypeCPU,
	} {
		m[name] = v
	}
	for r, e := range known {
		m[e.Name] = uint64(int64(r))
	}
	return m
}

// The C headers decide every size, offset and constant.
func TestLayoutAgainstTheHeaders(t *testing.T) {
	cc := ctest.Compiler(t)
	if err := exec.Command(cc, "-E", "-include", "vulkan/vulkan.h", "-x", "c", os.DevNull).Run(); err != nil {
		t.Skip("needs the Vulkan headers (Debian's libvulkan-dev): ", err)
	}
	want := layout()
	want[fmt.Sprintf("strcmp(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, %q)", externalMemoryFd)] = 0
	ctest.Agree(t, "#include <string.h>\n#include <vulkan/vulkan.h>\n", want)
}

// Every result that the table has; the headers check the names and numbers. Another one is an
// I/O error.
func TestResultToErrno(t *testing.T) {
	want := map[Result]unix.Errno{
		5: unix.EAGAIN, -1: unix.ENOMEM, -2: unix.ENOMEM, -3: unix.ENODEV, -4: unix.EIO, -5: unix.ENOMEM,
		-6: unix.ENODEV, -7: unix.ENOTSUP, -8: unix.ENOTSUP, -9: unix.ENODEV, -10: unix.ENOMEM, -13: unix.EIO,
		-1000072003: unix.ENOTSUP,
	}
	require.Len(t, known, len(want))
	for r := range want {
		require.Contains(t, known, r)
	}
	for _, r := range []Result{1, 2, 3, 4, 77, -11, -12, -999, -1000069000} {
		require.NotContains(t, known, r)
		want[r] = unix.EIO
	}
	for r, e := range want {
		wrapped := fmt.Errorf("vkX: %w", r)
		require.Equal(t, e, r.Errno(), "%v", r)
		require.ErrorIs(t, wrapped, r)
		var errno unix.Errno
		require.ErrorAs(t, wrapped, &errno)
		require.Equal(t, e, errno)
		require.Contains(t, r.Error(), strconv.Itoa(int(r)))
		for _, other := range []unix.Errno{unix.EAGAIN, unix.ENOMEM, unix.ENODEV, unix.EIO, unix.ENOTSUP} {
			require.Equal(t, other == e, errors.Is(wrapped, other), "%v is %v", r, other)
		}
	}
}

func TestMappableType(t *testing.T) {
	const local, visible, coherent, cached = memoryDeviceLocal, memoryHostVisible, memoryHostCoherent, memoryHostCached
	for _, c := range []struct {
		flags []uint32
		want  uint32
		found bool
	}{
		{nil, 0, false},
		{[]uint32{0, local, visible | coherent}, 0, false},
		{[]uint32{0, local, visible | coherent, visible | coherent | cached, local | visible | coherent}, 4, true},
		{[]uint32{local | visible | coherent | cached, local | visible | coherent}, 1, true},
		{[]uint32{local | visible | coherent | cached}, 0, false},
		{[]uint32{local | visible}, 0, false},
	} {
		var p memoryProperties
		p.typeCount = uint32(len(c.flags))
		for i := range p.types { // what lies past the count is nothing
			p.types[i].propertyFlags = local | visible | coherent
		}
		for i, f := range c.flags {
			p.types[i].propertyFlags = f
		}
		got, found := mappableType(&p)
		require.Equal(t, c.found, found, "%v", c.flags)
		require.Equal(t, c.want, got, "%v", c.flags)
	}
	for _, n := range []uint32{maxMemoryTypes, maxMemoryTypes + 1, 1<<32 - 1} {
		p := memoryProperties{typeCount: n}
		_, found := mappableType(&p)
		require.False(t, found)
		p.types[maxMemoryTypes-1].propertyFlags = local | visible | coherent
		got, found := mappableType(&p)
		require.True(t, found)
		require.EqualValues(t, maxMemoryTypes-1, got)
	}
}
