// SPDX-License-Identifier: MIT
/*
 * rm_memory.c - every kind of CUDA memory, pinned and mapped on the rm backend.
 *
 *	rm_memory [--long] [dmabuf]
 *
 * dmabuf: the dmabuf backend is chosen, and rm stands by. Runs on a real GPU and on
 * the simulated driver (tests/doubles, rm_sim). Bytes are checked both ways against
 * CUDA's own copies. --long: up to 80 GB, 100,000 cycles.
 */
#include "guest/cuda.h"

#define GIB (1024 * MIB)
#define PAGE GPU_PAGE_SIZE

static struct tap tap;
static struct cuda_dl cu;
static bool is_long, beside_dmabuf;

/* Calls that only this program makes; NULL where the driver lacks them. */
static int (*alloc_async)(cu_ptr *p, size_t size, void *stream);
static int (*free_async)(cu_ptr p, void *stream);
static int (*alloc_managed)(cu_ptr *p, size_t size, unsigned int flags);
static int (*alloc_host)(void **p, size_t size);
static int (*primary_reset)(int dev);
static int (*ipc_get)(void *handle, cu_ptr p);
static int (*mem_info)(size_t *free, size_t *total);

static void find_calls(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	alloc_async = dlsym(lib, "cuMemAllocAsync");
	free_async = dlsym(lib, "cuMemFreeAsync");
	alloc_managed = dlsym(lib, "cuMemAllocManaged");
	alloc_host = dlsym(lib, "cuMemAllocHost_v2");
	primary_reset = dlsym(lib, "cuDevicePrimaryCtxReset_v2");
	ipc_get = dlsym(lib, "cuIpcGetMemHandle");
	mem_info = dlsym(lib, "cuMemGetInfo_v2");
}

static void must(int result, const char *what)
{
	if (result == CU_OK)
		return;
	printf("Bail out! %s: %s\n", what, cuda_error(&cu, result));
	exit(1);
}

/* A pinned and mapped range. */
struct mapping {
	gdr_mh_t mh;
	void *va;
	size_t size;
	gdr_info_t info;
};

static int map_range(gdr_t g, struct mapping *m, cu_ptr addr, size_t size)
{
	int rc;

	*m = (struct mapping){ .size = size };
	rc = gdr_pin_buffer(g, addr, size, 0, 0, &m->mh);
	if (rc)
		return rc;
	rc = gdr_map(g, m->mh, &m->va, size);
	if (!rc)
		rc = gdr_get_info(g, m->mh, &m->info);
	if (rc)
		gdr_unpin_buffer(g, m->mh);
	return rc;
}

static int drop(gdr_t g, struct mapping *m)
{
	int rc = gdr_unmap(g, m->mh, m->va, m->size);
	int rc2 = gdr_unpin_buffer(g, m->mh);

	return rc ? rc : rc2;
}

/* Writes n bytes by the mapping and reads them by CUDA, and the other way. */
static bool both_ways(const struct mapping *m, cu_ptr addr, size_t n, unsigned int seed)
{
	unsigned char *out = malloc(n), *in = malloc(n);
	char *at = (char *)m->va + (addr - m->info.va);
	bool same = out && in;

	for (size_t i = 0; same && i < n; i++)
		out[i] = (unsigned char)(i * 13 + seed + (i >> 8));
	same = same && !gdr_copy_to_mapping(m->mh, at, out, n) && !cu.from_gpu(in, addr, n) &&
	       !memcmp(in, out, n);
	for (size_t i = 0; same && i < n; i++)
		out[i] ^= 0x5a;
	same = same && !cu.to_gpu(addr, out, n) && !cu.ctx_sync() &&
	       !gdr_copy_from_mapping(m->mh, in, at, n) && !memcmp(in, out, n);
	free(out);
	free(in);
	return same;
}

/* First, middle and last bytes of size bytes at addr, through pages around them. */
static int try_range(gdr_t g, cu_ptr addr, size_t size)
{
	cu_ptr first = addr & ~(PAGE - 1), end = (addr + size + PAGE - 1) & ~(PAGE - 1);
	size_t n = size < 4096 ? size : 4096;
	struct mapping m;
	bool same;
	int rc = map_range(g, &m, first, end - first);

	if (rc)
		return rc;
	same = both_ways(&m, addr, n, 1) && both_ways(&m, addr + (size - n) / 2, n, 2) &&
	       both_ways(&m, addr + size - n, n, 3);
	rc = drop(g, &m);
	return rc ? rc : same ? 0 : EIO;
}

