// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: what it tells UVM (/dev/nvidia-uvm). Test code.
 *
 * The order of the requests is that of 580.159.04, as two H200s' driver saw it:
 *
 * - A range is made (73), and objects are mapped in it (33), before the call that makes memory
 *   returns. Its end (34) comes before the object is freed.
 * - A pool has one range for its whole space. Its blocks are mapped there (33), and unmapped (66).
 * - A second GPU maps the same object (33) under its own UUID. Of the host's memory it has a
 *   duplicate of its own, but maps the first object. It unmaps (66) before the range ends.
 */
#include "cuda_sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rm_uapi.h"

static int fd = -1, mm_fd = -1;
static unsigned int active;	/* GPUs whose address space is registered, a bit for each device */

/* Oldest first: a pool's space is before its blocks. */
static struct uvm *ranges;

static int ask(int file, unsigned long request, void *arg, const uint32_t *status)
{
	return ioctl(file, request, arg) ? CU_UNKNOWN : rm_result(*status);
}

static int create(uint64_t addr, uint64_t size)
{
	struct uvm_range a = { .base = addr, .length = size };

	return ask(fd, UVM_CREATE, &a, &a.status);
}

static int end(uint64_t addr, uint64_t size)
{
	struct uvm_range a = { .base = addr, .length = size };
	struct uvm_free_590 b = { .base = addr };

	if (rm_kernel_driver() >= 590)
		return ask(fd, UVM_FREE, &b, &b.status);
	return ask(fd, UVM_FREE, &a, &a.status);
}

static int map(const struct uvm *u, int device)
{
	static struct uvm_map a;
	static struct uvm_map_535 b;

	if (rm_kernel_driver() >= 550) {
		a = (struct uvm_map){ .base = u->addr, .length = u->size, .count = 1, .ctl_fd = rm.ctl,
				      .client = rm.client, .object = u->object };
		rm_uuid(device, a.gpus[0]);
		return ask(fd, UVM_MAP, &a, &a.status);
	}
	b = (struct uvm_map_535){ .base = u->addr, .length = u->size, .count = 1, .ctl_fd = rm.ctl,
				  .client = rm.client, .object = u->object };
	rm_uuid(device, b.gpus[0]);
	return ask(fd, UVM_MAP, &b, &b.status);
}

static int part(unsigned long request, const struct uvm *u, int device)
{
	struct uvm_part a = { .base = u->addr, .length = u->size };

	rm_uuid(device, a.uuid);
	return ask(fd, request, &a, &a.status);
}

static int semaphore_pool(const struct uvm *u)
{
	static struct uvm_pool a;
	static struct uvm_pool_535 b;

	a = (struct uvm_pool){ .base = u->addr, .length = u->size };
	b = (struct uvm_pool_535){ .base = u->addr, .length = u->size };
	if (rm_kernel_driver() >= 550)
		return ask(fd, UVM_POOL, &a, &a.status);
	return ask(fd, UVM_POOL, &b, &b.status);
}

static int register_gpu(int device)
{
	struct uvm_gpu a = { .ctl_fd = rm.ctl, .client = rm.client };

	rm_uuid(device, a.uuid);
	return ask(fd, UVM_REGISTER_GPU, &a, &a.status);
}

static int register_space(int device)
{
	struct uvm_vaspace a = { .ctl_fd = rm.ctl, .client = rm.client, .vaspace = rm_device(device) };

	rm_uuid(device, a.uuid);
	return ask(fd, UVM_REGISTER_SPACE, &a, &a.status);
}

static int unregister(unsigned long request, int device)
{
	struct uvm_uuid a = { .status = 0 };

	rm_uuid(device, a.uuid);
	return ask(fd, request, &a, &a.status);
}

