// SPDX-License-Identifier: MIT
/*
 * vulkan_sim.c - a simulated libvulkan.so.1. Test code: it never ships.
 *
 * It replaces the Vulkan loader and the driver behind it, as far as memory goes: devices,
 * memory, import and export of file descriptors, mappings. Nothing can be submitted to a
 * queue. Device memory is in memfds, which the simulated libcuda shares. Their name is
 * "gdrsim:<device>:<kind>".
 *
 * It is strict. An error that a program may make at run time gives a VkResult. What the
 * Vulkan specification calls invalid usage ends the process with a message. A real driver
 * may do anything there.
 *
 * It cannot show two things: a mapping here is cached, not write-combined, and nothing
 * here is slow.
 *
 * Environment:
 *
 * 	VULKAN_SIM_DEVICES	number of devices; else CUDA_SIM_DEVICES; else 2
 * 	VULKAN_SIM_FAIL		name=result[@n][,...], see sim_fault.h
 *
 * Every function is safe to call from any thread.
 */
#define _GNU_SOURCE
#include "sim_device.h"
#include "sim_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The declarations here are exported, whatever -fvisibility says. */
#pragma GCC visibility push(default)
#include <vulkan/vulkan_core.h>

void vulkan_sim_fail(const char *name, int result, int nth);
unsigned long vulkan_sim_live(void);
#pragma GCC visibility pop

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define GIB (1ULL << 30)
#define BUCKETS 4096

/* The one memory type that imports: device memory that the CPU can map. */
#define BAR_TYPE 4

static const VkMemoryHeap heaps[] = {
	{ 16 * GIB, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT },
	{ 32 * GIB, 0 },
};

/* BAR_TYPE covers all of its heap, as on an H200. */
static const VkMemoryType types[] = {
	{ 0, 1 },
	{ VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0 },
	{ VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
	  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 1 },
	{ VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
	  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
	  VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 1 },
	{ VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
	  VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
	  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0 },
};

/* No family has more than 16 queues, as queue handles have room for 16. */
static const VkQueueFamilyProperties families[] = {
	{ VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT, 8, 64, { 1, 1, 1 } },
	{ VK_QUEUE_TRANSFER_BIT, 2, 64, { 1, 1, 1 } },
};

static const VkExtensionProperties device_extensions[] = {
	{ VK_KHR_EXTERNAL_MEMORY_EXTENSION_NAME, 1 },
	{ VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, 1 },
};

enum kind { INSTANCE, PHYSICAL, DEVICE, MEMORY };

static const char *const kind_name[] = {
	[INSTANCE] = "VkInstance",
	[PHYSICAL] = "VkPhysicalDevice",
	[DEVICE] = "VkDevice",
	[MEMORY] = "VkDeviceMemory",
};

/*
 * One object of the API. A handle is a number that no earlier object had, and never an
 * address. So the use of a stale handle is always noticed.
 *
 * parent outlives the object. It is the instance of a physical device or of a device, and
 * the device of a memory. children is the number of live devices of an instance, or of
 * memories of a device.
 */
struct object {
	struct object *next;		/* in its hash chain */
	uint64_t handle;
	enum kind kind;
	unsigned int epoch;		/* of the process that made it */
	struct object *parent;		/* NULL for an instance */
	unsigned long children;
	int index;			/* of the GPU; -1 for an instance */

	union {
		struct {
			uint32_t version;
			int count;
			struct object *gpus[SIM_MAX_DEVICES];
		} instance;
		struct {
			bool external_fd;	/* the extension is enabled */
			uint32_t queues[ARRAY_SIZE(families)];
		} device;
		struct {
			int fd;			/* our own, on the memfd */
			uint32_t type;
			bool imported;
			bool exportable;
			VkDeviceSize size;
			bool mapped;
			void *pages;		/* of the last mapping; NULL: none */
			size_t pages_length;
		} memory;
	};
};

/* lock guards all that follows it. */
static struct {
	pthread_mutex_t lock;
	struct object *buckets[BUCKETS];
	uint64_t last;			/* serial number of the newest object */
	unsigned int epoch;		/* how many forks led to this process */
	bool made;			/* an instance was made here or by an ancestor */
	bool inherited;			/* ... by an ancestor */
	VkDeviceSize used[SIM_MAX_DEVICES][ARRAY_SIZE(heaps)];
} sim = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct sim_faults faults = SIM_FAULTS_INIT("VULKAN_SIM_FAIL");

