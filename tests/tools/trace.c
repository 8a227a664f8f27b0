// SPDX-License-Identifier: MIT
/*
 * trace.c - a preload that writes down each call that a tool makes of libgdrapi, of
 * CUDA and, for apiperf, of the system: with its arguments, in order. It fails one of them.
 * What the library itself calls is left alone.
 *
 *	TRACE=FILE	one line a call: THREAD NAME ARGUMENT... = RESULT
 *	TRACE_FAIL=NAME@N=HOW
 *			the N-th call of that name fails. HOW is its result, a number: an
 *			errno for what gives a pointer or -1. Or flip: a copy has a wrong
 *			last byte. Or skip: a copy moves nothing and says that it did. Or
 *			empty: what a call finds is 0.
 *	TRACE_LACKS=NAME	the driver has no such call
 *	TRACE_PRETEND=gdrdrv or kernels
 *			see pretend.c
 *
 * THREAD is main or other.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"

/*
 * How an argument is written: x, 64 bits; i, 32 bits; s, a text; X, the 64 bits that it points to
 * after the call; I, 32 bits likewise; a digit and h, so many times 4 bytes that it
 * points to, as they are in memory.
 *
 * How a call fails: 's', by its result; '-', by -1 and errno; 'm', the same, of 64 bits;
 * '0', by NULL and errno; 'v', never.
 */
struct call {
	const char *name, *args;
	char fails;
	unsigned int to, from, size;	/* of a copy: which arguments, counted from 1 */
	trace_fn *real, *instead;	/* what pretend.c has, or real */
	unsigned long made;
};

/* Of the library and of the system: the program's loader finds them here. */
#define EXPORTED(F)							\
	F(gdr_open, "", '0')						\
	F(gdr_close, "x", 's')						\
	F(gdr_pin_buffer, "xxxxiX", 's')				\
	F(gdr_pin_buffer_v2, "xxxiX", 's')				\
	F(gdr_unpin_buffer, "xx", 's')					\
	F(gdr_map, "xxXx", 's')						\
	F(gdr_map_v2, "xxXxi", 's')					\
	F(gdr_unmap, "xxxx", 's')					\
	F(gdr_get_info_v2, "xxx", 's')					\
	F(gdr_get_callback_flag, "xxI", 's')				\
	F(gdr_get_attribute, "xiI", 's')				\
	F(gdr_copy_to_mapping, "xxxx", 's', 2, 3, 4)			\
	F(gdr_copy_from_mapping, "xxxx", 's', 2, 3, 4)			\
	F(gdr_copy_to_mapping_v, "xx", 's')				\
	F(gdr_copy_from_mapping_v, "xx", 's')				\
	F(gdr_cache_open, "xxiX", 's')					\
	F(gdr_cache_get, "xxxXX", 's')					\
	F(gdr_cache_put, "xx", 's')					\
	F(gdr_cache_flush, "x", 's')					\
	F(gdr_cache_close, "x", 's')					\
	F(gdr_mem_alloc, "xixiX", 's')					\
	F(gdr_mem_free, "xx", 's')					\
	F(gdr_mem_get_device_ptr, "xxXx", 's')				\
	F(gdr_get_backend, "xxx", 's')					\
	F(gdr_get_mapping_type_string, "ix", 's')			\
	F(open, "sii", '-')						\
	F(close, "i", '-')						\
	F(ioctl, "ixx", '-')						\
	F(mmap, "xxiiix", 'm')						\
	F(munmap, "xx", '-')						\
	F(fopen, "ss", '0')						\
	F(setenv, "ssi", '-')						\
	F(malloc, "x", '0')						\
	F(calloc, "xx", '0')						\
	F(realloc, "xx", '0')						\
	F(aligned_alloc, "xx", '0')					\
	F(pthread_create, "xxxx", 's')					\
	F(sched_setaffinity, "ix4h", '-')

