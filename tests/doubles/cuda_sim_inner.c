// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: what a context has in the simulated driver for itself. Test code.
 *
 * The real one makes some 25 objects; here there is one of each kind: memory of the GPU, the host's memory, which
 * every other GPU with a context maps, too, and two ranges that no object is mapped in.
 */
#include "cuda_sim.h"

#include <stdlib.h>

#include "rm_uapi.h"

#define HOST_SIZE (64ull << 10)
#define REGION_SIZE 0x1000ull

struct ctx_inner {
	uint32_t debugger, memory, host;
	uint64_t addr;		/* of four granules */
	struct uvm *ranges[4];
};

static int add(struct ctx_inner *in, int i, const struct uvm *u, unsigned int gpus)
{
	return uvm_begin(u, gpus, &in->ranges[i]);
}

static int memories(struct ctx *ctx, struct ctx_inner *in)
{
	int device = ctx->device;

	return object_new(rm_device(device), RM_CLASS_MEMORY, GRANULARITY, &in->memory) ?:
	       add(in, 0, &(struct uvm){ .kind = UVM_ALONE, .addr = in->addr, .size = GRANULARITY, .owner = device,
					 .object = in->memory, .ctx = ctx }, 1u << device) ?:
	       object_new(rm_device(device), RM_CLASS_HOST, HOST_SIZE, &in->host) ?:
	       add(in, 1, &(struct uvm){ .kind = UVM_ALONE, .addr = in->addr + GRANULARITY, .size = HOST_SIZE,
					 .owner = device, .object = in->host, .host = true, .ctx = ctx },
		   1u << device | rm_devices_in_use());
}

static int others(int device, struct ctx_inner *in)
{
	return add(in, 2, &(struct uvm){ .kind = UVM_PAGE, .addr = in->addr + 2 * GRANULARITY, .size = REGION_SIZE,
					 .owner = device }, 0) ?:
	       add(in, 3, &(struct uvm){ .kind = UVM_SEMAPHORES, .addr = in->addr + 3 * GRANULARITY,
					 .size = GRANULARITY, .owner = device }, 0);
}

static void end(struct ctx_inner *in, int i, uint32_t parent, uint32_t object)
{
	if (in->ranges[i])
		uvm_end(in->ranges[i]);
	if (object)
		object_free(parent, object);
}

static void release(struct ctx *ctx)
{
	struct ctx_inner *in = ctx->inner;
	uint32_t device = rm_device(ctx->device);

	end(in, 0, device, in->memory);
	end(in, 1, device, in->host);
	end(in, 2, 0, 0);
	end(in, 3, rm.client, in->debugger);
	if (in->addr)
		va_release(in->addr);
	ctx->inner = NULL;
	free(in);
}

/* The first context of a GPU makes it one that maps the host's memory. */
int inner_begin(struct ctx *ctx)
{
	struct ctx_inner *in = rm_mode() ? calloc(1, sizeof(*in)) : NULL;
	int result;

	if (!rm_mode())
		return CU_OK;
	if (!in)
		return CU_OUT_OF_MEMORY;
	ctx->inner = in;
	result = uvm_activate(ctx->device) ?: va_take(4 * GRANULARITY, GRANULARITY, 0, false, &in->addr) ?:
		 object_new(rm.client, RM_CLASS_DEBUGGER, 0, &in->debugger) ?: memories(ctx, in) ?:
		 others(ctx->device, in);
	if (!result && !rm_contexts(ctx->device, 0))
		result = uvm_grant_host(ctx->device);
	if (result)
		release(ctx);
	else
		rm_contexts(ctx->device, 1);
	return result;
}

void inner_end(struct ctx *ctx)
{
	if (!ctx->inner)
		return;
	if (rm_contexts(ctx->device, -1) == 1)
		uvm_revoke_host(ctx->device);
	release(ctx);
}
