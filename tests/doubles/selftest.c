// SPDX-License-Identifier: MIT
/*
 * Self-tests of the simulated libcuda: it refuses what the real driver refuses. Start,
 * devices, contexts, faults, fork. TAP output.
 *
 * Run it with no CUDA_SIM_* variable set. Run it also under rm_sim, as a driver whose
 * dma-bufs can be mapped: CUDA_SIM_DRIVER_VERSION=13030 CUDA_SIM_DMABUF_MMAP=1.
 */
#include "selftest.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int child_init(void *arg)
{
	cu_ctx ctx;
	cu_ptr p;

	(void)arg;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
		return 1;
	return cuMemAlloc_v2(&p, 1) ? 2 : 0;
}

static int child_env(void *arg)
{
	char **env = arg;
	int v = -1;

	setenv(env[0], env[1], 1);
	if (cuInit(0))
		return 100;
	if (cuDeviceGetAttribute(&v, atoi(env[2]), atoi(env[3])))
		return 101;
	return v;
}

static int attr_with(const char *name, const char *value, const char *attr, const char *dev)
{
	const char *env[] = { name, value, attr, dev };

	return in_child(child_env, (void *)env);
}

static int child_no_device(void *arg)
{
	(void)arg;
	setenv("CUDA_SIM_DEVICES", "0", 1);
	return cuInit(0);
}

static int child_fault_env(void *arg)
{
	int n;

	setenv("CUDA_SIM_FAIL", arg, 1);
	if (cuInit(0) != 2 || cuInit(0))
		return 1;
	if (cuDeviceGetCount(&n) != 999 || cuDeviceGetCount(&n) != 999)
		return 2;
	return 0;
}

static int child_bad_fault(void *arg)
{
	(void)arg;
	fclose(stderr);
	cuda_sim_fail("cuMemAlooc", 2, 0);
	return 0;
}

static void test_before_init(void)
{
	int v = 0, n;
	const char *s;
	cu_ctx ctx;
	cu_ptr p;
	void *fn;

	/* The first call reads the variable, so this comes before any call. */
	IS(in_child(child_fault_env, "cuInit=2@1,cuDeviceGetCount=999"), 0);
	IS(cuDeviceGetCount(&n), 3);
	IS(cuDeviceGet(&n, 0), 3);
	IS(cuCtxGetCurrent(&ctx), 3);
	IS(cuMemAlloc_v2(&p, 4096), 3);
	IS(cuPointerGetAttribute(&n, 9, 4096), 3);
	IS(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0), 3);
	IS(cuda_sim_live(), 0);
	IS(cuDriverGetVersion(&v), 0);
	IS(v, 13030);
	IS(cuDriverGetVersion(NULL), 1);
	IS(cuGetErrorName(801, &s), 0);
	TRUE(strcmp(s, "CUDA_ERROR_NOT_SUPPORTED") == 0);
	IS(cuGetErrorString(0, &s), 0);
	IS(cuGetErrorName(123456, &s), 1);
	TRUE(!s);
	IS(cuGetProcAddress_v2("cuInit", &fn, 13000, 0, &n), 0);
	TRUE(fn == (void *)(uintptr_t)cuInit);
	IS(cuGetProcAddress_v2("cuMemAlloc", &fn, 13000, 0, &n), 0);
	TRUE(fn == (void *)(uintptr_t)cuMemAlloc_v2);
	IS(cuGetProcAddress_v2("cuMemAlloc_v2", &fn, 13000, 0, &n), 500);
	IS(cuGetProcAddress_v2("cuNoSuchCall", &fn, 13000, 0, &n), 500);
	IS(n, 1);
	IS(cuInit(1), 1);
	/* Children that fork before cuInit have CUDA of their own. */
	IS(in_child(child_init, NULL), 0);
	IS(in_child(child_no_device, NULL), 100);
	IS(attr_with("CUDA_SIM_DMABUF", "1,0", "124", "0"), 1);
	IS(attr_with("CUDA_SIM_DMABUF", "1,0", "124", "1"), 0);
	IS(attr_with("CUDA_SIM_COHERENT", "1", "100", "1"), 1);
	IS(in_child(child_bad_fault, NULL), -SIGABRT);
}

