// SPDX-License-Identifier: MIT
/*
 * vulkan_selftest.c - checks that the simulated libvulkan does what its source says.
 *
 * Without these checks a test on the double would prove nothing. Calls that must end the
 * process run in children. It needs no GPU.
 */
#define _GNU_SOURCE
#include "sim_device.h"
#include "tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vulkan/vulkan_core.h>

void vulkan_sim_fail(const char *name, int result, int nth);
unsigned long vulkan_sim_live(void);

#define MIB (1UL << 20)
#define BAR_TYPE 4
#define THREADS 8
#define ROUNDS 2000
#define CHILDREN 20

static struct tap tap;

static const float one = 1;

/* ---- Short forms of the calls ---- */

static VkResult instance_of(uint32_t version, VkInstance *out)
{
	VkApplicationInfo app = {
		.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = version,
	};
	VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
		.pApplicationInfo = version ? &app : NULL,
	};

	return vkCreateInstance(&info, NULL, out);
}

static VkPhysicalDevice gpu_of(VkInstance instance, uint32_t index)
{
	VkPhysicalDevice all[SIM_MAX_DEVICES] = { 0 };
	uint32_t n = SIM_MAX_DEVICES;

	if (vkEnumeratePhysicalDevices(instance, &n, all) || index >= n)
		return VK_NULL_HANDLE;
	return all[index];
}

/* A device with the extension, unless it is NULL, and one queue. */
static VkResult device_of(VkPhysicalDevice gpu, const char *extension,
			  uint32_t family, VkDevice *out)
{
	VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueFamilyIndex = family, .queueCount = 1, .pQueuePriorities = &one,
	};
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = 1, .pQueueCreateInfos = &queue,
		.enabledExtensionCount = extension ? 1 : 0,
		.ppEnabledExtensionNames = &extension,
	};

	return vkCreateDevice(gpu, &info, NULL, out);
}

static VkResult import_as(VkDevice dev, int fd, VkDeviceSize size, uint32_t type,
			  VkExternalMemoryHandleTypeFlagBits handle, VkDeviceMemory *out)
{
	VkImportMemoryFdInfoKHR from = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
		.handleType = handle, .fd = fd,
	};
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &from,
		.allocationSize = size, .memoryTypeIndex = type,
	};

	return vkAllocateMemory(dev, &info, NULL, out);
}

static VkResult import(VkDevice dev, int fd, VkDeviceSize size, VkDeviceMemory *out)
{
	return import_as(dev, fd, size, BAR_TYPE,
			 VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT, out);
}

static VkResult allocate(VkDevice dev, VkDeviceSize size, uint32_t type, bool export,
			 VkDeviceMemory *out)
{
	VkExportMemoryAllocateInfo to = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
		.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = export ? &to : NULL,
		.allocationSize = size, .memoryTypeIndex = type,
	};

	return vkAllocateMemory(dev, &info, NULL, out);
}

static VkResult export_fd(VkDevice dev, VkDeviceMemory m, int *fd)
{
	PFN_vkGetMemoryFdKHR get = (PFN_vkGetMemoryFdKHR)
		vkGetDeviceProcAddr(dev, "vkGetMemoryFdKHR");
	VkMemoryGetFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR, .memory = m,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};

	return get ? get(dev, &info, fd) : VK_ERROR_UNKNOWN;
}

/* A memfd with a name like the doubles' memfds, or with another name. */
static int memfd_of(const char *name, unsigned long size)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)size)) {
		perror("memfd");
		exit(2);
	}
	return fd;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* What most cases start from: GPU 0 with the extension. */
struct setup {
	VkInstance instance;
	VkDevice dev;
};

static struct setup set_up(void)
{
	struct setup s = { 0 };

	if (instance_of(VK_API_VERSION_1_1, &s.instance) ||
	    device_of(gpu_of(s.instance, 0), "VK_KHR_external_memory_fd", 0, &s.dev)) {
		fputs("set_up failed\n", stderr);
		exit(2);
	}
	return s;
}

static void tear_down(const struct setup *s)
{
	vkDestroyDevice(s->dev, NULL);
	vkDestroyInstance(s->instance, NULL);
	tap_is(&tap, (long)vulkan_sim_live(), 0, "number of live objects");
}

/* ---- What must end the process ---- */

static void old_instance_properties2(void)
{
	VkPhysicalDeviceProperties2 p = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
	};
	VkInstance i;

	instance_of(0, &i);
	vkGetPhysicalDeviceProperties2(gpu_of(i, 0), &p);
}

static void no_queue(void)
{
	VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO };
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_1, &i);
	vkCreateDevice(gpu_of(i, 0), &info, NULL, &d);
}

