// SPDX-License-Identifier: MIT
/* Simulated libcuda: address ranges as dma-bufs. Test code. */
#include "cuda_sim.h"

#include <string.h>
#include <unistd.h>

bool dmabuf_supported(int device)
{
	return !kernel_mode() && device_flag("CUDA_SIM_DMABUF", device, true);
}

/*
 * The buffer that all of the range lies in, its first and last byte rounded
 * out to host pages: buffers of cuMemAlloc need not start or end on one.
 */
static struct buffer *range_buffer(uint64_t addr, uint64_t size)
{
	uint64_t mask = (uint64_t)getpagesize() - 1;
	struct buffer *b;

	for (b = buffer_first(); b; b = b->next) {
		uint64_t start = b->addr & ~mask;
		uint64_t len = ((b->addr + b->size + mask) & ~mask) - start;

		if (addr >= start && size <= len && addr - start <= len - size)
			return b;
	}
	return NULL;
}

static int export_range(void *out, uint64_t addr, size_t size, int type, uint64_t flags)
{
	uint64_t mask = (uint64_t)getpagesize() - 1;
	const struct buffer *b;
	int fd, result;

	if (!out || !size || (addr | size) & mask || type != 1 || flags > 1)
		return CU_INVALID_VALUE;
	b = range_buffer(addr, size);
	if (!b)
		return CU_INVALID_VALUE;
	if (!dmabuf_supported(b->mem->device))
		return CU_NOT_SUPPORTED;
	if (driver_version() < DMABUF_DRIVER_VERSION)
		result = dead_fd(&fd);
	else
		result = mem_export(b->mem, b->offset + addr - b->addr, size, &fd);
	if (!result)
		memcpy(out, &fd, sizeof(fd));
	return result;
}

SIM_API int cuMemGetHandleForAddressRange(void *out, uint64_t addr, size_t size, int type, uint64_t flags)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = export_range(out, addr, size, type, flags);
	leave();
	return result;
}
