// SPDX-License-Identifier: MIT
/*
 * ext/beside.c - what a CUDA program does beside the library: captures of streams, kernels
 * that write what is pinned, contexts that it destroys.
 *
 * --long pins 10,000 buffers beside the kernel.
 */
#include "guest/cuda.h"

#define BYTES (2 * MIB)
#define LINE 64

enum { GLOBAL = 0 };	/* CUstreamCaptureMode */

/* Functions of the driver beside those of cuda_dl.h. */
static struct {
	int (*stream_create)(void **stream, unsigned int flags);
	int (*begin)(void *stream, int mode);
	int (*end)(void *stream, void **graph);
	int (*graph_destroy)(void *graph);
	int (*set_async)(cu_ptr p, unsigned char value, size_t n, void *stream);
	int (*pool_alloc)(cu_ptr *p, size_t size, void *stream);
	int (*stream_sync)(void *stream);
	int (*ctx_create)(cu_ctx *ctx, unsigned int flags, int dev);
	int (*ctx_destroy)(cu_ctx ctx);
	int (*alloc_host)(void **p, size_t size);
	int (*module_load)(void **module, const void *image);
	int (*module_function)(void **f, void *module, const char *name);
	int (*launch)(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
		      unsigned int bz, unsigned int shared, void *stream, void **params, void **extra);
	int (*sim_kernel_start)(cu_ptr p, size_t size);
	int (*sim_kernel_end)(void);
} more;

static struct cuda_dl cu;
static cu_ctx primary;
static gdr_t g;

static void begin(void)
{
	primary = start_current(&cu);
	more.stream_create = need_symbol("cuStreamCreate");
	more.begin = need_symbol("cuStreamBeginCapture_v2");
	more.end = need_symbol("cuStreamEndCapture");
	more.graph_destroy = need_symbol("cuGraphDestroy");
	more.set_async = need_symbol("cuMemsetD8Async");
	more.pool_alloc = need_symbol("cuMemAllocAsync");
	more.stream_sync = need_symbol("cuStreamSynchronize");
	more.ctx_create = need_symbol("cuCtxCreate_v2");
	more.ctx_destroy = need_symbol("cuCtxDestroy_v2");
	more.alloc_host = need_symbol("cuMemAllocHost_v2");
	more.module_load = need_symbol("cuModuleLoadData");
	more.module_function = cuda_symbol("cuModuleGetFunction");
	more.launch = cuda_symbol("cuLaunchKernel");
	more.sim_kernel_start = cuda_symbol("cuda_sim_kernel_start");
	more.sim_kernel_end = cuda_symbol("cuda_sim_kernel_end");
	g = open_or_fail();
}

/* Memory of each kind that the backend pins; 0: none of it. */
static cu_ptr plain, vmm, pool;

/* No pin is tried for that: the first one of the process is what is tested. */
static void make_memory(void)
{
	char name[16];

	expect_is(gdr_get_backend(g, name, sizeof(name)), 0);
	vmm = make_vmm(&cu, &(size_t){ BYTES }, 1);
	expect_is(cu.mem_alloc(&plain, BYTES), 0);
	if (!strcmp(name, "rm") && (more.pool_alloc(&pool, BYTES, NULL) || more.stream_sync(NULL)))
		pool = 0;
}

/* The calls that are made during a capture. Each returns an errno. */
static gdr_mh_t mh, cached;
static gdr_cache_t cache;
static gdr_mem_t mem;
static void *va, *cached_va;
static unsigned char bytes[BYTES];

static int pin(cu_ptr p) { return gdr_pin_buffer(g, p, BYTES, 0, 0, &mh); }
static int pin_plain(void) { return plain ? pin(plain) : pin(vmm); }
static int pin_vmm(void) { return pin(vmm); }
static int pin_pool(void) { return pool ? pin(pool) : pin(vmm); }
static int pin_bytes(void) { return gdr_pin_bytes(g, (plain ?: vmm) + 8, 8, 0, &mh); }
static int pin_pool_bytes(void) { return gdr_pin_bytes(g, (pool ?: vmm) + 8, 8, 0, &mh); }
static int do_map(void) { return gdr_map(g, mh, &va, BYTES); }
static int write_some(void) { return gdr_copy_to_mapping(mh, va, bytes, 8); }
static int read_some(void) { return gdr_copy_from_mapping(mh, bytes, va, 8); }
static int unmap(void) { return gdr_unmap(g, mh, va, BYTES); }
static int unpin(void) { return gdr_unpin_buffer(g, mh); }
static int cache_get(void) { return gdr_cache_get(cache, vmm, BYTES, &cached, &cached_va); }
static int cache_put(void) { return gdr_cache_put(cache, cached); }
static int cache_flush(void) { return gdr_cache_flush(cache); }
static int mem_alloc(void) { return gdr_mem_alloc(g, 0, BYTES, 0, &mem); }
static int mem_free(void) { return gdr_mem_free(g, mem); }

