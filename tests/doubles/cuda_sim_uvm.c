// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: what it tells UVM (/dev/nvidia-uvm). Test code.
 *
 * The order of the requests is that of 580.159.04, as two H200s' driver saw it:
 *
 * - A range is made (73), and objects are mapped in it (33), before the call that makes memory
 *   returns. Its end (34) comes before the object is freed.
 * - A pool has one range for its whole space. Its blocks are mapped there (33), and unmapped (66).
 * - A second GPU maps the same object (33) under its own UUID, and unmaps it (66) if it reaches it no longer.
 */
#include "cuda_sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rm_uapi.h"

static int fd = -1;

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

static int unmap(const struct uvm *u, int device)
{
	struct uvm_part a = { .base = u->addr, .length = u->size };

	rm_uuid(device, a.uuid);
	return ask(fd, UVM_UNMAP, &a, &a.status);
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

int uvm_init(int devices)
{
	int result = CU_OK;

	fd = open(RM_UVM_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CU_OPERATING_SYSTEM;
	for (int i = 0; i < devices && !result; i++)
		result = register_gpu(i) ?: register_space(i);
	return result;
}

/* The map of one GPU more. */
static int grant(struct uvm *u, int device)
{
	int result = u->gpus & 1u << device ? CU_OK : map(u, device);

	if (!result)
		u->gpus |= 1u << device;
	return result;
}

/* The memory's own GPU is the first. */
static int grant_all(struct uvm *u, unsigned int gpus)
{
	int result = gpus & 1u << u->owner ? grant(u, u->owner) : CU_OK;

	for (int i = 0; i < device_count() && !result; i++)
		if (gpus & 1u << i)
			result = grant(u, i);
	return result;
}

static int withdraw(struct uvm *u, int device)
{
	int result = u->gpus & 1u << device ? unmap(u, device) : CU_OK;

	if (!result)
		u->gpus &= ~(1u << device);
	return result;
}

static int begin(const struct uvm *u)
{
	return u->kind == UVM_BLOCK ? CU_OK : create(u->addr, u->size);
}

static void drop(struct uvm *u)
{
	LIST_TAKE(ranges, u);
	free(u);
}

/* A range, or a block in a pool's space, with the maps of gpus. If one of them fails, all of it ends. */
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
	result = grant_all(u, gpus);
	if (result)
		uvm_end(u);
	else if (out)
		*out = u;
	return result;
}

/* What fails leaves the rest as it is. */
int uvm_end(struct uvm *u)
{
	int result = u->kind == UVM_BLOCK ? CU_OK : end(u->addr, u->size);

	for (int i = 0; u->kind == UVM_BLOCK && i < device_count() && !result; i++)
		result = withdraw(u, i);
	if (!result)
		drop(u);
	return result;
}

/* The range, or the block, of memory that begins at addr. NULL: no GPU has it. */
struct uvm *uvm_find(uint64_t addr)
{
	return LIST_FIND(u, ranges, u->addr == addr && u->kind != UVM_SPACE && !u->fabric);
}

/* Whether a byte of it is in a range. Two registrations may share a page, ranges do not. */
bool uvm_in_use(uint64_t addr, uint64_t size)
{
	return LIST_FIND(u, ranges, u->addr < addr + size && addr < u->addr + u->size);
}

/* A GPU reaches all memory of a context, or does so no longer. */
int uvm_grant_context(const struct ctx *ctx, int device)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next)
		if (u->ctx == ctx)
			result = grant(u, device);
	return result;
}

void uvm_revoke_context(const struct ctx *ctx, int device)
{
	for (struct uvm *u = ranges; u; u = u->next)
		if (u->ctx == ctx)
			withdraw(u, device);
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

/* A restore. */
int uvm_again(void)
{
	int result = CU_OK;

	for (struct uvm *u = ranges; u && !result; u = u->next) {
		unsigned int gpus = u->gpus;

		u->gpus = 0;
		result = begin(u) ?: grant_all(u, gpus);
	}
	return result;
}
