/* SPDX-License-Identifier: MIT */
#include "vk.h"

#include <dlfcn.h>
#include <string.h>

#define MAX_GPUS 64
#define MAX_TYPES 32
#define VERSION_1_1 (1u << 22 | 1u << 12)

/* What a structure is, in its first member. */
enum {
	IS_APPLICATION = 0,
	IS_INSTANCE = 1,
	IS_QUEUE = 2,
	IS_DEVICE = 3,
	IS_MEMORY = 5,
	IS_FACTS = 1000059001,
	IS_IDS = 1000071004,
	IS_IMPORT_FD = 1000074000
};

enum {
	DEVICE_LOCAL = 1, HOST_VISIBLE = 2, HOST_COHERENT = 4, HOST_CACHED = 8,
	OPAQUE_FD = 1
};

struct vk_application {
	int is;
	const void *next;
	const char *name;
	uint32_t version;
	const char *engine;
	uint32_t engine_version, api;
};

struct vk_instance_want {
	int is;
	const void *next;
	uint32_t flags;
	const struct vk_application *application;
	uint32_t nlayers;
	const char *const *layers;
	uint32_t nextensions;
	const char *const *extensions;
};

struct vk_queue_want {
	int is;
	const void *next;
	uint32_t flags, family, count;
	const float *priorities;
};

struct vk_device_want {
	int is;
	const void *next;
	uint32_t flags, nqueues;
	const struct vk_queue_want *queues;
	uint32_t nlayers;
	const char *const *layers;
	uint32_t nextensions;
	const char *const *extensions;
	const void *features;
};

struct vk_import_fd {
	int is;
	const void *next;
	int kind, fd;
};

struct vk_memory_want {
	int is;
	const void *next;
	uint64_t size;
	uint32_t type;
};

struct vk_ids {
	int is;
	void *next;
	unsigned char device[16], driver[16], luid[8];
	uint32_t node, luid_valid;
};

/* What is not needed is in rest. */
struct vk_gpu_facts {
	int is;
	void *next;
	uint64_t rest[103];
};

struct vk_memory_types {
	uint32_t count;
	struct {
		uint32_t flags, heap;
	} type[MAX_TYPES];
	uint32_t nheaps;
	struct {
		uint64_t size;
		uint32_t flags;
	} heap[16];
};

_Static_assert(sizeof(struct vk_instance_want) == 64, "the driver's layout");
_Static_assert(sizeof(struct vk_device_want) == 72, "the driver's layout");
_Static_assert(sizeof(struct vk_queue_want) == 40, "the driver's layout");
_Static_assert(sizeof(struct vk_import_fd) == 24, "the driver's layout");
_Static_assert(sizeof(struct vk_memory_want) == 32, "the driver's layout");
_Static_assert(sizeof(struct vk_gpu_facts) == 840, "the driver's layout");
_Static_assert(sizeof(struct vk_ids) == 64, "the driver's layout");
_Static_assert(sizeof(struct vk_memory_types) == 520, "the driver's layout");

static const struct {
	const char *symbol;
	size_t member;
} calls[] = {
	{ "vkCreateInstance", offsetof(struct bench_vk, create_instance) },
	{ "vkDestroyInstance", offsetof(struct bench_vk, destroy_instance) },
	{ "vkEnumeratePhysicalDevices", offsetof(struct bench_vk, gpus) },
	{ "vkGetPhysicalDeviceProperties2", offsetof(struct bench_vk, facts) },
	{ "vkGetPhysicalDeviceMemoryProperties", offsetof(struct bench_vk, memory_types) },
	{ "vkCreateDevice", offsetof(struct bench_vk, create_device) },
	{ "vkDestroyDevice", offsetof(struct bench_vk, destroy_device) },
	{ "vkAllocateMemory", offsetof(struct bench_vk, allocate) },
	{ "vkFreeMemory", offsetof(struct bench_vk, free) },
	{ "vkMapMemory", offsetof(struct bench_vk, map) },
	{ "vkUnmapMemory", offsetof(struct bench_vk, unmap) },
};

static const char *load(struct bench_vk *v)
{
	void *lib = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
	size_t i;

	if (!lib)
		return dlerror();
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *f = dlsym(lib, calls[i].symbol);

		if (!f)
			return calls[i].symbol;
		/* ISO C has no cast from an object pointer to a function's. */
		memcpy((char *)v + calls[i].member, &f, sizeof(f));
	}
	return NULL;
}

static vk_gpu find_gpu(struct bench_vk *v, const unsigned char uuid[16])
{
	vk_gpu gpus[MAX_GPUS];
	uint32_t n = MAX_GPUS, i;

	if (v->gpus(v->instance, &n, gpus) < 0)
		return NULL;
	for (i = 0; i < n; i++) {
		struct vk_ids ids = { .is = IS_IDS };
		struct vk_gpu_facts facts = { .is = IS_FACTS, .next = &ids };

		v->facts(gpus[i], &facts);
		if (!memcmp(ids.device, uuid, sizeof(ids.device)))
			return gpus[i];
	}
	return NULL;
}

/* GPU memory that the CPU maps, and does not cache. */
static int find_type(struct bench_vk *v, vk_gpu gpu)
{
	const uint32_t want = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT;
	struct vk_memory_types types = { 0 };
	uint32_t i;

	v->memory_types(gpu, &types);
	for (i = 0; i < types.count && i < MAX_TYPES; i++) {
		if ((types.type[i].flags & (want | HOST_CACHED)) != want)
			continue;
		v->type = i;
		return 0;
	}
	return -1;
}

static int make_device(struct bench_vk *v, vk_gpu gpu)
{
	static const char *const extensions[] = { "VK_KHR_external_memory_fd" };
	static const float priority = 1;
	const struct vk_queue_want queue = {
		.is = IS_QUEUE, .count = 1, .priorities = &priority,
	};
	const struct vk_device_want want = {
		.is = IS_DEVICE, .nqueues = 1, .queues = &queue,
		.nextensions = 1, .extensions = extensions,
	};

	return v->create_device(gpu, &want, NULL, &v->device);
}

const char *bench_vk_open(struct bench_vk *v, const unsigned char uuid[16])
{
	const struct vk_application app = { .is = IS_APPLICATION, .api = VERSION_1_1 };
	const struct vk_instance_want want = { .is = IS_INSTANCE, .application = &app };
	const char *err;
	vk_gpu gpu;

	*v = (struct bench_vk){ 0 };
	err = load(v);
	if (err)
		return err;
	if (v->create_instance(&want, NULL, &v->instance))
		return "vkCreateInstance failed";
	gpu = find_gpu(v, uuid);
	if (!gpu)
		err = "no Vulkan device has the UUID of the GPU";
	else if (find_type(v, gpu))
		err = "the GPU has no memory type that the CPU can map";
	else if (make_device(v, gpu))
		err = "vkCreateDevice failed";
	if (err)
		bench_vk_close(v);
	return err;
}

void bench_vk_close(struct bench_vk *v)
{
	if (v->device)
		v->destroy_device(v->device, NULL);
	if (v->instance)
		v->destroy_instance(v->instance, NULL);
	v->device = NULL;
	v->instance = NULL;
}

int bench_vk_import(const struct bench_vk *v, int fd, uint64_t size, vk_memory *memory)
{
	const struct vk_import_fd from = { .is = IS_IMPORT_FD, .kind = OPAQUE_FD, .fd = fd };
	const struct vk_memory_want want = {
		.is = IS_MEMORY, .next = &from, .size = size, .type = v->type,
	};

	return v->allocate(v->device, &want, NULL, memory);
}
