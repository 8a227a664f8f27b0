// SPDX-License-Identifier: MIT
/*
 * guest/consumers.c - programs that use the library, each as its sources have it: which file it
 * loads, which calls it makes of which memory, in which order, from which threads. A row each.
 */
#include "api.h"
#include "cuda.h"

#define PAGES(size) (((size) + GPU_PAGE_OFFSET) & GPU_PAGE_MASK)
#define PIN_V1 UINT32_MAX	/* by gdr_pin_buffer, which has no flags */

enum { CHUNKS = 4, WORDS = 512 };

static struct api lib;
static struct cuda_dl cu;
static cu_ctx context;

/* Memory of cuMemAlloc, or chunks of cuMemCreate in one reservation; and what of it is pinned and mapped. */
struct region {
	cu_ptr mem, gpu;
	size_t chunk, size;
	int chunks;		/* 0: of cuMemAlloc */
	gdr_mh_t mh;
	void *map;
};

/* Both versions are asked for, as a program does that needs so much of 2. */
static gdr_t open_at_least(int least)
{
	int major = 0, minor = 0;
	gdr_t g = lib.gdr_open();

	expect(g != NULL);
	lib.gdr_runtime_get_version(&major, &minor);
	expect(major == 2 && minor >= least);
	major = minor = 0;
	expect_is(lib.gdr_driver_get_version(g, &major, &minor), 0);
	expect(major == 2 && minor >= least);
	return g;
}

static void begin_cuda(void)
{
	context = start_cuda(&cu);
	expect_is(cu.ctx_set(context), 0);
}

static void begin(void)
{
	load(&lib, "libgdrapi.so", RTLD_NOW);
	begin_cuda();
}