static void is_zero(int rc, const char *call, size_t size)
{
	if (!tap_ok(&tap, rc == 0, "%s of %zu bytes", call, size))
		printf("# got %d (%s)\n", rc, strerror(rc));
}

static void plain(gdr_t g)
{
	static const size_t sizes[] = {
		1, 100, 1000, 4096, 64 * KIB, 100000, MIB, 3 * MIB, 4 * MIB + 4096, 64 * MIB, GIB,
		8 * GIB, 40 * GIB, 64 * GIB,
	};
	size_t room = 0, total = 0;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		cu_ptr p = 0;

		if (!is_long && sizes[i] > 64 * MIB)
			break;
		must(mem_info(&room, &total), "cuMemGetInfo");
		if (sizes[i] > room - room / 8) {
			printf("# %zu bytes: the GPU has %zu left\n", sizes[i], room);
			continue;
		}
		must(cu.mem_alloc(&p, sizes[i]), "cuMemAlloc");
		is_zero(try_range(g, p, sizes[i]), "cuMemAlloc", sizes[i]);
		must(cu.mem_free(p), "cuMemFree");
	}
}

/*
 * As UCX and libfabric do it: pages around a small buffer, its neighbours in them. With every,
 * each buffer but one of that many is freed, so that most pages begin in free space.
 */
static void windows(gdr_t g, const char *what, int every, int (*alloc)(cu_ptr *p, size_t size), int (*release)(cu_ptr p))
{
	enum { N = 300 };
	cu_ptr p[N];
	int bad = 0;

	for (int i = 0; i < N; i++)
		must(alloc(&p[i], 512 + 512 * (i % 5)), what);
	for (int i = 0; i < N; i++)
		if (i % every)
			must(release(p[i]), what);
	for (int i = 0; i < N; i += every)
		bad += try_range(g, p[i], 512) != 0;
	tap_ok(&tap, bad == 0, "64 KiB windows around small buffers of %s, one of %d left", what, every);
	for (int i = 0; i < N; i += every)
		must(release(p[i]), what);
}

static int from_pool(cu_ptr *p, size_t size)
{
	int result = alloc_async(p, size, NULL);

	return result ? result : cu.ctx_sync();
}

static int to_pool(cu_ptr p)
{
	int result = free_async(p, NULL);

	return result ? result : cu.ctx_sync();
}

/* A range is refused that no one object holds. */
static void past_the_end(gdr_t g)
{
	gdr_mh_t mh;
	cu_ptr a, b;

	must(cu.mem_alloc(&a, 4 * MIB), "cuMemAlloc");
	must(cu.mem_alloc(&b, 4 * MIB), "cuMemAlloc");
	tap_is(&tap, gdr_pin_buffer(g, a, 4 * MIB + PAGE, 0, 0, &mh), EINVAL, "a pin past the end");
	tap_is(&tap, gdr_pin_buffer(g, a < b ? a : b, 8 * MIB, 0, 0, &mh), EINVAL,
	       "a pin over two allocations of cuMemAlloc");
	tap_is(&tap, gdr_pin_buffer(g, a, 1 * GIB << 20, 0, 0, &mh), EINVAL, "a pin of 1 PiB");
	must(cu.mem_free(a), "cuMemFree");
	must(cu.mem_free(b), "cuMemFree");
}

static void unaligned(gdr_t g)
{
	gdr_info_t info;
	gdr_mh_t mh;
	void *va;
	cu_ptr p;

	must(cu.mem_alloc(&p, 4 * MIB), "cuMemAlloc");
	tap_is(&tap, gdr_pin_buffer(g, p + PAGE + 100, PAGE, 0, 0, &mh), 0, "a pin of an unaligned range");
	tap_is(&tap, gdr_get_info(g, mh, &info), 0, "its info");
	tap_ok(&tap, info.va == p + PAGE && info.mapped_size == 2 * PAGE && info.page_size == PAGE,
	       "va is rounded down, mapped_size up");
	tap_is(&tap, gdr_map(g, mh, &va, PAGE), EINVAL, "a mapping of it");
	tap_is(&tap, gdr_unpin_buffer(g, mh), 0, "the unpin");
	must(cu.mem_free(p), "cuMemFree");
}

