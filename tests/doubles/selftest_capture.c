// SPDX-License-Identifier: MIT
/*
 * Self-tests of the simulated libcuda: stream captures, a kernel that does not end,
 * destroyed contexts, which calls were made.
 */
#include "selftest.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static cu_ctx ctx;
static cu_ptr buf;
static void *stream, *own;

static int call_sync_memops(void)
{
	int one = 1;

	return cuPointerSetAttribute(&one, 6, buf);
}

static int call_stream_sync(void) { return cuStreamSynchronize(own); }
static int call_stream_query(void) { return cuStreamQuery(own); }

static int call_alloc(void)
{
	cu_ptr p;
	int result = cuMemAlloc_v2(&p, 4096);

	return result ? result : cuMemFree_v2(p);
}

static int call_alloc_host(void)
{
	void *p;
	int result = cuMemAllocHost_v2(&p, 4096);

	return result ? result : cuMemFreeHost(p);
}

static int call_register(void)
{
	static char page[4096] __attribute__((aligned(4096)));
	int result = cuMemHostRegister_v2(page, sizeof(page), 0);

	return result ? result : cuMemHostUnregister(page);
}

static int call_flags(void)
{
	unsigned int flags;
	int result = cuCtxGetFlags(&flags);

	return result ? result : cuCtxSetFlags(flags);
}

static int call_attributes(void)
{
	unsigned long long id;

	return cuPointerGetAttribute(&id, 7, buf);
}

static int call_export(void)
{
	int fd, result = cuMemGetHandleForAddressRange(&fd, buf & -PAGE, PAGE, 1, 0);

	return result ? result : close(fd);
}

static int call_copies(void)
{
	char b[64] = { 0 };
	int result = cuMemcpyHtoDAsync_v2(buf, b, sizeof(b), own);

	return result ? result : cuMemcpyDtoHAsync_v2(b, buf, sizeof(b), own);
}

static int call_stream(void)
{
	void *s;
	int result = cuStreamCreate(&s, 1);

	return result ? result : cuStreamDestroy_v2(s);
}

static int call_contexts(void)
{
	cu_ctx c;
	unsigned int flags;
	int result = cuCtxPushCurrent_v2(ctx) | cuCtxPopCurrent_v2(&c) | cuCtxGetCurrent(&c) | cuCtxGetFlags(&flags);

	return result | cuDevicePrimaryCtxRetain(&c, 0) | cuDevicePrimaryCtxRelease_v2(0);
}

static int call_vmm(void)
{
	struct want w = want_on(0, 1);
	uint64_t h;
	int result = cuMemCreate(&h, 2 * MIB, &w, 0);

	return result ? result : cuMemRelease(h);
}

/* What a call answers during a global capture, as it is and in relaxed mode. */
static const struct row {
	const char *what;
	int (*call)(void);
	int as_is, relaxed;
} rows[] = {
	{ "SYNC_MEMOPS", call_sync_memops, 900, 0 },
	{ "cuStreamSynchronize", call_stream_sync, 900, 0 },
	{ "cuStreamQuery", call_stream_query, 900, 0 },
	{ "cuMemAlloc", call_alloc, 900, 0 },
	{ "cuMemAllocHost", call_alloc_host, 900, 0 },
	{ "cuMemHostRegister", call_register, 900, 0 },
	{ "cuCtxSetFlags", call_flags, 900, 900 },
	{ "attributes", call_attributes, 0, 0 },
	{ "an export", call_export, 0, 0 },
	{ "copies on a stream of one's own", call_copies, 0, 0 },
	{ "cuStreamCreate", call_stream, 0, 0 },
	{ "contexts", call_contexts, 0, 0 },
	{ "cuMemCreate", call_vmm, 0, 0 },
};

struct asked {
	const struct row *row;
	int mode, result;
};

static void *ask(void *arg)
{
	struct asked *a = arg;
	int mode = a->mode;

	IS(cuCtxSetCurrent(ctx), 0);
	IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
	a->result = a->row->call();
	IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
	IS(mode, a->mode);
	return NULL;
}

/* Asks during a capture of that mode, in this thread or another; whether it was lost. */
static bool lost(int capture, struct asked *a, bool other)
{
	void *graph = &graph;
	pthread_t t;
	int status, end;

	IS(cuStreamBeginCapture_v2(stream, capture), 0);
	IS(cuMemsetD8Async(buf, 1, 64, stream), 0);
	if (other) {
		pthread_create(&t, NULL, ask, a);
		pthread_join(t, NULL);
	} else {
		ask(a);
	}
	IS(cuStreamIsCapturing(stream, &status), 0);
	IS(cuMemsetD8Async(buf, 1, 64, stream), status == 2 ? 901 : 0);
	end = cuStreamEndCapture(stream, &graph);
	IS(end, status == 2 ? 901 : 0);
	TRUE(end ? graph == NULL : cuGraphDestroy(graph) == 0);
	return end;
}

static void test_modes(void)
{
	/* Which captures protect themselves: of a thread's own, of another's. */
	static const struct {
		int capture, mode;
		bool own, other;
	} modes[] = {
		{ GLOBAL, GLOBAL, true, true }, { GLOBAL, THREAD_LOCAL, true, false }, { GLOBAL, RELAXED, false, false },
		{ THREAD_LOCAL, GLOBAL, true, false }, { THREAD_LOCAL, THREAD_LOCAL, true, false }, { THREAD_LOCAL, RELAXED, false, false },
		{ RELAXED, GLOBAL, false, false }, { RELAXED, THREAD_LOCAL, false, false }, { RELAXED, RELAXED, false, false },
	};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		for (int other = 0; other < 2; other++) {
			bool want = other ? modes[i].other : modes[i].own;
			struct asked a = { &rows[0], modes[i].mode, -1 };

			IS(lost(modes[i].capture, &a, other), want);
			IS(a.result, want ? 900 : 0);
		}
	}
}