static void family_twice(void)
{
	VkDeviceQueueCreateInfo q = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueCount = 1, .pQueuePriorities = &one,
	};
	VkDeviceQueueCreateInfo both[] = { q, q };
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = 2, .pQueueCreateInfos = both,
	};
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_1, &i);
	vkCreateDevice(gpu_of(i, 0), &info, NULL, &d);
}

static void wrong_priority(void)
{
	const float two = 2;
	VkDeviceQueueCreateInfo q = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueCount = 1, .pQueuePriorities = &two,
	};
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = 1, .pQueueCreateInfos = &q,
	};
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_1, &i);
	vkCreateDevice(gpu_of(i, 0), &info, NULL, &d);
}

static void wrong_family(void)
{
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_1, &i);
	device_of(gpu_of(i, 0), NULL, 7, &d);
}

static void extension_without_its_base(void)
{
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_0, &i);
	device_of(gpu_of(i, 0), "VK_KHR_external_memory_fd", 0, &d);
}

static void import_without_extension(void)
{
	VkDeviceMemory m;
	VkInstance i;
	VkDevice d;

	instance_of(VK_API_VERSION_1_1, &i);
	device_of(gpu_of(i, 0), NULL, 0, &d);
	import(d, memfd_of("gdrsim:0:cuda", MIB), MIB, &m);
}

static void export_not_asked_for(void)
{
	struct setup s = set_up();
	VkDeviceMemory m;
	int fd;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	export_fd(s.dev, m, &fd);
}

static void unmap_not_mapped(void)
{
	struct setup s = set_up();
	VkDeviceMemory m;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	vkUnmapMemory(s.dev, m);
}

static void double_free(void)
{
	struct setup s = set_up();
	VkDeviceMemory m;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	vkFreeMemory(s.dev, m, NULL);
	vkFreeMemory(s.dev, m, NULL);
}

static void stale_handle(void)
{
	struct setup s = set_up();
	VkDeviceMemory m, newer;
	void *p;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	vkFreeMemory(s.dev, m, NULL);
	allocate(s.dev, MIB, BAR_TYPE, false, &newer);
	vkMapMemory(s.dev, m, 0, MIB, 0, &p);
}

static void unknown_handle(void)
{
	struct setup s = set_up();

	vkFreeMemory(s.dev, (VkDeviceMemory)(uintptr_t)0x1000, NULL);
}

static void handle_of_another_kind(void)
{
	struct setup s = set_up();

	vkDestroyInstance((VkInstance)(void *)s.dev, NULL);
}

static void memory_of_another_device(void)
{
	struct setup s = set_up();
	VkDeviceMemory m;
	VkDevice other;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	device_of(gpu_of(s.instance, 1), NULL, 0, &other);
	vkFreeMemory(other, m, NULL);
}

static void device_with_memory(void)
{
	struct setup s = set_up();
	VkDeviceMemory m;

	allocate(s.dev, MIB, BAR_TYPE, false, &m);
	vkDestroyDevice(s.dev, NULL);
}

static void instance_with_device(void)
{
	struct setup s = set_up();

	vkDestroyInstance(s.instance, NULL);
}

static void queue_not_made(void)
{
	struct setup s = set_up();
	VkQueue q;

	vkGetDeviceQueue(s.dev, 0, 1, &q);
}

static void wrong_structure_type(void)
{
	VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO };
	VkInstance i;

	vkCreateInstance(&info, NULL, &i);
}

static void unknown_structure_in_chain(void)
{
	VkPhysicalDeviceMaintenance3Properties extra = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
	};
	VkPhysicalDeviceProperties2 p = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &extra,
	};
	struct setup s = set_up();

	vkGetPhysicalDeviceProperties2(gpu_of(s.instance, 0), &p);
}

static void fault_of_no_function(void)
{
	vulkan_sim_fail("vkMapMemroy", VK_ERROR_MEMORY_MAP_FAILED, 0);
}

static void fault_in_environment_of_no_function(void)
{
	VkInstance i;

	setenv("VULKAN_SIM_FAIL", "vkFreeMemory=-1", 1);
	instance_of(0, &i);
}

static void too_many_devices(void)
{
	VkInstance i;

	setenv("VULKAN_SIM_DEVICES", "1000", 1);
	instance_of(0, &i);
}

static void inherited_handle(void)
{
	struct setup s = set_up();
	int status = 0;
	pid_t pid = fork();

	if (pid) {
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status))
			raise(WTERMSIG(status));
		return;
	}
	vkDestroyDevice(s.dev, NULL);
}

