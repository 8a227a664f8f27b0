// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: memory of another process by cuIpc. Test code.
 *
 * The words of a handle are where the real one has them (580.159, seen on an H200). As in
 * the real driver, opened memory cannot be exported.
 */
#include "cuda_sim.h"

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
	if (!h || !b || b->handle || b->imported || (b->chunk && b->chunk->pool))
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

SIM_CALL_CTX(cuIpcGetMemHandle, (struct ipc_handle *h, uint64_t addr), get_handle(h, addr))

static int open_handle(struct ctx *ctx, uint64_t *addr, const struct ipc_handle *h)
{
	struct buffer *b;
	struct mem *m;
	int result;

	if (!rm_mode())
		return CU_NOT_SUPPORTED;
	if (h->pid == (uint32_t)getpid())
		return CU_INVALID_CONTEXT;
	m = mem_import_shared(h->client, h->object, &result);
	if (!m)
		return result;
	if (m->device != ctx->device || h->offset > m->size || h->size > m->size - h->offset) {
		mem_put(m);
		return CU_INVALID_VALUE;
	}
	result = va_take((m->size + GRANULARITY - 1) / GRANULARITY * GRANULARITY, GRANULARITY, 0,
			 false, addr);
	if (result) {
		mem_put(m);
		return result;
	}
	b = buffer_add(*addr + h->offset, h->size, m, h->offset);
	mem_put(m);
	if (!b) {
		va_release(*addr);
		return CU_OUT_OF_MEMORY;
	}
	*addr = b->addr;
	b->imported = true;
	b->ctx = ctx;
	b->readers = b->writers = ~0u;
	return CU_OK;
}

/* flags: lazy peer access */
SIM_CALL_CTX(cuIpcOpenMemHandle_v2, (uint64_t *addr, struct ipc_handle h, unsigned int flags),
	     addr && flags == 1 ? open_handle(current_ctx(), addr, &h) : CU_INVALID_VALUE)

/* Also called when the context ends. */
void ipc_close(struct buffer *b)
{
	uint64_t start = b->addr - b->offset;

	flush();
	buffer_drop(b);
	va_release(start);
}

static int close_handle(uint64_t addr)
{
	struct buffer *b = buffer_find(addr);

	if (!b || !b->imported || b->addr != addr)
		return CU_INVALID_VALUE;
	ipc_close(b);
	return CU_OK;
}

SIM_CALL_CTX(cuIpcCloseMemHandle, (uint64_t addr), close_handle(addr))
