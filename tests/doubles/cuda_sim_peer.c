// SPDX-License-Identifier: MIT
/* Simulated libcuda: GPUs that reach each other's memory, on the simulated driver. Test code. */
#include "cuda_sim.h"

#include <stdlib.h>

enum {
	CU_PEER_UNSUPPORTED = 217,
	CU_PEER_ALREADY = 704,
	CU_PEER_NOT = 705,
};

/* from reaches all memory of to. */
static struct access {
	struct access *next;
	const struct ctx *from, *to;
} *accesses;

/* The GPUs that reach all memory of a context, a bit for each. */
unsigned int peers_of(const struct ctx *ctx)
{
	unsigned int bits = 0;

	for (const struct access *a = accesses; a; a = a->next)
		if (a->to == ctx)
			bits |= 1u << a->from->device;
	return bits;
}

static struct access *find(const struct ctx *from, const struct ctx *to)
{
	return LIST_FIND(a, accesses, a->from == from && a->to == to);
}

/* Another context of the GPU may reach it all the same. */
static void drop(struct access *a)
{
	LIST_TAKE(accesses, a);
	if (!(peers_of(a->to) & 1u << a->from->device))
		uvm_revoke_context(a->to, a->from->device);
	free(a);
}

/* A context ends. */
void peers_forget(const struct ctx *ctx)
{
	struct access *a;

	while ((a = LIST_FIND(a, accesses, a->from == ctx || a->to == ctx)))
		drop(a);
}

static int enable(const struct ctx *from, const struct ctx *to, unsigned int flags)
{
	struct access *a;
	int result;

	if (flags)
		return CU_INVALID_VALUE;
	if (!to || !ctx_alive(to))
		return CU_INVALID_CONTEXT;
	if (!rm_mode() || from->device == to->device)
		return CU_PEER_UNSUPPORTED;
	if (find(from, to))
		return CU_PEER_ALREADY;
	a = malloc(sizeof(*a));
	if (!a)
		return CU_OUT_OF_MEMORY;
	*a = (struct access){ .next = accesses, .from = from, .to = to };
	accesses = a;
	result = uvm_grant_context(to, from->device);
	if (result)
		drop(a);
	return result;
}

SIM_CALL_CTX(cuCtxEnablePeerAccess, (struct ctx *to, unsigned int flags), enable(current_ctx(), to, flags))

static int disable(const struct ctx *from, const struct ctx *to)
{
	struct access *a = find(from, to);

	if (!a)
		return CU_PEER_NOT;
	drop(a);
	return CU_OK;
}

SIM_CALL_CTX(cuCtxDisablePeerAccess, (struct ctx *to), disable(current_ctx(), to))

/* On the simulated driver all do. */
SIM_CALL(cuDeviceCanAccessPeer, (int *can, int device, int peer),
	 !can ? CU_INVALID_VALUE : check_device(device) ?: check_device(peer) ?: GIVE(can, rm_mode() && device != peer))
