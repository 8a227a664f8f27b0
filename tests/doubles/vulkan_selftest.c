// SPDX-License-Identifier: MIT
/*
 * vulkan_selftest.c - checks that the simulated libvulkan does what its source says.
 *
 * Without these checks a test on the double would prove nothing. Calls that must end the
 * process run in children. It needs no GPU.
 */
#define _GNU_SOURCE
#include "selftest_tap.h"
#include "sim_device.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
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
#define FD_EXTENSION "VK_KHR_external_memory_fd"
#define OPAQUE VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT

/* ---- Short forms of the calls ---- */

static VkResult instance_of(uint32_t version, VkInstance *out)
{
	VkApplicationInfo app = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = version };
	VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = version ? &app : NULL,
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

/* A device with the extension, unless it is NULL, and a queue of the family, n times. */
static VkResult device_with(VkPhysicalDevice gpu, const char *extension, uint32_t n, uint32_t family,
			    float priority, VkDevice *out)
{
	VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueFamilyIndex = family, .queueCount = 1, .pQueuePriorities = &priority,
	};
	VkDeviceQueueCreateInfo queues[] = { queue, queue };
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = n, .pQueueCreateInfos = queues,
		.enabledExtensionCount = extension ? 1 : 0, .ppEnabledExtensionNames = &extension,
	};

	return vkCreateDevice(gpu, &info, NULL, out);
}

static VkResult device_of(VkPhysicalDevice gpu, const char *extension, VkDevice *out)
{
	return device_with(gpu, extension, 1, 0, 1, out);
}

static VkResult allocate_by(VkDevice dev, VkDeviceSize size, uint32_t type, const void *chain, VkDeviceMemory *out)
{
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = chain,
		.allocationSize = size, .memoryTypeIndex = type,
	};

	return vkAllocateMemory(dev, &info, NULL, out);
}

static VkResult import_as(VkDevice dev, int fd, VkDeviceSize size, uint32_t type,
			  VkExternalMemoryHandleTypeFlagBits handle, VkDeviceMemory *out)
{
	VkImportMemoryFdInfoKHR from = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, .handleType = handle, .fd = fd,
	};

	return allocate_by(dev, size, type, &from, out);
}

static VkResult import(VkDevice dev, int fd, VkDeviceSize size, VkDeviceMemory *out)
{
	return import_as(dev, fd, size, BAR_TYPE, OPAQUE, out);
}

static VkResult allocate(VkDevice dev, VkDeviceSize size, uint32_t type, bool export, VkDeviceMemory *out)
{
	VkExportMemoryAllocateInfo to = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO, .handleTypes = OPAQUE,
	};

	return allocate_by(dev, size, type, export ? &to : NULL, out);
}

