// SPDX-License-Identifier: MIT
/* Simulated libcuda: pointer attributes. Test code. */
#include "cuda_sim.h"

#include <string.h>

enum {
	ATTR_CONTEXT = 1,
	ATTR_MEMORY_TYPE = 2,
	ATTR_DEVICE_POINTER = 3,
	ATTR_P2P_TOKENS = 5,
	ATTR_SYNC_MEMOPS = 6,
	ATTR_BUFFER_ID = 7,
	ATTR_IS_MANAGED = 8,
	ATTR_DEVICE_ORDINAL = 9,
	ATTR_LEGACY_IPC = 10,
	ATTR_RANGE_START = 11,
	ATTR_RANGE_SIZE = 12,
	ATTR_MAPPED = 13,
	ATTR_HANDLE_TYPES = 14,
	ATTR_RDMA_CAPABLE = 15,
	ATTR_MAPPING_SIZE = 18,
	ATTR_MAPPING_BASE = 19,
	ATTR_BLOCK_ID = 20,
};

/* The longest value that an attribute has. */
union value {
	uint64_t number;
	struct p2p_tokens tokens;
};

static int is(union value *v, uint64_t number)
{
	v->number = number;
	return CU_OK;
}

/* Host memory is known only if this library made it, and only its kind is known. */
static int get_host(union value *v, int attr, uint64_t addr)
{
	bool managed;

	if (!host_find(addr, &managed))
		return CU_INVALID_VALUE;
	switch (attr) {
	case ATTR_MEMORY_TYPE:
		return is(v, managed ? 2 : 1);
	case ATTR_IS_MANAGED:
		return is(v, managed);
	case ATTR_DEVICE_ORDINAL:
		v->number = 0;
		return managed ? CU_OK : CU_INVALID_VALUE;
	}
	return CU_INVALID_VALUE;
}

/*
 * Values are little-endian, so the low bytes are the short values. The range of VMM memory is the whole
 * reservation; its mapping is one object's (580.159 on an H200, 2026-11-22).
 */
static int get(union value *v, int attr, uint64_t addr)
{
	const struct buffer *b = buffer_find(addr);
	bool vmm = b && b->handle;

	if (!b)
		return get_host(v, attr, addr);
	switch (attr) {
	case ATTR_CONTEXT:
		/* That of cuMemAlloc's memory alone. */
		return is(v, b->chunk && b->chunk->pool ? 0 : (uintptr_t)b->ctx);
	case ATTR_MEMORY_TYPE:
		return is(v, 2);
	case ATTR_DEVICE_POINTER:
		return is(v, addr);
	case ATTR_P2P_TOKENS:
		if (vmm)
			return CU_INVALID_VALUE;
		v->tokens = b->mem->tokens;
		return CU_OK;
	case ATTR_SYNC_MEMOPS:
		return is(v, b->sync_memops);
	case ATTR_BUFFER_ID:
		return is(v, b->id);
	case ATTR_IS_MANAGED:
		return is(v, 0);
	case ATTR_DEVICE_ORDINAL:
		return is(v, (uint64_t)b->mem->device);
	case ATTR_LEGACY_IPC:
		return is(v, !vmm && !b->import && !(b->chunk && b->chunk->pool));
	case ATTR_RANGE_START:
		return is(v, vmm ? va_find(addr)->addr : b->addr);
	case ATTR_RANGE_SIZE:
		return is(v, vmm ? va_find(addr)->size : b->size);
	case ATTR_MAPPING_BASE:
		return is(v, b->addr - (vmm ? 0 : b->offset));
	case ATTR_MAPPING_SIZE:
		return is(v, vmm ? b->size : b->mem->size);
	case ATTR_BLOCK_ID:
		return is(v, b->mem->id);
	case ATTR_MAPPED:
		return is(v, 1);
	case ATTR_HANDLE_TYPES:
		return is(v, vmm ? (uint64_t)b->handle->prop.requested_handle_types : 0);
	case ATTR_RDMA_CAPABLE:
		return is(v, vmm ? b->handle->prop.gpu_direct_rdma : 1);
	}
	return CU_INVALID_VALUE;
}

