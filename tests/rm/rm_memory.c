// SPDX-License-Identifier: MIT
/*
 * rm_memory.c - every kind of CUDA memory, pinned and mapped on the rm backend.
 *
 * With BESIDE_DMABUF in the environment the dmabuf backend is chosen, and rm stands by. Runs on
 * a real GPU and on the simulated driver (tests/doubles, rm_sim). Bytes are checked both ways
 * against CUDA's own copies. --long: up to 80 GB. What holds on each backend is gdrcopy_sanity's, and
 * threads and cycles are the guests'.
 *
 * The simulated libcuda is strict: a question about memory that rm has heard of ends the process. dmabuf
 * asks such questions.
 */
#include "guest/cuda.h"

#define GIB (1024 * MIB)
#define PAGE GPU_PAGE_SIZE
#define PIECE (2 * MIB)	/* the granularity of cuMemCreate */

static struct cuda_dl cu;
static gdr_t g;

static int (*alloc_async)(cu_ptr *p, size_t size, void *stream);
static int (*free_async)(cu_ptr p, void *stream);

static bool beside_dmabuf(void)
{
	return getenv("BESIDE_DMABUF");
}

static void set_strict(bool on)
{
	void (*strict)(int on) = on_doubles() ? need_symbol("cuda_sim_strict") : NULL;

	if (strict)
		strict(on && !beside_dmabuf());
}

/* The library may ask about these bytes. */
static void own(cu_ptr addr, size_t size)
{
	void (*name)(uint64_t addr, uint64_t size) = on_doubles() ? need_symbol("cuda_sim_own") : NULL;

	if (name)
		name(addr, size);
}

static void begin(void)
{
	start_current(&cu);
	alloc_async = need_symbol("cuMemAllocAsync");
	free_async = need_symbol("cuMemFreeAsync");
	g = open_or_fail();
	set_strict(true);
}

/* Pins by the standby change none of the answers. */
static void end(void)
{
	char name[16] = "";
	int dmabuf = -1;

	expect_is(gdr_get_backend(g, name, sizeof(name)), 0);
	expect(!strcmp(name, beside_dmabuf() ? "dmabuf" : "rm"));
	expect_is(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &dmabuf), 0);
	expect_is(dmabuf, beside_dmabuf());
	expect_is(gdr_close(g), 0);
}

/* A pinned and mapped range. */
struct mapping {
	gdr_mh_t mh;
	void *va;
	size_t size;
	gdr_info_t info;
};

static int map_range(struct mapping *m, cu_ptr addr, size_t size)
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

static int drop(struct mapping *m)
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
static int try_range(cu_ptr addr, size_t size)
{
	cu_ptr first = addr & ~(PAGE - 1), end = (addr + size + PAGE - 1) & ~(PAGE - 1);
	size_t n = size < 4096 ? size : 4096;
	struct mapping m;
	bool same;
	int rc = map_range(&m, first, end - first);

	if (rc)
		return rc;
	same = both_ways(&m, addr, n, 1) && both_ways(&m, addr + (size - n) / 2, n, 2) &&
	       both_ways(&m, addr + size - n, n, 3);
	rc = drop(&m);
	return rc ? rc : same ? 0 : EIO;
}

static void expect_range(cu_ptr addr, size_t size)
{
	int rc = try_range(addr, size);

	if (rc)
		note("%zu bytes: %s", size, strerror(rc));
	expect_is(rc, 0);
}

static void plain(void)
{
	static const size_t sizes[] = {
		1, 100, 1000, 4096, 64 * KIB, 100000, MIB, 3 * MIB, 4 * MIB + 4096, 64 * MIB, GIB,
		8 * GIB, 40 * GIB, 64 * GIB,
	};
	int (*mem_info)(size_t *free, size_t *total);
	size_t room = 0, total = 0;

	begin();
	mem_info = need_symbol("cuMemGetInfo_v2");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		cu_ptr p = 0;

		if (!guest_long && sizes[i] > 64 * MIB)
			break;
		expect_is(mem_info(&room, &total), 0);
		if (sizes[i] > room - room / 8) {
			note("%zu bytes: the GPU has %zu left", sizes[i], room);
			continue;
		}
		expect_is(cu.mem_alloc(&p, sizes[i]), 0);
		expect_range(p, sizes[i]);
		expect_is(cu.mem_free(p), 0);
	}
	end();
}

/*
 * As UCX and libfabric do it: pages around a small buffer, its neighbours in them. With every,
 * each buffer but one of that many is freed, so that most pages begin in free space.
 */
