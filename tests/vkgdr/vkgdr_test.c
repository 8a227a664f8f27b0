// SPDX-License-Identifier: MIT
/*
 * vkgdr_test - libvkgdr.so as a program written for vkgdr uses it: by its header and
 * its functions alone, beside CUDA's driver.
 */
#define _GNU_SOURCE 1
#include <vkgdr.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_dl.h"
#include "tap.h"

static struct tap tap;
static struct cuda_dl cu;

static void check(bool ok, const char *name)
{
	tap_ok(&tap, ok, "%s", name);
}

/* The thread's last error has this text in it; NULL: there is none. Its owner frees it. */
static bool error_is(const char *part)
{
	char *text = vkgdr_last_error();
	bool is = part ? text && strstr(text, part) : !text;

	if (!is)
		printf("# %s\n", text ? text : "no error");
	free(text);
	return is;
}

static void fill(unsigned char *p, size_t n, unsigned int seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
}

/* The CPU writes and CUDA reads, and the other way. */
static bool moves(vkgdr_memory_t mem, unsigned int seed)
{
	enum { N = 100000 };
	unsigned char sent[N], got[N];
	unsigned char *host = vkgdr_memory_get_host_ptr(mem);
	CUdeviceptr dev = vkgdr_memory_get_device_ptr(mem);

	fill(sent, N, seed);
	memcpy(host, sent, N);
	vkgdr_memory_flush(mem, 0, N);
	if (cu.from_gpu(got, dev, N) || memcmp(sent, got, N))
		return false;
	fill(sent, N, seed + 1);
	if (cu.to_gpu(dev, sent, N) || cu.ctx_sync())
		return false;
	vkgdr_memory_invalidate(mem, 0, N);
	return !memcmp(host, sent, N);
}

static void test_memory(vkgdr_t g)
{
	static const size_t sizes[] = { 100000, 1 << 20, (2 << 20) + 1, 16 << 20 };
	vkgdr_memory_t mem[4];

	for (int i = 0; i < 4; i++) {
		mem[i] = vkgdr_memory_alloc(g, sizes[i], 0);
		check(mem[i], "vkgdr_memory_alloc");
		if (!mem[i]) {
			error_is(NULL);
			return;
		}
		check(vkgdr_memory_get_size(mem[i]) == sizes[i], "the size is the one that was asked for");
		check((uintptr_t)vkgdr_memory_get_host_ptr(mem[i]) % 4096 == 0 &&
		      vkgdr_memory_get_device_ptr(mem[i]) % 65536 == 0, "both addresses are aligned");
	}
	for (int i = 0; i < 4; i++)
		check(moves(mem[i], (unsigned int)i), "what one side wrote, the other reads");
	check(vkgdr_memory_is_coherent(mem[0]), "the memory is coherent");
	check(vkgdr_memory_non_coherent_atom_size(mem[0]) == 1, "any range may be flushed");
	for (int i = 0; i < 4; i++)
		vkgdr_memory_free(mem[i]);
}

/*
 * Where a call of the driver's fails, there is no memory, the text says why, and nothing is
 * left: a driver that is told to refuse is the simulated one.
 */
static void test_refusals(vkgdr_t g)
{
	static const char *const calls[] = {
		"cuCtxGetDevice", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	};
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void (*fail)(const char *name, int result, int nth);
	unsigned long (*live)(void), before;

	*(void **)&fail = dlsym(lib, "cuda_sim_fail");
	*(void **)&live = dlsym(lib, "cuda_sim_live");
	if (!fail)
		return;
	before = live();
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		fail(calls[i], 2, 1);
		check(!vkgdr_memory_alloc(g, 100, 0) && error_is("CUDA_ERROR_OUT_OF_MEMORY"), calls[i]);
		fail(calls[i], 0, 0);
	}
	check(live() == before, "nothing is left of what failed");
	fail("cuDeviceGet", 999, 1);
	check(!vkgdr_open(0, 0) && error_is("cuDeviceGet failed (CUDA_ERROR_UNKNOWN)"), "CUDA's name of an error");
	fail("cuDeviceGet", 0, 0);
	dlclose(lib);
}