/* The entry point that the thread is in. */
static _Thread_local const char *call;

__attribute__((noreturn, format(printf, 1, 2)))
static void die(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "vulkan_sim: %s: ", call ? call : "start");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	abort();
}

/*
 * A forked child may make an instance of its own. If an ancestor has made one, the child
 * gets no device: vkCreateDevice answers VK_ERROR_INITIALIZATION_FAILED, as the real
 * driver does (580.159.04 on an H200, read 2026-11-21). Objects that the child inherited
 * belong to its parent. A child that uses one is ended.
 */
static void before_fork(void)
{
	pthread_mutex_lock(&sim.lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&sim.lock);
}

static void after_fork_child(void)
{
	sim.epoch++;
	sim.inherited = sim.made;
	memset(sim.used, 0, sizeof(sim.used));
	after_fork_parent();
}

__attribute__((constructor))
static void start(void)
{
	if (pthread_atfork(before_fork, after_fork_parent, after_fork_child))
		die("pthread_atfork failed");
}

/* The functions that have a result, and can fail by a rule. */
static const char *const fallible[] = {
	"vkEnumerateInstanceVersion",
	"vkEnumerateInstanceExtensionProperties",
	"vkCreateInstance",
	"vkEnumeratePhysicalDevices",
	"vkEnumerateDeviceExtensionProperties",
	"vkCreateDevice",
	"vkAllocateMemory",
	"vkMapMemory",
	"vkGetMemoryFdKHR",
	"vkGetMemoryFdPropertiesKHR",
};

/* A rule that never matches would let a test pass without its fault. */
static void check_fallible(const char *source, const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(fallible); i++)
		if (strcmp(fallible[i], name) == 0)
			return;
	die("%s: there is no %s that can fail", source, name);
}

static void check_rules(void)
{
	size_t i;

	sim_fault(&faults, "-");	/* reads the environment */
	for (i = 0; i < SIM_FAULT_RULES; i++)
		if (faults.rules[i].name[0])
			check_fallible(faults.env, faults.rules[i].name);
}

/* Each entry point takes the lock with one of these two, and drops it with leave(). */
static void enter(const char *function)
{
	pthread_mutex_lock(&sim.lock);
	call = function;
}

/* For a call that can fail by a rule: VK_SUCCESS with the lock held, or a result without it. */
static VkResult try_enter(const char *function)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	VkResult r;

	pthread_once(&once, check_rules);
	r = (VkResult)sim_fault(&faults, function);
	if (!r)
		enter(function);
	return r;
}

static VkResult leave(VkResult r)
{
	call = NULL;
	pthread_mutex_unlock(&sim.lock);
	return r;
}

static struct object **chain(uint64_t handle)
{
	return &sim.buckets[(handle >> 8) % BUCKETS];
}

/*
 * The low 8 bits of a handle are 0, for the queues of a device. The high part is no
 * address of a process.
 */
static struct object *new_object(enum kind kind, struct object *parent, int index)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->handle = 0x6764ULL << 48 | ++sim.last << 8;
	o->kind = kind;
	o->epoch = sim.epoch;
	o->parent = parent;
	o->index = index;
	o->next = *chain(o->handle);
	*chain(o->handle) = o;
	return o;
}

static void drop_object(struct object *o)
{
	struct object **p = chain(o->handle);

	while (*p != o)
		p = &(*p)->next;
	*p = o->next;
	free(o);
}

/* Finds a live object of this process. */
static struct object *find(enum kind kind, const void *handle)
{
	uint64_t h = (uintptr_t)handle;
	struct object *o = *chain(h);

	while (o && o->handle != h)
		o = o->next;
	if (!o || o->kind != kind)
		die("%#llx is no live %s", (unsigned long long)h, kind_name[kind]);
	if (o->epoch != sim.epoch)
		die("the %s was made before fork(), by the parent", kind_name[kind]);
	return o;
}

static struct object *find_memory(VkDevice device, VkDeviceMemory memory)
{
	struct object *dev = find(DEVICE, device), *o = find(MEMORY, memory);

	if (o->parent != dev)
		die("the memory is of another VkDevice");
	return o;
}

static void check_type(VkStructureType got, VkStructureType want)
{
	if (got != want)
		die("sType is %d, not %d", got, want);
}

static void check_no_chain(const void *next)
{
	const VkBaseInStructure *s = next;

	if (s)
		die("this double does not know sType %d in pNext", s->sType);
}

