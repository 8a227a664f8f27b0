// SPDX-License-Identifier: MIT
/*
 * Self-tests of what UCX and libfabric ask of libcuda: pools, batches of copies, ranges of
 * managed memory, IDs of contexts, host memory with flags, variables of modules.
 */
#include "selftest.h"

#include <string.h>

struct pool_props {
	int type, handle_types;
	struct place place;
	void *win32;
	size_t max;
	uint8_t zero[56];
};

struct batch_attr {
	int order;
	struct place src, dst;
	unsigned int flags;
};

int cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags);
int cuCtxGetId(cu_ctx ctx, uint64_t *id);
int cuMemHostAlloc(void **p, size_t size, unsigned int flags);
int cuMemAllocManaged(cu_ptr *p, size_t size, unsigned int flags);
int cuMemRangeGetAttribute(void *data, size_t size, int attr, cu_ptr p, size_t n);
int cuMemRangeGetAttributes(void **data, size_t *sizes, int *attrs, size_t count, cu_ptr p, size_t n);
int cuMemcpyBatchAsync(cu_ptr *dsts, cu_ptr *srcs, size_t *sizes, size_t count, struct batch_attr *attrs, size_t *firsts,
		       size_t nr_attrs, size_t *failed, void *stream);
int cuMemcpyBatchAsync_v2(cu_ptr *dsts, cu_ptr *srcs, size_t *sizes, size_t count, struct batch_attr *attrs, size_t *firsts,
			  size_t nr_attrs, void *stream);
int cuModuleGetGlobal_v2(cu_ptr *p, size_t *size, void *module, const char *name);
int cuLibraryGetGlobal(cu_ptr *p, size_t *size, void *library, const char *name);
int cuMemAllocAsync(cu_ptr *p, size_t size, void *stream);
int cuMemAllocFromPoolAsync(cu_ptr *p, size_t size, void *pool, void *stream);
int cuMemFreeAsync(cu_ptr p, void *stream);
int cuMemPoolCreate(void **pool, const struct pool_props *props);
int cuMemPoolDestroy(void *pool);
int cuMemPoolSetAccess(void *pool, const struct grant *map, size_t n);
int cuMemPoolExportToShareableHandle(void *handle, void *pool, int type, uint64_t flags);
int cuMemPoolImportFromShareableHandle(void **pool, void *handle, int type, uint64_t flags);
int cuMemPoolExportPointer(void *data, cu_ptr p);
int cuMemPoolImportPointer(cu_ptr *p, void *pool, void *data);

#define HOST(p) ((cu_ptr)(uintptr_t)(p))
#define PER_THREAD ((void *)2)
#define ANY 3	/* order of accesses */

static void test_old_name(void)
{
	void *fn = NULL;

	IS(cuGetProcAddress("cuMemAlloc", &fn, 11030, 0), 0);
	TRUE(fn != NULL);
	IS(cuGetProcAddress("cuNothing", &fn, 11030, 0), 500);
	IS(cuGetProcAddress(NULL, &fn, 11030, 0), 1);
}

/* An ID is never used again, though the primary context is. */
static void test_ids(void)
{
	uint64_t own, other, id;
	cu_ctx now, made, primary;

	IS(cuCtxGetCurrent(&now), 0);
	IS(cuCtxGetId(NULL, &own), 0);
	IS(cuCtxGetId(now, &id), 0);
	TRUE(id == own);
	IS(cuCtxGetId(now, NULL), 1);
	IS(cuCtxGetId((cu_ctx)&own, &id), 201);
	IS(cuCtxCreate_v2(&made, 0, 0), 0);
	IS(cuCtxGetId(NULL, &other), 0);
	TRUE(other != own);
	IS(cuCtxDestroy_v2(made), 0);
	IS(cuCtxGetId(made, &id), 709);
	IS(cuCtxSetCurrent(NULL), 0);
	IS(cuCtxGetId(NULL, &id), 201);
	IS(cuDevicePrimaryCtxRetain(&primary, 1), 0);
	IS(cuCtxGetId(primary, &own), 0);
	IS(cuDevicePrimaryCtxRelease_v2(1), 0);
	IS(cuCtxGetId(primary, &id), 709);
	IS(cuDevicePrimaryCtxRetain(&primary, 1), 0);
	IS(cuCtxGetId(primary, &other), 0);
	TRUE(other != own);
	IS(cuDevicePrimaryCtxReset_v2(1), 0);
	IS(cuCtxGetId(primary, &id), 709);
	IS(cuDevicePrimaryCtxRelease_v2(1), 0);
	IS(cuCtxSetCurrent(now), 0);
}

static void test_host(void)
{
	cu_ptr d;
	void *p;

	IS(cuMemHostAlloc(&p, 100, 7), 0);
	memset(p, 1, 100);
	IS(cuMemHostGetDevicePointer_v2(&d, p, 0), 0);
	TRUE(d == HOST(p));
	IS(cuMemFreeHost(p), 0);
	IS(cuMemFreeHost(p), 1);
	IS(cuMemHostAlloc(&p, 100, 8), 1);
	IS(cuMemHostAlloc(&p, 0, 0), 1);
	IS(cuMemHostAlloc(NULL, 100, 0), 1);
}

