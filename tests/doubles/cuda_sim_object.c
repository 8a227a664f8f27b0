// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: its client of NVIDIA's resource manager, and the client's objects. Test code.
 *
 * libcuda chooses the handles itself: the lowest that is free. So a new object often has the handle of
 * one that was just freed.
 */
#include "cuda_sim.h"

#include <stdio.h>
#include <stdlib.h>

#include "rm_uapi.h"

#define FIRST_HANDLE 0x5c000001u
#define HANDLES 65536u

struct rm rm = { .ctl = -1 };

static uint8_t used[HANDLES];

/* The objects, oldest first; devices and subdevices are not among them. */
static struct object {
	struct object *next;
	uint32_t handle, parent;
	uint32_t class;		/* 0: another process's memory */
	uint64_t size;
} *objects;

/* The result that a program gets for a status. */
int rm_result(uint32_t status)
{
	switch (status) {
	case RM_OK:
		return CU_OK;
	case RM_NO_MEMORY:
	case RM_NO_RESOURCES:
		return CU_OUT_OF_MEMORY;
	}
	return CU_UNKNOWN;
}

/* 0: the driver chooses. */
uint32_t rm_handle_take(void)
{
	for (uint32_t i = 0; i < HANDLES; i++) {
		if (used[i])
			continue;
		used[i] = 1;
		return FIRST_HANDLE + i;
	}
	return 0;
}

void rm_handle_put(uint32_t handle)
{
	if (handle - FIRST_HANDLE < HANDLES)
		used[handle - FIRST_HANDLE] = 0;
}

/* *object is the wanted handle at first, and the actual one afterwards. */
int rm_alloc(uint32_t parent, uint32_t class, void *params, size_t size, uint32_t *object)
{
	struct rm_alloc a = { .root = rm.client, .parent = parent, .object = *object, .class = class,
			      .params = (uintptr_t)params, .params_size = (uint32_t)size };

	if (class == RM_CLASS_CLIENT)
		a.root = 0;
	if (ioctl(rm.ctl, RM_ALLOC, &a))
		return CU_UNKNOWN;
	*object = a.object;
	return rm_result(a.status);
}

uint32_t rm_control(uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = rm.client, .object = rm.client, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = (uint32_t)size };

	return ioctl(rm.ctl, RM_CONTROL, &a) ? RM_NOT_SUPPORTED : a.status;
}

int rm_free(uint32_t parent, uint32_t object)
{
	struct rm_free a = { .root = rm.client, .parent = parent, .object = object };

	if (!ioctl(rm.ctl, RM_FREE, &a) && !a.status)
		return CU_OK;
	fprintf(stderr, "simulated libcuda: RM_FREE: status %#x\n", a.status);
	return CU_UNKNOWN;
}

static int alloc_again(struct object *o)
{
	struct rm_sim_memory memory = { .size = o->size };

	return rm_alloc(o->parent, o->class, &memory, sizeof(memory), &o->handle);
}

/* It is the last on the list. */
static struct object *add(const struct object *what)
{
	struct object **link = &objects, *o = malloc(sizeof(*o));

	if (!o)
		return NULL;
	*o = *what;
	while (*link)
		link = &(*link)->next;
	return *link = o;
}

/* The caller has made the object. */
int object_add_foreign(uint32_t parent, uint32_t handle)
{
	return add(&(struct object){ .handle = handle, .parent = parent }) ? CU_OK : CU_OUT_OF_MEMORY;
}

static void forget(uint32_t handle)
{
	struct object *o = LIST_FIND(o, objects, o->handle == handle);

	rm_handle_put(handle);
	if (!o)
		return;
	LIST_TAKE(objects, o);
	free(o);
}

/* Memory. */
int object_new(uint32_t parent, uint32_t class, uint64_t size, uint32_t *handle)
{
	uint32_t h = rm_handle_take();
	struct object *o = add(&(struct object){ .handle = h, .parent = parent, .class = class, .size = size });
	int result = o ? alloc_again(o) : CU_OUT_OF_MEMORY;

	if (result)
		forget(h);
	else
		*handle = h;
	return result;
}

void object_free(uint32_t parent, uint32_t handle)
{
	rm_free(parent, handle);
	forget(handle);
}

/* Whether any is another process's: a checkpoint cannot bring it back. */
bool objects_foreign(void)
{
	return LIST_FIND(o, objects, !o->class);
}

static void free_from(const struct object *o)
{
	if (!o)
		return;
	free_from(o->next);
	rm_free(o->parent, o->handle);
}

/* A checkpoint: all of them end, the newest first. They stay on the list. */
void objects_end(void)
{
	free_from(objects);
}

/* A restore: they come again, with their handles. */
int objects_again(void)
{
	int result = CU_OK;

	for (struct object *o = objects; o && !result; o = o->next)
		result = alloc_again(o);
	return result;
}