/* The two-call form of all enumerations: sets *n, and says whether all fitted. */
static VkResult enumerate(uint32_t *n, void *out, const void *all, uint32_t count, size_t size)
{
	uint32_t room;

	if (!n)
		die("no place for the count");
	room = *n;
	if (!out || room > count)
		*n = count;
	if (!out)
		return VK_SUCCESS;
	memcpy(out, all, *n * size);
	return room < count ? VK_INCOMPLETE : VK_SUCCESS;
}

static int device_count(void)
{
	const char *name = "VULKAN_SIM_DEVICES", *text = getenv(name);
	char *end;
	long n;

	if (!text)
		text = getenv(name = "CUDA_SIM_DEVICES");
	if (!text)
		return 2;
	errno = 0;
	n = strtol(text, &end, 10);
	if (end == text || *end || errno || n < 0 || n > SIM_MAX_DEVICES)
		die("%s=%s: give a number from 0 to %d", name, text, SIM_MAX_DEVICES);
	return (int)n;
}

/* ---- Instance ---- */

VkResult vkEnumerateInstanceVersion(uint32_t *version)
{
	VkResult r = try_enter(__func__);

	if (r)
		return r;
	*version = VK_API_VERSION_1_1;
	return leave(VK_SUCCESS);
}

/*
 * The extension that the loader lists once it has found a driver: memory can be shared.
 * It is in core 1.1, and need not be enabled.
 */
VkResult vkEnumerateInstanceExtensionProperties(const char *layer, uint32_t *n,
						VkExtensionProperties *out)
{
	static const VkExtensionProperties all[] = {
		{ VK_KHR_EXTERNAL_MEMORY_CAPABILITIES_EXTENSION_NAME, 1 },
	};

	return try_enter(__func__) ?: leave(layer ? VK_ERROR_LAYER_NOT_PRESENT :
		enumerate(n, out, all, device_count() ? ARRAY_SIZE(all) : 0, sizeof(*out)));
}

static uint32_t wanted_version(const VkApplicationInfo *app)
{
	if (!app)
		return VK_API_VERSION_1_0;
	check_type(app->sType, VK_STRUCTURE_TYPE_APPLICATION_INFO);
	check_no_chain(app->pNext);
	return app->apiVersion ? app->apiVersion : VK_API_VERSION_1_0;
}

static void drop_instance(struct object *o)
{
	while (o->instance.count)
		drop_object(o->instance.gpus[--o->instance.count]);
	drop_object(o);
}

static struct object *make_instance(uint32_t version, int gpus)
{
	struct object *o = new_object(INSTANCE, NULL, -1);

	if (!o)
		return NULL;
	o->instance.version = version;
	while (o->instance.count < gpus) {
		struct object *gpu = new_object(PHYSICAL, o, o->instance.count);

		if (!gpu) {
			drop_instance(o);
			return NULL;
		}
		o->instance.gpus[o->instance.count++] = gpu;
	}
	return o;
}

static VkResult create_instance(const VkInstanceCreateInfo *info, VkInstance *out)
{
	uint32_t version;
	struct object *o;

	check_type(info->sType, VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
	check_no_chain(info->pNext);
	if (info->flags)
		die("flags are %#x", info->flags);
	version = wanted_version(info->pApplicationInfo);
	if (info->enabledLayerCount)
		return VK_ERROR_LAYER_NOT_PRESENT;
	if (info->enabledExtensionCount)
		return VK_ERROR_EXTENSION_NOT_PRESENT;
	o = make_instance(version, device_count());
	if (!o)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	*out = (VkInstance)(uintptr_t)o->handle;
	sim.made = true;
	return VK_SUCCESS;
}

VkResult vkCreateInstance(const VkInstanceCreateInfo *info,
			  const VkAllocationCallbacks *callbacks, VkInstance *out)
{
	(void)callbacks;
	return try_enter(__func__) ?: leave(create_instance(info, out));
}

void vkDestroyInstance(VkInstance instance, const VkAllocationCallbacks *callbacks)
{
	struct object *o;

	(void)callbacks;
	if (!instance)
		return;
	enter(__func__);
	o = find(INSTANCE, instance);
	if (o->children)
		die("%lu devices are left", o->children);
	drop_instance(o);
	leave(VK_SUCCESS);
}

/* ---- Physical devices ---- */

static VkResult enumerate_gpus(const struct object *o, uint32_t *n, VkPhysicalDevice *out)
{
	VkPhysicalDevice all[SIM_MAX_DEVICES];
	int i;

	for (i = 0; i < o->instance.count; i++)
		all[i] = (VkPhysicalDevice)(uintptr_t)o->instance.gpus[i]->handle;
	return enumerate(n, out, all, (uint32_t)o->instance.count, sizeof(all[0]));
}

VkResult vkEnumeratePhysicalDevices(VkInstance instance, uint32_t *n, VkPhysicalDevice *out)
{
	return try_enter(__func__) ?: leave(enumerate_gpus(find(INSTANCE, instance), n, out));
}

static void fill_properties(VkPhysicalDeviceProperties *p, int index)
{
	memset(p, 0, sizeof(*p));
	p->apiVersion = VK_API_VERSION_1_1;
	p->driverVersion = 1;
	p->vendorID = 0x10de;	/* NVIDIA's number at the PCI-SIG */
	p->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
	snprintf(p->deviceName, sizeof(p->deviceName), "gdrsim GPU %d", index);
	p->limits.maxMemoryAllocationCount = UINT32_MAX;
	p->limits.minMemoryMapAlignment = 64;
	p->limits.nonCoherentAtomSize = 64;
}

void vkGetPhysicalDeviceProperties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties *out)
{
	enter(__func__);
	fill_properties(out, find(PHYSICAL, gpu)->index);
	leave(VK_SUCCESS);
}