static void test_devices(void)
{
	unsigned char a[16], b[16];
	char name[8];
	int n, v;

	IS(cuInit(0), 0);
	IS(cuInit(0), 0);
	IS(cuDeviceGetCount(&n), 0);
	IS(n, 2);
	IS(cuDeviceGetCount(NULL), 1);
	IS(cuDeviceGet(&n, 1), 0);
	IS(cuDeviceGet(&n, 2), 101);
	IS(cuDeviceGet(&n, -1), 101);
	IS(cuDeviceGetName(name, sizeof(name), 0), 0);
	IS(strlen(name), 7);
	IS(cuDeviceGetUuid(a, 0), 0);
	IS(cuDeviceGetUuid_v2(b, 0), 0);
	TRUE(memcmp(a, b, sizeof(a)) == 0);
	IS(cuDeviceGetUuid(b, 1), 0);
	TRUE(memcmp(a, b, sizeof(a)) != 0);
	IS(cuDeviceGetUuid(b, 7), 101);
	IS(cuDeviceGetAttribute(&v, 75, 0), 0);
	IS(v, 9);
	IS(cuDeviceGetAttribute(&v, 124, 0), 0);
	IS(v, 1);
	IS(cuDeviceGetAttribute(&v, 100, 0), 0);
	IS(v, 0);
	IS(cuDeviceGetAttribute(&v, 9999, 0), 1);
	IS(cuDeviceGetAttribute(&v, 75, 9), 101);
	IS(cuDeviceGetAttribute(NULL, 75, 0), 1);
}