/* Of the drivers: the program finds them by dlsym. */
#define FOUND(F)							\
	F(cuInit, "i", 's')						\
	F(cuDriverGetVersion, "I", 's')					\
	F(cuDeviceGetCount, "I", 's')					\
	F(cuDeviceGet, "Ii", 's')					\
	F(cuDeviceGetName, "xii", 's')					\
	F(cuDeviceGetAttribute, "Iii", 's')				\
	F(cuDevicePrimaryCtxRetain, "Xi", 's')				\
	F(cuDevicePrimaryCtxRelease_v2, "i", 's')			\
	F(cuCtxGetCurrent, "X", 's')					\
	F(cuCtxSetCurrent, "x", 's')					\
	F(cuCtxSynchronize, "", 's')					\
	F(cuMemAlloc_v2, "Xx", 's')					\
	F(cuMemFree_v2, "x", 's')					\
	F(cuMemcpyHtoD_v2, "xxx", 's', 1, 2, 3)				\
	F(cuMemcpyDtoH_v2, "xxx", 's', 1, 2, 3)				\
	F(cuMemsetD8_v2, "xix", 's')					\
	F(cuPointerGetAttribute, "xix", 's')				\
	F(cuMemGetAllocationGranularity, "X8hi", 's')			\
	F(cuMemCreate, "Xx8hx", 's')					\
	F(cuMemRelease, "x", 's')					\
	F(cuMemAddressReserve, "Xxxxx", 's')				\
	F(cuMemAddressFree, "xx", 's')					\
	F(cuMemMap, "xxxxx", 's')					\
	F(cuMemUnmap, "xx", 's')					\
	F(cuMemSetAccess, "xx3hx", 's')					\
	F(cuGetErrorName, "ix", 's')					\
	F(cuModuleLoadData, "Xx", 's')					\
	F(cuModuleUnload, "x", 's')					\
	F(cuModuleGetFunction, "Xxs", 's')				\
	F(cuLaunchKernel, "xiiiiiiixxx", 's')				\
	F(cuOccupancyMaxActiveBlocksPerMultiprocessor, "Ixix", 's')	\
	F(cuMemHostAlloc, "Xxi", 's')					\
	F(cuMemFreeHost, "x", 's')					\
	F(cuMemHostRegister_v2, "xxi", 's')				\
	F(cuMemHostGetDevicePointer_v2, "Xxi", 's')			\
	F(cuStreamCreate, "Xi", 's')					\
	F(cuStreamDestroy_v2, "x", 's')					\
	F(cuStreamSynchronize, "x", 's')				\
	F(cuMemcpyHtoDAsync_v2, "xxxx", 's')				\
	F(cuPointerSetAttribute, "1hix", 's')				\
	F(cuMemGetAddressRange_v2, "XXx", 's')				\
	F(cuMemGetHandleForAddressRange, "Ixxix", 's')			\
	F(cuMemRetainAllocationHandle, "Xx", 's')			\
	F(cuDeviceGetUuid_v2, "xi", 's')				\
	F(cuMemExportToShareableHandle, "Ixix", 's')

#define PARAMS long a0, long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11
#define ARGS a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11