static const struct fatal {
	void (*run)(void);
	const char *what;
	const char *message;	/* must be in what the process says */
} fatal[] = {
	{ old_instance_properties2, "properties2 of a 1.0 instance", "ask for apiVersion 1.1" },
	{ no_queue, "a device without a queue", "a device needs a queue" },
	{ family_twice, "a queue family twice", "family 0 is there twice" },
	{ wrong_priority, "a queue priority above 1", "is not in 0 to 1" },
	{ wrong_family, "a queue family that is not there", "no queue family 7" },
	{ extension_without_its_base, "an extension without what it needs", "needs VK_KHR_external_memory" },
	{ import_without_extension, "an import without the extension", "import without" },
	{ export_not_asked_for, "an export that was not announced", "without VkExportMemoryAllocateInfo" },
	{ unmap_not_mapped, "the unmap of what is not mapped", "is not mapped" },
	{ double_free, "a double free", "no live VkDeviceMemory" },
	{ stale_handle, "a stale handle", "no live VkDeviceMemory" },
	{ unknown_handle, "an unknown handle", "0x1000 is no live VkDeviceMemory" },
	{ handle_of_another_kind, "a handle of another kind", "no live VkInstance" },
	{ memory_of_another_device, "memory of another device", "of another VkDevice" },
	{ device_with_memory, "a device destroyed before its memory", "1 memory objects are left" },
	{ instance_with_device, "an instance destroyed before its device", "1 devices are left" },
	{ queue_not_made, "a queue that was not made", "no queue 1 of family 0" },
	{ wrong_structure_type, "a wrong sType", "sType is 3, not 1" },
	{ unknown_structure_in_chain, "a pNext structure that the double does not know", "does not know sType" },
	{ fault_of_no_function, "a misspelt fault", "no vkMapMemroy that can fail" },
	{ fault_in_environment_of_no_function, "a fault of a function without a result", "no vkFreeMemory that can fail" },
	{ too_many_devices, "too many devices", "VULKAN_SIM_DEVICES=1000" },
	{ inherited_handle, "a handle from before fork()", "made before fork()" },
};

/* Runs f in a child. Returns its wait status and the start of its stderr. */
static int in_child(void (*f)(void), char *text, size_t size)
{
	struct rlimit no_core = { 0, 0 };
	int status, pipefd[2];
	size_t have = 0;
	ssize_t n;
	pid_t pid;

	fflush(stdout);
	if (pipe(pipefd) || (pid = fork()) < 0) {
		perror("in_child");
		exit(2);
	}
	if (!pid) {
		setrlimit(RLIMIT_CORE, &no_core);
		alarm(60);
		dup2(pipefd[1], STDERR_FILENO);
		close(pipefd[1]);
		f();
		_exit(0);
	}
	close(pipefd[1]);
	while ((n = read(pipefd[0], text + have, size - 1 - have)) > 0)
		have += (size_t)n;
	text[have] = '\0';
	close(pipefd[0]);
	if (waitpid(pid, &status, 0) != pid)
		status = -1;
	return status;
}

static void test_fatal(void)
{
	char text[512];
	size_t i;

	for (i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
		int status = in_child(fatal[i].run, text, sizeof(text));
		bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;

		if (!tap_ok(&tap, aborted && strstr(text, fatal[i].message),
			    "%s ends the process and says so", fatal[i].what))
			printf("# wait status %#x, said: %s\n", status, text);
	}
}

/* ---- What the environment sets, in children that exit with the answer ---- */

static void exit_with_device_count(void)
{
	VkInstance i;
	uint32_t n = 99;

	if (instance_of(VK_API_VERSION_1_1, &i) || vkEnumeratePhysicalDevices(i, &n, NULL))
		_exit(99);
	_exit((int)n);
}

static void default_devices(void)
{
	unsetenv("VULKAN_SIM_DEVICES");
	unsetenv("CUDA_SIM_DEVICES");
	exit_with_device_count();
}

static void devices_of_cuda(void)
{
	unsetenv("VULKAN_SIM_DEVICES");
	setenv("CUDA_SIM_DEVICES", "3", 1);
	exit_with_device_count();
}

static void devices_of_vulkan(void)
{
	setenv("VULKAN_SIM_DEVICES", "1", 1);
	setenv("CUDA_SIM_DEVICES", "3", 1);
	exit_with_device_count();
}

static void no_devices(void)
{
	setenv("VULKAN_SIM_DEVICES", "0", 1);
	exit_with_device_count();
}

