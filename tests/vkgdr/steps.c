// SPDX-License-Identifier: MIT
/*
 * vkgdr_steps - vkgdr.c over functions of libgdrapi, of the loader and of the heap that
 * count what lives, and fail in turn: what was made before the failure is given back,
 * each thing once, and the error's text is the right one.
 */
#define _GNU_SOURCE 1
#include <vkgdr.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
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
#undef calloc
#undef malloc
#undef free
#include "tap.h"

#define WHY "; with GDRCOPY_ENABLE_LOGGING=1 the log says why"
#define MEMORY " (CUDA_ERROR_OUT_OF_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY)"

static struct tap tap;
static struct cuda_dl cu;

/* What lives. The fail_at'th call from now on that makes or maps fails with fail_with. */
static int opened, allocated, pinned, mapped, fail_at, fail_with = ENOMEM;
static int wrong;	/* calls with a handle that is not the right one */
static char bytes[1 << 16];
static struct { size_t size, mapped; int device; } asked;	/* by the last calls */
static int loaded;	/* references to libcuda.so.1 of vkgdr.c's */
static int blocks;	/* of the heap that vkgdr.c has */
static bool no_heap, no_library;
static const char *missing = "";	/* a function that libcuda.so.1 lacks */
static int cuda_answer;	/* of the CUDA functions that are asked for a device; 0: CUDA's own */

/* counted.h has vkgdr.c call these. */
void *counted_dlopen(const char *name, int flags)
{
	void *library = no_library ? dlopen("libof_nobody.so", flags) : dlopen(name, flags);

	loaded += library != NULL;
	return library;
}

int counted_dlclose(void *library)
{
	loaded--;
	return dlclose(library);
}

static int answer_device(CUdevice *device, int ordinal)
{
	(void)device, (void)ordinal;
	return cuda_answer;
}

void *counted_dlsym(void *library, const char *name)
{
	if (cuda_answer && !strcmp(name, "cuDeviceGet"))
		return (void *)answer_device;
	return strcmp(name, missing) ? dlsym(library, name) : NULL;
}

void *counted_calloc(size_t n, size_t size)
{
	void *mem = no_heap ? NULL : calloc(n, size);

	blocks += mem != NULL;
	return mem;
}

/* The memory is not zero, as malloc's need not be. */
void *counted_malloc(size_t size)
{
	void *mem = no_heap ? NULL : malloc(size);

	blocks += mem != NULL;
	return mem ? memset(mem, 0xa5, size) : NULL;
}

void counted_free(void *mem)
{
	blocks -= mem != NULL;
	free(mem);
}

/* errno tells nothing where the error is the result. */
static int step(int *count)
{
	errno = EXDEV;
	if (fail_at && !--fail_at)
		return fail_with;
	if (count)
		++*count;
	return 0;
}

/* Each gdr_t, and each allocation of one, has a handle of its own. */
static gdr_t newest;

gdr_t gdr_open(void)
{
	int rc = step(&opened);

	if (rc) {
		errno = rc;
		return NULL;
	}
	newest = (gdr_t)(bytes + opened);
	return newest;
}

static void is_open(gdr_t g)
{
	wrong += (char *)g <= bytes || (char *)g > bytes + 9;
}

int gdr_close(gdr_t g)
{
	is_open(g);
	opened--;
	return 0;
}

int gdr_mem_alloc(gdr_t g, int device, size_t size, unsigned int flags, gdr_mem_t *mem)
{
	is_open(g);
	wrong += flags != 0;
	asked.device = device;
	asked.size = size;
	mem->h = 77;
	return size ? step(&allocated) : EINVAL;
}

int gdr_mem_free(gdr_t g, gdr_mem_t mem)
{
	is_open(g);
	wrong += mem.h != 77;
	allocated--;
	return 0;
}

int gdr_mem_get_device_ptr(gdr_t g, gdr_mem_t mem, unsigned long *ptr, size_t *size)
{
	is_open(g);
	wrong += mem.h != 77;
	*ptr = 0x50000;
	*size = sizeof(bytes);
	return step(NULL);
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token, uint32_t va_space, gdr_mh_t *mh)
{
	is_open(g);
	wrong += token || va_space;
	mh->h = 88;
	return addr == 0x50000 && size == sizeof(bytes) ? step(&pinned) : EINVAL;
}

