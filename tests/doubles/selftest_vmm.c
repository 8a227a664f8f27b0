// SPDX-License-Identifier: MIT
/* Self-tests of the simulated libcuda: virtual memory management. */
#include "selftest.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct want want_on(int dev, int handle_types)
{
	return (struct want){ .type = 1, .handle_types = handle_types, .place = { 1, dev } };
}

struct vmm vmm_make(int dev, size_t size, int handle_types)
{
	struct grant g = { { 1, dev }, 3 };
	struct want w = want_on(dev, handle_types);
	struct vmm v = { .size = size };

	IS(cuMemCreate(&v.handle, size, &w, 0), 0);
	IS(cuMemAddressReserve(&v.addr, size, 0, 0, 0), 0);
	IS(cuMemMap(v.addr, size, 0, v.handle, 0), 0);
	IS(cuMemSetAccess(v.addr, size, &g, 1), 0);
	return v;
}

void vmm_free(struct vmm *v)
{
	IS(cuMemUnmap(v->addr, v->size), 0);
	IS(cuMemAddressFree(v->addr, v->size), 0);
	IS(cuMemRelease(v->handle), 0);
}

/* An int leaves the upper half as it was. */
cu_ptr attribute(int which, cu_ptr p)
{
	const uint32_t before = 0x5a5a5a5a;
	cu_ptr v = (cu_ptr)before << 32 | before;

	IS(cuPointerGetAttribute(&v, which, p), 0);
	return v >> 32 == before ? (uint32_t)v : v;
}

static void test_create(void)
{
	struct want w = want_on(0, 1), bad;
	uint64_t h;
	size_t g;

	IS(cuMemGetAllocationGranularity(&g, &w, 0), 0);
	IS(g, 2 * MIB);
	IS(cuMemGetAllocationGranularity(&g, &w, 2), 1);
	IS(cuMemGetAllocationGranularity(NULL, &w, 0), 1);
	IS(cuMemGetAllocationGranularity(&g, NULL, 0), 1);
	IS(cuMemCreate(&h, 2 * MIB + 4096, &w, 0), 1);
	IS(cuMemCreate(&h, 0, &w, 0), 1);
	IS(cuMemCreate(&h, 2 * MIB, &w, 1), 1);
	IS(cuMemCreate(NULL, 2 * MIB, &w, 0), 1);
	IS(cuMemCreate(&h, 2 * MIB, NULL, 0), 1);
	IS(cuMemCreate(&h, 1ull << 50, &w, 0), 2);
	bad = w;
	bad.type = 0;
	g = 0;
	IS(cuMemGetAllocationGranularity(&g, &bad, 1), 0);
	IS(g, 2 * MIB);
	IS(cuMemCreate(&h, 2 * MIB, &bad, 0), 1);
	bad = want_on(4, 1);
	IS(cuMemCreate(&h, 2 * MIB, &bad, 0), 101);
	bad = want_on(0, 8);
	IS(cuMemCreate(&h, 2 * MIB, &bad, 0), 801);
	bad = w;
	bad.zero[1] = 1;
	IS(cuMemCreate(&h, 2 * MIB, &bad, 0), 1);
	IS(cuMemCreate(&h, 2 * MIB, &w, 0), 0);
	memset(&bad, 0xff, sizeof(bad));
	IS(cuMemGetAllocationPropertiesFromHandle(&bad, h), 0);
	IS(memcmp(&bad, &w, sizeof(w)), 0);
	IS(cuMemRelease(h), 0);
	IS(cuMemRelease(h), 1);
	IS(cuMemGetAllocationPropertiesFromHandle(&bad, h), 1);
}

static void test_reserve(void)
{
	cu_ptr p, q;

	IS(cuMemAddressReserve(&p, 4096, 0, 0, 0), 1);
	IS(cuMemAddressReserve(&p, 2 * MIB, 3, 0, 0), 1);
	IS(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 1), 1);
	IS(cuMemAddressReserve(&p, 4 * MIB, 64 * MIB, 0, 0), 0);
	IS(p % (64 * MIB), 0);
	IS(cuMemAddressReserve(&q, 2 * MIB, 0, p + 8 * MIB, 0), 0);
	TRUE(q == p + 8 * MIB);
	IS(cuMemAddressFree(p, 2 * MIB), 1);
	IS(cuMemAddressFree(p + 2 * MIB, 2 * MIB), 1);
	IS(cuMemAddressFree(p, 4 * MIB), 0);
	IS(cuMemAddressFree(p, 4 * MIB), 1);
	IS(cuMemAddressFree(q, 2 * MIB), 0);
}