static void fault_from_environment(void)
{
	VkInstance a, b, c;

	setenv("VULKAN_SIM_FAIL", "vkCreateInstance=-9@2,vkEnumeratePhysicalDevices=-3", 1);
	if (instance_of(0, &a) != VK_SUCCESS ||
	    instance_of(0, &b) != VK_ERROR_INCOMPATIBLE_DRIVER ||
	    instance_of(0, &c) != VK_SUCCESS)
		_exit(1);
	_exit(gpu_of(a, 0) == VK_NULL_HANDLE && gpu_of(c, 0) == VK_NULL_HANDLE ? 42 : 2);
}

/* A child makes an instance after its parent made one, but gets no device. */
static void own_objects_after_fork(void)
{
	struct setup mine = set_up(), theirs;
	int status;
	pid_t pid = fork();

	if (pid) {
		if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
			_exit(1);
		vkDestroyDevice(mine.dev, NULL);
		vkDestroyInstance(mine.instance, NULL);
		_exit(WEXITSTATUS(status));
	}
	if (vulkan_sim_live() != 0)
		_exit(3);
	if (instance_of(VK_API_VERSION_1_1, &theirs.instance))
		_exit(4);
	_exit(device_of(gpu_of(theirs.instance, 0), "VK_KHR_external_memory_fd", 0, &theirs.dev) ==
	      VK_ERROR_INITIALIZATION_FAILED ? 42 : 5);
}

static void test_environment(void)
{
	static const struct {
		void (*run)(void);
		const char *what;
		int status;
	} cases[] = {
		{ default_devices, "number of devices, by default,", 2 },
		{ devices_of_cuda, "number of devices, CUDA_SIM_DEVICES=3,", 3 },
		{ devices_of_vulkan, "number of devices, VULKAN_SIM_DEVICES=1,", 1 },
		{ no_devices, "number of devices, VULKAN_SIM_DEVICES=0,", 0 },
		{ fault_from_environment, "exit status with VULKAN_SIM_FAIL", 42 },
		{ own_objects_after_fork, "exit status of a child with its own instance", 42 },
	};
	char text[512];
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = in_child(cases[i].run, text, sizeof(text));

		if (!tap_is(&tap, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
			    cases[i].status, cases[i].what))
			printf("# wait status %#x, said: %s\n", status, text);
	}
}

/* ---- Instances, devices, function addresses ---- */

static void test_instance(void)
{
	const char *name = "VK_LAYER_none";
	VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
		.enabledLayerCount = 1, .ppEnabledLayerNames = &name,
	};
	VkPhysicalDevice all[2];
	VkInstance i = VK_NULL_HANDLE;
	uint32_t version = 0, n = 9;

	tap_is(&tap, vkEnumerateInstanceVersion(&version), VK_SUCCESS, "vkEnumerateInstanceVersion");
	tap_ok(&tap, version >= VK_API_VERSION_1_1, "the version is 1.1 or later");
	tap_is(&tap, vkEnumerateInstanceExtensionProperties(NULL, &n, NULL), VK_SUCCESS,
	       "vkEnumerateInstanceExtensionProperties");
	tap_is(&tap, n, 1, "number of instance extensions");
	tap_is(&tap, vkCreateInstance(&info, NULL, &i), VK_ERROR_LAYER_NOT_PRESENT,
	       "vkCreateInstance with an unknown layer");
	info.enabledLayerCount = 0;
	info.enabledExtensionCount = 1;
	info.ppEnabledExtensionNames = &name;
	tap_is(&tap, vkCreateInstance(&info, NULL, &i), VK_ERROR_EXTENSION_NOT_PRESENT,
	       "vkCreateInstance with an unknown extension");
	tap_is(&tap, instance_of(VK_API_VERSION_1_1, &i), VK_SUCCESS, "vkCreateInstance");
	tap_is(&tap, (long)vulkan_sim_live(), 1, "number of live objects");
	n = 1;
	tap_is(&tap, vkEnumeratePhysicalDevices(i, &n, all), VK_INCOMPLETE,
	       "vkEnumeratePhysicalDevices with too little room");
	tap_is(&tap, n, 1, "number of devices that it gave");
	n = 2;
	tap_is(&tap, vkEnumeratePhysicalDevices(i, &n, all), VK_SUCCESS,
	       "vkEnumeratePhysicalDevices");
	tap_ok(&tap, n == 2 && all[0] && all[1] && all[0] != all[1], "there are two devices");
	vkDestroyInstance(i, NULL);
	vkDestroyInstance(VK_NULL_HANDLE, NULL);
	tap_is(&tap, (long)vulkan_sim_live(), 0, "number of live objects");
}

