// SPDX-License-Identifier: MIT
/* Self-tests of what the CUDA runtime's stand-in needs: unified copies, events. */
#include "selftest.h"

#include <string.h>

typedef struct cu_event *cu_event;
typedef struct cu_stream *cu_stream;

int cuMemcpy(cu_ptr dst, cu_ptr src, size_t size);
int cuMemcpyAsync(cu_ptr dst, cu_ptr src, size_t size, cu_stream stream);
int cuMemcpyDtoDAsync_v2(cu_ptr dst, cu_ptr src, size_t size, cu_stream stream);
int cuMemAllocPitch_v2(cu_ptr *addr, size_t *pitch, size_t width, size_t height, unsigned int n);
int cuEventCreate(cu_event *event, unsigned int flags);
int cuEventDestroy_v2(cu_event event);
int cuEventRecord(cu_event event, cu_stream stream);
int cuEventQuery(cu_event event);
int cuEventSynchronize(cu_event event);
int cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned int flags);
int cuLaunchHostFunc(cu_stream stream, void (*fn)(void *), void *arg);

#define NO_STREAM ((cu_stream)64)
#define HOST(p) ((cu_ptr)(uintptr_t)(p))

/* Copies through GPU memory and back. One call serves each direction. */
static void test_unified(int (*copy)(cu_ptr dst, cu_ptr src, size_t size))
{
	char sent[512], got[512] = { 0 };
	cu_ptr a, b;

	memset(sent, 0x5a, sizeof(sent));
	IS(cuMemAlloc_v2(&a, sizeof(sent)), 0);
	IS(cuMemAlloc_v2(&b, sizeof(sent)), 0);
	IS(copy(a, HOST(sent), sizeof(sent)), 0);
	IS(copy(b, a, sizeof(sent)), 0);
	IS(copy(HOST(got), b, sizeof(got)), 0);
	TRUE(memcmp(sent, got, sizeof(got)) == 0);
	memset(got, 0, sizeof(got));
	IS(copy(HOST(got), HOST(sent), sizeof(got)), 0);
	TRUE(memcmp(sent, got, sizeof(got)) == 0);
	IS(copy(a, 0, 1), 1);
	IS(copy(b + sizeof(sent), HOST(sent), 1), 1);
	IS(cuMemFree_v2(a), 0);
	IS(cuMemFree_v2(b), 0);
}

static int copy_async(cu_ptr dst, cu_ptr src, size_t size)
{
	int result = cuMemcpyAsync(dst, src, size, NULL);

	return result ? result : cuCtxSynchronize();
}

static void test_pitch(void)
{
	size_t pitch = 0;
	cu_ptr a;

	IS(cuMemAllocPitch_v2(&a, &pitch, 513, 3, 4), 0);
	IS(pitch, 1024);
	IS(cuMemcpyDtoDAsync_v2(a, a + 2 * pitch, pitch, NULL), 0);
	IS(cuMemcpyDtoDAsync_v2(a, a + 2 * pitch, pitch, NO_STREAM), 400);
	IS(cuMemcpyDtoDAsync_v2(a, a + 2 * pitch, pitch + 1, NULL), 1);
	IS(cuMemFree_v2(a), 0);
	IS(cuMemAllocPitch_v2(&a, &pitch, 513, 3, 5), 1);
	IS(cuMemAllocPitch_v2(&a, &pitch, 0, 3, 4), 1);
	IS(cuMemAllocPitch_v2(&a, &pitch, SIZE_MAX, 3, 4), 1);
}

static void test_events(void)
{
	cu_event e, gone;

	IS(cuEventCreate(&e, 4), 1);
	IS(cuEventCreate(&e, 2), 0);
	IS(cuEventQuery(e), 0);
	IS(cuEventRecord(e, NO_STREAM), 400);
	IS(cuEventRecord(e, NULL), 0);
	IS(cuEventQuery(e), 600);
	IS(cuEventQuery(e), 0);
	IS(cuEventRecord(e, NULL), 0);
	IS(cuStreamWaitEvent(NULL, e, 0), 0);
	IS(cuEventSynchronize(e), 0);
	IS(cuEventQuery(e), 0);
	gone = e;
	IS(cuEventDestroy_v2(e), 0);
	IS(cuEventDestroy_v2(gone), 400);
	IS(cuEventQuery(gone), 400);
}

static void store(void *p)
{
	*(int *)p = 7;
}

/* The call finds the copy before it has landed. */
static void test_host_function(void)
{
	int done = 0, value = 5, got = 0;
	cu_ptr a;

	IS(cuMemAlloc_v2(&a, sizeof(value)), 0);
	IS(cuMemcpyAsync(a, HOST(&value), sizeof(value), NULL), 0);
	IS(cuLaunchHostFunc(NULL, store, &done), 0);
	IS(done, 7);
	IS(cuMemcpy(HOST(&got), a, sizeof(got)), 0);
	IS(got, 5);
	IS(cuLaunchHostFunc(NO_STREAM, store, &done), 400);
	IS(cuLaunchHostFunc(NULL, NULL, &done), 1);
	IS(cuMemFree_v2(a), 0);
}

/* The address identifies the context. */
static void test_free_without_context(void)
{
	cu_ctx ctx;
	cu_ptr a;

	IS(cuMemAlloc_v2(&a, 100), 0);
	IS(cuCtxGetCurrent(&ctx), 0);
	IS(cuCtxSetCurrent(NULL), 0);
	IS(cuMemcpy(a, a, 1), 201);
	IS(cuMemFree_v2(a), 0);
	IS(cuCtxSetCurrent(ctx), 0);
}

void test_runtime(void)
{
	int mode = -1;

	IS(cuDeviceGetAttribute(&mode, 20, 0), 0);
	IS(mode, 0);
	test_unified(cuMemcpy);
	test_unified(copy_async);
	test_pitch();
	test_events();
	test_host_function();
	test_free_without_context();
}
