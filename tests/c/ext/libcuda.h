/* SPDX-License-Identifier: MIT */
/*
 * ext/libcuda.h - what the program does with CUDA, beside the library.
 */
#ifndef EXT_LIBCUDA_H
#define EXT_LIBCUDA_H

#include "guest/common.h"

/* A function of the driver that the process has loaded by now, or NULL. */
static inline void *of_driver(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	return lib ? dlsym(lib, name) : NULL;
}

/* Calls a function of the driver, which must succeed. It ignores arguments it does not have. */
static inline void driver(const char *name, uintptr_t a, uintptr_t b, uintptr_t c)
{
	int (*f)(uintptr_t a, uintptr_t b, uintptr_t c);

	*(void **)&f = of_driver(name);
	expect(f != NULL);
	expect_at(!f(a, b, c), name, __FILE__, __LINE__);
}

/* Makes the first GPU's primary context, which the process then keeps, current. */
static inline void use_gpu(void)
{
	void *ctx;

	driver("cuInit", 0, 0, 0);
	driver("cuDevicePrimaryCtxRetain", (uintptr_t)&ctx, 0, 0);
	driver("cuCtxPushCurrent_v2", (uintptr_t)ctx, 0, 0);
}

static inline void leave_gpu(void)
{
	void *ctx;

	driver("cuCtxPopCurrent_v2", (uintptr_t)&ctx, 0, 0);
}

/* Page-locks memory for all GPUs. It ends with a reset of the first one. */
static inline void lock_host(void *p, size_t n)
{
	use_gpu();
	driver("cuMemHostRegister_v2", (uintptr_t)p, n, 1);
	leave_gpu();
}

static inline void unlock_host(void *p)
{
	use_gpu();
	driver("cuMemHostUnregister", (uintptr_t)p, 0, 0);
	leave_gpu();
}

#endif
