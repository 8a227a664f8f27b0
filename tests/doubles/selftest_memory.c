// SPDX-License-Identifier: MIT
/* Self-tests of the simulated libcuda: cuMemAlloc, copies, pointer attributes. */
#include "selftest.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int child_load(void *p)
{
	/* A sanitizer's handler would exit. */
	signal(SIGSEGV, SIG_DFL);
	return *(volatile char *)p;
}

static void test_alloc(void)
{
	cu_ptr a, b, c, base;
	cu_ctx other;
	size_t size;

	IS(cuMemAlloc_v2(NULL, 1), 1);
	IS(cuMemAlloc_v2(&a, 0), 1);
	IS(cuMemAlloc_v2(&a, 1ull << 50), 2);
	IS(cuMemAlloc_v2(&a, 3 * MIB + 1), 0);
	IS(a % (2 * MIB), 0);
	IS(cuMemGetAddressRange_v2(&base, &size, a + 3 * MIB), 0);
	TRUE(base == a && size == 3 * MIB + 1);
	IS(cuMemGetAddressRange_v2(&base, &size, a + 3 * MIB + 1), 500);
	IS(cuMemGetAddressRange_v2(NULL, NULL, a), 1);
	/* The pointer is not found with another device's context either. */
	IS(cuDevicePrimaryCtxRetain(&other, 1), 0);
	IS(cuCtxPushCurrent_v2(other), 0);
	IS(cuMemGetAddressRange_v2(&base, &size, a), 500);
	IS(cuCtxPopCurrent_v2(&other), 0);
	IS(cuDevicePrimaryCtxRelease_v2(1), 0);
	IS(in_child(child_load, (void *)a), -SIGSEGV);
	/* Small buffers are neighbours, and not aligned to pages. */
	IS(cuMemAlloc_v2(&b, 100), 0);
	IS(cuMemAlloc_v2(&c, 100), 0);
	IS(b % 512, 0);
	IS(c - b, 512);
	IS(cuMemFree_v2(b + 1), 1);
	IS(cuMemFree_v2(b), 0);
	IS(cuMemFree_v2(b), 1);
	IS(cuMemAlloc_v2(&base, 513), 0);
	TRUE(base > c);
	IS(cuMemFree_v2(base), 0);
	IS(cuMemFree_v2(c), 0);
	IS(cuMemFree_v2(a), 0);
	IS(cuMemFree_v2(a), 1);
	IS(cuMemFree_v2(0), 1);
}

static void test_copies(void)
{
	uint8_t *host = calloc(1, MIB), *back = calloc(1, MIB);
	unsigned int i;
	cu_ptr a, b;
	void *pinned;

	for (i = 0; i < MIB; i++)
		host[i] = (uint8_t)(i * 7 + i / 251);
	IS(cuMemAlloc_v2(&a, MIB), 0);
	IS(cuMemAlloc_v2(&b, MIB), 0);
	IS(cuMemcpyHtoD_v2(a, host, MIB), 0);
	IS(cuMemcpyDtoD_v2(b, a, MIB), 0);
	IS(cuMemcpyHtoD_v2(b + 5, host, 9), 0);
	IS(cuMemcpyDtoH_v2(back, b, MIB), 0);
	TRUE(memcmp(back + 5, host, 9) == 0 && memcmp(back + 14, host + 14, MIB - 14) == 0);
	IS(cuMemcpyHtoD_v2(a + 1, host, MIB), 1);
	IS(cuMemcpyDtoH_v2(back, a + MIB, 1), 1);
	IS(cuMemcpyHtoD_v2(a, NULL, 1), 1);
	IS(cuMemcpyHtoD_v2(a, (void *)b, 1), 1);
	IS(cuMemcpyDtoH_v2((void *)b, a, 1), 1);
	IS(cuMemcpyHtoD_v2((cu_ptr)(uintptr_t)host, host, 1), 1);
	IS(cuMemcpyHtoD_v2(a, host, 0), 0);
	IS(cuMemsetD8_v2(a, 0x5a, MIB), 0);
	IS(cuMemsetD8_v2(a, 0x5a, MIB + 1), 1);
	IS(cuMemsetD32_v2(a + 4, 0x01020304, 2), 0);
	IS(cuMemsetD32_v2(a + 2, 0, 1), 1);
	IS(cuMemcpyDtoHAsync_v2(back, a, 16, NULL), 0);
	TRUE(memcmp(back, "ZZZZ\4\3\2\1\4\3\2\1ZZZZ", 16) == 0);
	IS(cuMemcpyHtoDAsync_v2(a, host, MIB, (void *)host), 400);
	IS(cuMemAllocHost_v2(&pinned, 100), 0);
	IS(cuMemFreeHost(pinned), 0);
	IS(cuMemFreeHost(pinned), 1);
	IS(cuMemFree_v2(a), 0);
	IS(cuMemFree_v2(b), 0);
	free(host);
	free(back);
}