static VkResult export_fd(VkDevice dev, VkDeviceMemory m, int *fd)
{
	PFN_vkGetMemoryFdKHR get = (PFN_vkGetMemoryFdKHR)vkGetDeviceProcAddr(dev, "vkGetMemoryFdKHR");
	VkMemoryGetFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR, .memory = m, .handleType = OPAQUE,
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

static int cuda_memfd(void)
{
	return memfd_of("gdrsim:0:cuda", MIB);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* What most cases start from: GPU 0 with the extension. */
struct setup {
	VkInstance instance;
	VkPhysicalDevice gpu;
	VkDevice dev;
};

static struct setup set_up(void)
{
	struct setup s = { 0 };
	VkResult r = instance_of(VK_API_VERSION_1_1, &s.instance);

	if (!r) {
		s.gpu = gpu_of(s.instance, 0);
		r = device_of(s.gpu, FD_EXTENSION, &s.dev);
	}
	if (r) {
		fputs("set_up failed\n", stderr);
		exit(2);
	}
	return s;
}

static void tear_down(const struct setup *s)
{
	vkDestroyDevice(s->dev, NULL);
	vkDestroyInstance(s->instance, NULL);
	IS(vulkan_sim_live(), 0);
}

/* ---- What must end the process ---- */

/* What a fatal call is given: a setup, memory of its device, and room for more. */
struct fixture {
	struct setup s;
	VkDeviceMemory m, other_memory;
	VkInstance instance;
	VkDevice dev;
};

static void old_instance_properties2(struct fixture *f)
{
	VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 };

	instance_of(0, &f->instance);
	vkGetPhysicalDeviceProperties2(gpu_of(f->instance, 0), &p);
}

static void no_queue(struct fixture *f)
{
	device_with(f->s.gpu, NULL, 0, 0, 1, &f->dev);
}

static void family_twice(struct fixture *f)
{
	device_with(f->s.gpu, NULL, 2, 0, 1, &f->dev);
}

static void wrong_priority(struct fixture *f)
{
	device_with(f->s.gpu, NULL, 1, 0, 2, &f->dev);
}

static void wrong_family(struct fixture *f)
{
	device_with(f->s.gpu, NULL, 1, 7, 1, &f->dev);
}

static void extension_without_its_base(struct fixture *f)
{
	instance_of(VK_API_VERSION_1_0, &f->instance);
	device_of(gpu_of(f->instance, 0), FD_EXTENSION, &f->dev);
}

static void import_without_extension(struct fixture *f)
{
	device_of(f->s.gpu, NULL, &f->dev);
	import(f->dev, cuda_memfd(), MIB, &f->other_memory);
}

static void export_not_asked_for(struct fixture *f)
{
	int fd;

	export_fd(f->s.dev, f->m, &fd);
}

static void unmap_not_mapped(struct fixture *f)
{
	vkUnmapMemory(f->s.dev, f->m);
}

static void double_free(struct fixture *f)
{
	vkFreeMemory(f->s.dev, f->m, NULL);
	vkFreeMemory(f->s.dev, f->m, NULL);
}

static void stale_handle(struct fixture *f)
{
	void *p;

	vkFreeMemory(f->s.dev, f->m, NULL);
	allocate(f->s.dev, MIB, BAR_TYPE, false, &f->other_memory);
	vkMapMemory(f->s.dev, f->m, 0, MIB, 0, &p);
}

static void unknown_handle(struct fixture *f)
{
	vkFreeMemory(f->s.dev, (VkDeviceMemory)(uintptr_t)0x1000, NULL);
}

static void handle_of_another_kind(struct fixture *f)
{
	vkDestroyInstance((VkInstance)(void *)f->s.dev, NULL);
}

static void memory_of_another_device(struct fixture *f)
{
	device_of(gpu_of(f->s.instance, 1), NULL, &f->dev);
	vkFreeMemory(f->dev, f->m, NULL);
}

static void device_with_memory(struct fixture *f)
{
	vkDestroyDevice(f->s.dev, NULL);
}

static void instance_with_device(struct fixture *f)
{
	vkDestroyInstance(f->s.instance, NULL);
}

static void queue_not_made(struct fixture *f)
{
	VkQueue q;

	vkGetDeviceQueue(f->s.dev, 0, 1, &q);
}

static void wrong_structure_type(struct fixture *f)
{
	VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO };

	vkCreateInstance(&info, NULL, &f->instance);
}

static void unknown_structure_in_chain(struct fixture *f)
{
	VkPhysicalDeviceMaintenance3Properties extra = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
	};
	VkPhysicalDeviceProperties2 p = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &extra,
	};

	vkGetPhysicalDeviceProperties2(f->s.gpu, &p);
}

static void fault_of_no_function(struct fixture *f)
{
	(void)f;
	vulkan_sim_fail("vkMapMemroy", VK_ERROR_MEMORY_MAP_FAILED, 0);
}

static void inherited_handle(struct fixture *f)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		vkDestroyDevice(f->s.dev, NULL);
	else if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status))
		raise(WTERMSIG(status));
}