static void pool(gdr_t g)
{
	static const size_t sizes[] = { 1000, MIB, 3 * MIB, 100 * MIB };
	cu_ptr p[4];
	int dev;

	if (!alloc_async || cu.device_get(&dev, 0) || alloc_async(&p[0], 1000, NULL)) {
		tap_ok(&tap, cu.simulated, "cuMemAllocAsync works");
		return;
	}
	must(free_async(p[0], NULL), "cuMemFreeAsync");
	for (int every = 1; every < 8; every += 3)
		windows(g, "cuMemAllocAsync", every, from_pool, to_pool);
	for (int i = 0; i < 4; i++)
		must(alloc_async(&p[i], sizes[i], NULL), "cuMemAllocAsync");
	must(cu.ctx_sync(), "cuCtxSynchronize");
	for (int i = 0; i < 4; i++)
		is_zero(try_range(g, p[i], sizes[i]), "cuMemAllocAsync", sizes[i]);
	for (int i = 0; i < 4; i++)
		must(free_async(p[i], NULL), "cuMemFreeAsync");
	must(cu.ctx_sync(), "cuCtxSynchronize");
}

enum { VMM_MAX = 5 };

struct vmm {
	cu_ptr addr;
	cu_mem mem[VMM_MAX];
	int n;
	size_t unit;
};

static void make_vmm(struct vmm *v, int n, int fd_type)
{
	struct cu_mem_want want = { .type = CU_MEM_PINNED, .fd_type = fd_type, .place = { CU_PLACE_GPU, 0 } };
	struct cu_access access = { .place = { CU_PLACE_GPU, 0 }, .flags = CU_ACCESS_RW };

	*v = (struct vmm){ .n = n };
	must(cu.granularity(&v->unit, &want, 0), "cuMemGetAllocationGranularity");
	must(cu.reserve(&v->addr, n * v->unit, 0, 0, 0), "cuMemAddressReserve");
	for (int i = 0; i < n; i++) {
		must(cu.create(&v->mem[i], v->unit, &want, 0), "cuMemCreate");
		must(cu.map(v->addr + i * v->unit, v->unit, 0, v->mem[i], 0), "cuMemMap");
	}
	must(cu.set_access(v->addr, n * v->unit, &access, 1), "cuMemSetAccess");
}

static void drop_vmm(struct vmm *v)
{
	for (int i = 0; i < v->n; i++) {
		must(cu.unmap(v->addr + i * v->unit, v->unit), "cuMemUnmap");
		must(cu.release(v->mem[i]), "cuMemRelease");
	}
	must(cu.unreserve(v->addr, v->n * v->unit), "cuMemAddressFree");
}

/* Several allocations side by side in one mapping, and a part of them. */
static void vmm(gdr_t g)
{
	for (int fd_type = CU_EXPORT_NONE; fd_type <= CU_EXPORT_FD; fd_type++)
		for (int n = 1; n <= VMM_MAX; n += 2) {
			struct mapping m;
			bool same = true;
			struct vmm v;

			make_vmm(&v, n, fd_type);
			tap_is(&tap, map_range(g, &m, v.addr, n * v.unit), 0, "a mapping of cuMemCreate's memory");
			for (int i = 0; i < n; i++)
				same = same && both_ways(&m, v.addr + i * v.unit, 4096, i);
			for (int i = 1; i < n; i++)
				same = same && both_ways(&m, v.addr + i * v.unit - 2048, 4096, i);
			tap_ok(&tap, same, "bytes of %d allocations, handle type %d", n, fd_type);
			tap_is(&tap, drop(g, &m), 0, "its end");
			tap_is(&tap, try_range(g, v.addr + v.unit / 2, (n - 1) * v.unit + 4096), 0,
			       "a part of it");
			drop_vmm(&v);
		}
}