static void test_ranges(void)
{
	int v[3] = { 7, 7, 7 }, mostly = 7, attrs[] = { 1, 3 };
	void *data[] = { &mostly, v };
	size_t sizes[] = { sizeof(mostly), sizeof(v) };
	cu_ptr m, d;

	IS(cuMemAllocManaged(&m, 2 * PAGE, 1), 0);
	IS(cuMemAlloc_v2(&d, PAGE), 0);
	IS(cuMemRangeGetAttribute(v, 4, 2, m, 2 * PAGE), 0);
	IS(v[0], -2);
	IS(v[1], 7);
	IS(cuMemRangeGetAttribute(v, 4, 5, m + PAGE, PAGE), 0);
	IS(v[0], 0);
	IS(cuMemRangeGetAttributes(data, sizes, attrs, 2, m, PAGE), 0);
	TRUE(mostly == 0 && v[0] == -2 && v[1] == -2 && v[2] == -2);
	IS(cuMemRangeGetAttribute(v, 8, 2, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 0, 3, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 6, 3, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 4, 0, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 4, 9, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(NULL, 4, 2, m, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 4, 2, m, 0), 1);
	IS(cuMemRangeGetAttribute(v, 4, 2, m, 2 * PAGE + 1), 1);
	IS(cuMemRangeGetAttribute(v, 4, 2, d, PAGE), 1);
	IS(cuMemRangeGetAttribute(v, 4, 2, HOST(v), 4), 1);
	IS(cuMemRangeGetAttributes(data, sizes, attrs, 0, m, PAGE), 1);
	IS(cuMemFree_v2(d), 0);
	IS(cuMemFree_v2(m), 0);
}

/* There and back in one batch each. Nothing is copied where one copy cannot be made. */
static void test_batches(void)
{
	struct batch_attr attrs[2] = { { .order = 1 }, { .order = ANY, .flags = 1 } };
	size_t firsts[2] = { 0, 1 }, sizes[2] = { 8, 16 }, failed = 5;
	char sent[24], got[24] = { 0 };
	cu_ptr d, there[2], here[2], back[2];
	void *stream, *graph;

	memset(sent, 0x3c, sizeof(sent));
	IS(cuMemAlloc_v2(&d, sizeof(sent)), 0);
	IS(cuMemsetD8_v2(d, 0, sizeof(sent)), 0);
	IS(cuStreamCreate(&stream, 1), 0);
	for (int i = 0; i < 2; i++) {
		there[i] = d + (i ? 8 : 0);
		here[i] = HOST(sent + (i ? 8 : 0));
		back[i] = HOST(got + (i ? 8 : 0));
	}
	sizes[1] = 17;
	IS(cuMemcpyBatchAsync(there, here, sizes, 2, attrs, firsts, 2, &failed, stream), 1);
	IS(failed, 1);
	sizes[1] = 16;
	IS(cuMemcpyBatchAsync(back, there, sizes, 2, attrs, firsts, 2, &failed, PER_THREAD), 0);
	IS(cuCtxSynchronize(), 0);
	IS(got[0], 0);
	IS(cuStreamBeginCapture_v2(stream, 0), 0);
	IS(cuMemcpyBatchAsync_v2(there, here, sizes, 2, attrs, firsts, 1, stream), 0);
	IS(cuStreamEndCapture(stream, &graph), 0);
	IS(cuGraphDestroy(graph), 0);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, stream), 0);
	IS(cuStreamSynchronize(stream), 0);
	IS(got[0], 0);
	IS(cuMemcpyBatchAsync_v2(there, here, sizes, 2, attrs, firsts, 1, stream), 0);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 2, stream), 0);
	IS(cuStreamSynchronize(stream), 0);
	TRUE(memcmp(sent, got, sizeof(sent)) == 0);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, NULL), 1);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, (void *)1), 1);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, (void *)64), 400);
	IS(cuMemcpyBatchAsync(back, there, sizes, 0, attrs, firsts, 0, &failed, stream), 1);
	TRUE(failed == SIZE_MAX);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 1, attrs, firsts, 2, stream), 1);
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 0, stream), 1);
	attrs[0].order = 0;
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, stream), 1);
	attrs[0].order = 1;
	firsts[0] = 1;
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, stream), 1);
	firsts[0] = firsts[1] = 0;
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 2, stream), 1);
	sizes[0] = 0;
	IS(cuMemcpyBatchAsync_v2(back, there, sizes, 2, attrs, firsts, 1, stream), 1);
	IS(cuStreamDestroy_v2(stream), 0);
	IS(cuMemFree_v2(d), 0);
}