static const struct fatal {
	void (*run)(struct fixture *f);
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
	{ inherited_handle, "a handle from before fork()", "made before fork()" },
};

static int run_fatal(void *row)
{
	struct fixture f = { .s = set_up() };

	allocate(f.s.dev, MIB, BAR_TYPE, false, &f.m);
	((const struct fatal *)row)->run(&f);
	return 0;
}

static int bad_environment(void *variable)
{
	VkInstance i;

	putenv(variable);
	instance_of(0, &i);
	return 0;
}

struct child {
	int (*run)(void *arg);
	void *arg;
	int said;	/* where its stderr goes */
};

static int run_quietly(void *arg)
{
	const struct child *c = arg;
	struct rlimit no_core = { 0, 0 };

	setrlimit(RLIMIT_CORE, &no_core);
	alarm(60);
	dup2(c->said, STDERR_FILENO);
	return c->run(c->arg);
}

static void ends_saying(int (*run)(void *arg), const void *arg, const char *what, const char *message)
{
	struct child c = { run, (void *)arg, memfd_of("said", 0) };
	char text[512] = "";
	ssize_t n;

	IS_OF(in_child(run_quietly, &c), -SIGABRT, what);
	n = pread(c.said, text, sizeof(text) - 1, 0);
	if (!IS_OF(n > 0 && strstr(text, message), 1, message))
		printf("# said: %s\n", text);
	close(c.said);
}

static void test_fatal(void)
{
	for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		ends_saying(run_fatal, &fatal[i], fatal[i].what, fatal[i].message);
	ends_saying(bad_environment, "VULKAN_SIM_FAIL=vkFreeMemory=-1", "a fault of a function without a result",
		    "no vkFreeMemory that can fail");
	ends_saying(bad_environment, "VULKAN_SIM_DEVICES=1000", "too many devices", "VULKAN_SIM_DEVICES=1000");
}

/* ---- What the environment sets, in children that exit with the answer ---- */

static int count_devices(void *env)
{
	const char *const *e = env;
	uint32_t n = 99;
	VkInstance i;

	unsetenv("VULKAN_SIM_DEVICES");
	unsetenv("CUDA_SIM_DEVICES");
	if (e[0])
		setenv("VULKAN_SIM_DEVICES", e[0], 1);
	if (e[1])
		setenv("CUDA_SIM_DEVICES", e[1], 1);
	return instance_of(VK_API_VERSION_1_1, &i) || vkEnumeratePhysicalDevices(i, &n, NULL) ? 99 : (int)n;
}

static int fault_from_environment(void *arg)
{
	VkInstance a, b, c;

	(void)arg;
	setenv("VULKAN_SIM_FAIL", "vkCreateInstance=-9@2,vkEnumeratePhysicalDevices=-3", 1);
	if (instance_of(0, &a) != VK_SUCCESS ||
	    instance_of(0, &b) != VK_ERROR_INCOMPATIBLE_DRIVER ||
	    instance_of(0, &c) != VK_SUCCESS)
		return 1;
	return gpu_of(a, 0) == VK_NULL_HANDLE && gpu_of(c, 0) == VK_NULL_HANDLE ? 42 : 2;
}

/* A child makes an instance after its parent made one, but gets no device. */
static int child_of_user(void *arg)
{
	struct setup theirs;

	(void)arg;
	if (vulkan_sim_live() != 0)
		return 3;
	if (instance_of(VK_API_VERSION_1_1, &theirs.instance))
		return 4;
	return device_of(gpu_of(theirs.instance, 0), FD_EXTENSION, &theirs.dev) ==
	       VK_ERROR_INITIALIZATION_FAILED ? 42 : 5;
}

static int own_objects_after_fork(void *arg)
{
	struct setup mine = set_up();
	int status = in_child(child_of_user, arg);

	vkDestroyDevice(mine.dev, NULL);
	vkDestroyInstance(mine.instance, NULL);
	return status;
}

