// SPDX-License-Identifier: MIT
/* Simulated libcuda: address ranges as dma-bufs. Test code. */
#include "cuda_sim.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

bool dmabuf_supported(int device)
{
	bool otherwise = rm_mode() ? rm_shares(device) && !rm_is_system(device) : !kernel_mode();

	return device_flag("CUDA_SIM_DMABUF", device, otherwise);
}

/*
 * The buffer that the range begins in. As in the real driver the range may end past the
 * buffer, but not past the object, which small buffers share; and it may not begin in
 * free space of the object.
 */
static struct buffer *range_buffer(uint64_t addr, uint64_t size)
{
	struct buffer *b = buffer_find(addr);
	uint64_t offset = b ? b->offset + addr - b->addr : 0;

	return b && size <= b->mem->size && offset <= b->mem->size - size ? b : NULL;
}

/* For pool memory the real driver makes a request that fails. */
static int export_by_driver(const struct buffer *b, uint64_t offset, uint64_t size, int *fd)
{
	uint64_t claimed = b->chunk && b->chunk->pool ? size - offset : size;

	if (b->import)
		return CU_INVALID_VALUE;
	return rm_export_range(b->mem, offset, size, claimed, dmabuf_mmap(b->mem->device), fd);
}

static int export_range(void *out, uint64_t addr, size_t size, int type, uint64_t flags)
{
	uint64_t mask = (uint64_t)getpagesize() - 1, offset;
	const struct buffer *b;
	int fd, result;

	if (!out || !size || (addr | size) & mask || type != 1 || flags > 1)
		return CU_INVALID_VALUE;
	b = range_buffer(addr, size);
	if (!b)
		return CU_INVALID_VALUE;
	if (!dmabuf_supported(b->mem->device))
		return CU_NOT_SUPPORTED;
	offset = b->offset + addr - b->addr;
	if (rm_mode())
		result = export_by_driver(b, offset, size, &fd);
	else if (kernel_mode())
		result = kernel_export(b->mem->kernel, offset, size, &fd);
	else if (!dmabuf_mmap(b->mem->device))
		result = dead_fd(&fd);
	else
		result = mem_export(b->mem, offset, size, &fd);
	if (!result)
		memcpy(out, &fd, sizeof(fd));
	return result;
}

static _Atomic uint64_t last_flags;

SIM_API unsigned long cuda_sim_export_flags(void)
{
	return atomic_load(&last_flags);
}

SIM_API int cuMemGetHandleForAddressRange(void *out, uint64_t addr, size_t size, int type, uint64_t flags)
{
	int result;

	strict_ask(__func__, addr, 1, CALLER);
	result = enter_ctx(__func__);
	if (result)
		return result;
	atomic_store(&last_flags, flags);
	return leave(export_range(out, addr, size, type, flags));
}
