/* SPDX-License-Identifier: MIT */
/*
 * guest/cuda.h - for guest programs that call the CUDA driver themselves.
 */
#ifndef GUEST_CUDA_H
#define GUEST_CUDA_H

#include "common.h"
#include "cuda_dl.h"

/* Loads and initialises it; the first GPU's primary context, which is retained. */
static inline cu_ctx start_cuda(struct cuda_dl *cu)
{
	const char *err = cuda_load(cu);
	cu_ctx context;
	int dev;

	if (err)
		note("%s", err);
	expect(!err);
	expect_is(cu->init(0), 0);
	expect_is(cu->device_get(&dev, 0), 0);
	expect_is(cu->primary_retain(&context, dev), 0);
	return context;
}

/* And makes that context current. */
static inline cu_ctx start_current(struct cuda_dl *cu)
{
	cu_ctx context = start_cuda(cu);

	expect_is(cu->ctx_set(context), 0);
	return context;
}

/* A function of libcuda or of its double; NULL: it has none of that name. */
static inline void *cuda_symbol(const char *name)
{
	return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static inline void *need_symbol(const char *name)
{
	void *sym = cuda_symbol(name);

	if (!sym)
		note("libcuda.so.1 has no %s", name);
	expect(sym != NULL);
	return sym;
}

/* What lives in the simulated drivers; 0 with real ones. */
static inline unsigned long count_live(void)
{
	unsigned long (*live)(void) = cuda_symbol("cuda_sim_live");

	return live ? live() : 0;
}

/*
 * A new object of cuMemCreate at a reserved address, fit for gdrdrv where it can be. The mapping alone keeps it.
 * fd_type says whether CUDA exports it.
 */
static inline void map_object(const struct cuda_dl *cu, cu_ptr at, size_t size, int fd_type)
{
	struct cu_mem_want want = { .type = CU_MEM_PINNED, .fd_type = fd_type, .place = { CU_PLACE_GPU, 0 } };
	const struct cu_access access = { want.place, CU_ACCESS_RW };
	int rdma = 0;
	cu_mem mem;

	expect_is(cu->device_attribute(&rdma, CU_DEV_VMM_RDMA, 0), 0);
	want.rdma = rdma;
	expect_is(cu->create(&mem, size, &want, 0), 0);
	expect_is(cu->map(at, size, 0, mem, 0), 0);
	expect_is(cu->set_access(at, size, &access, 1), 0);
	expect_is(cu->release(mem), 0);
}

static inline void map_new(const struct cuda_dl *cu, cu_ptr at, size_t size)
{
	map_object(cu, at, size, CU_EXPORT_FD);
}

/* Objects of these sizes, side by side. */
static inline cu_ptr make_objects(const struct cuda_dl *cu, const size_t *sizes, int n, int fd_type)
{
	size_t total = 0, at = 0;
	cu_ptr p;

	for (int i = 0; i < n; i++)
		total += sizes[i];
	expect_is(cu->reserve(&p, total, 0, 0, 0), 0);
	for (int i = 0; i < n; at += sizes[i++])
		map_object(cu, p + at, sizes[i], fd_type);
	return p;
}

static inline cu_ptr make_vmm(const struct cuda_dl *cu, const size_t *sizes, int n)
{
	return make_objects(cu, sizes, n, CU_EXPORT_FD);
}

/*
 * With a real driver, holds the first GPU's primary context until the process ends,
 * as a program that uses CUDA does. Where nobody holds it, each allocation makes it
 * and its end destroys it: 0.15 s on an H100, so that few calls fit into a test. The
 * simulated driver's takes no time. The threads that CUDA starts get no signals.
 */
static inline void hold_context(void)
{
	sigset_t all, before;
	struct cuda_dl cu;

	if (on_doubles())
		return;
	sigfillset(&all);
	expect_is(pthread_sigmask(SIG_BLOCK, &all, &before), 0);
	start_cuda(&cu);
	expect_is(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

static inline gdr_t open_with_context(void)
{
	hold_context();
	return open_or_fail();
}

#endif