/* It unmaps, too. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t mh)
{
	is_open(g);
	wrong += mh.h != 88;
	wrong += allocated < pinned;	/* its memory is freed already */
	pinned--;
	mapped = 0;
	return 0;
}

int gdr_map(gdr_t g, gdr_mh_t mh, void **va, size_t size)
{
	is_open(g);
	wrong += mh.h != 88;
	asked.mapped = size;
	*va = bytes;
	return step(&mapped);
}

static void check(bool ok, const char *name)
{
	tap_ok(&tap, ok, "%s", name);
}

/* Whether that is the whole of the last error's text; NULL: there is none. */
static bool error_is(const char *want)
{
	char *text = vkgdr_last_error();
	bool is = want ? text && !strcmp(text, want) : !text;

	if (!is)
		printf("# %s\n", text ? text : "no error");
	free(text);
	return is;
}

static bool has_error(void)
{
	char *text = vkgdr_last_error();

	free(text);
	return text;
}

/* Whether so much lives: opened, allocated, pinned and mapped, all of it with the right handles. */
static bool lives(int o, int m, int p, int v)
{
	bool is = opened == o && allocated == m && pinned == p && mapped == v && loaded == o && blocks == o + m && !wrong;

	if (!is)
		printf("# %d opened, %d allocated, %d pinned, %d mapped, %d loaded, %d blocks, %d wrong handles\n",
		       opened, allocated, pinned, mapped, loaded, blocks, wrong);
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

/* Each errno, and CUDA's name for it. */
static const struct {
	int err;
	const char *name;
} errors[] = {
	{ ENOMEM, MEMORY }, { ENODEV, " (CUDA_ERROR_INVALID_DEVICE)" },
	{ ENOTSUP, " (CUDA_ERROR_NOT_SUPPORTED)" }, { EPERM, "" }, { EIO, "" }, { EMFILE, "" },
};

static bool step_error_is(const char *call, int err, const char *name)
{
	char want[256];

	snprintf(want, sizeof(want), "%s: %s%s" WHY, call, strerror(err), name);
	return error_is(want);
}

/* Each step of an open and of an allocation fails, with each errno. */
static void test_steps(void)
{
	static const char *const calls[] = { "gdr_mem_alloc", "gdr_mem_get_device_ptr", "gdr_pin_buffer", "gdr_map" };
	vkgdr_t g;

	for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
		fail_with = errors[e].err;
		fail_at = 1;
		check(!vkgdr_open(0, 0) && step_error_is("gdr_open", fail_with, errors[e].name) && lives(0, 0, 0, 0),
		      "gdr_open fails: the error says so, and nothing is left");
		g = vkgdr_open(0, 0);
		for (int i = 0; g && i < 4; i++) {
			fail_at = i + 1;
			check(!vkgdr_memory_alloc(g, 100, 0) && step_error_is(calls[i], fail_with, errors[e].name) &&
			      lives(1, 0, 0, 0), "a step fails: the error names it, and nothing is left");
		}
		vkgdr_close(g);
		check(lives(0, 0, 0, 0), "an open after a failure is closed");
	}
}

/* Memory larger than any is none for the caller, whatever gdr_mem_alloc calls it. */
static void test_sizes(vkgdr_t g)
{
	check(!vkgdr_memory_alloc(g, 0, 0) && step_error_is("gdr_mem_alloc", EINVAL, "") && lives(1, 0, 0, 0), "no bytes");
	fail_with = EINVAL;
	fail_at = 1;
	check(!vkgdr_memory_alloc(g, 100, 0) && step_error_is("gdr_mem_alloc", ENOMEM, MEMORY) && lives(1, 0, 0, 0),
	      "more bytes than an address space has");
	fail_with = ENOMEM;
}