/* A GPU whose instance was made for Vulkan 1.1 or later. */
static struct object *find_1_1(VkPhysicalDevice gpu)
{
	struct object *o = find(PHYSICAL, gpu);

	if (o->parent->instance.version < VK_API_VERSION_1_1)
		die("the instance was made for Vulkan 1.0; ask for apiVersion 1.1");
	return o;
}

static void fill_id(VkPhysicalDeviceIDProperties *id, int index)
{
	if (id->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES)
		check_no_chain(id);
	check_no_chain(id->pNext);
	sim_device_uuid(index, id->deviceUUID);
	memcpy(id->driverUUID, "gdrsim-driver-id", VK_UUID_SIZE);
	memset(id->deviceLUID, 0, sizeof(id->deviceLUID));
	id->deviceNodeMask = 0;
	id->deviceLUIDValid = VK_FALSE;
}

void vkGetPhysicalDeviceProperties2(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2 *out)
{
	int index;

	enter(__func__);
	index = find_1_1(gpu)->index;
	check_type(out->sType, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
	fill_properties(&out->properties, index);
	if (out->pNext)
		fill_id(out->pNext, index);
	leave(VK_SUCCESS);
}

static void fill_memory_properties(VkPhysicalDeviceMemoryProperties *p)
{
	memset(p, 0, sizeof(*p));
	p->memoryTypeCount = ARRAY_SIZE(types);
	memcpy(p->memoryTypes, types, sizeof(types));
	p->memoryHeapCount = ARRAY_SIZE(heaps);
	memcpy(p->memoryHeaps, heaps, sizeof(heaps));
}

void vkGetPhysicalDeviceMemoryProperties(VkPhysicalDevice gpu, VkPhysicalDeviceMemoryProperties *out)
{
	enter(__func__);
	find(PHYSICAL, gpu);
	fill_memory_properties(out);
	leave(VK_SUCCESS);
}

void vkGetPhysicalDeviceMemoryProperties2(VkPhysicalDevice gpu, VkPhysicalDeviceMemoryProperties2 *out)
{
	enter(__func__);
	find_1_1(gpu);
	check_type(out->sType, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
	check_no_chain(out->pNext);
	fill_memory_properties(&out->memoryProperties);
	leave(VK_SUCCESS);
}

void vkGetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice gpu, uint32_t *n,
					      VkQueueFamilyProperties *out)
{
	enter(__func__);
	find(PHYSICAL, gpu);
	leave(enumerate(n, out, families, ARRAY_SIZE(families), sizeof(*out)));
}

VkResult vkEnumerateDeviceExtensionProperties(VkPhysicalDevice gpu, const char *layer,
					      uint32_t *n, VkExtensionProperties *out)
{
	VkResult r = try_enter(__func__);

	if (r)
		return r;
	find(PHYSICAL, gpu);
	return leave(layer ? VK_ERROR_LAYER_NOT_PRESENT :
		     enumerate(n, out, device_extensions, ARRAY_SIZE(device_extensions), sizeof(*out)));
}

/* ---- Devices ---- */

static void check_priorities(const VkDeviceQueueCreateInfo *q)
{
	uint32_t i;

	if (!q->pQueuePriorities)
		die("no queue priorities");
	for (i = 0; i < q->queueCount; i++)
		if (!(q->pQueuePriorities[i] >= 0 && q->pQueuePriorities[i] <= 1))
			die("the priority of queue %u is not in 0 to 1", i);
}

/* Sets how many queues of each family there are. */
static void take_queues(const VkDeviceCreateInfo *info, uint32_t queues[ARRAY_SIZE(families)])
{
	uint32_t i;

	if (!info->queueCreateInfoCount || !info->pQueueCreateInfos)
		die("a device needs a queue");
	for (i = 0; i < info->queueCreateInfoCount; i++) {
		const VkDeviceQueueCreateInfo *q = &info->pQueueCreateInfos[i];

		check_type(q->sType, VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
		check_no_chain(q->pNext);
		if (q->flags)
			die("queue flags are %#x", q->flags);
		if (q->queueFamilyIndex >= ARRAY_SIZE(families))
			die("there is no queue family %u", q->queueFamilyIndex);
		if (!q->queueCount || q->queueCount > families[q->queueFamilyIndex].queueCount)
			die("family %u does not have %u queues", q->queueFamilyIndex, q->queueCount);
		if (queues[q->queueFamilyIndex])
			die("family %u is there twice", q->queueFamilyIndex);
		check_priorities(q);
		queues[q->queueFamilyIndex] = q->queueCount;
	}
}

static VkResult take_extensions(const VkDeviceCreateInfo *info, uint32_t version, bool *external_fd)
{
	bool external = version >= VK_API_VERSION_1_1;
	uint32_t i;

	*external_fd = false;
	for (i = 0; i < info->enabledExtensionCount; i++) {
		const char *name = info->ppEnabledExtensionNames[i];

		if (strcmp(name, VK_KHR_EXTERNAL_MEMORY_EXTENSION_NAME) == 0)
			external = true;
		else if (strcmp(name, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) == 0)
			*external_fd = true;
		else
			return VK_ERROR_EXTENSION_NOT_PRESENT;
	}
	if (*external_fd && !external)
		die("with Vulkan 1.0, %s needs %s",
		    VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME,
		    VK_KHR_EXTERNAL_MEMORY_EXTENSION_NAME);
	return VK_SUCCESS;
}

static VkResult make_device(struct object *gpu, const VkDeviceCreateInfo *info, VkDevice *out)
{
	uint32_t queues[ARRAY_SIZE(families)] = { 0 };
	struct object *dev;
	bool external_fd;
	VkResult r;

	take_queues(info, queues);
	r = take_extensions(info, gpu->parent->instance.version, &external_fd);
	if (r)
		return r;
	dev = new_object(DEVICE, gpu->parent, gpu->index);
	if (!dev)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	dev->device.external_fd = external_fd;
	memcpy(dev->device.queues, queues, sizeof(queues));
	dev->parent->children++;
	*out = (VkDevice)(uintptr_t)dev->handle;
	return VK_SUCCESS;
}

/* The specification deprecates device layers. They are ignored. */
VkResult vkCreateDevice(VkPhysicalDevice gpu, const VkDeviceCreateInfo *info,
			const VkAllocationCallbacks *callbacks, VkDevice *out)
{
	VkResult r = try_enter(__func__);

	(void)callbacks;
	if (r)
		return r;
	check_type(info->sType, VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO);
	check_no_chain(info->pNext);
	if (info->flags)
		die("flags are %#x", info->flags);
	return leave(sim.inherited ? VK_ERROR_INITIALIZATION_FAILED :
		     make_device(find(PHYSICAL, gpu), info, out));
}

void vkDestroyDevice(VkDevice device, const VkAllocationCallbacks *callbacks)
{
	struct object *o;

	(void)callbacks;
	if (!device)
		return;
	enter(__func__);
	o = find(DEVICE, device);
	if (o->children)
		die("%lu memory objects are left", o->children);
	o->parent->children--;
	drop_object(o);
	leave(VK_SUCCESS);
}

/* No function here uses a queue, so its handle is not looked up. */
void vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *out)
{
	struct object *o;

	enter(__func__);
	o = find(DEVICE, device);
	if (family >= ARRAY_SIZE(families) || index >= o->device.queues[family])
		die("the device has no queue %u of family %u", index, family);
	*out = (VkQueue)(uintptr_t)(o->handle + 1 + family * 16 + index);
	leave(VK_SUCCESS);
}

/* ---- Memory ---- */

/* What vkAllocateMemory found in its pNext chain. NULL: it is not there. */
struct extras {
	const VkImportMemoryFdInfoKHR *import;
	const VkExportMemoryAllocateInfo *export;
};

static struct extras take_chain(const void *next)
{
	struct extras x = { NULL, NULL };
	const VkBaseInStructure *s;

	for (s = next; s; s = s->pNext) {
		if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR && !x.import)
			x.import = (const void *)s;
		else if (s->sType == VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO && !x.export)
			x.export = (const void *)s;
		else
			die("sType %d in pNext is one too many, or unknown to this double", s->sType);
	}
	if (x.import && !x.import->handleType)
		x.import = NULL;	/* by the specification, no import */
	return x;
}

