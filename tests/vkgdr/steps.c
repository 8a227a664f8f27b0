// SPDX-License-Identifier: MIT
/*
 * vkgdr_steps - vkgdr.c over functions of libgdrapi that fail in turn: what was made
 * before the failure is given back, each thing once.
 */
#define _GNU_SOURCE 1
#include <vkgdr.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gdrapi.h>
#include <gdrapi_ext.h>

#include "counted.h"
#include "cuda_dl.h"
#undef dlopen
#undef dlclose
#undef dlsym
#include "tap.h"

static struct tap tap;
static struct cuda_dl cu;

/* What lives. The fail_at'th call from now on that makes or maps fails. */
static int opened, allocated, pinned, mapped, fail_at;
static char bytes[1 << 16];
static size_t asked;	/* bytes that the last gdr_map was asked for */
static int loaded;	/* references to libcuda.so.1 of vkgdr.c's, which this program counts */
static const char *missing = "";	/* a function that libcuda.so.1 lacks */

/* counted.h has vkgdr.c call these. */
void *counted_dlopen(const char *name, int flags)
{
	void *library = dlopen(name, flags);

	loaded += library != NULL;
	return library;
}

int counted_dlclose(void *library)
{
	loaded--;
	return dlclose(library);
}

void *counted_dlsym(void *library, const char *name)
{
	return strcmp(name, missing) ? dlsym(library, name) : NULL;
}

static int step(int *count)
{
	if (fail_at && !--fail_at)
		return ENOMEM;
	if (count)
		++*count;
	return 0;
}

gdr_t gdr_open(void)
{
	if (step(&opened)) {
		errno = ENOMEM;
		return NULL;
	}
	return (gdr_t)bytes;
}

int gdr_close(gdr_t g)
{
	(void)g;
	opened--;
	return 0;
}

int gdr_mem_alloc(gdr_t g, int device, size_t size, unsigned int flags, gdr_mem_t *mem)
{
	(void)g, (void)device, (void)size, (void)flags, (void)mem;
	return step(&allocated);
}

int gdr_mem_free(gdr_t g, gdr_mem_t mem)
{
	(void)g, (void)mem;
	allocated--;
	return 0;
}

int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *ptr, size_t *size)
{
	(void)g, (void)mem;
	*ptr = 0x10000;
	*size = sizeof(bytes);
	return step(NULL);
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t va_space, gdr_mh_t *mh)
{
	(void)g, (void)token, (void)va_space, (void)mh;
	return addr == 0x10000 && size == sizeof(bytes) ? step(&pinned) : EINVAL;
}

/* It unmaps, too. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t mh)
{
	(void)g, (void)mh;
	pinned--;
	mapped = 0;
	return 0;
}

int gdr_map(gdr_t g, gdr_mh_t mh, void **va, size_t size)
{
	(void)g, (void)mh;
	asked = size;
	*va = bytes;
	return step(&mapped);
}

static void check(bool ok, const char *name)
{
	tap_ok(&tap, ok, "%s", name);
}

static bool error_is(const char *part)
{
	char *text = vkgdr_last_error();
	bool is = text && strstr(text, part) && strstr(text, "CUDA_ERROR_OUT_OF_MEMORY");

	if (!is)
		printf("# %s\n", text ? text : "no error");
	free(text);
	return is;
}

static bool lives(int o, int m, int p, int v)
{
	bool is = opened == o && allocated == m && pinned == p && mapped == v;

	if (!is)
		printf("# %d opened, %d allocated, %d pinned, %d mapped\n", opened, allocated, pinned, mapped);
	return is;
}

/* Whether the code of a function, up to its return, has the full fence of this machine. */
static bool has_fence(void (*f)(vkgdr_memory_t m, size_t offset, size_t size))
{
#if defined(__x86_64__)
	static const unsigned char fence[] = { 0x0f, 0xae, 0xf0 }, end[] = { 0xc3 };
#elif defined(__aarch64__)
	static const unsigned char fence[] = { 0xbf, 0x33, 0x03, 0xd5 }, end[] = { 0xc0, 0x03, 0x5f, 0xd6 };
#endif
#if defined(__x86_64__) || defined(__aarch64__)
	const unsigned char *code = (const unsigned char *)(uintptr_t)f;

	for (int i = 0; i < 256 && memcmp(code + i, end, sizeof(end)); i++)
		if (!memcmp(code + i, fence, sizeof(fence)))
			return true;
	return false;
#else
	return f;	/* not looked for here */
#endif
}

static bool start_cuda(void)
{
	cu_ctx ctx;
	int dev;

	return !cuda_load(&cu) && !cu.init(0) && !cu.device_get(&dev, 0) && !cu.primary_retain(&ctx, dev) &&
	       !cu.ctx_set(ctx);
}

int main(void)
{
	static const char *const calls[] = { "gdr_mem_alloc", "gdr_mem_get_device_ptr", "gdr_pin_buffer", "gdr_map" };
	static const char *const needed[] = { "cuDeviceGet", "cuCtxGetDevice", "cuGetErrorName" };
	vkgdr_memory_t mem, more;
	vkgdr_t g, second;

	check(start_cuda(), "CUDA starts");
	check(has_fence(vkgdr_memory_flush) && has_fence(vkgdr_memory_invalidate), "flush and invalidate fence");
	fail_at = 1;
	check(!vkgdr_open(0, 0) && error_is("gdr_open") && lives(0, 0, 0, 0) && !loaded,
	      "gdr_open fails: nothing is left");
	check(!vkgdr_open(99, 0) && lives(0, 0, 0, 0) && !loaded, "a GPU that is not there: nothing is left");
	for (int i = 0; i < 3; i++) {
		missing = needed[i];
		check(!vkgdr_open(0, 0) && lives(0, 0, 0, 0) && !loaded, "CUDA lacks a function: nothing is left");
	}
	missing = "";
	g = vkgdr_open(0, 0);
	check(g && lives(1, 0, 0, 0) && loaded == 1, "vkgdr_open opens once");
	second = vkgdr_open(1, 0);
	check(second && !vkgdr_memory_alloc(second, 100, 0) && lives(2, 0, 0, 0),
	      "no memory on a GPU that the current context is not of");
	vkgdr_close(second);
	for (int i = 0; g && i < 4; i++) {
		fail_at = i + 1;
		check(!vkgdr_memory_alloc(g, 100, 0) && error_is(calls[i]) && lives(1, 0, 0, 0),
		      "a step fails: the error names it, and nothing is left");
	}
	mem = g ? vkgdr_memory_alloc(g, 100, 0) : NULL;
	check(mem && lives(1, 1, 1, 1) && asked == sizeof(bytes),
	      "then memory is allocated, pinned and mapped, all of it");
	check(!vkgdr_last_error(), "a success leaves no error");
	more = mem ? vkgdr_memory_alloc(g, 100, 0) : NULL;
	check(more && vkgdr_memory_get_host_ptr(more) == bytes && vkgdr_memory_get_device_ptr(more) == 0x10000 &&
	      vkgdr_memory_get_size(more) == 100, "each getter gives what it names");
	vkgdr_memory_free(more);
	vkgdr_close(g);
	check(lives(1, 1, 1, 0), "memory keeps the library open");
	vkgdr_memory_free(mem);
	check(lives(0, 0, 0, 0) && !loaded, "the last memory closes it");
	return tap_done(&tap);
}
