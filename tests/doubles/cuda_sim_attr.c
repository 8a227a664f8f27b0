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

/* An attribute's value and how many bytes of it go to the caller. */
struct value {
	uint64_t v[2];
	size_t size;
};

static void set_value(struct value *val, uint64_t v, size_t size)
{
	val->v[0] = v;
	val->size = size;
}

static void tokens(struct value *val, const struct buffer *b)
{
	const struct p2p_tokens *t = b->chunk ? &b->chunk->tokens : &b->tokens;

	memcpy(val->v, t, sizeof(*t));
	val->size = sizeof(*t);
}

/* Host memory is known only if this library made it, and only its kind is known. */
static int get_host(struct value *val, int attr, uint64_t addr)
{
	bool managed;

	if (!host_find(addr, &managed))
		return CU_INVALID_VALUE;
	switch (attr) {
	case ATTR_MEMORY_TYPE:
		set_value(val, managed ? 2 : 1, sizeof(int));
		return CU_OK;
	case ATTR_IS_MANAGED:
		set_value(val, managed, sizeof(int));
		return CU_OK;
	case ATTR_DEVICE_ORDINAL:
		set_value(val, 0, sizeof(int));
		return managed ? CU_OK : CU_INVALID_VALUE;
	}
	return CU_INVALID_VALUE;
}

/*
 * Values are little-endian, so the low bytes are the short values. The range of VMM memory is the whole
 * reservation; its mapping is one object's (580.159 on an H200, 2026-11-22).
 */
static int get(struct value *val, int attr, uint64_t addr)
{
	const struct buffer *b = buffer_find(addr);
	bool vmm = b && b->handle;

	if (!b)
		return get_host(val, attr, addr);
	switch (attr) {
	case ATTR_CONTEXT:
		/* That of cuMemAlloc's memory alone. */
		set_value(val, b->chunk && b->chunk->pool ? 0 : (uintptr_t)b->ctx, sizeof(void *));
		return CU_OK;
	case ATTR_MEMORY_TYPE:
		set_value(val, 2, sizeof(int));
		return CU_OK;
	case ATTR_DEVICE_POINTER:
		set_value(val, addr, sizeof(uint64_t));
		return CU_OK;
	case ATTR_P2P_TOKENS:
		if (vmm)
			return CU_INVALID_VALUE;
		tokens(val, b);
		return CU_OK;
	case ATTR_SYNC_MEMOPS:
		set_value(val, b->sync_memops, sizeof(int));
		return CU_OK;
	case ATTR_BUFFER_ID:
		set_value(val, b->id, sizeof(uint64_t));
		return CU_OK;
	case ATTR_IS_MANAGED:
		set_value(val, 0, sizeof(int));
		return CU_OK;
	case ATTR_DEVICE_ORDINAL:
		set_value(val, (uint64_t)b->mem->device, sizeof(int));
		return CU_OK;
	case ATTR_LEGACY_IPC:
		set_value(val, !vmm && !b->imported && !(b->chunk && b->chunk->pool), sizeof(int));
		return CU_OK;
	case ATTR_RANGE_START:
		set_value(val, vmm ? va_find(addr)->addr : b->addr, sizeof(uint64_t));
		return CU_OK;
	case ATTR_RANGE_SIZE:
		set_value(val, vmm ? va_find(addr)->size : b->size, sizeof(size_t));
		return CU_OK;
	case ATTR_MAPPING_BASE:
		set_value(val, b->addr - (vmm ? 0 : b->offset), sizeof(uint64_t));
		return CU_OK;
	case ATTR_MAPPING_SIZE:
		set_value(val, vmm ? b->size : b->mem->size, sizeof(size_t));
		return CU_OK;
	case ATTR_BLOCK_ID:
		set_value(val, b->mem->id, sizeof(uint64_t));
		return CU_OK;
	case ATTR_MAPPED:
		set_value(val, 1, sizeof(int));
		return CU_OK;
	case ATTR_HANDLE_TYPES:
		set_value(val, vmm ? (uint64_t)b->handle->prop.requested_handle_types : 0,
			  sizeof(uint64_t));
		return CU_OK;
	case ATTR_RDMA_CAPABLE:
		set_value(val, vmm ? b->handle->prop.gpu_direct_rdma : 1, sizeof(int));
		return CU_OK;
	}
	return CU_INVALID_VALUE;
}

/* The size of an attribute's value in bytes; 0 for an attribute that is not modelled. */
static size_t value_size(int attr)
{
	switch (attr) {
	case ATTR_MEMORY_TYPE:
	case ATTR_SYNC_MEMOPS:
	case ATTR_IS_MANAGED:
	case ATTR_DEVICE_ORDINAL:
	case ATTR_LEGACY_IPC:
	case ATTR_MAPPED:
	case ATTR_RDMA_CAPABLE:
		return sizeof(int);
	case ATTR_CONTEXT:
	case ATTR_DEVICE_POINTER:
	case ATTR_BUFFER_ID:
	case ATTR_RANGE_START:
	case ATTR_RANGE_SIZE:
	case ATTR_HANDLE_TYPES:
		return sizeof(uint64_t);
	case ATTR_MAPPING_SIZE:
	case ATTR_MAPPING_BASE:
	case ATTR_BLOCK_ID:
		return driver_version() < MAPPING_DRIVER_VERSION ? 0 : sizeof(uint64_t);
	case ATTR_P2P_TOKENS:
		return sizeof(struct p2p_tokens);
	}
	return 0;
}

SIM_API int cuPointerGetAttribute(void *data, int attr, uint64_t addr)
{
	struct value val = { .size = 0 };
	int result = enter(__func__);

	if (result)
		return result;
	result = data && value_size(attr) ? get(&val, attr, addr) : CU_INVALID_VALUE;
	if (!result)
		memcpy(data, val.v, val.size);
	leave();
	return result;
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
		struct value val = { .size = 0 };

		if (get(&val, attrs[i], addr))
			memset(data[i], 0, value_size(attrs[i]));
		else
			memcpy(data[i], val.v, val.size);
	}
	return CU_OK;
}

/*
 * This call gives zeroes for an address that is no device pointer. The call for one
 * attribute fails instead.
 */
SIM_API int cuPointerGetAttributes(unsigned int n, int *attrs, void **data, uint64_t addr)
{
	int result = enter(__func__);

	if (result)
		return result;
	result = get_all(n, attrs, data, addr);
	leave();
	return result;
}

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

SIM_API int cuPointerSetAttribute(const void *value, int attr, uint64_t addr)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = attr == ATTR_SYNC_MEMOPS ? set_sync_memops(value, addr) : CU_INVALID_VALUE;
	leave();
	return result;
}