static void test_globals(void)
{
	char module;
	size_t size;
	cu_ptr p;

	IS(cuModuleGetGlobal_v2(&p, &size, &module, "x"), 400);
	IS(cuLibraryGetGlobal(&p, NULL, &module, "x"), 400);
	IS(cuModuleGetGlobal_v2(NULL, NULL, &module, "x"), 1);
	IS(cuLibraryGetGlobal(&p, &size, NULL, "x"), 1);
	IS(cuModuleGetGlobal_v2(&p, &size, &module, NULL), 1);
}

static void test_props(void)
{
	const struct pool_props good = { .type = 1, .place = { 1, 0 } };
	struct pool_props p = good;
	void *pool;

	IS(cuMemPoolCreate(NULL, &p), 1);
	IS(cuMemPoolCreate(&pool, NULL), 1);
	p.type = 0;
	IS(cuMemPoolCreate(&pool, &p), 1);
	p = good;
	p.place.type = 2;
	IS(cuMemPoolCreate(&pool, &p), 1);
	p = good;
	p.place.id = 8;
	IS(cuMemPoolCreate(&pool, &p), 1);
	p = good;
	p.zero[55] = 1;
	IS(cuMemPoolCreate(&pool, &p), 1);
	p = good;
	p.handle_types = 8;
	IS(cuMemPoolCreate(&pool, &p), 801);
}

static void test_access(void *pool)
{
	struct grant g[2] = { { { 1, 0 }, 3 }, { { 1, 1 }, 0 } };

	IS(cuMemPoolSetAccess(pool, g, 2), 0);
	IS(cuMemPoolSetAccess(pool, g, 0), 1);
	IS(cuMemPoolSetAccess(pool, NULL, 1), 1);
	IS(cuMemPoolSetAccess(&g, g, 1), 1);
	g[0].flags = 0;	/* its own GPU keeps it */
	IS(cuMemPoolSetAccess(pool, g, 1), 1);
	g[1].flags = 3;	/* no GPU reaches another one's memory */
	IS(cuMemPoolSetAccess(pool, &g[1], 1), 1);
}

/* It is no pool that other processes may have. */
static void test_shared(void *pool, cu_ptr p)
{
	uint8_t data[64];
	void *other;
	int fd;

	IS(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0), 1);
	IS(cuMemPoolImportFromShareableHandle(&other, &fd, 1, 0), 1);
	IS(cuMemPoolExportPointer(data, p), 1);
	IS(cuMemPoolImportPointer(&p, pool, data), 1);
}

static void test_pools(void)
{
	const struct pool_props props = { .type = 1, .place = { 1, 0 }, .max = 3 * MIB };
	void *pool, *stream, *graph;
	int has, kinds;
	cu_ptr p, q;
	char c = 1;

	IS(cuDeviceGetAttribute(&has, 115, 0), 0);
	IS(cuDeviceGetAttribute(&kinds, 119, 0), 0);
	IS(kinds, 0);
	test_props();
	if (!has) {
		IS(cuMemPoolCreate(&pool, &props), 801);
		IS(cuMemAllocAsync(&p, 100, NULL), 801);
		return;
	}
	IS(cuMemPoolCreate(&pool, &props), 0);
	IS(cuMemAllocFromPoolAsync(&p, 2 * MIB, pool, NULL), 0);
	IS(cuMemAllocFromPoolAsync(&q, 2 * MIB, pool, NULL), 2);
	IS(cuMemAllocFromPoolAsync(&q, 0, pool, NULL), 1);
	IS(cuMemAllocFromPoolAsync(&q, 100, &c, NULL), 1);
	IS(cuMemAllocFromPoolAsync(&q, 100, pool, (void *)64), 400);
	IS(cuStreamCreate(&stream, 1), 0);
	IS(cuStreamBeginCapture_v2(stream, 0), 0);
	IS(cuMemAllocFromPoolAsync(&q, 100, pool, stream), 801);
	IS(cuStreamEndCapture(stream, &graph), 0);
	IS(cuGraphDestroy(graph), 0);
	IS(cuStreamDestroy_v2(stream), 0);
	test_access(pool);
	test_shared(pool, p);
	/* Memory of a destroyed pool stays. */
	IS(cuMemPoolDestroy(pool), 0);
	IS(cuMemPoolDestroy(pool), 1);
	IS(cuMemAllocFromPoolAsync(&q, 100, pool, NULL), 1);
	IS(cuMemcpyHtoD_v2(p, &c, 1), 0);
	IS(cuMemFreeAsync(p + 512, NULL), 1);
	IS(cuMemFreeAsync(p, NULL), 0);
	IS(cuMemFreeAsync(p, NULL), 1);
	IS(cuMemPoolCreate(&pool, &props), 0);
	IS(cuMemPoolDestroy(pool), 0);
}

void test_consumers(void)
{
	test_old_name();
	test_ids();
	test_host();
	test_ranges();
	test_batches();
	test_globals();
	test_pools();
}