static void test_calls(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (int other = 0; other < 2; other++) {
			struct asked a = { &rows[i], GLOBAL, -1 }, r = { &rows[i], RELAXED, -1 };
			bool l = lost(GLOBAL, &a, other), rl = lost(GLOBAL, &r, other);

			if (l != (a.result != 0) || rl != (r.result != 0) || a.result != rows[i].as_is || r.result != rows[i].relaxed)
				printf("# %s\n", rows[i].what);
			IS(a.result, rows[i].as_is);
			IS(r.result, rows[i].relaxed);
			IS(l, a.result != 0);
			IS(rl, r.result != 0);
		}
	}
}

static void *end_capture(void *graph)
{
	IS(cuCtxSetCurrent(ctx), 0);
	return (void *)(intptr_t)cuStreamEndCapture(stream, graph);
}

static void test_capture_itself(void)
{
	int mode = 3, status;
	void *graph, *ret;
	pthread_t t;

	IS(cuThreadExchangeStreamCaptureMode(&mode), 1);
	IS(cuThreadExchangeStreamCaptureMode(NULL), 1);
	IS(cuStreamEndCapture(stream, &graph), 401);
	IS(cuStreamBeginCapture_v2(NULL, GLOBAL), 900);
	IS(cuStreamBeginCapture_v2(stream, 3), 1);
	IS(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
	IS(cuStreamBeginCapture_v2(stream, GLOBAL), 401);
	pthread_create(&t, NULL, end_capture, &graph);
	pthread_join(t, &ret);
	IS((intptr_t)ret, 908);
	/* The stream itself cannot be waited for, in any mode. */
	mode = RELAXED;
	IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
	IS(cuStreamSynchronize(stream), 900);
	IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
	IS(cuStreamEndCapture(stream, &graph), 901);
	IS(cuStreamIsCapturing(stream, &status), 0);
	IS(status, 0);
	IS(cuGraphDestroy(&mode), 1);
}

static void *free_it(void *done)
{
	IS(cuMemFree_v2(buf), 0);
	__atomic_store_n((bool *)done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* It writes each line, and cuMemFree waits for it. */
static void test_kernel(void)
{
	uint64_t first[2048], then[2048];
	bool done = false;
	pthread_t t;
	cu_ptr p;
	size_t i = 0;

	IS(cuda_sim_kernel_start(buf + 1, 64), 1);
	IS(cuda_sim_kernel_start(buf, sizeof(first)), 0);
	IS(cuda_sim_kernel_start(buf, 64), 1);
	IS(cuMemcpyDtoH_v2(first, buf, sizeof(first)), 0);
	do {
		if (cuMemcpyDtoH_v2(then, buf, sizeof(then)))
			break;
		for (i = 0; i < 2048 && first[i] != then[i]; i++)
			;
	} while (i < 2048);
	IS(i, 2048);
	IS(cuMemAlloc_v2(&p, MIB), 0);
	pthread_create(&t, NULL, free_it, &done);
	for (i = 0; i < 20; i++) {
		usleep(1000);
		IS(cuMemsetD8_v2(p, 1, 64), 0);
		TRUE(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
	}
	IS(cuda_sim_kernel_end(), 0);
	pthread_join(t, NULL);
	TRUE(done);
	IS(cuMemFree_v2(p), 0);
}

static int in_destroyed(void *set)
{
	cu_ctx dead, now;
	cu_ptr p;

	if (cuInit(0) || cuCtxCreate_v2(&dead, 0, 0) || cuCtxDestroy_v2(dead))
		return 1;
	if (set && cuCtxSetCurrent(dead))
		return 2;
	if (cuCtxGetCurrent(&now) || now != (set ? dead : NULL))
		return 3;
	fclose(stderr);
	return cuMemAlloc_v2(&p, 4096) == 201 ? 0 : 4;
}

/* CUDA is not initialised yet. */
void test_destroyed(void)
{
	IS(in_child(in_destroyed, NULL), 0);
	IS(in_child(in_destroyed, "set"), -SIGSEGV);
}

static void test_called(void)
{
	char names[200];
	int n;

	cuda_sim_called(names, 0);
	IS(cuDeviceGetCount(&n), 0);
	IS(cuDeviceGet(&n, 0), 0);
	IS(cuDeviceGetCount(&n), 0);
	IS(cuda_sim_called(names, sizeof(names)), 2);
	TRUE(!strcmp(names, "cuDeviceGetCount cuDeviceGet "));
	IS(cuda_sim_called(names, sizeof(names)), 0);
	TRUE(!*names);
}

void test_capture(void)
{
	IS(cuCtxGetCurrent(&ctx), 0);
	IS(cuMemAlloc_v2(&buf, MIB), 0);
	IS(cuStreamCreate(&stream, 1), 0);
	IS(cuStreamCreate(&own, 1), 0);
	test_modes();
	test_calls();
	test_capture_itself();
	IS(cuStreamDestroy_v2(own), 0);
	IS(cuStreamDestroy_v2(stream), 0);
	test_kernel();
	test_called();
}