static void alloc(struct region *r, size_t size, int chunks)
{
	size_t sizes[CHUNKS];

	*r = (struct region){ .chunks = chunks };
	if (!chunks) {
		expect_is(cu.mem_alloc(&r->mem, size), 0);
		return;
	}
	r->chunk = (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
	for (int i = 0; i < chunks; i++)
		sizes[i] = r->chunk;
	r->mem = make_vmm(&cu, sizes, chunks);
}

static void release(const struct region *r)
{
	if (!r->chunks)
		expect_is(cu.mem_free(r->mem), 0);
	for (int i = 0; i < r->chunks; i++)
		expect_is(cu.unmap(r->mem + i * r->chunk, r->chunk), 0);
	if (r->chunks)
		expect_is(cu.unreserve(r->mem, r->chunks * r->chunk), 0);
}

static void pin(gdr_t g, struct region *r, cu_ptr gpu, size_t size, uint32_t flags)
{
	gdr_info_t info;

	r->gpu = gpu;
	r->size = size;
	expect_is(flags == PIN_V1 ? lib.gdr_pin_buffer(g, gpu, size, 0, 0, &r->mh) :
				    lib.gdr_pin_buffer_v2(g, gpu, size, flags, &r->mh), 0);
	expect_is(lib.gdr_map(g, r->mh, &r->map, size), 0);
	expect_is(lib.gdr_get_info(g, r->mh, &info), 0);
	expect(info.va == gpu && PAGES(info.mapped_size) == PAGES(size));
}

static void unpin(gdr_t g, const struct region *r, void *map)
{
	expect_is(lib.gdr_unmap(g, r->mh, map, r->size), 0);
	expect_is(lib.gdr_unpin_buffer(g, r->mh), 0);
}

/* A page more than is needed, and pinned from the first whole one on. */
static void get(gdr_t g, struct region *r, size_t size, int chunks, uint32_t flags)
{
	alloc(r, size + GPU_PAGE_OFFSET, chunks);
	pin(g, r, PAGES(r->mem), size, flags);
}

static void put(gdr_t g, const struct region *r)
{
	unpin(g, r, r->map);
	release(r);
}

/* A word by a store, the rest by copies of that many bytes. CUDA and the CPU see them. */
static void send(const struct region *r, size_t at, size_t size, size_t part, uint64_t seed)
{
	unsigned char out[120000] __attribute__((aligned(8))), got[sizeof(out)];
	unsigned char *cpu = (unsigned char *)r->map + at;
	size_t done, n;

	fill_random(out, size, seed);
	*(volatile uint64_t *)cpu = *(uint64_t *)out;
	__sync_synchronize();
	for (done = sizeof(uint64_t); done < size; done += n) {
		n = part < size - done ? part : size - done;
		expect_is(lib.gdr_copy_to_mapping(r->mh, cpu + done, out + done, n), 0);
	}
	expect_is(cu.from_gpu(got, r->gpu + at, size), 0);
	expect(!memcmp(got, out, size));
	memset(got, 0, size);
	expect_is(lib.gdr_copy_from_mapping(r->mh, got, cpu, size), 0);
	expect(!memcmp(got, out, size));
}

/* Words of a region, at the end of each stride: counters, signals. */
struct words {
	const struct region *r;
	size_t at, stride;
	int count, rounds;
	bool copies;		/* each is read and written by copies; else each second one */
	uint64_t want[WORDS];
};

/* By a thread that knows no CUDA. */
static void *add_words(void *arg)
{
	struct words *w = arg;

	for (int i = 0; i < w->rounds * w->count; i++) {
		int n = i % w->count;
		uint64_t *at = (uint64_t *)((char *)w->r->map + w->at + (n + 1) * w->stride) - 1, got = 0;

		if (w->copies || n % 2)
			expect_is(lib.gdr_copy_from_mapping(w->r->mh, &got, at, sizeof(got)), 0);
		else
			got = *(volatile uint64_t *)at;
		expect_is(got, w->want[n]);
		got = w->want[n] += i + 1;
		if (w->copies || n % 2)
			expect_is(lib.gdr_copy_to_mapping(w->r->mh, at, &got, sizeof(got)), 0);
		else
			*(volatile uint64_t *)at = got;
		__sync_synchronize();
	}
	return NULL;
}

/* CUDA writes them before, and sees what became of them. */
static void add(struct words w)
{
	cu_ptr gpu = w.r->gpu + w.at + w.stride - sizeof(uint64_t);
	uint64_t got;

	for (int i = 0; i < w.count; i++) {
		w.want[i] = (gpu + i) * 0x0123456789abcdefull;
		expect_is(cu.to_gpu(gpu + i * w.stride, &w.want[i], sizeof(got)), 0);
	}
	expect_is(cu.ctx_sync(), 0);
	run_thread(0, add_words, &w);
	for (int i = 0; i < w.count; i++) {
		expect_is(cu.from_gpu(&got, gpu + i * w.stride, sizeof(got)), 0);
		expect_is(got, w.want[i]);
	}
}

/* NCCL goes on with CUDA where the library lacks a function, or cannot open. */
static void without_library(void *opens)
{
	struct region r;

	setenv("GDRCOPY_BACKEND", "gdrdrv", 1);
	load(&lib, "libgdrapi.so", RTLD_NOW);
	expect(!opens || !lib.gdr_open());
	expect(!dlsym(lib.lib, "gdr_no_such_function"));
	expect_is(dlclose(lib.lib), 0);
	begin_cuda();
	alloc(&r, GPU_PAGE_SIZE, 0);
	expect_is(cu.set8(r.mem, 1, GPU_PAGE_SIZE), 0);
	expect_is(cu.ctx_sync(), 0);
	release(&r);
}

/*
 * NCCL 2.30's gdrwrap, with NCCL_GDRCOPY_ENABLE=1: as many buffers as a communicator with a few
 * peers has. What needs a flush is pinned by FORCE_PCIE. Memory of cuMemCreate is that of
 * NCCL_CUMEM_ENABLE=1.
 */
static void nccl(void *vmm)
{
	static struct region r[32];
	gdr_t g;

	begin();
	g = open_at_least(1);
	for (int i = 0; i < 32; i++)
		get(g, &r[i], PAGES(512ul << i % 12), vmm != NULL, i % 2 ? GDR_PIN_FLAG_FORCE_PCIE : GDR_PIN_FLAG_DEFAULT);
	for (int i = 0; i < 32; i++)
		send(&r[i], 0, 72, 64, i);
	for (int i = 0; i < 32; i++)
		put(g, &r[i]);
	expect_is(lib.gdr_close(g), 0);
}

/*
 * DPDK's gpudev driver: the library is loaded at the first rte_gpu_mem_cpu_map. An unmap names the
 * mapping by the GPU's address. Nothing is closed.
 */
static void dpdk(void)
{
	static const size_t sizes[] = { GPU_PAGE_SIZE, 4096, 3 * MIB };
	struct region r;
	gdr_t g = NULL;

	begin_cuda();
	for (int i = 0; i < 300; i++) {
		alloc(&r, sizes[i / 100] + GPU_PAGE_SIZE, 0);
		if (!g) {
			load(&lib, "libgdrapi.so", RTLD_NOW);
			g = lib.gdr_open();
			expect(g != NULL);
		}
		pin(g, &r, PAGES(r.mem), sizes[i / 100], PIN_V1);
		send(&r, 0, 16, 8, i);
		unpin(g, &r, (void *)(uintptr_t)r.gpu);
		release(&r);
	}
}

/*
 * aws-ofi-nccl for NCCL's GIN: the lesser version is 2.5 at least. A region of any address is
 * widened to pages. One thread reads, changes and writes signals in it by copies of 8 bytes.
 */
static void ofi_nccl(void)
{
	static struct region r[8];
	gdr_t g;

	begin();
	g = open_at_least(5);
	for (int i = 0; i < 8; i++)
		get(g, &r[i], PAGES(i * 8192 + 8 + WORDS * 8), 0, GDR_PIN_FLAG_FORCE_PCIE);
	for (int i = 0; i < 8; i++)
		add((struct words){ &r[i], i * 8192 + 8, 8, WORDS, 4, true });
	for (int i = 0; i < 8; i++)
		put(g, &r[i]);
	expect_is(lib.gdr_close(g), 0);
}

/*
 * NVSHMEM's transports: the library is open before cuInit. The heap's chunks are pinned alone or
 * several at once. Atomics are loads and stores, by ibrc, or copies of 8 bytes, by libfabric.
 */
static void nvshmem(void)
{
	static const struct { int first, count; } uses[] = { { 0, 1 }, { CHUNKS - 1, 1 }, { 0, CHUNKS } };
	struct region r;
	gdr_t g;

	load(&lib, LIBRARY, RTLD_LAZY);
	g = open_at_least(0);
	begin_cuda();
	alloc(&r, 512 * MIB, CHUNKS);
	for (int i = 0; i < 3; i++) {
		pin(g, &r, r.mem + uses[i].first * r.chunk, uses[i].count * r.chunk, PIN_V1);
		add((struct words){ &r, 0, r.size / 32, 32, 1, false });
		unpin(g, &r, r.map);
	}
	release(&r);
	expect_is(lib.gdr_close(g), 0);
	expect_is(dlclose(lib.lib), 0);
}

/* What threads share, and how many began. */
static struct region shared[8];
static pthread_barrier_t all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gdr_t opened;
static atomic_int begun;

/* A thread of NIXL's. It pins a buffer when it first copies it. */
static void *agent(void *arg)
{
	struct region r[8] = { 0 };
	int me = begun++;
	gdr_t g;

	pthread_barrier_wait(&all);
	g = lib.gdr_open();
	expect(g != NULL);
	expect_is(cu.ctx_set(context), 0);
	for (int i = me; i < me + 32; i++) {
		if (!r[i % 8].map)
			pin(g, &r[i % 8], PAGES(shared[i % 8].mem), 64 * KIB, PIN_V1);
		send(&r[i % 8], me * 4 * KIB, 4 * KIB, 4 * KIB, i);
	}
	for (int i = 0; i < 8; i++)
		unpin(g, &r[i], r[i].map);
	expect_is(lib.gdr_close(g), 0);
	return NULL;
}

/* NIXL, through UCX: a context of UCX for each thread, and so a gdr_t. The buffers are shared, each thread has its part. */
static void nixl(void)
{
	pthread_t t[16];

	begin();
	expect_is(pthread_barrier_init(&all, NULL, 16), 0);
	for (int i = 0; i < 8; i++)
		alloc(&shared[i], 64 * KIB + GPU_PAGE_SIZE, 0);
	start_threads(t, 16, agent, NULL);
	join_threads(t, 16);
	for (int i = 0; i < 8; i++)
		release(&shared[i]);
}

/* A layer of TensorRT-LLM's: weights and counters. All but copies has the lock. */
static void *layer(void *arg)
{
	static const size_t sizes[] = { 120000, 64 * 8 };
	struct region r[2];
	int me = begun++;

	expect_is(cu.ctx_set(context), 0);
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 2; i++) {
			alloc(&r[i], PAGES(sizes[i]) + GPU_PAGE_OFFSET, 0);
			pthread_mutex_lock(&lock);
			pin(opened, &r[i], PAGES(r[i].mem), PAGES(sizes[i]), PIN_V1);
			pthread_mutex_unlock(&lock);
		}
		send(&r[0], 0, 120000, 40000, me * 4 + round);
		add((struct words){ &r[1], 0, 8, 64, 1, false });
		for (int i = 0; i < 2; i++) {
			pthread_mutex_lock(&lock);
			unpin(opened, &r[i], r[i].map);
			pthread_mutex_unlock(&lock);
			release(&r[i]);
		}
	}
	return NULL;
}

/*
 * TensorRT-LLM's load balancer for mixtures of experts opens for the versions and closes, then
 * opens for the rest of the process. Layers come and go in threads. Nothing is closed.
 */
static void trtllm(void)
{
	pthread_t t[8];

	begin();
	opened = open_at_least(1);
	expect_is(lib.gdr_close(opened), 0);
	opened = open_at_least(1);
	start_threads(t, 8, layer, NULL);
	join_threads(t, 8);
}

const struct guest_case cases[] = {
	{ "NCCL closes a library that lacks a function", .short_s = 20, .run_with = without_library },
	{ "NCCL closes a library that cannot open", .short_s = 20, .run_with = without_library, .arg = &lib },
	{ "NCCL, memory of cudaMalloc", .short_s = 20, .run_with = nccl },
	{ "NCCL, memory of cuMemCreate", .short_s = 20, .run_with = nccl, .arg = &lib },
	{ "DPDK", dpdk, 20 },
	{ "aws-ofi-nccl", ofi_nccl, 20 },
	{ "NVSHMEM", nvshmem, 20 },
	{ "NIXL", nixl, 20 },
	{ "TensorRT-LLM", trtllm, 20 },
	{ 0 }
};
