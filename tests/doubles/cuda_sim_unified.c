// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: what else the CUDA runtime and UCX need. Test code.
 */
#include "cuda_sim.h"

#define PITCH 512u	/* rows of cuMemAllocPitch begin at multiples of it */

int cuMemAlloc_v2(uint64_t *addr, size_t size);

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

/* No advice is modelled: each range is as if it had been given none. */
static int range_attribute(void *data, size_t size, int attr)
{
	enum { READ_MOSTLY = 1, ACCESSED_BY = 3, LAST = 8, NO_DEVICE = -2 };
	bool type = attr == 5 || attr == 7;	/* of the preferred location, of the last prefetch */
	int *v = data;

	if (!data || attr < READ_MOSTLY || attr > LAST || !size || size % sizeof(*v) ||
	    (attr != ACCESSED_BY && size != sizeof(*v)))
		return CU_INVALID_VALUE;
	while (size) {
		size -= sizeof(*v);
		v[size / sizeof(*v)] = attr == READ_MOSTLY || type ? 0 : NO_DEVICE;
	}
	return CU_OK;
}

/* Managed memory alone has them. */
SIM_CALL(cuMemRangeGetAttribute, (void *data, size_t size, int attr, uint64_t addr, size_t count),
	 count && host_managed(addr, count) ? range_attribute(data, size, attr) : CU_INVALID_VALUE)

static int range_attributes(void **data, const size_t *sizes, const int *attrs, size_t n, uint64_t addr, size_t count)
{
	int result = CU_OK;

	if (!data || !sizes || !attrs || !n || !count || !host_managed(addr, count))
		return CU_INVALID_VALUE;
	for (size_t i = 0; !result && i < n; i++)
		result = range_attribute(data[i], sizes[i], attrs[i]);
	return result;
}

SIM_CALL(cuMemRangeGetAttributes, (void **data, size_t *sizes, int *attrs, size_t n, uint64_t addr,
	 size_t count),
	 range_attributes(data, sizes, attrs, n, addr, count))