static void test_primary(void)
{
	unsigned int flags;
	int active, dev;
	cu_ctx ctx, again, cur;
	cu_ptr p;

	IS(cuCtxGetCurrent(&cur), 0);
	TRUE(!cur);
	IS(cuMemAlloc_v2(&p, 4096), 201);
	IS(cuCtxSynchronize(), 201);
	IS(cuCtxGetDevice(&dev), 201);
	IS(cuCtxPopCurrent_v2(&cur), 201);
	IS(cuDevicePrimaryCtxRelease_v2(0), 201);
	IS(cuDevicePrimaryCtxRetain(&ctx, 5), 101);
	IS(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	IS(cuDevicePrimaryCtxRetain(&again, 0), 0);
	TRUE(ctx == again);
	IS(cuCtxSetCurrent(ctx), 0);
	IS(cuMemAlloc_v2(&p, 4096), 0);
	IS(cuDevicePrimaryCtxRelease_v2(0), 0);
	IS(cuMemsetD8_v2(p, 1, 4096), 0);
	IS(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	IS(active, 1);
	/* The last release ends the context and frees its memory. */
	IS(cuDevicePrimaryCtxRelease_v2(0), 0);
	IS(cuda_sim_live(), 0);
	IS(cuMemsetD8_v2(p, 1, 4096), 709);
	IS(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	IS(active, 0);
	IS(cuCtxSetCurrent(NULL), 0);
	IS(cuCtxSetCurrent(ctx), 709);
}

static void test_contexts(void)
{
	cu_ctx a, b, cur;
	void *stream;
	int dev, other;

	IS(cuCtxCreate_v2(&a, 0, 0), 0);
	IS(cuCtxCreate_v2(&b, 0, 1), 0);
	IS(cuCtxGetDevice(&dev), 0);
	IS(dev, 1);
	IS(cuCtxPushCurrent_v2(a), 0);
	IS(cuCtxGetDevice(&dev), 0);
	IS(dev, 0);
	IS(cuCtxPopCurrent_v2(&cur), 0);
	TRUE(cur == a);
	IS(cuCtxPushCurrent_v2((cu_ctx)&dev), 201);
	IS(cuCtxSetCurrent((cu_ctx)&dev), 201);
	IS(cuStreamCreate(&stream, 1), 0);
	IS(cuda_sim_streams(1), 1);
	IS(cuStreamDestroy_v2(stream), 0);
	IS(cuda_sim_streams(1), 0);
	IS(cuStreamCreate(&stream, 0), 0);
	IS(cuda_sim_streams(0), 1);
	IS(cuStreamSynchronize(stream), 0);
	IS(cuStreamSynchronize(NULL), 0);
	IS(cuStreamSynchronize(&other), 400);
	IS(cuStreamDestroy_v2(stream), 0);
	IS(cuStreamDestroy_v2(stream), 400);
	IS(cuCtxDestroy_v2(b), 0);
	IS(cuCtxDestroy_v2(b), 709);
	IS(cuCtxGetCurrent(&cur), 0);
	TRUE(cur == a);
	IS(cuCtxDestroy_v2(a), 0);
	IS(cuCtxGetCurrent(&cur), 0);
	TRUE(!cur);
	IS(cuCtxDestroy_v2(NULL), 1);
}

static void test_faults(void)
{
	int n;
	cu_ptr p;

	cuda_sim_fail("cuDeviceGetCount", 101, 2);
	IS(cuDeviceGetCount(&n), 0);
	IS(cuDeviceGetCount(&n), 101);
	IS(cuDeviceGetCount(&n), 0);
	cuda_sim_fail("cuDeviceGetCount", 0, 0);
	/* Both the exported name and the plain one. */
	cuda_sim_fail("cuMemAlloc", 2, 0);
	IS(cuMemAlloc_v2(&p, 4096), 2);
	IS(cuMemAlloc_v2(&p, 4096), 2);
	cuda_sim_fail("cuMemAlloc", 0, 0);
	cuda_sim_fail("cuMemAlloc_v2", 2, 1);
	IS(cuMemAlloc_v2(&p, 4096), 2);
	IS(cuMemAlloc_v2(&p, 4096), 0);
	IS(cuMemFree_v2(p), 0);
	cuda_sim_fail("cuMemAlloc_v2", 0, 0);
}

static int child_after_init(void *arg)
{
	int n;
	cu_ptr p;

	(void)arg;
	if (cuInit(0) != 3 || cuDeviceGetCount(&n) != 3 || cuMemAlloc_v2(&p, 1) != 3)
		return 1;
	if (cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) != 3 || cuda_sim_live() != 0)
		return 2;
	return cuDriverGetVersion(&n);
}

static void *busy(void *stop)
{
	cu_ctx ctx;
	cu_ptr p;

	/* A step that fails leaves memory behind, which the test sees. */
	if (cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
		return NULL;
	while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED))
		if (cuMemAlloc_v2(&p, 4096) || cuMemsetD8_v2(p, 1, 4096) || cuMemFree_v2(p))
			return NULL;
	if (cuDevicePrimaryCtxRelease_v2(0))
		return NULL;
	return stop;
}

static void test_fork(void)
{
	pthread_t threads[2];
	bool stop = false;
	int i, bad = 0;
	void *ret;

	IS(in_child(child_after_init, NULL), 0);
	for (i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, busy, &stop);
	for (i = 0; i < 50; i++)
		bad += in_child(child_after_init, NULL) != 0;
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	IS(bad, 0);
	for (i = 0; i < 2; i++) {
		pthread_join(threads[i], &ret);
		TRUE(ret == &stop);
	}
}

int main(void)
{
	static void (*const tests[])(void) = {
		test_faults, test_fork, test_memory, test_runtime, test_consumers, test_vmm, test_export, test_capture,
	};
	cu_ctx ctx;

	setvbuf(stdout, NULL, _IOLBF, 0);
	test_before_init();
	test_old_driver();
	test_destroyed();
	test_devices();
	test_primary();
	test_contexts();
	IS(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
	IS(cuCtxSetCurrent(ctx), 0);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		tests[i]();
		IS(cuda_sim_live(), 0);
	}
	return tap_end();
}
