// SPDX-License-Identifier: MIT
/* Simulated driver: GPUs, memory, clients and their objects. Test code. */
#include "rm_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPU_MEMORY (64ull << 30)
#define FIRST_CLIENT 0xc1d00001u
#define FIRST_LINEAR (0x38ull << 40)	/* where a BAR might be */

/*
 * The GPUs in the order of their PCI addresses (sim_pci), which is the order of CUDA's
 * ordinals. Minors, instances and RM_CARD_INFO have other orders.
 */
struct rm_gpu gpus[RM_MAX_GPUS] = {
	{ .minor = 2, .instance = 1 },
	{ .minor = 0, .instance = 3 },
	{ .minor = 3, .instance = 0 },
	{ .minor = 1, .instance = 2 },
	{ .minor = 6, .instance = 5 },
	{ .minor = 4, .instance = 7 },
	{ .minor = 7, .instance = 4 },
	{ .minor = 5, .instance = 6 },
};

static struct rm_client *clients;

uint32_t gpu_id(int gpu)
{
	struct sim_pci p = sim_pci(gpu, 1);

	return p.domain << 16 | p.bus << 8 | p.slot;
}

int gpu_by_id(uint32_t id)
{
	int i;

	for (i = 0; i < config.gpus; i++)
		if (gpu_id(i) == id)
			return i;
	return -1;
}

int gpu_by_minor(long minor)
{
	int i;

	for (i = 0; i < config.gpus; i++)
		if (gpus[i].minor == minor)
			return i;
	return -1;
}

int gpu_by_instance(uint32_t instance)
{
	int i;

	for (i = 0; i < config.gpus; i++)
		if (gpus[i].instance == instance)
			return i;
	return -1;
}

uint64_t gpu_memory(void)
{
	return GPU_MEMORY;
}

/* Returns NULL if there is no memory left. */
struct rm_memory *memory_new(int gpu, uint64_t size)
{
	static uint64_t last;
	struct rm_memory *m;

	if (size > GPU_MEMORY - gpus[gpu].used)
		return NULL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	*m = (struct rm_memory){ .refs = 1, .gpu = gpu, .size = size, .id = ++last };
	m->fd = memfd_create("rm_sim", MFD_CLOEXEC);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)size)) {
		perror("rm_sim: memory");
		if (m->fd >= 0)
			close(m->fd);
		free(m);
		return NULL;
	}
	gpus[gpu].used += size;
	return m;
}

struct rm_memory *memory_get(struct rm_memory *m)
{
	m->refs++;
	return m;
}

void memory_put(struct rm_memory *m)
{
	if (--m->refs)
		return;
	gpus[m->gpu].used -= m->size;
	close(m->fd);
	free(m);
}

struct rm_client *client_new(struct rm_file *file, pid_t process)
{
	static uint32_t next = FIRST_CLIENT;
	struct rm_client *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct rm_client){ .next = clients, .handle = next++, .file = file, .process = process };
	clients = c;
	return c;
}

struct rm_client *client_find(uint32_t handle)
{
	struct rm_client *c;

	for (c = clients; c && c->handle != handle; c = c->next)
		;
	return c;
}

struct rm_client *client_first(void)
{
	return clients;
}

void client_end(struct rm_client *c)
{
	struct rm_client **link = &clients;

	while (c->objects)
		object_end(c, c->objects);
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	free(c);
}

void clients_of_file_end(const struct rm_file *file)
{
	struct rm_client *c, *next;

	for (c = clients; c; c = next) {
		next = c->next;
		if (c->file == file)
			client_end(c);
	}
}

/*
 * A new object. Its handle is the one that the caller chose, or one of the driver's
 * choice if that is 0. Different clients get the same handles. So a handle without its
 * client names the wrong object.
 */
uint32_t object_new(struct rm_client *c, uint32_t *handle, struct rm_object **o)
{
	if (*handle && (*handle == c->handle || object_find(c, *handle)))
		return RM_DUPLICATE_NAME;
	*o = calloc(1, sizeof(**o));
	if (!*o)
		return RM_NO_MEMORY;
	while (!*handle || object_find(c, *handle))
		*handle = 0xcaf00000 | ++c->last;
	(*o)->handle = *handle;
	(*o)->next = c->objects;
	c->objects = *o;
	return RM_OK;
}

struct rm_object *object_find(const struct rm_client *c, uint32_t handle)
{
	struct rm_object *o;

	for (o = c->objects; o && o->handle != handle; o = o->next)
		;
	return o;
}

/* An object below o; NULL if there is none. */
static struct rm_object *child(const struct rm_client *c, const struct rm_object *o)
{
	struct rm_object *i;

	for (i = c->objects; i && i->device != o; i = i->next)
		;
	return i;
}

void object_end(struct rm_client *c, struct rm_object *o)
{
	struct rm_object **link = &c->objects, *below;

	while ((below = child(c, o)))
		object_end(c, below);
	while (o->mappings)
		mapping_end(o, o->mappings);
	if (o->memory)
		memory_put(o->memory);
	while (*link != o)
		link = &(*link)->next;
	*link = o->next;
	free(o);
}

/* A mapping of the GPU that lies in [at, at + length) of its BAR1, or NULL. */
static const struct rm_mapping *bar_taken(int gpu, uint64_t at, uint64_t length)
{
	const struct rm_client *c;
	const struct rm_mapping *m;
	const struct rm_object *o;

	for (c = clients; c; c = c->next)
		for (o = c->objects; o; o = o->next)
			for (m = o->gpu == gpu ? o->mappings : NULL; m; m = m->next)
				if (m->counted && m->bar_at < at + length && at < m->bar_at + m->length)
					return m;
	return NULL;
}

/*
 * The first gap of that length in BAR1; false without one. Drivers from 565 on put a mapping
 * into several gaps. [kbusMapFbAperture_GM107]
 */
static bool bar_gap(int gpu, uint64_t length, uint64_t *at)
{
	const struct rm_mapping *m;

	*at = 0;
	if (config.driver >= 565)
		return true;
	while ((m = bar_taken(gpu, *at, length)))
		*at = m->bar_at + m->length;
	return *at + length <= config.bar;
}

/*
 * Returns NULL if BAR1 is full. The simulated libcuda's own view of memory does not
 * count.
 */
struct rm_mapping *mapping_new(struct rm_object *o, uint64_t offset, uint64_t length, bool counted)
{
	static uint64_t next = FIRST_LINEAR;
	struct rm_mapping *m;
	uint64_t bar_at = 0;

	if (counted && (length > config.bar - gpus[o->gpu].bar_used ||
			!bar_gap(o->gpu, length, &bar_at)))
		return NULL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	*m = (struct rm_mapping){ .next = o->mappings, .linear = next, .offset = offset,
				  .length = length, .counted = counted, .bar_at = bar_at };
	next += length;
	if (counted)
		gpus[o->gpu].bar_used += length;
	o->mappings = m;
	return m;
}

/* The client's mapping with that name, and its object. */
struct rm_mapping *mapping_find(const struct rm_client *c, uint64_t linear, struct rm_object **o)
{
	struct rm_mapping *m;

	for (*o = c->objects; *o; *o = (*o)->next)
		for (m = (*o)->mappings; m; m = m->next)
			if (m->linear == linear)
				return m;
	return NULL;
}

void mapping_end(struct rm_object *o, struct rm_mapping *m)
{
	struct rm_mapping **link = &o->mappings;

	while (*link != m)
		link = &(*link)->next;
	*link = m->next;
	if (m->counted)
		gpus[o->gpu].bar_used -= m->length;
	free(m);
}