static void test_properties(void)
{
	VkPhysicalDeviceIDProperties id = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
	};
	VkPhysicalDeviceProperties2 p = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id,
	};
	VkPhysicalDeviceProperties plain;
	struct setup s = set_up();
	unsigned char want[SIM_UUID_SIZE];
	uint32_t i;

	for (i = 0; i < 2; i++) {
		VkPhysicalDevice gpu = gpu_of(s.instance, i);

		vkGetPhysicalDeviceProperties2(gpu, &p);
		vkGetPhysicalDeviceProperties(gpu, &plain);
		sim_device_uuid((int)i, want);
		tap_ok(&tap, memcmp(id.deviceUUID, want, sizeof(want)) == 0,
		       "GPU %u has the UUID of the simulation", i);
		tap_ok(&tap, memcmp(&plain, &p.properties, sizeof(plain)) == 0,
		       "both forms of the properties of GPU %u agree", i);
	}
	tap_is(&tap, plain.deviceType, VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, "type of the device");
	tear_down(&s);
}

static void test_memory_types(void)
{
	const VkMemoryPropertyFlags flags = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
		VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
	VkPhysicalDeviceMemoryProperties2 two = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
	};
	VkPhysicalDeviceMemoryProperties p;
	struct setup s = set_up();
	uint32_t i;

	vkGetPhysicalDeviceMemoryProperties(gpu_of(s.instance, 0), &p);
	vkGetPhysicalDeviceMemoryProperties2(gpu_of(s.instance, 0), &two);
	tap_ok(&tap, memcmp(&p, &two.memoryProperties, sizeof(p)) == 0,
	       "both forms of the memory properties agree");
	tap_ok(&tap, p.memoryTypeCount > BAR_TYPE, "there is a type 4");
	for (i = 0; i < p.memoryTypeCount; i++) {
		bool bar = p.memoryTypes[i].propertyFlags == flags &&
			   p.memoryTypes[i].heapIndex == 0;

		tap_is(&tap, bar, i == BAR_TYPE, "type is mappable device memory:");
	}
	tap_ok(&tap, p.memoryHeaps[0].size == 16384 * MIB, "heap 0 is 16 GiB");
	tear_down(&s);
}

static void test_device(void)
{
	VkExtensionProperties ext[8];
	VkQueueFamilyProperties family[8];
	struct setup s = set_up();
	VkDevice d = VK_NULL_HANDLE;
	VkQueue q = VK_NULL_HANDLE;
	uint32_t n = 8, i;
	bool found = false;

	tap_is(&tap, vkEnumerateDeviceExtensionProperties(gpu_of(s.instance, 0), NULL, &n, ext),
	       VK_SUCCESS, "vkEnumerateDeviceExtensionProperties");
	for (i = 0; i < n; i++)
		found |= strcmp(ext[i].extensionName, "VK_KHR_external_memory_fd") == 0;
	tap_ok(&tap, found, "VK_KHR_external_memory_fd is there");
	n = 8;
	vkGetPhysicalDeviceQueueFamilyProperties(gpu_of(s.instance, 0), &n, family);
	tap_ok(&tap, n > 0 && n < 8 && family[0].queueCount > 0, "family 0 has queues");
	tap_is(&tap, device_of(gpu_of(s.instance, 0), "VK_KHR_swapchain", 0, &d),
	       VK_ERROR_EXTENSION_NOT_PRESENT, "vkCreateDevice with an unknown extension");
	vkGetDeviceQueue(s.dev, 0, 0, &q);
	tap_ok(&tap, q != VK_NULL_HANDLE, "the device has a queue");
	vkDestroyDevice(VK_NULL_HANDLE, NULL);
	tear_down(&s);
}