static void refused(gdr_t g)
{
	void *host = NULL;
	cu_ptr managed = 0;
	gdr_mh_t mh;

	if (alloc_managed && !alloc_managed(&managed, MIB, 1))
		tap_is(&tap, gdr_pin_buffer(g, managed, PAGE, 0, 0, &mh), EINVAL, "a pin of managed memory");
	must(alloc_host(&host, MIB), "cuMemAllocHost");
	tap_is(&tap, gdr_pin_buffer(g, (uintptr_t)host, PAGE, 0, 0, &mh), EINVAL, "a pin of host memory");
	tap_is(&tap, gdr_pin_buffer(g, (uintptr_t)&host, 8, 0, 0, &mh), EINVAL, "a pin of the stack");
}

static void cycles(gdr_t g)
{
	int n = is_long ? 100000 : 2000, failed = 0, fds;
	struct mapping m;
	long rss;
	cu_ptr p;

	must(cu.mem_alloc(&p, MIB), "cuMemAlloc");
	for (int i = 0; i < n / 5; i++)
		failed += map_range(g, &m, p, MIB) || drop(g, &m);
	fds = count_fds();
	rss = rss_kib();
	for (int i = 0; i < n; i++) {
		failed += map_range(g, &m, p, MIB) != 0;
		*(volatile int *)m.va = i;
		failed += drop(g, &m) != 0;
	}
	tap_is(&tap, failed, 0, "failed of all cycles of pin, map, store, unmap, unpin");
	tap_is(&tap, count_fds() - fds, 0, "descriptors more after them");
	printf("# %d cycles, RSS %ld KiB before and %ld after\n", n, rss, rss_kib());
	/* Go collects when 4 MiB have gathered. */
	tap_ok(&tap, rss_kib() - rss < 4096 + 1024, "resident memory is flat");
	must(cu.mem_free(p), "cuMemFree");
}

static gdr_t shared_g;
static cu_ctx shared_ctx;
static _Atomic int thread_failures;

static void *thread(void *arg)
{
	cu_ptr p = (cu_ptr)(uintptr_t)arg;
	struct mapping m;

	thread_failures += cu.ctx_set(shared_ctx) != 0;
	for (int i = 0; i < (is_long ? 200 : 10); i++) {
		if (map_range(shared_g, &m, p, PAGE)) {
			thread_failures++;
			continue;
		}
		thread_failures += !both_ways(&m, p, 64, i);
		thread_failures += drop(shared_g, &m) != 0;
	}
	return NULL;
}

static void threads(gdr_t g)
{
	enum { N = 64 };
	pthread_t id[N];
	cu_ptr p;

	shared_g = g;
	must(cu.ctx_get(&shared_ctx), "cuCtxGetCurrent");
	must(cu.mem_alloc(&p, N * PAGE), "cuMemAlloc");
	for (long i = 0; i < N; i++)
		must(pthread_create(&id[i], NULL, thread, (void *)(uintptr_t)(p + i * PAGE)), "pthread_create");
	for (int i = 0; i < N; i++)
		pthread_join(id[i], NULL);
	tap_is(&tap, thread_failures, 0, "failures of 64 threads");
	must(cu.mem_free(p), "cuMemFree");
}

/* The mapping keeps the memory. */
static void after_free(gdr_t g)
{
	struct mapping m, m2;
	volatile uint32_t *w;
	cu_ptr p, q;

	must(cu.mem_alloc(&p, 4 * MIB), "cuMemAlloc");
	tap_is(&tap, map_range(g, &m, p, 4 * MIB), 0, "a mapping");
	w = m.va;
	w[5] = 0x1234;
	__sync_synchronize();
	tap_ok(&tap, w[5] == 0x1234, "what was stored");
	must(cu.mem_free(p), "cuMemFree");
	tap_ok(&tap, w[5] == 0x1234, "what was stored, after cuMemFree");
	must(cu.mem_alloc(&q, 4 * MIB), "cuMemAlloc");
	must(cu.set8(q, 7, 4 * MIB), "cuMemsetD8");
	must(cu.ctx_sync(), "cuCtxSynchronize");
	tap_ok(&tap, w[5] == 0x1234, "... and when other memory has %s address", q == p ? "its" : "another");
	tap_is(&tap, map_range(g, &m2, q, 4 * MIB), 0, "a mapping of that");
	tap_ok(&tap, ((volatile uint32_t *)m2.va)[5] == 0x07070707, "its bytes");
	tap_is(&tap, drop(g, &m2), 0, "its end");
	tap_is(&tap, drop(g, &m), 0, "the first one's end");
	must(cu.mem_free(q), "cuMemFree");
}

