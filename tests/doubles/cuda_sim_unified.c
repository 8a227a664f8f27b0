// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: the calls that find out from the address whether memory is the
 * device's or the host's, and what else the CUDA runtime needs. Test code.
 */
#include "cuda_sim.h"

#include <string.h>

#define PITCH 512u	/* rows of cuMemAllocPitch begin at multiples of it */

int cuMemAlloc_v2(uint64_t *addr, size_t size);
int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t size);
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size);
int cuMemcpyDtoD_v2(uint64_t dst, uint64_t src, size_t size);
int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t size, struct stream *stream);
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t size, struct stream *stream);
int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t size, struct stream *stream);
int cuStreamSynchronize(struct stream *stream);
int cuCtxDestroy_v2(struct ctx *ctx);

/* Bit 0: dst is device memory; bit 1: src is. */
static int sides(const char *call, uint64_t dst, uint64_t src, size_t size, unsigned int *which)
{
	struct ctx *ctx;
	int result = enter_ctx(call, &ctx);

	if (result)
		return result;
	if ((!dst || !src) && size)
		result = CU_INVALID_VALUE;
	*which = va_is_device(dst, size) | (unsigned int)va_is_device(src, size) << 1;
	if (!*which && !result)
		flush();
	leave();
	return result;
}

static void *host(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

SIM_API int cuMemcpy(uint64_t dst, uint64_t src, size_t size)
{
	unsigned int which;
	int result = sides(__func__, dst, src, size, &which);

	if (result)
		return result;
	switch (which) {
	case 0:
		memmove(host(dst), host(src), size);
		return CU_OK;
	case 1:
		return cuMemcpyHtoD_v2(dst, host(src), size);
	case 2:
		return cuMemcpyDtoH_v2(host(dst), src, size);
	}
	return cuMemcpyDtoD_v2(dst, src, size);
}

SIM_API int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t size, struct stream *stream)
{
	unsigned int which;
	int result = sides(__func__, dst, src, size, &which);

	if (!result && which == 0)
		result = cuStreamSynchronize(stream);
	if (result)
		return result;
	switch (which) {
	case 0:
		memmove(host(dst), host(src), size);
		return CU_OK;
	case 1:
		return cuMemcpyHtoDAsync_v2(dst, host(src), size, stream);
	case 2:
		return cuMemcpyDtoHAsync_v2(host(dst), src, size, stream);
	}
	return cuMemcpyDtoDAsync_v2(dst, src, size, stream);
}

int cuMemAllocPitch_v2(uint64_t *addr, size_t *pitch, size_t width, size_t height,
		       unsigned int element) SIM_HOOKABLE(cuMemAllocPitch_v2);

int cuMemAllocPitch_v2(uint64_t *addr, size_t *pitch, size_t width, size_t height,
		       unsigned int element)
{
	size_t row = (width + PITCH - 1) / PITCH * PITCH;
	int result;

	if (!pitch || !width || !height || row < width || row > SIZE_MAX / height ||
	    (element != 4 && element != 8 && element != 16))
		return CU_INVALID_VALUE;
	result = cuMemAlloc_v2(addr, row * height);
	if (!result)
		*pitch = row;
	return result;
}

SIM_API int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	int result = enter(__func__);

	if (result)
		return result;
	result = can ? check_device(device) : CU_INVALID_VALUE;
	if (!result)
		result = check_device(peer);
	if (!result)
		*can = 0;
	leave();
	return result;
}

/* The old name of cuCtxDestroy, for a context without another user. */
SIM_API int cuCtxDetach(struct ctx *ctx)
{
	return cuCtxDestroy_v2(ctx);
}