/* A memfd has no directory entry, so the kernel shows its name as deleted. */
static bool is_named(const char *link, int index, const char *kind)
{
	char want[64];

	snprintf(want, sizeof(want), "/memfd:gdrsim:%d:%s (deleted)", index, kind);
	return strcmp(link, want) == 0;
}

/*
 * Whether this device can import fd: a memfd that the doubles made for an allocation on
 * the same GPU, with at least size bytes. Memory of this double must be imported at its
 * full size. Two kinds cannot be imported: its other memory types, whose names have the
 * type's number, and CUDA's dma-bufs.
 */
static bool can_import(int fd, int index, VkDeviceSize size)
{
	char path[64], link[64];
	struct stat st;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, link, sizeof(link) - 1);
	if (n <= 0 || fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st))
		return false;
	link[n] = '\0';
	if (is_named(link, index, "vulkan"))
		return size == (VkDeviceSize)st.st_size;
	return is_named(link, index, "cuda") && size <= (VkDeviceSize)st.st_size;
}

static int own_fd(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* On success the caller's fd is closed. Otherwise it is unchanged. */
static VkResult import_memory(struct object *m, const VkImportMemoryFdInfoKHR *from)
{
	if (from->handleType != VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT ||
	    m->memory.type != BAR_TYPE ||
	    !can_import(from->fd, m->index, m->memory.size))
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	m->memory.fd = own_fd(from->fd);
	if (m->memory.fd < 0)
		return VK_ERROR_TOO_MANY_OBJECTS;
	m->memory.imported = true;
	close(from->fd);
	return VK_SUCCESS;
}

static VkDeviceSize *heap_used(const struct object *m)
{
	return &sim.used[m->index][types[m->memory.type].heapIndex];
}

/* Only memory that was allocated here counts against the heap. */
static VkResult fresh_memory(struct object *m)
{
	VkDeviceSize room = heaps[types[m->memory.type].heapIndex].size - *heap_used(m);
	char name[64];
	int fd;

	if (m->memory.size > room)
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	if (m->memory.type == BAR_TYPE)
		snprintf(name, sizeof(name), "gdrsim:%d:vulkan", m->index);
	else
		snprintf(name, sizeof(name), "gdrsim:%d:vulkan.%u", m->index, m->memory.type);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0)
		return errno == EMFILE || errno == ENFILE ? VK_ERROR_TOO_MANY_OBJECTS :
							    VK_ERROR_OUT_OF_HOST_MEMORY;
	if (ftruncate(fd, (off_t)m->memory.size)) {
		close(fd);
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	}
	m->memory.fd = fd;
	*heap_used(m) += m->memory.size;
	return VK_SUCCESS;
}