static void test_flags(void)
{
	vkgdr_t g = vkgdr_open(0, 0);
	bool good = true;
	char want[64];

	for (int bit = 3; bit < 32; bit++) {
		for (uint32_t known = 0; known < 8; known++) {
			snprintf(want, sizeof(want), "vkgdr_open: unknown flags %#x", 1u << bit | known);
			good &= !vkgdr_open(0, 1u << bit | known) && error_is(want);
		}
	}
	check(good && lives(1, 0, 0, 0), "each unknown flag of vkgdr_open is refused");
	for (int bit = 0; bit < 32; bit++)
		good &= !vkgdr_memory_alloc(g, 100, 1u << bit) && step_error_is("vkgdr_memory_alloc", EINVAL, "");
	check(good && lives(1, 0, 0, 0), "each flag of vkgdr_memory_alloc is refused");
	check(!vkgdr_memory_alloc(NULL, 100, 0) && step_error_is("vkgdr_memory_alloc", EINVAL, ""), "no library, no memory");
	vkgdr_close(g);
	for (uint32_t flags = 0; flags < 8; flags++) {
		vkgdr_memory_t mem;
		bool coherent = !(flags & VKGDR_OPEN_FORCE_NON_COHERENT_BIT);

		g = vkgdr_open(0, flags);
		mem = g ? vkgdr_memory_alloc(g, 100, 0) : NULL;
		check(mem && vkgdr_memory_is_coherent(mem) == coherent &&
		      vkgdr_memory_non_coherent_atom_size(mem) == (coherent ? 1 : 64),
		      "memory says that it is not coherent where that was asked for alone");
		vkgdr_memory_free(mem);
		vkgdr_close(g);
	}
	check(lives(0, 0, 0, 0), "nothing of these is left");
}

static cu_ctx contexts[2];

/* The GPU is the one that was asked for, or the current context's. */
static void test_devices(void)
{
	vkgdr_memory_t mem;
	vkgdr_t g = vkgdr_open(1, 0);

	check(g && !vkgdr_memory_alloc(g, 100, 0) && lives(1, 0, 0, 0) &&
	      error_is("the current context is of device 0, vkgdr_open was given 1 (CUDA_ERROR_INVALID_CONTEXT)"),
	      "no memory on a GPU that the current context is not of");
	check(!cu.ctx_set(contexts[1]), "a context of the other GPU is current");
	mem = vkgdr_memory_alloc(g, 100, 0);
	check(mem && asked.device == 1, "then there is, and it is on that GPU");
	vkgdr_memory_free(mem);
	vkgdr_close(g);
	g = vkgdr_open(0, VKGDR_OPEN_CURRENT_CONTEXT_BIT);
	mem = g ? vkgdr_memory_alloc(g, 100, 0) : NULL;
	check(mem && asked.device == 1, "or the GPU of the current context is asked for");
	vkgdr_memory_free(mem);
	vkgdr_close(g);
	check(!cu.ctx_set(contexts[0]) && lives(0, 0, 0, 0), "nothing of these is left");
}

/* CUDA is not there, or lacks a function, or fails. */
static void test_cuda(void)
{
	static const char *const needed[] = { "cuDeviceGet", "cuCtxGetDevice", "cuGetErrorName" };
	vkgdr_t g;
	char *text;

	no_library = true;
	check(!vkgdr_open(0, 0) && lives(0, 0, 0, 0), "no libcuda.so.1: nothing is left");
	no_library = false;
	text = vkgdr_last_error();
	check(text && strstr(text, "libof_nobody.so") && strstr(text, "; NVIDIA's driver has this library"),
	      "the error has the loader's reason");
	free(text);
	for (int i = 0; i < 3; i++) {
		missing = needed[i];
		check(!vkgdr_open(0, 0) && lives(0, 0, 0, 0) &&
		      error_is("libcuda.so.1 lacks cuDeviceGet, cuCtxGetDevice or cuGetErrorName"),
		      "CUDA lacks a function: nothing is left");
	}
	missing = "";
	check(!vkgdr_open(99, 0) && lives(0, 0, 0, 0) && error_is("cuDeviceGet failed (CUDA_ERROR_INVALID_DEVICE)"),
	      "a GPU that is not there: nothing is left");
	cuda_answer = 12345;
	check(!vkgdr_open(0, 0) && lives(0, 0, 0, 0) && error_is("cuDeviceGet failed (unknown CUDA error 12345)"),
	      "an error that has no name");
	cuda_answer = 0;
	check(!cu.ctx_set(NULL) && !vkgdr_open(0, VKGDR_OPEN_CURRENT_CONTEXT_BIT) && lives(0, 0, 0, 0) &&
	      error_is("cuCtxGetDevice failed (CUDA_ERROR_INVALID_CONTEXT)"), "no current context: nothing is left");
	g = vkgdr_open(0, 0);
	check(g && !vkgdr_memory_alloc(g, 100, 0) && lives(1, 0, 0, 0) &&
	      error_is("cuCtxGetDevice failed (CUDA_ERROR_INVALID_CONTEXT)"), "nor memory");
	check(!cu.ctx_set(contexts[0]), "the context is current again");
	vkgdr_close(g);
}