static void windows(int every, int (*alloc)(cu_ptr *p, size_t size), int (*release)(cu_ptr p))
{
	enum { N = 300 };
	cu_ptr p[N];

	for (int i = 0; i < N; i++)
		expect_is(alloc(&p[i], 512 + 512 * (i % 5)), 0);
	for (int i = 0; i < N; i++)
		if (i % every)
			expect_is(release(p[i]), 0);
	for (int i = 0; i < N; i += every)
		expect_range(p[i], 512);
	for (int i = 0; i < N; i += every)
		expect_is(release(p[i]), 0);
}

static void small_buffers(void)
{
	begin();
	for (int every = 1; every < 8; every += 3)
		windows(every, cu.mem_alloc, cu.mem_free);
	end();
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

/* Memory side by side is one range, though it lies in two objects. Beside dmabuf rm pins it. */
static void side_by_side(cu_ptr low)
{
	const size_t half = 4 * MIB;
	uint64_t offset, length;
	unsigned int count;
	struct mapping m;

	expect_is(map_range(&m, low, 2 * half), 0);
	expect(both_ways(&m, low, 4096, 1));
	expect(both_ways(&m, low + half - 4096, 4096, 2));
	expect(both_ways(&m, low + half, 4096, 3));
	expect(both_ways(&m, low + 2 * half - 4096, 4096, 4));
	expect_is(gdr_get_object(g, m.mh, &offset, &length, &count), 0);
	expect_is(count, 2);
	expect_is(drop(&m), 0);
}

/* A range is refused if not all of it is memory. */
static void several_allocations(void)
{
	cu_ptr a, b, low, high, p;
	gdr_mh_t mh;

	begin();
	expect_is(cu.mem_alloc(&a, 4 * MIB), 0);
	expect_is(cu.mem_alloc(&b, 4 * MIB), 0);
	low = a < b ? a : b;
	high = a < b ? b : a;
	if (high == low + 4 * MIB)
		side_by_side(low);
	else
		expect_is(gdr_pin_buffer(g, low, high + 4 * MIB - low, 0, 0, &mh), EINVAL);
	expect_is(cu.mem_free(high), 0);
	expect_is(gdr_pin_buffer(g, low, high + 4 * MIB - low, 0, 0, &mh), EINVAL);
	expect_is(gdr_pin_buffer(g, high, PAGE, 0, 0, &mh), EINVAL);
	expect_range(low, 4 * MIB);
	expect_is(cu.mem_free(low), 0);

	expect_is(cu.reserve(&p, 2 * PIECE, 0, 0, 0), 0);
	map_object(&cu, p, PIECE, CU_EXPORT_NONE);
	own(p, 2 * PIECE);	/* nothing was heard of the second half */
	expect_is(gdr_pin_buffer(g, p, PIECE + PAGE, 0, 0, &mh), EINVAL);
	expect_is(gdr_pin_buffer(g, p, 1 * GIB << 20, 0, 0, &mh), EINVAL);
	expect_range(p, PIECE);
	end();
}

static void pool(void)
{
	static const size_t sizes[] = { 1000, MIB, 3 * MIB, 100 * MIB };
	cu_ptr p[4];

	begin();
	for (int every = 1; every < 8; every += 3)
		windows(every, from_pool, to_pool);
	for (int i = 0; i < 4; i++)
		expect_is(alloc_async(&p[i], sizes[i], NULL), 0);
	expect_is(cu.ctx_sync(), 0);
	for (int i = 0; i < 4; i++)
		expect_range(p[i], sizes[i]);
	for (int i = 0; i < 4; i++)
		expect_is(free_async(p[i], NULL), 0);
	expect_is(cu.ctx_sync(), 0);
	end();
}

/* Several allocations side by side in one mapping, and a part of them. */
static void vmm(void *fd_type)
{
	static const size_t sizes[] = { PIECE, PIECE, PIECE, PIECE, PIECE };

	begin();
	for (int n = 1; n <= 5; n += 2) {
		cu_ptr p = make_objects(&cu, sizes, n, (int)(intptr_t)fd_type);
		struct mapping m;

		expect_is(map_range(&m, p, n * PIECE), 0);
		for (int i = 0; i < n; i++)
			expect(both_ways(&m, p + i * PIECE, 4096, i));
		for (int i = 1; i < n; i++)
			expect(both_ways(&m, p + i * PIECE - 2048, 4096, i));
		expect_is(drop(&m), 0);
		expect_range(p + PIECE / 2, (n - 1) * PIECE + 4096);
		for (int i = 0; i < n; i++)
			expect_is(cu.unmap(p + i * PIECE, PIECE), 0);
		expect_is(cu.unreserve(p, n * PIECE), 0);
	}
	end();
}

static void refused(void)
{
	int (*alloc_managed)(cu_ptr *p, size_t size, unsigned int flags);
	int (*alloc_host)(void **p, size_t size);
	void *host = NULL;
	cu_ptr managed = 0;
	gdr_mh_t mh;

	begin();
	set_strict(false);	/* of such memory nothing is heard */
	alloc_managed = cuda_symbol("cuMemAllocManaged");
	alloc_host = need_symbol("cuMemAllocHost_v2");
	if (alloc_managed && !alloc_managed(&managed, MIB, 1))
		expect_is(gdr_pin_buffer(g, managed, PAGE, 0, 0, &mh), EINVAL);
	expect_is(alloc_host(&host, MIB), 0);
	expect_is(gdr_pin_buffer(g, (uintptr_t)host, PAGE, 0, 0, &mh), EINVAL);
	expect_is(gdr_pin_buffer(g, (uintptr_t)&host, 8, 0, 0, &mh), EINVAL);
	end();
}

#define SHARED (8 * MIB)

struct ipc_handle {
	char bytes[64];
};

/* The process that has the memory, from before CUDA starts. */
struct owner {
	int gpu;
	int handle[2], done[2];	/* pipes */
};

static void own_memory(void *arg)
{
	const struct owner *o = arg;
	int (*get)(struct ipc_handle *h, cu_ptr p);
	struct ipc_handle handle;
	uint32_t word = 0;
	cu_ctx context;
	cu_ptr p;
	int dev;

	close(o->done[1]);
	expect(!cuda_load(&cu));
	expect_is(cu.init(0), 0);
	expect_is(cu.device_get(&dev, o->gpu), 0);
	expect_is(cu.primary_retain(&context, dev), 0);
	expect_is(cu.ctx_set(context), 0);
	get = need_symbol("cuIpcGetMemHandle");
	expect_is(cu.mem_alloc(&p, SHARED), 0);
	expect_is(cu.set8(p, 0x5a, SHARED), 0);
	expect_is(cu.ctx_sync(), 0);
	expect_is(get(&handle, p), 0);
	expect_is(write(o->handle[1], &handle, sizeof(handle)), sizeof(handle));
	expect_is(read(o->done[0], &word, 1), 1);
	expect_is(cu.from_gpu(&word, p + SHARED / 2, sizeof(word)), 0);
	expect_is(word, 0x76543210);
}

/* Its bytes are right, and what the CPU writes is the owner's. */
static void import_memory(cu_ptr p)
{
	struct mapping m;

	expect_is(map_range(&m, p, SHARED), 0);
	expect_is(*(volatile unsigned char *)m.va, 0x5a);
	expect_is(((volatile unsigned char *)m.va)[SHARED - 1], 0x5a);
	expect(both_ways(&m, p, 4096, 1));
	expect(both_ways(&m, p + SHARED - 4096, 4096, 2));
	*(volatile uint32_t *)((char *)m.va + SHARED / 2) = 0x76543210;
	expect_is(drop(&m), 0);
}

/* What a process pins of another one's memory. */
static void from_process(void *gpu)
{
	int (*open_handle)(cu_ptr *p, struct ipc_handle h, unsigned int flags), (*close_handle)(cu_ptr p);
	struct owner o = { .gpu = (int)(intptr_t)gpu };
	struct ipc_handle handle;
	gdr_mh_t mh;
	pid_t pid;
	cu_ptr p;
	int n;

	expect(!pipe(o.handle) && !pipe(o.done));
	pid = fork();
	if (!pid) {
		own_memory(&o);
		_exit(0);
	}
	close(o.handle[1]);
	begin();
	expect_is(cu.device_count(&n), 0);
	if (o.gpu >= n)
		skip_case("one GPU");
	open_handle = need_symbol("cuIpcOpenMemHandle_v2");
	close_handle = need_symbol("cuIpcCloseMemHandle");
	expect_is(read(o.handle[0], &handle, sizeof(handle)), sizeof(handle));
	expect_is(open_handle(&p, handle, 1), 0);
	import_memory(p);
	expect_is(close_handle(p), 0);
	expect_is(gdr_pin_buffer(g, p, SHARED, 0, 0, &mh), EINVAL);
	expect_is(write(o.done[1], "", 1), 1);
	expect(child_ok("the owner", wait_child(pid, 20)));
	end();
}

const struct guest_case cases[] = {
	{ "memory of cuMemAlloc", plain, 60, 600 },
	{ "64 KiB windows around small buffers of it", small_buffers, 60 },
	{ "a range of several allocations, or past their end", several_allocations, 30 },
	{ "memory of a pool, and windows of it", pool, 60 },
	{ "memory of cuMemCreate", NULL, 60, 0, vmm, (void *)CU_EXPORT_NONE },
	{ "memory of cuMemCreate that CUDA exports", NULL, 60, 0, vmm, (void *)CU_EXPORT_FD },
	{ "managed memory, memory of the host, the stack", refused, 30 },
	{ "another process's memory, by CUDA IPC", NULL, 60, 0, from_process, (void *)0 },
	{ "another process's memory, of another GPU", NULL, 60, 0, from_process, (void *)1 },
	{ NULL },
};