static void test_attributes(void)
{
	struct { uint64_t token; uint32_t space; } tokens;
	int v = 5, attrs[] = { 2, 9, 11 }, type = -1, dev = -1;
	cu_ptr a, b, start = 1;
	void *data[] = { &type, &dev, &start }, *host;
	uint64_t id;

	IS(cuMemAlloc_v2(&a, MIB), 0);
	IS(attribute(2, a + 9), 2);
	IS(attribute(9, a), 0);
	IS(attribute(8, a), 0);
	TRUE(attribute(1, a));
	IS(attribute(3, a + 9), a + 9);
	IS(attribute(11, a + 9), a);
	IS(attribute(12, a), MIB);
	IS(cuPointerGetAttribute(&tokens, 5, a), 0);
	IS(cuPointerGetAttribute(&v, 777, a), 1);
	IS(cuPointerGetAttribute(NULL, 2, a), 1);
	IS(cuPointerGetAttribute(&v, 2, a + MIB), 1);
	IS(cuPointerGetAttribute(&v, 2, (cu_ptr)(uintptr_t)&v), 1);
	IS(cuPointerGetAttributes(3, attrs, data, a + 3), 0);
	TRUE(type == 2 && dev == 0 && start == a);
	IS(cuPointerGetAttributes(3, attrs, data, (cu_ptr)(uintptr_t)&v), 0);
	TRUE(type == 0 && dev == 0 && start == 0);
	v = 2;
	IS(cuPointerSetAttribute(&v, 6, a), 1);
	v = 1;
	IS(cuPointerSetAttribute(&v, 7, a), 1);
	IS(cuPointerSetAttribute(&v, 6, (cu_ptr)(uintptr_t)&v), 1);
	IS(cuPointerSetAttribute(&v, 6, a), 0);
	IS(attribute(6, a), 1);
	/* The address is used again. The buffer ID is not. */
	id = attribute(7, a);
	IS(cuMemFree_v2(a), 0);
	IS(cuMemAlloc_v2(&b, MIB), 0);
	TRUE(a == b);
	TRUE(id != attribute(7, b));
	IS(cuMemFree_v2(b), 0);
	IS(cuMemAllocHost_v2(&host, 1), 0);
	IS(attribute(2, (cu_ptr)(uintptr_t)host), 1);
	IS(cuMemFreeHost(host), 0);
}

static void *churn(void *arg)
{
	uint8_t in[300], out[300];
	cu_ctx ctx = arg;
	unsigned int i;
	cu_ptr p;

	memset(in, (int)(uintptr_t)&i & 0xff, sizeof(in));
	if (cuCtxSetCurrent(ctx))
		return NULL;
	for (i = 0; i < 200; i++) {
		if (cuMemAlloc_v2(&p, sizeof(in)) || cuMemcpyHtoD_v2(p, in, sizeof(in)))
			return NULL;
		if (cuMemcpyDtoH_v2(out, p, sizeof(out)) || memcmp(in, out, sizeof(in)))
			return NULL;
		if (cuMemFree_v2(p))
			return NULL;
	}
	return arg;
}

static void test_threads(void)
{
	pthread_t t[8];
	cu_ctx ctx;
	void *ret;
	int i;

	IS(cuCtxGetCurrent(&ctx), 0);
	for (i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, churn, ctx);
	for (i = 0; i < 8; i++) {
		pthread_join(t[i], &ret);
		TRUE(ret == ctx);
	}
}