static const struct call {
	const char *name;
	int (*fn)(void);
} calls[] = {
	{ "the first pin, of VMM memory", pin_vmm }, { "unpin", unpin },
	{ "pin", pin_plain }, { "map", do_map }, { "write", write_some }, { "read", read_some },
	{ "unmap", unmap }, { "map again", do_map }, { "unmap again", unmap }, { "unpin", unpin },
	{ "pin of a pool", pin_pool }, { "unpin", unpin },
	{ "pin of own bytes", pin_bytes }, { "unpin", unpin }, { "pin of a pool's bytes", pin_pool_bytes }, { "unpin", unpin },
	{ "cache_get", cache_get }, { "cache_put", cache_put }, { "cache_get, a hit", cache_get }, { "cache_put", cache_put },
	{ "cache_flush", cache_flush }, { "mem_alloc", mem_alloc }, { "mem_free", mem_free },
};

struct step {
	const struct call *call;
	bool with_context;
	int rc;
};

static void *make_call(void *arg)
{
	struct step *s = arg;

	if (s->with_context)
		expect_is(cu.ctx_set(primary), 0);
	s->rc = s->call->fn();
	return NULL;
}

/* One capture for each call: by this thread, by one with a context, by one without. */
static void capture_beside(const struct call *list, size_t n)
{
	void *stream, *graph;
	cu_ptr other;

	expect_is(more.stream_create(&stream, 1), 0);
	expect_is(cu.mem_alloc(&other, LINE), 0);
	for (int who = 0; who < 3; who++) {
		for (size_t i = 0; i < n; i++) {
			struct step s = { &list[i], who == 1, 0 };
			int end;

			expect_is(more.begin(stream, GLOBAL), 0);
			expect_is(more.set_async(other, 1, LINE, stream), 0);
			if (who == 0)
				s.rc = s.call->fn();
			else
				run_thread(0, make_call, &s);
			graph = NULL;
			end = more.end(stream, &graph);
			if (s.rc || end)
				note("%s, by thread %d: %d, the capture ends with %d", s.call->name, who, s.rc, end);
			expect(!s.rc && !end && graph);
			expect_is(more.graph_destroy(graph), 0);
		}
	}
}

static void captures(void)
{
	begin();
	make_memory();
	expect_is(gdr_cache_open(g, 64 * MIB, 0, &cache), 0);
	capture_beside(calls, sizeof(calls) / sizeof(calls[0]));
	expect_is(gdr_cache_close(cache), 0);
	expect_is(gdr_close(g), 0);
}

/* Writes each 64-byte line of the memory until the word at stop is not 0. */
static const char writer[] =
	".version 6.0\n.target sm_60\n.address_size 64\n"
	".visible .entry writer(.param .u64 pbase, .param .u64 plines, .param .u64 pstop)\n"
	"{\n"
	"	.reg .pred %p<3>;\n"
	"	.reg .b32 %r<4>;\n"
	"	.reg .b64 %rd<12>;\n"
	"	ld.param.u64 %rd1, [pbase];\n"
	"	ld.param.u64 %rd2, [plines];\n"
	"	ld.param.u64 %rd3, [pstop];\n"
	"	mov.u32 %r1, %tid.x;\n"
	"	cvt.u64.u32 %rd4, %r1;\n"
	"	mov.u32 %r2, %ntid.x;\n"
	"	cvt.u64.u32 %rd5, %r2;\n"
	"	mov.u64 %rd6, 1;\n"
	"AGAIN:\n"
	"	mov.u64 %rd7, %rd4;\n"
	"LINES:\n"
	"	setp.ge.u64 %p1, %rd7, %rd2;\n"
	"	@%p1 bra DONE;\n"
	"	shl.b64 %rd8, %rd7, 6;\n"
	"	add.u64 %rd9, %rd1, %rd8;\n"
	"	st.volatile.global.u64 [%rd9], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+8], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+16], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+24], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+32], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+40], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+48], %rd6;\n"
	"	st.volatile.global.u64 [%rd9+56], %rd6;\n"
	"	add.u64 %rd6, %rd6, 1;\n"
	"	add.u64 %rd7, %rd7, %rd5;\n"
	"	bra LINES;\n"
	"DONE:\n"
	"	ld.volatile.global.u32 %r3, [%rd3];\n"
	"	setp.eq.u32 %p2, %r3, 0;\n"
	"	@%p2 bra AGAIN;\n"
	"	ret;\n"
	"}\n";

static volatile int *stop;
static void *kernel_stream;