static void test_addresses(void)
{
	struct setup s = set_up();
	VkInstance old;
	VkDevice plain;

	instance_of(0, &old);
	device_of(gpu_of(s.instance, 0), NULL, 0, &plain);
	tap_ok(&tap, vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkCreateInstance") != NULL &&
	       vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkEnumerateInstanceVersion") != NULL,
	       "functions that need no instance");
	tap_ok(&tap, !vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkCreateDevice"),
	       "vkCreateDevice needs an instance");
	tap_ok(&tap, vkGetInstanceProcAddr(s.instance, "vkCreateDevice") ==
	       (PFN_vkVoidFunction)vkCreateDevice, "vkCreateDevice of an instance");
	tap_ok(&tap, !vkGetInstanceProcAddr(s.instance, "vkNoSuchThing"), "an unknown name");
	tap_ok(&tap, vkGetInstanceProcAddr(s.instance, "vkGetPhysicalDeviceProperties2") &&
	       !vkGetInstanceProcAddr(old, "vkGetPhysicalDeviceProperties2"),
	       "vkGetPhysicalDeviceProperties2 needs a 1.1 instance");
	tap_ok(&tap, !vkGetInstanceProcAddr(s.instance, "vkGetMemoryFdKHR"),
	       "an extension's function is not of the instance");
	tap_ok(&tap, vkGetDeviceProcAddr(s.dev, "vkMapMemory") == (PFN_vkVoidFunction)vkMapMemory,
	       "vkMapMemory of a device");
	tap_ok(&tap, !vkGetDeviceProcAddr(s.dev, "vkCreateDevice"),
	       "vkCreateDevice is not of the device");
	tap_ok(&tap, vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdKHR") &&
	       vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdPropertiesKHR"),
	       "the extension's functions are of the device");
	tap_ok(&tap, !vkGetDeviceProcAddr(plain, "vkGetMemoryFdKHR") &&
	       !vkGetDeviceProcAddr(plain, "vkGetMemoryFdPropertiesKHR"),
	       "but not without the extension");
	tap_ok(&tap, !dlsym(RTLD_DEFAULT, "vkGetMemoryFdKHR"), "and they are not exported");
	vkDestroyDevice(plain, NULL);
	vkDestroyInstance(old, NULL);
	tear_down(&s);
}

/* ---- Memory ---- */

static void test_import(void)
{
	struct setup s = set_up();
	VkDeviceMemory a = VK_NULL_HANDLE, b = VK_NULL_HANDLE;
	int fd = memfd_of("gdrsim:0:cuda", 2 * MIB), keep = dup(fd);
	unsigned char *view, *pa = NULL, *pb = NULL;

	view = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, keep, 0);
	tap_is(&tap, import(s.dev, fd, 2 * MIB, &a), VK_SUCCESS, "import");
	tap_ok(&tap, !is_open(fd), "it closed the fd");
	fd = dup(keep);
	tap_is(&tap, import(s.dev, fd, MIB, &b), VK_SUCCESS, "import of a part, the second of one fd");
	tap_is(&tap, (long)vulkan_sim_live(), 4, "number of live objects");
	tap_is(&tap, vkMapMemory(s.dev, a, 0, VK_WHOLE_SIZE, 0, (void **)&pa), VK_SUCCESS, "map");
	tap_is(&tap, vkMapMemory(s.dev, b, 4096 + 17, 100, 0, (void **)&pb), VK_SUCCESS,
	       "map at an odd offset");
	tap_is(&tap, (long)((uintptr_t)pb % 4096), 17, "offset of the pointer in its page");
	pa[4096 + 17] = 0xa5;
	pa[2 * MIB - 1] = 0x5a;
	tap_is(&tap, pb[0], 0xa5, "byte in the other mapping");
	tap_is(&tap, view[2 * MIB - 1], 0x5a, "last byte in the memfd");
	view[4096 + 18] = 0x77;
	tap_is(&tap, pb[1], 0x77, "byte that the memfd's owner wrote");
	vkUnmapMemory(s.dev, a);
	tap_ok(&tap, !msync(pa, 4096, MS_ASYNC), "unmap leaves the pages");
	vkFreeMemory(s.dev, a, NULL);
	tap_ok(&tap, msync(pa, 4096, MS_ASYNC) < 0 && errno == ENOMEM, "the free after it takes them");
	vkFreeMemory(s.dev, b, NULL);
	tap_ok(&tap, msync(pb - 17, 4096, MS_ASYNC) < 0 && errno == ENOMEM, "free unmaps");
	vkFreeMemory(s.dev, VK_NULL_HANDLE, NULL);
	munmap(view, 2 * MIB);
	close(keep);
	tear_down(&s);
}

static void test_bad_import(void)
{
	static const struct {
		const char *what, *name;
		VkDeviceSize size;
		uint32_t type;
		VkExternalMemoryHandleTypeFlagBits handle;
	} cases[] = {
		{ "a foreign memfd", "other", MIB, BAR_TYPE, 1 },
		{ "a memfd of another GPU", "gdrsim:1:cuda", MIB, BAR_TYPE, 1 },
		{ "a memfd of GPU 00", "gdrsim:00:cuda", MIB, BAR_TYPE, 1 },
		{ "a dma-buf", "gdrsim:0:dmabuf", MIB, BAR_TYPE, 1 },
		{ "a memfd of no kind", "gdrsim:0:", MIB, BAR_TYPE, 1 },
		{ "more than there is", "gdrsim:0:cuda", MIB + 1, BAR_TYPE, 1 },
		{ "a wrong memory type", "gdrsim:0:cuda", MIB, 1, 1 },
		{ "a memory type that is not there", "gdrsim:0:cuda", MIB, 31, 1 },
		{ "another handle type", "gdrsim:0:cuda", MIB, BAR_TYPE, 2 },
	};
	struct setup s = set_up();
	VkDeviceMemory m;
	size_t i;
	int fd;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fd = memfd_of(cases[i].name, MIB);
		tap_ok(&tap, import_as(s.dev, fd, cases[i].size, cases[i].type,
				       cases[i].handle, &m) ==
		       VK_ERROR_INVALID_EXTERNAL_HANDLE && is_open(fd),
		       "%s is refused, and the fd stays open", cases[i].what);
		close(fd);
	}
	tap_is(&tap, import(s.dev, -1, MIB, &m), VK_ERROR_INVALID_EXTERNAL_HANDLE, "import of fd -1");
	fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	tap_is(&tap, import(s.dev, fd, MIB, &m), VK_ERROR_INVALID_EXTERNAL_HANDLE, "import of a file");
	close(fd);
	tear_down(&s);
}