static void check_allocation(const struct object *dev, const VkMemoryAllocateInfo *info, const struct extras *x)
{
	if (x->import && !dev->device.external_fd)
		die("import without %s", VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
	if (x->export && (x->export->handleTypes & ~VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT))
		die("export as handle types %#x", x->export->handleTypes);
	if (!info->allocationSize)
		die("allocationSize is 0");
	if (!x->import && info->memoryTypeIndex >= ARRAY_SIZE(types))
		die("there is no memory type %u", info->memoryTypeIndex);
}

static VkResult make_memory(struct object *dev, const VkMemoryAllocateInfo *info, VkDeviceMemory *out)
{
	struct extras x = take_chain(info->pNext);
	struct object *m;
	VkResult r;

	check_type(info->sType, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO);
	check_allocation(dev, info, &x);
	m = new_object(MEMORY, dev, dev->index);
	if (!m)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	m->memory.size = info->allocationSize;
	m->memory.type = info->memoryTypeIndex;
	m->memory.exportable = x.export && x.export->handleTypes;
	r = x.import ? import_memory(m, x.import) : fresh_memory(m);
	if (r) {
		drop_object(m);
		return r;
	}
	dev->children++;
	*out = (VkDeviceMemory)(uintptr_t)m->handle;
	return VK_SUCCESS;
}

VkResult vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
			  const VkAllocationCallbacks *callbacks, VkDeviceMemory *out)
{
	(void)callbacks;
	return try_enter(__func__) ?: leave(make_memory(find(DEVICE, device), info, out));
}