static void test_environment(void)
{
	IS(in_child(count_devices, (const char *[]){ NULL, NULL }), 2);
	IS(in_child(count_devices, (const char *[]){ NULL, "3" }), 3);
	IS(in_child(count_devices, (const char *[]){ "1", "3" }), 1);
	IS(in_child(count_devices, (const char *[]){ "0", NULL }), 0);
	IS(in_child(fault_from_environment, NULL), 42);
	IS(in_child(own_objects_after_fork, NULL), 42);
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

	IS(vkEnumerateInstanceVersion(&version), VK_SUCCESS);
	TRUE(version >= VK_API_VERSION_1_1);
	IS(vkEnumerateInstanceExtensionProperties(NULL, &n, NULL), VK_SUCCESS);
	IS(n, 1);
	IS(vkCreateInstance(&info, NULL, &i), VK_ERROR_LAYER_NOT_PRESENT);
	info.enabledLayerCount = 0;
	info.enabledExtensionCount = 1;
	info.ppEnabledExtensionNames = &name;
	IS(vkCreateInstance(&info, NULL, &i), VK_ERROR_EXTENSION_NOT_PRESENT);
	IS(instance_of(VK_API_VERSION_1_1, &i), VK_SUCCESS);
	IS(vulkan_sim_live(), 1);
	n = 1;
	IS(vkEnumeratePhysicalDevices(i, &n, all), VK_INCOMPLETE);
	IS(n, 1);
	n = 2;
	IS(vkEnumeratePhysicalDevices(i, &n, all), VK_SUCCESS);
	TRUE(n == 2 && all[0] && all[1] && all[0] != all[1]);
	vkDestroyInstance(i, NULL);
	vkDestroyInstance(VK_NULL_HANDLE, NULL);
	IS(vulkan_sim_live(), 0);
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
		TRUE(memcmp(id.deviceUUID, want, sizeof(want)) == 0);
		TRUE(memcmp(&plain, &p.properties, sizeof(plain)) == 0);
	}
	IS(plain.deviceType, VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU);
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

	vkGetPhysicalDeviceMemoryProperties(s.gpu, &p);
	vkGetPhysicalDeviceMemoryProperties2(s.gpu, &two);
	TRUE(memcmp(&p, &two.memoryProperties, sizeof(p)) == 0);
	TRUE(p.memoryTypeCount > BAR_TYPE);
	for (i = 0; i < p.memoryTypeCount; i++) {
		bool bar = p.memoryTypes[i].propertyFlags == flags && p.memoryTypes[i].heapIndex == 0;

		IS(bar, i == BAR_TYPE);
	}
	TRUE(p.memoryHeaps[0].size == 16384 * MIB);
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

	IS(vkEnumerateDeviceExtensionProperties(s.gpu, NULL, &n, ext), VK_SUCCESS);
	for (i = 0; i < n; i++)
		found |= strcmp(ext[i].extensionName, FD_EXTENSION) == 0;
	TRUE(found);
	n = 8;
	vkGetPhysicalDeviceQueueFamilyProperties(s.gpu, &n, family);
	TRUE(n > 0 && n < 8 && family[0].queueCount > 0);
	IS(device_of(s.gpu, "VK_KHR_swapchain", &d), VK_ERROR_EXTENSION_NOT_PRESENT);
	vkGetDeviceQueue(s.dev, 0, 0, &q);
	TRUE(q != VK_NULL_HANDLE);
	vkDestroyDevice(VK_NULL_HANDLE, NULL);
	tear_down(&s);
}

