// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: a checkpoint, and what comes after it. Test code.
 *
 * The order is that of cuda-checkpoint on 580.159.04: all that the kernel has ends, and comes again with the same
 * addresses and handles, below another client. In the real one a thread of libcuda's does it; here the caller does.
 * Nobody may call between the two.
 */
#include "cuda_sim.h"

#include "rm_uapi.h"

#define STAGING 0x11000ull
#define STAGING_SIZE 0x10000ull
#define STAGED 0x1200000ull	/* where memory is mapped to be read */

static bool away;

/* The host memory that the bytes go through. */
static int staging(uint32_t *object, struct uvm **u)
{
	int result = object_new(rm_device(0), RM_CLASS_HOST, STAGING_SIZE, object);

	if (result)
		return result;
	result = uvm_begin(&(struct uvm){ .kind = UVM_ALONE, .addr = STAGING, .size = STAGING_SIZE,
					  .object = *object }, 1, u);
	if (result)
		object_free(rm_device(0), *object);
	return result;
}

/* A handle of cuMemCreate at a low address, beside its own. */
static int stage(const struct mem *m, struct uvm **u)
{
	return uvm_begin(&(struct uvm){ .kind = UVM_ALONE, .addr = STAGED, .size = m->size, .owner = m->device,
					.object = m->object }, 1u << m->device, u);
}

static int pass_bytes(bool all)
{
	struct uvm *low, *u;
	uint32_t object;
	int result = all ? staging(&object, &low) : CU_OK;

	for (const struct handle *h = vmm_first(); h && !result; h = h->next)
		if (!h->mem->host)
			result = stage(h->mem, &u) ?: uvm_end(u);
	if (all && !result)
		result = uvm_end(low);
	if (all && !result)
		object_free(rm_device(0), object);
	return result;
}

static int clients_come_and_go(int n)
{
	int result = CU_OK;

	while (n-- && !result)
		result = rm_client_new(false);
	return result;
}

static int checkpoint(void)
{
	int result;

	if (!rm_mode() || objects_foreign() || away)
		return CU_NOT_SUPPORTED;
	flush();
	result = pass_bytes(true);
	if (result)
		return result;
	away = true;
	rm_views_end();
	result = uvm_end_all();
	if (result)
		return result;
	objects_end();
	return uvm_leave() ?: rm_free(rm.client, rm_device(0)) ?: rm_free(rm.client, rm.client) ?:
	       clients_come_and_go(2);
}

SIM_CALL(cuda_sim_checkpoint, (void), checkpoint())

static int restore(void)
{
	uint32_t old = rm.client;
	int result;

	if (!away)
		return CU_NOT_SUPPORTED;
	away = false;
	result = clients_come_and_go(1) ?: rm_client_new(true) ?: rm_devices_again() ?: uvm_return() ?:
		 objects_again(old) ?: uvm_again() ?: rm_views_again();
	return result ? result : pass_bytes(false);
}

SIM_CALL(cuda_sim_restore, (void), restore())