static void test_heap(void)
{
	vkgdr_t g;

	no_heap = true;
	check(!vkgdr_open(0, 0) && step_error_is("vkgdr_open", ENOMEM, MEMORY) && lives(0, 0, 0, 0), "no heap to open with");
	no_heap = false;
	g = vkgdr_open(0, 0);
	no_heap = true;
	check(g && !vkgdr_memory_alloc(g, 100, 0) && step_error_is("vkgdr_memory_alloc", ENOMEM, MEMORY) &&
	      lives(1, 0, 0, 0), "nor to allocate with");
	no_heap = false;
	vkgdr_close(g);
	check(lives(0, 0, 0, 0), "it is closed all the same");
}

static void *fail_to_open(void *arg)
{
	bool *good = arg;

	*good = error_is(NULL) && !vkgdr_open(99, 0) && has_error();
	return NULL;
}

static void test_lives(void)
{
	vkgdr_t g = vkgdr_open(0, 0), second = vkgdr_open(0, 0);
	vkgdr_memory_t mem, more;
	pthread_t thread;
	bool good = false;

	check(g && second && lives(2, 0, 0, 0), "each vkgdr_open opens once");
	vkgdr_close(second);
	check(lives(1, 0, 0, 0), "and each close closes one");
	check(!vkgdr_memory_alloc(g, 100, 1) && has_error(), "there is an error");
	mem = vkgdr_memory_alloc(g, 100, 0);
	check(mem && lives(1, 1, 1, 1) && asked.size == 100 && asked.mapped == sizeof(bytes),
	      "then memory is allocated, pinned and mapped, all of it");
	check(error_is(NULL), "a success leaves no error");
	check(!pthread_create(&thread, NULL, fail_to_open, &good) && !pthread_join(thread, NULL) && good,
	      "another thread has an error of its own");
	check(error_is(NULL), "which is none of this one");
	more = vkgdr_memory_alloc(g, 100, 0);
	check(more && vkgdr_memory_get_host_ptr(more) == bytes && vkgdr_memory_get_device_ptr(more) == 0x50000 &&
	      vkgdr_memory_get_size(more) == 100, "each getter gives what it names");
	vkgdr_memory_free(more);
	check(lives(1, 1, 1, 0), "a free frees one");
	vkgdr_close(g);
	check(lives(1, 1, 1, 0), "memory keeps the library open");
	vkgdr_memory_free(mem);
	check(lives(0, 0, 0, 0), "the last memory closes it");
	check(!vkgdr_open(0, 8) && has_error(), "there is an error");
	g = vkgdr_open(0, 0);
	check(g && error_is(NULL), "an open that succeeds leaves none");
	vkgdr_close(g);
	vkgdr_close(NULL);
	vkgdr_memory_free(NULL);
	check(lives(0, 0, 0, 0), "NULL is not closed, nor freed");
}

static bool start_cuda(void)
{
	int dev;

	if (cuda_load(&cu) || cu.init(0))
		return false;
	for (int i = 0; i < 2; i++)
		if (cu.device_get(&dev, i) || cu.primary_retain(&contexts[i], dev))
			return false;
	return !cu.ctx_set(contexts[0]);
}

int main(void)
{
	vkgdr_t g;

	if (!tap_ok(&tap, start_cuda(), "CUDA starts"))
		return tap_done(&tap);
	check(has_fence(vkgdr_memory_flush) && has_fence(vkgdr_memory_invalidate), "flush and invalidate fence");
	test_lives();
	test_steps();
	test_flags();
	test_devices();
	test_cuda();
	test_heap();
	g = vkgdr_open(0, 0);
	test_sizes(g);
	vkgdr_close(g);
	check(lives(0, 0, 0, 0), "nothing is left");
	return tap_done(&tap);
}