/* On a real GPU the kernel is loaded before it runs: a load would wait for it. */
static void start_kernel(cu_ptr p, size_t size)
{
	unsigned long long lines = size / LINE, at;
	void *module, *f, *params[] = { &p, &lines, &at };

	if (more.sim_kernel_start) {
		expect_is(more.sim_kernel_start(p, size), 0);
		return;
	}
	expect_is(more.alloc_host((void **)&stop, 4096), 0);
	*stop = 0;
	at = (uintptr_t)stop;
	expect_is(more.module_load(&module, writer), 0);
	expect_is(more.module_function(&f, module, "writer"), 0);
	expect_is(more.stream_create(&kernel_stream, 1), 0);
	expect_is(more.launch(f, 1, 1, 1, 1024, 1, 1, 0, kernel_stream, params, NULL), 0);
}

static void end_kernel(void)
{
	if (more.sim_kernel_end) {
		expect_is(more.sim_kernel_end(), 0);
		return;
	}
	*stop = 1;
	expect_is(more.stream_sync(kernel_stream), 0);
}

/* The first pin of the process is made while the kernel runs, then one of each page in turn. */
static void written(void *memory)
{
	const long n = guest_long ? 10000 : 300;
	double first, least = 1e9, all;
	cu_ptr p;

	begin();
	make_memory();
	p = *(cu_ptr *)memory;
	if (!p)
		skip_case("the backend pins no such memory");
	start_kernel(p, BYTES);
	first = seconds_now();
	expect_is(gdr_pin_buffer(g, p, BYTES, 0, 0, &mh), 0);
	first = seconds_now() - first;
	expect_is(gdr_unpin_buffer(g, mh), 0);
	all = seconds_now();
	for (long i = 0; i < n; i++) {
		cu_ptr at = p + i % 32 * GPU_PAGE_SIZE;
		double t = seconds_now();

		expect_is(gdr_pin_buffer(g, at, GPU_PAGE_SIZE, 0, 0, &mh), 0);
		t = seconds_now() - t;
		least = t < least ? t : least;
		if (i % 50 == 0) {
			uint64_t a[8], b[8];

			expect_is(gdr_map(g, mh, &va, GPU_PAGE_SIZE), 0);
			expect_is(gdr_copy_from_mapping(mh, a, va, sizeof(a)), 0);
			do
				expect_is(gdr_copy_from_mapping(mh, b, va, sizeof(b)), 0);
			while (!memcmp(a, b, sizeof(a)));
			expect_is(gdr_unmap(g, mh, va, GPU_PAGE_SIZE), 0);
		}
		expect_is(gdr_unpin_buffer(g, mh), 0);
	}
	note("first pin %.1f us; %ld pins, %.2f us each with unpin and some maps, the shortest pin %.2f us",
	     first * 1e6, n, (seconds_now() - all) / n * 1e6, least * 1e6);
	end_kernel();
	expect_is(gdr_close(g), 0);
}

static cu_ctx current(void)
{
	cu_ctx c;

	expect_is(cu.ctx_get(&c), 0);
	return c;
}

static void live(cu_ptr p)
{
	cu_ctx was = current();

	if (!p)
		return;
	expect_is(pin(p), 0);
	expect(current() == was);
	expect_is(do_map(), 0);
	expect_is(write_some(), 0);
	expect_is(read_some(), 0);
	expect_is(unmap(), 0);
	expect_is(unpin(), 0);
	expect(current() == was);
}

/* A context that is current and destroyed. Memory of a context that lives is pinned. */
static void destroyed_context(void)
{
	cu_ctx dead;

	begin();
	make_memory();
	expect_is(more.ctx_create(&dead, 0, 0), 0);
	expect_is(more.ctx_destroy(dead), 0);
	if (cu.ctx_set(dead))
		skip_case("this driver makes no destroyed context current");
	live(plain);
	live(vmm);
	live(pool);
	expect(current() == dead);
}

/* The memory of a destroyed context is none; a pin of before stays. */
static void memory_of_destroyed(void)
{
	cu_ctx own;
	cu_ptr p;

	begin();
	make_memory();
	if (!plain)
		skip_case("the backend pins no memory of cuMemAlloc");
	expect_is(more.ctx_create(&own, 0, 0), 0);
	expect_is(cu.mem_alloc(&p, BYTES), 0);
	live(p);
	expect_is(pin(p), 0);
	expect_is(do_map(), 0);
	expect_is(more.ctx_destroy(own), 0);
	expect_is(write_some(), 0);
	expect_is(read_some(), 0);
	expect_is(unmap(), 0);
	expect_is(unpin(), 0);
	expect_is(pin(p), EINVAL);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "captures go on, of this thread and of others", captures, 30, 30 },
	{ "pins of memory that a kernel writes: cuMemAlloc", NULL, 60, 120, written, &plain },
	{ "pins of memory that a kernel writes: VMM", NULL, 60, 120, written, &vmm },
	{ "pins of memory that a kernel writes: a pool", NULL, 60, 120, written, &pool },
	{ "a destroyed context is current", destroyed_context, 30, 30 },
	{ "memory of a destroyed context", memory_of_destroyed, 30, 30 },
	{ 0 }
};