/* The pages outlive vkUnmapMemory, as in NVIDIA's driver (H200, 580.159.04). */
static void drop_pages(struct object *m)
{
	if (m->memory.pages && munmap(m->memory.pages, m->memory.pages_length))
		die("munmap: %s", strerror(errno));
	m->memory.pages = NULL;
}

static void free_memory(struct object *m)
{
	drop_pages(m);
	if (!m->memory.imported)
		*heap_used(m) -= m->memory.size;
	if (close(m->memory.fd))
		die("someone closed the memory's own fd %d", m->memory.fd);
	m->parent->children--;
	drop_object(m);
}

void vkFreeMemory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks)
{
	(void)callbacks;
	enter(__func__);
	find(DEVICE, device);
	if (memory)
		free_memory(find_memory(device, memory));
	leave(VK_SUCCESS);
}

/* A mapping starts on a page. *out need not. */
static VkResult map(struct object *m, VkDeviceSize offset, VkDeviceSize size, void **out)
{
	VkDeviceSize skip = offset % (VkDeviceSize)sysconf(_SC_PAGESIZE);
	void *p;

	if (!(types[m->memory.type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT))
		return VK_ERROR_MEMORY_MAP_FAILED;
	if (m->memory.mapped || offset >= m->memory.size)
		return VK_ERROR_MEMORY_MAP_FAILED;
	if (size == VK_WHOLE_SIZE)
		size = m->memory.size - offset;
	if (!size || size > m->memory.size - offset)
		return VK_ERROR_MEMORY_MAP_FAILED;
	drop_pages(m);
	p = mmap(NULL, skip + size, PROT_READ | PROT_WRITE, MAP_SHARED, m->memory.fd,
		 (off_t)(offset - skip));
	if (p == MAP_FAILED)
		return VK_ERROR_MEMORY_MAP_FAILED;
	m->memory.mapped = true;
	m->memory.pages = p;
	m->memory.pages_length = skip + size;
	*out = (char *)p + skip;
	return VK_SUCCESS;
}

VkResult vkMapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
		     VkDeviceSize size, VkMemoryMapFlags flags, void **out)
{
	VkResult r = try_enter(__func__);

	if (r)
		return r;
	if (flags)
		die("flags are %#x", flags);
	return leave(map(find_memory(device, memory), offset, size, out));
}

void vkUnmapMemory(VkDevice device, VkDeviceMemory memory)
{
	struct object *m;

	enter(__func__);
	m = find_memory(device, memory);
	if (!m->memory.mapped)
		die("the memory is not mapped");
	m->memory.mapped = false;
	leave(VK_SUCCESS);
}

/* ---- VK_KHR_external_memory_fd ---- */

static VkResult get_memory_fd(VkDevice device, const VkMemoryGetFdInfoKHR *info, int *out)
{
	VkResult r = try_enter("vkGetMemoryFdKHR");
	struct object *m;

	if (r)
		return r;
	check_type(info->sType, VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR);
	check_no_chain(info->pNext);
	if (info->handleType != VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT)
		die("handle type %#x", info->handleType);
	m = find_memory(device, info->memory);
	if (!m->memory.exportable)
		die("the memory was allocated without VkExportMemoryAllocateInfo");
	*out = own_fd(m->memory.fd);
	return leave(*out < 0 ? VK_ERROR_TOO_MANY_OBJECTS : VK_SUCCESS);
}

/*
 * The specification forbids to ask for the properties of an opaque fd. No fd has another
 * handle type here.
 */
static VkResult get_memory_fd_properties(VkDevice device, VkExternalMemoryHandleTypeFlagBits type,
					 int fd, VkMemoryFdPropertiesKHR *out)
{
	VkResult r = try_enter("vkGetMemoryFdPropertiesKHR");

	(void)fd;
	if (r)
		return r;
	check_type(out->sType, VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR);
	find(DEVICE, device);
	if (type == VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT)
		die("an opaque fd has no properties");
	return leave(VK_ERROR_INVALID_EXTERNAL_HANDLE);
}

