// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: memory of another process by cuIpc. Test code.
 *
 * The words of a handle are where the real one has them (580.159, seen on an H200). As in
 * the real driver, opened memory cannot be exported.
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUipcMemHandle */
struct ipc_handle {
	uint32_t unknown[2];
	uint32_t pid;
	uint32_t unknown3;
	uint64_t size;		/* of the allocation */
	uint32_t unknown6;
	uint32_t offset;	/* of the allocation in the object */
	uint32_t unknown8[4];
	uint32_t client, object;
	uint32_t unknown14[2];
};

_Static_assert(sizeof(struct ipc_handle) == 64, "CUipcMemHandle");

struct differences differences;

/* From here on this driver differs from those that are known: it names other places and clients, by so much. */
SIM_API void cuda_sim_differ(uint32_t ipc_offset, uint32_t ipc_client, uint32_t export_offset)
{
	differences = (struct differences){ ipc_offset, ipc_client, export_offset };
}

static int get_handle(struct ipc_handle *h, uint64_t addr)
{
	struct buffer *b = buffer_find(addr);
	int result;

	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	if (!h || !b || b->handle || b->import || (b->chunk && b->chunk->pool))
		return CU_INVALID_VALUE;
	if (!rm_shares(b->mem->device))
		return CU_NOT_SUPPORTED;
	memset(h, 0, sizeof(*h));
	result = rm_share(b->mem, &h->client, &h->object);
	h->pid = (uint32_t)getpid();
	h->size = b->size;
	h->offset = (uint32_t)b->offset + differences.ipc_offset;
	h->client += differences.ipc_client;
	return result;
}

SIM_QUESTION(enter_ctx, cuIpcGetMemHandle, addr, (struct ipc_handle *h, uint64_t addr), get_handle(h, addr))

/* Another process's object, mapped once for each context, whatever parts of it are opened how often. */
struct import {
	struct import *next;
	uint32_t client, object;
	struct ctx *ctx;
	struct mem *mem;
	uint64_t addr;
	unsigned int buffers;
};

static struct import *imports;

static void import_drop(struct import *i)
{
	LIST_TAKE(imports, i);
	va_release(i->addr);
	mem_put(i->mem);
	free(i);
}

/* The GPU of the context maps it, whosever memory it is. */
static int import_map(struct import *i, const struct ipc_handle *h)
{
	const struct ctx *ctx = i->ctx;
	int result, device = rm_shared_device(h->client, h->object);

	if (device < 0)
		return CU_INVALID_VALUE;
	i->mem = mem_import_shared(device, h->client, h->object, &result);
	if (!i->mem)
		return result;
	result = h->offset > i->mem->size || h->size > i->mem->size - h->offset ? CU_INVALID_VALUE :
		 va_take(i->mem->size, GRANULARITY, false, &i->addr);
	if (result)
		goto fail_mem;
	result = uvm_begin(&(struct uvm){ .kind = UVM_ALONE, .addr = i->addr, .size = i->mem->size, .owner = device,
					  .object = i->mem->object }, 1u << ctx->device, NULL);
	if (!result)
		return CU_OK;
	va_release(i->addr);
fail_mem:
	mem_put(i->mem);
	return result;
}

static struct import *import_find(const struct ctx *ctx, const struct ipc_handle *h)
{
	return LIST_FIND(i, imports, i->ctx == ctx && i->client == h->client && i->object == h->object);
}

static int import_new(struct ctx *ctx, const struct ipc_handle *h, struct import **out)
{
	struct import *i = calloc(1, sizeof(*i));
	int result;

	if (!i)
		return CU_OUT_OF_MEMORY;
	*i = (struct import){ .client = h->client, .object = h->object, .ctx = ctx };
	result = import_map(i, h);
	if (result) {
		free(i);
		return result;
	}
	i->next = imports;
	imports = i;
	*out = i;
	return CU_OK;
}

static int open_handle(struct ctx *ctx, uint64_t *addr, const struct ipc_handle *h)
{
	struct import *i;
	struct buffer *b;
	int result;

	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	if (h->pid == (uint32_t)getpid())
		return CU_INVALID_CONTEXT;
	i = import_find(ctx, h);
	result = i ? CU_OK : import_new(ctx, h, &i);
	if (result)
		return result;
	b = buffer_find(i->addr + h->offset);
	if (b && (b->addr != i->addr + h->offset || b->size != h->size))
		return CU_INVALID_VALUE;
	if (!b) {
		b = buffer_add(i->addr + h->offset, h->size, i->mem, h->offset);
		if (!b) {
			if (!i->buffers && !mem_unmap(i->addr))
				import_drop(i);
			return CU_OUT_OF_MEMORY;
		}
		i->buffers++;
		b->import = i;
		b->ctx = ctx;
		b->readers = b->writers = ~0u;
	}
	b->opens++;
	*addr = b->addr;
	return CU_OK;
}

/* flags: lazy peer access */
SIM_CALL_CTX(cuIpcOpenMemHandle_v2, (uint64_t *addr, struct ipc_handle h, unsigned int flags),
	     addr && flags == 1 ? open_handle(current_ctx(), addr, &h) : CU_INVALID_VALUE)

/* Also called when the context ends. Nothing has changed if this fails. */
int ipc_close(struct buffer *b)
{
	struct import *i = b->import;
	int result = i->buffers == 1 ? mem_unmap(i->addr) : CU_OK;

	if (result)
		return result;
	flush();
	buffer_drop(b);
	if (!--i->buffers)
		import_drop(i);
	return CU_OK;
}

static int close_handle(uint64_t addr)
{
	struct buffer *b = buffer_find(addr);

	if (!b || !b->import || b->addr != addr)
		return CU_INVALID_VALUE;
	if (b->opens > 1) {
		b->opens--;
		return CU_OK;
	}
	return ipc_close(b);
}

SIM_CALL_CTX(cuIpcCloseMemHandle, (uint64_t addr), close_handle(addr))