static void test_map_range(void)
{
	static const struct {
		const char *what;
		VkDeviceSize offset, size;
	} bad[] = {
		{ "map from the end on", MIB, 1 },
		{ "map from the end on, whole", MIB, VK_WHOLE_SIZE },
		{ "map past the end", 4096, MIB },
		{ "map of nothing", 0, 0 },
		{ "map with an offset that overflows", ~0ULL - 4095, 8192 },
		{ "map with a size that overflows", 4096, ~0ULL - 1 },
	};
	struct setup s = set_up();
	VkDeviceMemory m = VK_NULL_HANDLE;
	void *p = NULL;
	size_t i;

	import(s.dev, memfd_of("gdrsim:0:cuda", MIB), MIB, &m);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		tap_is(&tap, vkMapMemory(s.dev, m, bad[i].offset, bad[i].size, 0, &p),
		       VK_ERROR_MEMORY_MAP_FAILED, bad[i].what);
	tap_is(&tap, vkMapMemory(s.dev, m, 4096, MIB - 4096, 0, &p), VK_SUCCESS, "map up to the end");
	tap_is(&tap, vkMapMemory(s.dev, m, 0, 4096, 0, &p), VK_ERROR_MEMORY_MAP_FAILED, "second map");
	vkUnmapMemory(s.dev, m);
	tap_is(&tap, vkMapMemory(s.dev, m, 0, 4096, 0, &p), VK_SUCCESS, "map after unmap");
	vkFreeMemory(s.dev, m, NULL);
	tear_down(&s);
}

static void test_export(void)
{
	struct setup s = set_up();
	VkDeviceMemory a = VK_NULL_HANDLE, b = VK_NULL_HANDLE;
	unsigned char *pa = NULL, *pb = NULL;
	int fd = -1;

	tap_is(&tap, allocate(s.dev, MIB, BAR_TYPE, true, &a), VK_SUCCESS, "allocation for export");
	tap_is(&tap, export_fd(s.dev, a, &fd), VK_SUCCESS, "vkGetMemoryFdKHR");
	tap_ok(&tap, fcntl(fd, F_GETFD) == FD_CLOEXEC, "the fd closes on exec");
	tap_is(&tap, import(s.dev, fd, MIB / 2, &b), VK_ERROR_INVALID_EXTERNAL_HANDLE,
	       "import of Vulkan memory at less than its size");
	tap_is(&tap, import(s.dev, fd, MIB, &b), VK_SUCCESS, "import of Vulkan memory");
	vkMapMemory(s.dev, a, 0, MIB, 0, (void **)&pa);
	vkMapMemory(s.dev, b, 0, MIB, 0, (void **)&pb);
	pa[123] = 9;
	tap_is(&tap, pb[123], 9, "byte in the importer's mapping");
	vkFreeMemory(s.dev, a, NULL);
	tap_is(&tap, pb[123], 9, "byte after the exporter freed its memory");
	vkFreeMemory(s.dev, b, NULL);

	allocate(s.dev, MIB, 2, true, &a);
	export_fd(s.dev, a, &fd);
	tap_is(&tap, import(s.dev, fd, MIB, &b), VK_ERROR_INVALID_EXTERNAL_HANDLE,
	       "import of host memory as device memory");
	close(fd);
	vkFreeMemory(s.dev, a, NULL);
	tear_down(&s);
}