static void test_addresses(void)
{
	struct setup s = set_up();
	VkInstance old;
	VkDevice plain;

	instance_of(0, &old);
	device_of(s.gpu, NULL, &plain);
	TRUE(vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkCreateInstance"));
	TRUE(vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkEnumerateInstanceVersion"));
	TRUE(!vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkCreateDevice"));
	TRUE(vkGetInstanceProcAddr(s.instance, "vkCreateDevice") == (PFN_vkVoidFunction)vkCreateDevice);
	TRUE(!vkGetInstanceProcAddr(s.instance, "vkNoSuchThing"));
	TRUE(vkGetInstanceProcAddr(s.instance, "vkGetPhysicalDeviceProperties2"));
	TRUE(!vkGetInstanceProcAddr(old, "vkGetPhysicalDeviceProperties2"));
	TRUE(!vkGetInstanceProcAddr(s.instance, "vkGetMemoryFdKHR"));
	TRUE(vkGetDeviceProcAddr(s.dev, "vkMapMemory") == (PFN_vkVoidFunction)vkMapMemory);
	TRUE(!vkGetDeviceProcAddr(s.dev, "vkCreateDevice"));
	TRUE(vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdKHR") && vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdPropertiesKHR"));
	TRUE(!vkGetDeviceProcAddr(plain, "vkGetMemoryFdKHR") && !vkGetDeviceProcAddr(plain, "vkGetMemoryFdPropertiesKHR"));
	TRUE(!dlsym(RTLD_DEFAULT, "vkGetMemoryFdKHR"));
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
	IS(import(s.dev, fd, 2 * MIB, &a), VK_SUCCESS);
	TRUE(!is_open(fd));
	fd = dup(keep);
	IS(import(s.dev, fd, MIB, &b), VK_SUCCESS);
	IS(vulkan_sim_live(), 4);
	IS(vkMapMemory(s.dev, a, 0, VK_WHOLE_SIZE, 0, (void **)&pa), VK_SUCCESS);
	IS(vkMapMemory(s.dev, b, 4096 + 17, 100, 0, (void **)&pb), VK_SUCCESS);
	IS((uintptr_t)pb % 4096, 17);
	pa[4096 + 17] = 0xa5;
	pa[2 * MIB - 1] = 0x5a;
	IS(pb[0], 0xa5);
	IS(view[2 * MIB - 1], 0x5a);
	view[4096 + 18] = 0x77;
	IS(pb[1], 0x77);
	vkUnmapMemory(s.dev, a);
	TRUE(!msync(pa, 4096, MS_ASYNC));
	vkFreeMemory(s.dev, a, NULL);
	TRUE(msync(pa, 4096, MS_ASYNC) < 0 && errno == ENOMEM);
	vkFreeMemory(s.dev, b, NULL);
	TRUE(msync(pb - 17, 4096, MS_ASYNC) < 0 && errno == ENOMEM);
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
		IS_OF(import_as(s.dev, fd, cases[i].size, cases[i].type, cases[i].handle, &m),
		      VK_ERROR_INVALID_EXTERNAL_HANDLE, cases[i].what);
		TRUE(is_open(fd));
		close(fd);
	}
	IS(import(s.dev, -1, MIB, &m), VK_ERROR_INVALID_EXTERNAL_HANDLE);
	fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	IS(import(s.dev, fd, MIB, &m), VK_ERROR_INVALID_EXTERNAL_HANDLE);
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

	import(s.dev, cuda_memfd(), MIB, &m);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		IS_OF(vkMapMemory(s.dev, m, bad[i].offset, bad[i].size, 0, &p), VK_ERROR_MEMORY_MAP_FAILED, bad[i].what);
	IS(vkMapMemory(s.dev, m, 4096, MIB - 4096, 0, &p), VK_SUCCESS);
	IS(vkMapMemory(s.dev, m, 0, 4096, 0, &p), VK_ERROR_MEMORY_MAP_FAILED);
	vkUnmapMemory(s.dev, m);
	IS(vkMapMemory(s.dev, m, 0, 4096, 0, &p), VK_SUCCESS);
	vkFreeMemory(s.dev, m, NULL);
	tear_down(&s);
}

static void test_export(void)
{
	struct setup s = set_up();
	VkDeviceMemory a = VK_NULL_HANDLE, b = VK_NULL_HANDLE;
	unsigned char *pa = NULL, *pb = NULL;
	int fd = -1;

	IS(allocate(s.dev, MIB, BAR_TYPE, true, &a), VK_SUCCESS);
	IS(export_fd(s.dev, a, &fd), VK_SUCCESS);
	TRUE(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	IS(import(s.dev, fd, MIB / 2, &b), VK_ERROR_INVALID_EXTERNAL_HANDLE);
	IS(import(s.dev, fd, MIB, &b), VK_SUCCESS);
	vkMapMemory(s.dev, a, 0, MIB, 0, (void **)&pa);
	vkMapMemory(s.dev, b, 0, MIB, 0, (void **)&pb);
	pa[123] = 9;
	IS(pb[123], 9);
	vkFreeMemory(s.dev, a, NULL);
	IS(pb[123], 9);
	vkFreeMemory(s.dev, b, NULL);

	allocate(s.dev, MIB, 2, true, &a);
	export_fd(s.dev, a, &fd);
	IS(import(s.dev, fd, MIB, &b), VK_ERROR_INVALID_EXTERNAL_HANDLE);
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

	IS(allocate(s.dev, MIB, 1, false, &a), VK_SUCCESS);
	IS(vkMapMemory(s.dev, a, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED);
	vkFreeMemory(s.dev, a, NULL);
	IS(allocate(s.dev, 16384 * MIB, BAR_TYPE, false, &a), VK_SUCCESS);
	IS(allocate(s.dev, 1, BAR_TYPE, false, &b), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	vkFreeMemory(s.dev, a, NULL);
	IS(allocate(s.dev, 1, BAR_TYPE, false, &b), VK_SUCCESS);
	vkFreeMemory(s.dev, b, NULL);
	properties = (PFN_vkGetMemoryFdPropertiesKHR)
		vkGetDeviceProcAddr(s.dev, "vkGetMemoryFdPropertiesKHR");
	IS(properties(s.dev, VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT, 0, &out), VK_ERROR_INVALID_EXTERNAL_HANDLE);
	tear_down(&s);
}

/* ---- Faults ---- */

static void test_faults(void)
{
	struct setup s = set_up();
	VkDeviceMemory m = VK_NULL_HANDLE;
	int fd = cuda_memfd();
	void *p;

	vulkan_sim_fail("vkAllocateMemory", VK_ERROR_OUT_OF_DEVICE_MEMORY, 2);
	IS(import(s.dev, dup(fd), MIB, &m), VK_SUCCESS);
	vkFreeMemory(s.dev, m, NULL);
	IS(import(s.dev, fd, MIB, &m), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	TRUE(is_open(fd));
	IS(import(s.dev, fd, MIB, &m), VK_SUCCESS);
	vulkan_sim_fail("vkMapMemory", VK_ERROR_MEMORY_MAP_FAILED, 0);
	IS(vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED);
	IS(vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_ERROR_MEMORY_MAP_FAILED);
	vulkan_sim_fail("vkMapMemory", 0, 0);
	vulkan_sim_fail("vkAllocateMemory", 0, 0);
	IS(vkMapMemory(s.dev, m, 0, MIB, 0, &p), VK_SUCCESS);
	vkFreeMemory(s.dev, m, NULL);
	tear_down(&s);
}

/* ---- Threads ---- */

/* A child made while other threads are inside the double must not hang. */
static int child_with_instance(void *arg)
{
	VkInstance i;

	(void)arg;
	alarm(60);
	return instance_of(VK_API_VERSION_1_1, &i) || vulkan_sim_live() != 1;
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
		bad += in_child(child_with_instance, NULL) != 0;
	IS(bad, 0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(id[i], &failed);
		TRUE(!failed);
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
	return tap_end();
}