/* The size of an attribute's value in bytes; 0 for an attribute that is not modelled. */
static size_t value_size(int attr)
{
	static const uint8_t sizes[] = {
		[ATTR_CONTEXT] = 8, [ATTR_MEMORY_TYPE] = 4, [ATTR_DEVICE_POINTER] = 8, [ATTR_P2P_TOKENS] = sizeof(struct p2p_tokens),
		[ATTR_SYNC_MEMOPS] = 4, [ATTR_BUFFER_ID] = 8, [ATTR_IS_MANAGED] = 4, [ATTR_DEVICE_ORDINAL] = 4,
		[ATTR_LEGACY_IPC] = 4, [ATTR_RANGE_START] = 8, [ATTR_RANGE_SIZE] = 8, [ATTR_MAPPED] = 4, [ATTR_HANDLE_TYPES] = 8,
		[ATTR_RDMA_CAPABLE] = 4, [ATTR_MAPPING_SIZE] = 8, [ATTR_MAPPING_BASE] = 8, [ATTR_BLOCK_ID] = 8,
	};

	if (attr < 0 || (size_t)attr >= sizeof(sizes) || (attr >= ATTR_MAPPING_SIZE && driver_version() < MAPPING_DRIVER_VERSION))
		return 0;
	return sizes[attr];
}

static int get_one(void *data, int attr, uint64_t addr)
{
	union value v;
	int result = data && value_size(attr) ? get(&v, attr, addr) : CU_INVALID_VALUE;

	if (!result)
		memcpy(data, &v, value_size(attr));
	return result;
}

SIM_QUESTION(enter, cuPointerGetAttribute, addr, (void *data, int attr, uint64_t addr), get_one(data, attr, addr))

/*
 * The memory may be freed while the driver reads what it is. Then its context is what lay in the
 * driver's memory (580.159.04: a fault in cuCtxPushCurrent, once in 100,000 pins beside frees, H200).
 */
static void get_context(union value *v, uint64_t addr)
{
	const struct buffer *b = buffer_find(addr);
	uint64_t id = b ? b->id : 0;
	bool happened = between_answers();

	b = buffer_find(addr);
	if (happened && id && (!b || b->id != id))
		is(v, (uintptr_t)&no_ctx);
	else if (get(v, ATTR_CONTEXT, addr))
		memset(v, 0, sizeof(*v));
}

static int get_all(unsigned int n, const int *attrs, void **data, uint64_t addr)
{
	unsigned int i;

	if (!n || !attrs || !data)
		return CU_INVALID_VALUE;
	for (i = 0; i < n; i++)
		if (!value_size(attrs[i]) || !data[i])
			return CU_INVALID_VALUE;
	for (i = 0; i < n; i++) {
		union value v;

		if (attrs[i] == ATTR_CONTEXT)
			get_context(&v, addr);
		else if (get(&v, attrs[i], addr))
			memset(&v, 0, sizeof(v));
		memcpy(data[i], &v, value_size(attrs[i]));
	}
	return CU_OK;
}

/*
 * This call gives zeroes for an address that is no device pointer. The call for one
 * attribute fails instead.
 */
SIM_QUESTION(enter, cuPointerGetAttributes, addr, (unsigned int n, int *attrs, void **data, uint64_t addr),
	 get_all(n, attrs, data, addr))

/*
 * Setting the attribute waits for pending copies. VMM memory does not have it (580.159.04
 * on an H200, read 2026-11-21). Memory of a pool has it (the same driver on an H100).
 */
static int set_sync_memops(const int *value, uint64_t addr)
{
	struct buffer *b = buffer_find(addr);

	if (!b || !value || (*value != 0 && *value != 1))
		return CU_INVALID_VALUE;
	if (b->handle)
		return CU_NOT_SUPPORTED;
	flush();
	b->sync_memops = *value;
	return CU_OK;
}

SIM_QUESTION(enter_ctx, cuPointerSetAttribute, addr, (const void *value, int attr, uint64_t addr),
	     attr == ATTR_SYNC_MEMOPS ? set_sync_memops(value, addr) : CU_INVALID_VALUE)