/* What no caller should pass, and when an error goes. */
static void test_errors(vkgdr_t g)
{
	vkgdr_memory_t mem;

	check(!vkgdr_open(0, 8) && error_is("vkgdr_open: unknown flags 0x8"), "an unknown flag");
	check(!vkgdr_memory_alloc(g, 100, 1) && error_is("vkgdr_memory_alloc"), "a flag of memory");
	check(!vkgdr_memory_alloc(NULL, 100, 0) && error_is("vkgdr_memory_alloc"), "no library, no memory");
	check(!vkgdr_memory_alloc(g, 0, 0) && error_is("gdr_mem_alloc"), "no bytes");
	mem = vkgdr_memory_alloc(g, 100, 0);
	check(mem && error_is(NULL), "a success has no error");
	vkgdr_memory_free(mem);
	vkgdr_memory_free(NULL);
	vkgdr_close(NULL);
	check(!vkgdr_open(99, 0) && error_is("CUDA_ERROR_INVALID_DEVICE"), "no such GPU: CUDA's name for it");
	check(!vkgdr_open(-1, 0) && error_is("CUDA_ERROR_INVALID_DEVICE"), "nor -1");
	check(!vkgdr_memory_alloc(g, (size_t)1 << 60, 0) && error_is("OUT_OF_DEVICE_MEMORY"), "too many bytes");
	check(error_is("gdr_mem_alloc"), "the error stays until the next call");
}

/* Both calls need a current context where vkgdr's do. */
static void test_no_context(vkgdr_t g)
{
	cu_ctx ctx;

	check(!cu.ctx_get(&ctx) && !cu.ctx_set(NULL), "no context is current");
	check(!vkgdr_open(0, VKGDR_OPEN_CURRENT_CONTEXT_BIT) && error_is("CUDA_ERROR_INVALID_CONTEXT"),
	      "so there is no current context's GPU");
	check(!vkgdr_memory_alloc(g, 4096, 0) && error_is("CUDA_ERROR_INVALID_CONTEXT"), "nor memory");
	check(!cu.ctx_set(ctx), "the context is current again");
}

static void test_non_coherent(void)
{
	vkgdr_t g = vkgdr_open(0, VKGDR_OPEN_FORCE_NON_COHERENT_BIT);
	vkgdr_memory_t mem = g ? vkgdr_memory_alloc(g, 1 << 20, 0) : NULL;

	check(mem && !vkgdr_memory_is_coherent(mem), "memory can be asked to say that it is not coherent");
	check(mem && vkgdr_memory_non_coherent_atom_size(mem) > 1, "then flushed ranges have an alignment");
	check(mem && moves(mem, 5), "and what is flushed and invalidated is right");
	vkgdr_memory_free(mem);
	vkgdr_close(g);
}

static void *has_no_error(void *unused)
{
	(void)unused;
	return (void *)(uintptr_t)error_is(NULL);
}

/* The error of one thread is none of another's. */
static void test_threads(vkgdr_t g)
{
	void *answer = NULL;
	pthread_t t;

	check(!vkgdr_memory_alloc(g, 0, 0) && !pthread_create(&t, NULL, has_no_error, NULL) && !pthread_join(t, &answer) && answer,
	      "another thread has no error");
}

static void test_closed_first(void)
{
	vkgdr_t g = vkgdr_open(0, VKGDR_OPEN_CURRENT_CONTEXT_BIT | VKGDR_OPEN_REQUIRE_COHERENT_BIT);
	vkgdr_memory_t mem;

	check(g, "vkgdr_open of the current context's GPU");
	mem = g ? vkgdr_memory_alloc(g, 1 << 20, 0) : NULL;
	vkgdr_close(g);
	check(mem && moves(mem, 9), "memory outlives vkgdr_close");
	vkgdr_memory_free(mem);
}

static bool start_cuda(void)
{
	const char *why = cuda_load(&cu);
	cu_ctx context;
	int dev;

	if (why)
		printf("# %s\n", why);
	return !why && !cu.init(0) && !cu.device_get(&dev, 0) && !cu.primary_retain(&context, dev) &&
	       !cu.ctx_set(context);
}

int main(void)
{
	vkgdr_t g = NULL;

	check(error_is(NULL), "no error yet");
	check(!vkgdr_open(0, 0) && error_is("CUDA_ERROR_NOT_INITIALIZED"), "before cuInit there is an error");
	check(start_cuda(), "CUDA starts");
	if (!tap.failed)
		g = vkgdr_open(0, VKGDR_OPEN_REQUIRE_COHERENT_BIT);
	check(g, "vkgdr_open");
	if (g) {
		test_memory(g);
		test_errors(g);
		test_refusals(g);
		test_no_context(g);
		test_non_coherent();
		test_threads(g);
		test_closed_first();
	} else {
		error_is(NULL);
	}
	vkgdr_close(g);
	return tap_done(&tap);
}