static void test_map(void)
{
	struct grant rw = { { 1, 0 }, 3 }, ro = { { 1, 0 }, 1 }, other = { { 1, 1 }, 3 };
	struct want w = want_on(0, 1);
	uint64_t h[2], again;
	cu_ptr p, base;
	size_t size;
	char c[2] = "x";
	int v;

	IS(cuMemCreate(&h[0], 2 * MIB, &w, 0), 0);
	IS(cuMemCreate(&h[1], 4 * MIB, &w, 0), 0);
	IS(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0), 0);
	IS(cuPointerGetAttribute(&v, 2, p), 1);
	IS(cuMemMap(p, 2 * MIB, 4096, h[0], 0), 1);
	IS(cuMemMap(p, 2 * MIB, 0, h[0], 1), 1);
	IS(cuMemMap(p + 4096, 2 * MIB, 0, h[0], 0), 1);
	IS(cuMemMap(p, 4 * MIB, 0, h[0], 0), 1);
	IS(cuMemMap(p + 8 * MIB, 2 * MIB, 0, h[0], 0), 1);
	IS(cuMemMap(p, 2 * MIB, 0, 12345, 0), 1);
	IS(cuMemMap(p, 2 * MIB, 0, h[0], 0), 0);
	IS(cuMemMap(p, 2 * MIB, 0, h[0], 0), 1);
	IS(cuMemMap(p + 2 * MIB, 4 * MIB, 0, h[1], 0), 0);
	IS(cuMemGetAddressRange_v2(&base, &size, p + 3 * MIB), 0);
	TRUE(base == p + 2 * MIB && size == 4 * MIB);
	/* No access before it is given. */
	IS(cuMemcpyHtoD_v2(p, c, 1), 1);
	IS(cuMemcpyDtoH_v2(c, p, 1), 1);
	IS(cuMemSetAccess(p, 4 * MIB, &rw, 1), 1);
	IS(cuMemSetAccess(p, 2 * MIB, &rw, 0), 1);
	IS(cuMemSetAccess(p, 8 * MIB, &rw, 1), 1);
	IS(cuMemSetAccess(p, 2 * MIB, &other, 1), 0);
	IS(cuMemcpyHtoD_v2(p, c, 1), 1);
	IS(cuMemSetAccess(p, 2 * MIB, &ro, 1), 0);
	IS(cuMemcpyHtoD_v2(p, c, 1), 1);
	IS(cuMemcpyDtoH_v2(c, p, 1), 0);
	IS(cuMemcpyDtoH_v2(c, p + 2 * MIB - 1, 2), 1);
	IS(cuMemSetAccess(p, 6 * MIB, &rw, 1), 0);
	/* The range is the reservation, the mapping one object's. */
	IS(attribute(11, p + 3 * MIB), p);
	IS(attribute(12, p + 3 * MIB), 8 * MIB);
	IS(attribute(19, p + 3 * MIB), p + 2 * MIB);
	IS(attribute(18, p + 3 * MIB), 4 * MIB);
	TRUE(attribute(20, p) != attribute(20, p + 3 * MIB));
	/* One copy over both mappings. */
	IS(cuMemcpyHtoD_v2(p + 2 * MIB - 1, "ab", 2), 0);
	IS(cuMemcpyDtoH_v2(c, p + 2 * MIB - 1, 2), 0);
	IS(memcmp(c, "ab", 2), 0);
	IS(cuMemFree_v2(p), 1);
	/* Handles: released while mapped, and retained again. */
	IS(cuMemRelease(h[0]), 0);
	IS(cuMemRelease(h[0]), 1);
	IS(cuMemRetainAllocationHandle(&again, (void *)(p + 9)), 0);
	IS(again, h[0]);
	IS(cuMemRetainAllocationHandle(&again, (void *)(p + 6 * MIB)), 1);
	IS(cuMemUnmap(p, 4 * MIB), 1);
	IS(cuMemUnmap(p, 8 * MIB), 1);
	IS(cuMemUnmap(p + 4096, 2 * MIB), 1);
	IS(cuMemAddressFree(p, 8 * MIB), 1);
	IS(cuMemUnmap(p, 6 * MIB), 0);
	IS(cuMemUnmap(p, 6 * MIB), 1);
	/* The memory lives on in the handle. */
	IS(cuMemMap(p, 2 * MIB, 0, h[0], 0), 0);
	IS(cuMemSetAccess(p, 2 * MIB, &rw, 1), 0);
	IS(cuMemcpyDtoH_v2(c, p + 2 * MIB - 1, 1), 0);
	IS(c[0], 'a');
	IS(cuMemUnmap(p, 2 * MIB), 0);
	IS(cuMemAddressFree(p, 8 * MIB), 0);
	IS(cuMemRelease(h[0]), 0);
	IS(cuMemRelease(h[1]), 0);
}

static void test_share(void)
{
	struct grant rw = { { 1, 0 }, 3 };
	struct vmm v = vmm_make(0, 2 * MIB, 1), plain = vmm_make(0, 2 * MIB, 0);
	uint64_t h;
	cu_ptr p, small;
	int fd = -1;
	char c = 0;

	IS(cuMemExportToShareableHandle(&fd, plain.handle, 1, 0), 1);
	IS(cuMemExportToShareableHandle(&fd, v.handle, 2, 0), 1);
	IS(cuMemExportToShareableHandle(&fd, v.handle, 1, 1), 1);
	IS(cuMemExportToShareableHandle(&fd, 99, 1, 0), 1);
	IS(cuMemExportToShareableHandle(&fd, v.handle, 1, 0), 0);
	IS(fcntl(fd, F_GETFD), 0);
	IS(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)STDIN_FILENO, 1), 1);
	IS(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 2), 1);
	IS(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, 1), 0);
	TRUE(h != v.handle);
	close(fd);
	IS(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0), 0);
	IS(cuMemMap(p, 2 * MIB, 0, h, 0), 0);
	IS(cuMemSetAccess(p, 2 * MIB, &rw, 1), 0);
	IS(cuMemcpyHtoD_v2(v.addr + 77, "s", 1), 0);
	IS(cuMemcpyDtoH_v2(&c, p + 77, 1), 0);
	IS(c, 's');
	IS(cuMemUnmap(p, 2 * MIB), 0);
	IS(cuMemAddressFree(p, 2 * MIB), 0);
	IS(cuMemRelease(h), 0);
	IS(cuMemAlloc_v2(&small, 8192), 0);
	IS(cuMemRetainAllocationHandle(&h, (void *)small), 1);
	IS(cuMemFree_v2(small), 0);
	vmm_free(&v);
	vmm_free(&plain);
}

void test_vmm(void)
{
	test_create();
	test_reserve();
	test_map();
	test_share();
}