/* Of part of two pages, with a copy and its last byte. */
static void test_registered(void)
{
	uint8_t *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cu_ptr a, b;
	cu_ctx ctx;
	int v;

	IS(cuMemAlloc_v2(&a, MIB), 0);
	IS(cuMemHostRegister_v2(NULL, PAGE, 1), 1);
	IS(cuMemHostRegister_v2(p, 0, 1), 1);
	IS(cuMemHostRegister_v2(p, SIZE_MAX, 1), 1);
	IS(cuMemHostRegister_v2(p, PAGE, 16), 1);
	IS(cuMemHostRegister_v2((void *)a, PAGE, 1), 1);
	IS(cuMemHostRegister_v2((void *)PAGE, PAGE, 1), 1);
	IS(mprotect(p + 4 * PAGE, PAGE, PROT_NONE), 0);
	IS(mprotect(p + 3 * PAGE, PAGE, PROT_READ), 0);
	IS(munmap(p + 6 * PAGE, PAGE), 0);
	IS(cuMemHostRegister_v2(p + 3 * PAGE, 9, 1), 1);
	IS(cuMemHostRegister_v2(p + 3 * PAGE, 9, 8), 0);
	IS(cuMemHostUnregister(p + 3 * PAGE), 0);
	IS(cuMemHostRegister_v2(p + 4 * PAGE + 1, 1, 1), 1);
	IS(cuMemHostRegister_v2(p + 5 * PAGE, PAGE + 1, 1), 1);
	IS(cuMemHostRegister_v2(p + 100, PAGE, 3), 0);
	IS(cuMemHostRegister_v2(p + 100, PAGE, 3), 712);
	IS(cuMemHostRegister_v2(p, 101, 1), 712);
	IS(cuMemHostRegister_v2(p + 99 + PAGE, 1, 1), 712);
	IS(attribute(2, (cu_ptr)(uintptr_t)p + 100), 1);
	IS(cuPointerGetAttribute(&v, 2, (cu_ptr)(uintptr_t)p + 99), 1);
	IS(cuPointerGetAttribute(&v, 2, (cu_ptr)(uintptr_t)p + 100 + PAGE), 1);
	IS(cuMemHostGetDevicePointer_v2(&b, p + 200, 0), 0);
	TRUE(b == (cu_ptr)(uintptr_t)p + 200);
	IS(cuMemHostGetDevicePointer_v2(&b, p + 200, 1), 1);
	IS(cuMemHostGetDevicePointer_v2(&b, p, 0), 1);
	/* The host side of a copy is page-locked as a whole, or not at all. */
	IS(cuMemcpyDtoH_v2(p + 100, a, PAGE), 0);
	IS(cuMemcpyDtoH_v2(p + 99, a, PAGE), 1);
	IS(cuMemcpyHtoD_v2(a, p + 101, PAGE), 1);
	IS(cuMemcpyHtoD_v2(a, p, 100), 0);
	IS(cuMemHostUnregister(p), 713);
	IS(cuMemHostUnregister(p + 101), 713);
	IS(cuMemFreeHost(p + 100), 1);
	IS(cuMemHostUnregister(p + 100), 0);
	IS(cuMemHostUnregister(p + 100), 713);
	IS(cuMemcpyDtoH_v2(p + 99, a, PAGE), 0);
	/* A registration ends with its context. The reset leaves the reference to that. */
	IS(cuDevicePrimaryCtxRetain(&ctx, 1), 0);
	IS(cuCtxPushCurrent_v2(ctx), 0);
	IS(cuMemHostRegister_v2(p, PAGE, 1), 0);
	IS(cuDevicePrimaryCtxReset_v2(1), 0);
	IS(cuMemHostRegister_v2(p, PAGE, 1), 709);
	IS(cuCtxPopCurrent_v2(&ctx), 0);
	IS(cuCtxPushCurrent_v2(ctx), 709);
	IS(cuMemHostUnregister(p), 713);
	IS(cuDevicePrimaryCtxRelease_v2(1), 0);
	IS(cuDevicePrimaryCtxRelease_v2(1), 201);
	IS(cuMemFree_v2(a), 0);
	IS(munmap(p, 6 * PAGE), 0);
	IS(munmap(p + 7 * PAGE, PAGE), 0);
}