enum {
#define NUMBER(name, ...) N_##name,
	EXPORTED(NUMBER) FOUND(NUMBER)
	NCALLS
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
static struct call calls[] = {
#define ROW(name, ...) { #name, __VA_ARGS__ },
	EXPORTED(ROW) FOUND(ROW)
};
#pragma GCC diagnostic pop

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static uintptr_t program[2];	/* where it lies in memory */
static struct {
	int call;
	unsigned long nth;
	enum { RESULT, FLIP, SKIP, EMPTY } how;
	int result;
} fault = { .call = -1 };

static void die(const char *what, const char *text)
{
	fprintf(stderr, "trace: %s: %s\n", what, text);
	abort();
}

static int call_of(const char *name)
{
	for (int i = 0; i < NCALLS; i++)
		if (!strcmp(calls[i].name, name))
			return i;
	return -1;
}

static void read_fault(const char *text)
{
	char name[64], how[16];

	if (sscanf(text, "%63[^@]@%lu=%15s", name, &fault.nth, how) != 3 || !fault.nth)
		die("TRACE_FAIL", text);
	fault.call = call_of(name);
	fault.how = !strcmp(how, "flip") ? FLIP : !strcmp(how, "skip") ? SKIP : !strcmp(how, "empty") ? EMPTY : RESULT;
	fault.result = atoi(how);
	if (fault.call < 0 || calls[fault.call].fails == 'v' || (fault.how == RESULT && !fault.result) ||
	    ((fault.how == FLIP || fault.how == SKIP) && !calls[fault.call].size))
		die("TRACE_FAIL", text);
}

/* The first object is the program. */
static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			program[0] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			program[1] = program[0] + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

static bool of_program(const void *from)
{
	return (uintptr_t)from - program[0] < program[1] - program[0];
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("TRACE"), *text = getenv("TRACE_FAIL");

	dl_iterate_phdr(find_program, NULL);
	if (!path)
		return;
	file = fopen(path, "we");
	if (!file)
		die(path, strerror(errno));
	if (text)
		read_fault(text);
}

__attribute__((destructor)) static void end(void)
{
	if (file && fclose(file))
		die("TRACE", strerror(errno));
}

static void write_words(const void *at, int n)
{
	uint32_t word;

	fputc(' ', file);
	for (int i = 0; i < n; i++) {
		memcpy(&word, (const char *)at + 4 * i, 4);
		fprintf(file, "%s%#x", i ? "," : "", word);
	}
}

/* One argument; returns what follows it in the format. */
static const char *write_arg(const char *how, long arg)
{
	void *at = (void *)arg;

	switch (*how) {
	case 'x': fprintf(file, " %#lx", arg); break;
	case 'i': fprintf(file, " %d", (int)arg); break;
	case 's': fprintf(file, " %s", (char *)at); break;
	case 'X': fprintf(file, " %#lx", at ? *(long *)at : 0); break;
	case 'I': fprintf(file, " %d", at ? *(int *)at : 0); break;
	default:
		write_words(at, *how - '0');
		return how + 2;
	}
	return how + 1;
}

static void write_pieces(const char *name, const long *args)
{
	const long *p = (const long *)args[0];

	if (!strstr(name, "mapping_v"))
		return;
	for (long i = 0; i < args[1]; i++)
		fprintf(file, " %#lx,%#lx,%#lx,%#lx", p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
}

/* What a kernel is given; pretend.c knows its parameters. */
static void write_params(const char *name, const long *args)
{
	static const int sizes[] = { 8, 8, 4, 4, 8, 8, 4, 4 };

	for (size_t i = 0; !strcmp(name, "cuLaunchKernel") && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		long value = 0;

		memcpy(&value, ((void **)args[9])[i], (size_t)sizes[i]);
		fprintf(file, " %#lx", value);
	}
}

static void record(const struct call *c, const long *args, long result)
{
	const char *how = c->args;

	pthread_mutex_lock(&lock);
	fprintf(file, "%s %s", gettid() == getpid() ? "main" : "other", c->name);
	for (int i = 0; *how; i++)
		how = write_arg(how, args[i]);
	write_pieces(c->name, args);
	write_params(c->name, args);
	fprintf(file, " = %#lx\n", c->fails == 's' || c->fails == '-' ? (long)(int)result : result);
	pthread_mutex_unlock(&lock);
}

static long refuse(const struct call *c)
{
	if (c->fails == 's')
		return fault.result;
	errno = fault.result;
	return c->fails == '0' ? 0 : -1;
}

static long run(trace_fn *f, const long *a)
{
	return f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

/* A copy whose last byte is wrong. The driver takes no GPU's address from the CPU. */
static long flip(const struct call *c, long *a)
{
	size_t n = (size_t)a[c->size - 1];
	bool to_gpu = strstr(c->name, "to_mapping") || strstr(c->name, "HtoD");
	uint8_t *bad;
	long result;

	if (!to_gpu) {
		result = run(c->instead, a);
		((uint8_t *)a[c->to - 1])[n - 1] ^= 0x10;
		return result;
	}
	bad = malloc(n);
	if (!bad)
		abort();
	memcpy(bad, (void *)a[c->from - 1], n);
	bad[n - 1] ^= 0x10;
	a[c->from - 1] = (long)bad;
	result = run(c->instead, a);
	free(bad);
	return result;
}

/* What the call found, a number, is none. */
static long empty(const struct call *c, long *a)
{
	long result = run(c->instead, a);

	for (int i = 0; c->args[i]; i++)
		if (c->args[i] == 'I')
			*(int *)a[i] = 0;
	return result;
}

static long act(struct call *c, long *a)
{
	unsigned long n = __atomic_add_fetch(&c->made, 1, __ATOMIC_RELAXED);
	long result;

	if (c != &calls[fault.call] || fault.call < 0 || n != fault.nth) {
		result = run(c->instead, a);
		pretend_after(c->name, a, result);
		return result;
	}
	switch (fault.how) {
	case FLIP: return flip(c, a);
	case SKIP: return 0;
	case EMPTY: return empty(c, a);
	case RESULT: break;
	}
	return refuse(c);
}

static long handle(struct call *c, const void *from, long *a)
{
	int keep;
	long result;

	if (!of_program(from) || !file)
		return run(c->real, a);
	result = act(c, a);
	keep = errno;
	record(c, a, result);
	errno = keep;
	return result;
}

static void *next(const char *name)
{
	void *f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");

	if (!f)
		f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
	if (!f)
		f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	if (!f)
		die("dlsym", "not found");
	return ((void *(*)(void *, const char *))f)(RTLD_NEXT, name);
}

static void find(struct call *c, trace_fn *real)
{
	trace_fn *other = pretend(c->name, real);

	c->instead = other ? other : real;
	c->real = real;
}

/* Other libgdrapi libraries, and older system libraries, may lack one: nobody calls it then. */
#define EXPORT(name, ...)						\
	__attribute__((noinline)) long traced_##name(PARAMS) __asm__(#name);	\
	long traced_##name(PARAMS)					\
	{								\
		struct call *c = &calls[N_##name];			\
									\
		if (!c->real)						\
			find(c, (trace_fn *)next(#name));	\
		return handle(c, __builtin_return_address(0), (long[]){ ARGS });	\
	}
EXPORTED(EXPORT)

#define HOOK(name, ...)							\
	__attribute__((noinline)) static long hook_##name(PARAMS)	\
	{								\
		return handle(&calls[N_##name], __builtin_return_address(0), (long[]){ ARGS });	\
	}
FOUND(HOOK)

static const struct {
	int call;
	trace_fn *hook;
} hooks[] = {
#define ENTRY(name, ...) { N_##name, hook_##name },
	FOUND(ENTRY)
};

static void *hooked(const char *name, void *f)
{
	const char *lacks = getenv("TRACE_LACKS");
	struct call *c;

	if (lacks && !strcmp(lacks, name))
		return NULL;
	for (size_t i = 0; i < sizeof(hooks) / sizeof(hooks[0]); i++) {
		c = &calls[hooks[i].call];
		if (strcmp(c->name, name))
			continue;
		find(c, (trace_fn *)f);
		return c->instead ? (void *)hooks[i].hook : NULL;
	}
	die("unknown", name);
	return NULL;
}

/* What a library asks for is its own affair: RTLD_NEXT, of which there is none here, aside. */
void *dlsym(void *restrict lib, const char *restrict name)
{
	static void *(*real)(void *, const char *);
	bool ours = of_program(__builtin_return_address(0));

	if (!real) {
		void *f = next("dlsym");

		memcpy(&real, &f, sizeof(f));
	}
	return ours && file && strcmp(name, "cuda_sim_live") ? hooked(name, real(lib, name)) : real(lib, name);
}