static void test_allocate(void)
{
	PFN_vkGetMemoryFdPropertiesKHR properties;
	VkMemoryFdPropertiesKHR out = { .sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR };
	struct setup s = set_up();
	VkDeviceMemory a = VK_NULL_HANDLE, b = VK_NULL_HANDLE;
	void *p;

	tap_is(&tap, allocate(s.dev, MIB, 1, false, &a), VK_SUCCESS, "allocation of unmappable memory");
	tap_is(&tap, vkMapMemory(s.dev, a, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED, "map of it");
	vkFreeMemory(s.dev, a, NULL);
	tap_is(&tap, allocate(s.dev, 16384 * MIB, BAR_TYPE, false, &a), VK_SUCCESS,
	       "allocation of the whole heap");
	tap_is(&tap, allocate(s.dev, 1, BAR_TYPE, false, &b), VK_ERROR_OUT_OF_DEVICE_MEMORY,
	       "allocation of one byte more");
	vkFreeMemory(s.dev, a, NULL);
	tap_is(&tap, allocate(s.dev, 1, BAR_TYPE, false, &b), VK_SUCCESS, "allocation after free");
	vkFreeMemory(s.dev, b, NULL);
	properties = (PFN_vkGetMemoryFdPropertiesKHR)
		vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdPropertiesKHR");
	tap_is(&tap, properties(s.dev, VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT, 0, &out),
	       VK_ERROR_INVALID_EXTERNAL_HANDLE, "vkGetMemoryFdPropertiesKHR");
	tear_down(&s);
}

/* ---- Faults ---- */

static void test_faults(void)
{
	struct setup s = set_up();
	VkDeviceMemory m = VK_NULL_HANDLE;
	int fd = memfd_of("gdrsim:0:cuda", MIB);
	void *p;

	vulkan_sim_fail("vkAllocateMemory", VK_ERROR_OUT_OF_DEVICE_MEMORY, 2);
	tap_is(&tap, import(s.dev, dup(fd), MIB, &m), VK_SUCCESS, "first import");
	vkFreeMemory(s.dev, m, NULL);
	tap_is(&tap, import(s.dev, fd, MIB, &m), VK_ERROR_OUT_OF_DEVICE_MEMORY, "second import");
	tap_ok(&tap, is_open(fd), "an import that failed leaves the fd open");
	tap_is(&tap, import(s.dev, fd, MIB, &m), VK_SUCCESS, "third import");
	vulkan_sim_fail("vkMapMemory", VK_ERROR_MEMORY_MAP_FAILED, 0);
	tap_is(&tap, vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED, "first map");
	tap_is(&tap, vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED, "second map");
	vulkan_sim_fail("vkMapMemory", 0, 0);
	vulkan_sim_fail("vkAllocateMemory", 0, 0);
	tap_is(&tap, vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_SUCCESS, "map without a fault");
	vkFreeMemory(s.dev, m, NULL);
	tear_down(&s);
}

/* ---- Threads ---- */

/* A child made while other threads are inside the double must not hang. */
static int child_with_instance(void)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		alarm(60);
		VkInstance i;

		if (instance_of(VK_API_VERSION_1_1, &i))
			_exit(2);
		_exit(vulkan_sim_live() == 1 ? 0 : 1);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

/* Returns NULL if each round worked, else what failed. */
static void *thread(void *arg)
{
	const struct setup *s = arg;
	VkDeviceMemory m;
	unsigned char *p;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		int fd = memfd_of("gdrsim:0:cuda", 8192);

		if (import(s->dev, fd, 8192, &m))
			return "import";
		if (vkMapMemory(s->dev, m, 4096, 4096, 0, (void **)&p))
			return "map";
		p[0] = 1;
		vkUnmapMemory(s->dev, m);
		vkFreeMemory(s->dev, m, NULL);
	}
	return NULL;
}

static void test_threads(void)
{
	struct setup s = set_up();
	pthread_t id[THREADS];
	void *failed = NULL;
	int i, bad = 0;

	fflush(stdout);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&id[i], NULL, thread, &s))
			exit(2);
	for (i = 0; i < CHILDREN; i++)
		bad += child_with_instance() != 0;
	tap_is(&tap, bad, 0, "number of children, forked meanwhile, that failed");
	for (i = 0; i < THREADS; i++) {
		pthread_join(id[i], &failed);
		tap_ok(&tap, !failed, "thread %d pinned and mapped", i);
		if (failed)
			printf("# %s failed\n", (char *)failed);
	}
	tear_down(&s);
}

int main(void)
{
	unsetenv("VULKAN_SIM_FAIL");
	setenv("VULKAN_SIM_DEVICES", "2", 1);
	test_fatal();
	test_environment();
	test_instance();
	test_properties();
	test_memory_types();
	test_device();
	test_addresses();
	test_import();
	test_bad_import();
	test_map_range();
	test_export();
	test_allocate();
	test_faults();
	test_threads();
	return tap_done(&tap);
}