/* A copy into page-locked memory lands late, and a word that is written after it, later. */
static void test_words(void)
{
	void *stream, *p;
	uint32_t *words;
	cu_ptr a;

	IS(cuStreamCreate(&stream, 1), 0);
	IS(cuMemAlloc_v2(&a, MIB), 0);
	IS(cuMemsetD32_v2(a, 77, 2), 0);
	IS(cuMemAllocHost_v2(&p, PAGE), 0);
	words = p;
	IS(cuStreamWriteValue32_v2(stream, (cu_ptr)(uintptr_t)words + 1, 1, 0), 1);
	IS(cuStreamWriteValue32_v2(stream, (cu_ptr)(uintptr_t)words, 1, 2), 1);
	IS(cuStreamWriteValue32_v2(stream, (cu_ptr)(uintptr_t)&words, 1, 0), 1);
	IS(cuStreamWriteValue32_v2(words, (cu_ptr)(uintptr_t)words, 1, 0), 400);
	IS(cuMemcpyDtoHAsync_v2(words + 1, a, 8, stream), 0);
	IS(words[1], 0);
	IS(cuStreamWriteValue32_v2(stream, (cu_ptr)(uintptr_t)words, 9, 0), 0);
	TRUE(words[0] == 9 && words[1] == 77 && words[2] == 77);
	setenv("CUDA_SIM_LAZY_WRITES", "1", 1);
	IS(cuMemcpyDtoHAsync_v2(words + 3, a, 4, stream), 0);
	IS(cuStreamWriteValue32_v2(stream, (cu_ptr)(uintptr_t)words, 10, 0), 0);
	TRUE(words[0] == 9 && words[3] == 0);
	IS(cuStreamSynchronize(stream), 0);
	TRUE(words[0] == 10 && words[3] == 77);
	unsetenv("CUDA_SIM_LAZY_WRITES");
	IS(cuMemFreeHost(p), 0);
	IS(cuMemFree_v2(a), 0);
	IS(cuStreamDestroy_v2(stream), 0);
}

struct memory {
	cu_ctx ctx;
	cu_ptr p;
};

static void *free_it(void *memory)
{
	const struct memory *m = memory;

	IS(cuCtxSetCurrent(m->ctx), 0);
	IS(cuMemFree_v2(m->p), 0);
	return NULL;
}

static void *free_and_alloc(void *memory)
{
	const struct memory *m = memory;
	cu_ptr q;

	free_it(memory);
	IS(cuMemAlloc_v2(&q, MIB), 0);
	IS(q, m->p);
	return NULL;
}

/* The copy engine reaches memory that is gone. */
static void test_lost(void)
{
	static const struct {
		bool asks;
		void *(*goes)(void *memory);	/* in another thread */
		int copy, then;
	} cases[] = {
		{ false, free_it, 0, 719 },
		{ true, free_it, 1, 0 },
		{ true, free_and_alloc, 1, 0 },
		{ false, free_and_alloc, 0, 0 },
	};
	char host[8] = "";
	struct memory m;
	struct vmm v;
	cu_ptr p;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pthread_t t;

		IS(cuCtxCreate_v2(&m.ctx, 0, 0), 0);
		IS(cuMemAlloc_v2(&m.p, MIB), 0);
		if (cases[i].asks)
			TRUE(attribute(7, m.p) != 0);
		IS(pthread_create(&t, NULL, cases[i].goes, &m), 0);
		pthread_join(t, NULL);
		IS(cuMemcpyHtoDAsync_v2(m.p, host, 8, NULL), cases[i].copy);
		IS(cuStreamSynchronize(NULL), cases[i].then);
		IS(cuMemAlloc_v2(&p, MIB), cases[i].then);
		IS(cuCtxDestroy_v2(m.ctx), 0);
	}
	IS(cuCtxCreate_v2(&m.ctx, 0, 0), 0);
	v = vmm_make(0, 2 * MIB, 0);
	IS(cuMemcpyHtoDAsync_v2(v.addr, host, 8, NULL), 0);
	vmm_free(&v);
	IS(cuCtxSynchronize(), 719);
	IS(cuCtxSynchronize(), 719);
	IS(cuCtxDestroy_v2(m.ctx), 0);
}

void test_memory(void)
{
	test_lost();
	test_alloc();
	test_copies();
	test_attributes();
	test_registered();
	test_words();
	test_threads();
}