/* The last test: the context is gone then. */
static void after_reset(gdr_t g)
{
	struct mapping m;
	volatile uint32_t *w;
	cu_ctx ctx;
	cu_ptr p;
	int dev;

	must(cu.device_get(&dev, 0), "cuDeviceGet");
	must(cu.mem_alloc(&p, 4 * MIB), "cuMemAlloc");
	tap_is(&tap, map_range(g, &m, p, 4 * MIB), 0, "a mapping");
	w = m.va;
	w[5] = 0x4321;
	if (!primary_reset || primary_reset(dev)) {
		tap_ok(&tap, cu.simulated, "cuDevicePrimaryCtxReset works");
		drop(g, &m);
		return;
	}
	tap_ok(&tap, w[5] == 0x4321, "what was stored, after cuDevicePrimaryCtxReset");
	must(cu.primary_release(dev), "cuDevicePrimaryCtxRelease");
	tap_ok(&tap, w[5] == 0x4321, "... and after cuDevicePrimaryCtxRelease");
	tap_is(&tap, drop(g, &m), 0, "its end");
	must(cu.primary_retain(&ctx, dev), "cuDevicePrimaryCtxRetain");
	must(cu.ctx_set(ctx), "cuCtxSetCurrent");
	must(cu.mem_alloc(&p, 4 * MIB), "cuMemAlloc");
	tap_is(&tap, try_range(g, p, 4 * MIB), 0, "a mapping in the new context");
}

/* Makes CUDA's first context current. */
static void begin_cuda(void)
{
	cu_ctx ctx = start_cuda(&cu);

	must(cu.ctx_set(ctx), "cuCtxSetCurrent");
}

/* Forked before CUDA, with the library open in the parent, too. */
static void child(void *unused)
{
	gdr_t g = open_or_fail();
	cu_ptr p;

	begin_cuda();
	must(cu.mem_alloc(&p, MIB), "cuMemAlloc");
	expect_is(try_range(g, p, MIB), 0);
	expect_is(gdr_close(g), 0);
}

static void fork_before_cuda(void)
{
	gdr_t g = gdr_open();
	char name[16] = "";

	if (!g || gdr_get_backend(g, name, sizeof(name)) || strcmp(name, beside_dmabuf ? "dmabuf|rm" : "rm")) {
		printf("Bail out! the backend is %s: set GDRCOPY_BACKEND=rm\n", g ? name : "none");
		exit(1);
	}
	tap_ok(&tap, in_child("forked before CUDA", child, NULL, 60), "a child that was forked before CUDA");
	tap_is(&tap, gdr_close(g), 0, "the parent's gdr_close");
}

/* Pins by the standby change none of them. */
static void answers(gdr_t g)
{
	char name[16] = "";
	int dmabuf = -1;

	gdr_get_backend(g, name, sizeof(name));
	tap_ok(&tap, !strcmp(name, beside_dmabuf ? "dmabuf" : "rm"), "the backend is %s", name);
	gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &dmabuf);
	tap_is(&tap, dmabuf, beside_dmabuf, "GDR_ATTR_USING_DMA_BUF_MMAP");
}

int main(int argc, char **argv)
{
	gdr_t g;
	int fds;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		is_long |= !strcmp(argv[i], "--long");
		beside_dmabuf |= !strcmp(argv[i], "dmabuf");
	}
	fork_before_cuda();
	begin_cuda();
	find_calls();
	fds = count_fds();
	g = gdr_open();
	tap_ok(&tap, g != NULL, "gdr_open");
	tap_is(&tap, count_fds() - fds, 0, "descriptors that gdr_open holds");
	plain(g);
	for (int every = 1; every < 8; every += 3)
		windows(g, "cuMemAlloc", every, cu.mem_alloc, cu.mem_free);
	past_the_end(g);
	if (!beside_dmabuf)
		unaligned(g); /* dmabuf's pages are the host's */
	pool(g);
	vmm(g);
	refused(g);
	cycles(g);
	threads(g);
	after_free(g);
	after_reset(g);
	answers(g);
	tap_is(&tap, gdr_close(g), 0, "gdr_close");
	return tap_done(&tap);
}