/* ---- Function addresses ---- */

enum level { GLOBAL, OF_INSTANCE, OF_INSTANCE_1_1, OF_DEVICE, OF_EXTERNAL_FD };

struct entry {
	const char *name;
	enum level level;
	PFN_vkVoidFunction fn;
};

#define ENTRY(level, name) { #name, level, (PFN_vkVoidFunction)name }

static const struct entry entries[] = {
	ENTRY(GLOBAL, vkGetInstanceProcAddr),
	ENTRY(GLOBAL, vkEnumerateInstanceVersion),
	ENTRY(GLOBAL, vkEnumerateInstanceExtensionProperties),
	ENTRY(GLOBAL, vkCreateInstance),
	ENTRY(OF_INSTANCE, vkDestroyInstance),
	ENTRY(OF_INSTANCE, vkEnumeratePhysicalDevices),
	ENTRY(OF_INSTANCE, vkGetPhysicalDeviceProperties),
	ENTRY(OF_INSTANCE_1_1, vkGetPhysicalDeviceProperties2),
	ENTRY(OF_INSTANCE, vkGetPhysicalDeviceMemoryProperties),
	ENTRY(OF_INSTANCE_1_1, vkGetPhysicalDeviceMemoryProperties2),
	ENTRY(OF_INSTANCE, vkGetPhysicalDeviceQueueFamilyProperties),
	ENTRY(OF_INSTANCE, vkEnumerateDeviceExtensionProperties),
	ENTRY(OF_INSTANCE, vkCreateDevice),
	ENTRY(OF_DEVICE, vkGetDeviceProcAddr),
	ENTRY(OF_DEVICE, vkDestroyDevice),
	ENTRY(OF_DEVICE, vkGetDeviceQueue),
	ENTRY(OF_DEVICE, vkAllocateMemory),
	ENTRY(OF_DEVICE, vkFreeMemory),
	ENTRY(OF_DEVICE, vkMapMemory),
	ENTRY(OF_DEVICE, vkUnmapMemory),
	{ "vkGetMemoryFdKHR", OF_EXTERNAL_FD, (PFN_vkVoidFunction)get_memory_fd },
	{ "vkGetMemoryFdPropertiesKHR", OF_EXTERNAL_FD,
	  (PFN_vkVoidFunction)get_memory_fd_properties },
};

static const struct entry *entry_of(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(entries); i++)
		if (strcmp(entries[i].name, name) == 0)
			return &entries[i];
	return NULL;
}

/*
 * A real loader may return a function of a device extension here, too, even if no device
 * has the extension enabled. This one never does.
 */
PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
	const struct entry *e = entry_of(name);
	uint32_t version;

	if (!instance)
		return e && e->level == GLOBAL ? e->fn : NULL;
	enter(__func__);
	version = find(INSTANCE, instance)->instance.version;
	leave(VK_SUCCESS);
	if (!e || e->level == OF_EXTERNAL_FD)
		return NULL;
	if (e->level == OF_INSTANCE_1_1 && version < VK_API_VERSION_1_1)
		return NULL;
	return e->fn;
}

PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char *name)
{
	const struct entry *e = entry_of(name);
	bool external_fd;

	enter(__func__);
	external_fd = find(DEVICE, device)->device.external_fd;
	leave(VK_SUCCESS);
	if (!e || e->level < OF_DEVICE || (e->level == OF_EXTERNAL_FD && !external_fd))
		return NULL;
	return e->fn;
}

/* ---- For tests ---- */

/*
 * Makes the nth call of name from now on (0: every call) return that VkResult. result 0
 * drops all such rules.
 */
void vulkan_sim_fail(const char *name, int result, int nth)
{
	check_fallible(__func__, name);
	sim_fault_set(&faults, name, result, nth);
}

/* The number of instances, devices and memory objects that this process has. */
unsigned long vulkan_sim_live(void)
{
	unsigned long live = 0;
	struct object *o;
	size_t i;

	enter(__func__);
	for (i = 0; i < BUCKETS; i++)
		for (o = sim.buckets[i]; o; o = o->next)
			live += o->kind != PHYSICAL && o->epoch == sim.epoch;
	leave(VK_SUCCESS);
	return live;
}