int uvm_init(int devices)
{
	int result = CU_OK;

	fd = open(RM_UVM_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CU_OPERATING_SYSTEM;
	for (int i = 0; i < devices && !result; i++)
		result = register_gpu(i);
	return result;
}

/* A GPU's address space, before the first thing that is mapped there. */
int uvm_activate(int device)
{
	int result = active & 1u << device ? CU_OK : register_space(device);

	if (!result)
		active |= 1u << device;
	return result;
}

/* The GPU whose map ends with the range, and not before: that of the memory, if it has one. */
static int home(const struct uvm *u)
{
	return u->gpus & 1u << u->owner ? u->owner : __builtin_ctz(u->gpus);
}

/* The map of one GPU more. */
int uvm_grant(struct uvm *u, int device)
{
	int result = CU_OK;

	if (u->gpus & 1u << device)
		return CU_OK;
	result = uvm_activate(device);
	if (!result && u->host && device != u->owner)
		result = object_duplicate(rm_device(device), u->object, &u->duplicates[device]);
	if (result)
		return result;
	result = map(u, device);
	if (!result)
		u->gpus |= 1u << device;
	else if (u->duplicates[device])
		object_free(rm_device(device), u->duplicates[device]);
	if (result)
		u->duplicates[device] = 0;
	return result;
}

int uvm_revoke(struct uvm *u, int device)
{
	int result = u->gpus & 1u << device ? part(UVM_UNMAP, u, device) : CU_OK;

	if (result)
		return result;
	u->gpus &= ~(1u << device);
	if (u->duplicates[device])
		object_free(rm_device(device), u->duplicates[device]);
	u->duplicates[device] = 0;
	return CU_OK;
}

static int begin(const struct uvm *u)
{
	switch (u->kind) {
	case UVM_PAGE:
		return part(UVM_REGION, u, u->owner);
	case UVM_SEMAPHORES:
		return semaphore_pool(u);
	case UVM_ALONE:
	case UVM_SPACE:
		return create(u->addr, u->size);
	case UVM_BLOCK:
		break;
	}
	return CU_OK;
}

static void drop(struct uvm *u)
{
	struct uvm **link = &ranges;

	while (*link != u)
		link = &(*link)->next;
	*link = u->next;
	free(u);
}

/*
 * A range, or a block in a pool's space, with the maps of gpus: the memory's own GPU first. If one
 * of them fails, all of it ends.
 */
int uvm_begin(const struct uvm *what, unsigned int gpus, struct uvm **out)
{
	struct uvm **link = &ranges, *u = malloc(sizeof(*u));
	int result;

	if (!u)
		return CU_OUT_OF_MEMORY;
	*u = *what;
	u->gpus = 0;
	u->next = NULL;
	while (*link)
		link = &(*link)->next;
	*link = u;
	result = begin(u);
	if (result) {
		drop(u);
		return result;
	}
	if (gpus & 1u << u->owner)
		result = uvm_grant(u, u->owner);
	for (int i = 0; i < device_count() && !result; i++)
		if (gpus & 1u << i)
			result = uvm_grant(u, i);
	if (result)
		uvm_end(u);
	else if (out)
		*out = u;
	return result;
}

/* What fails leaves the rest as it is. */
int uvm_end(struct uvm *u)
{
	int result = CU_OK;

	for (int i = 0; i < device_count() && !result; i++)
		if (u->gpus & 1u << i && i != home(u))
			result = uvm_revoke(u, i);
	if (!result && u->kind != UVM_BLOCK)
		result = end(u->addr, u->size);
	else if (!result && u->gpus)
		result = uvm_revoke(u, home(u));
	if (!result)
		drop(u);
	return result;
}

/* The range, or the block, of memory that begins at addr. NULL: no GPU has it. */
struct uvm *uvm_find(uint64_t addr)
{
	struct uvm *u;

	for (u = ranges; u && (u->addr != addr || u->kind == UVM_SPACE || u->fabric); u = u->next)
		;
	return u;
}

/* Whether a byte of it is in a range. Two registrations may share a page, ranges do not. */
bool uvm_in_use(uint64_t addr, uint64_t size)
{
	const struct uvm *u;

	for (u = ranges; u && (u->addr >= addr + size || addr >= u->addr + u->size); u = u->next)
		;
	return u;
}

/* The host's memory is every GPU's that has a context. */
int uvm_grant_host(int device)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next)
		if (u->host)
			result = uvm_grant(u, device);
	return result;
}

void uvm_revoke_host(int device)
{
	for (struct uvm *u = ranges; u; u = u->next)
		if (u->host && u->owner != device)
			uvm_revoke(u, device);
}

/* A GPU reaches all memory of a context, or does so no longer. */
int uvm_grant_context(const struct ctx *ctx, int device)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next)
		if (u->ctx == ctx && !u->host && u->kind == UVM_ALONE)
			result = uvm_grant(u, device);
	return result;
}

void uvm_revoke_context(const struct ctx *ctx, int device)
{
	for (struct uvm *u = ranges; u; u = u->next)
		if (u->ctx == ctx && !u->host && u->kind == UVM_ALONE)
			uvm_revoke(u, device);
}

/* A checkpoint: all ranges end, and all maps with them. They stay on the list. */
int uvm_end_all(void)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next)
		if (u->kind != UVM_BLOCK)
			result = end(u->addr, u->size);
	return result;
}

int uvm_leave(void)
{
	int result = CU_OK;

	for (int i = 0; i < device_count() && !result; i++) {
		if (active & 1u << i)
			result = unregister(UVM_UNREGISTER_SPACE, i);
		if (!result)
			result = unregister(UVM_UNREGISTER_GPU, i);
	}
	return result;
}

/* A restore. The second file holds on to the process's memory. */
int uvm_return(void)
{
	struct uvm_mm a = { .uvm_fd = fd };
	int result = CU_OK;

	if (mm_fd < 0) {
		mm_fd = open(RM_UVM_DEVICE, O_RDWR | O_CLOEXEC);
		if (mm_fd < 0)
			return CU_OPERATING_SYSTEM;
		result = ask(mm_fd, UVM_MM, &a, &a.status);
	}
	for (int i = 0; i < device_count() && !result; i++) {
		result = register_gpu(i);
		if (!result && active & 1u << i)
			result = register_space(i);
	}
	return result;
}

int uvm_again(void)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next) {
		result = begin(u);
		if (!result && u->gpus)
			result = map(u, home(u));
		for (int i = 0; i < device_count() && !result; i++)
			if (u->gpus & 1u << i && i != home(u))
				result = map(u, i);
	}
	return result;
}
