/* SPDX-License-Identifier: MIT */
#include "cuda.h"
#include "opt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *symbol;
	size_t member;
	bool kernels;		/* a GPU kernel cannot run without it */
} calls[] = {
	{ "cuModuleLoadData", offsetof(struct bench_cuda, module_load), true },
	{ "cuModuleUnload", offsetof(struct bench_cuda, module_unload), true },
	{ "cuModuleGetFunction", offsetof(struct bench_cuda, module_function), true },
	{ "cuLaunchKernel", offsetof(struct bench_cuda, launch), true },
	{ "cuOccupancyMaxActiveBlocksPerMultiprocessor", offsetof(struct bench_cuda, occupancy), true },
	{ "cuMemHostAlloc", offsetof(struct bench_cuda, host_alloc), true },
	{ "cuMemFreeHost", offsetof(struct bench_cuda, host_free), true },
	{ "cuMemHostRegister_v2", offsetof(struct bench_cuda, host_register), false },
	{ "cuMemHostGetDevicePointer_v2", offsetof(struct bench_cuda, host_device_ptr), true },
	{ "cuStreamCreate", offsetof(struct bench_cuda, stream_create), true },
	{ "cuStreamDestroy_v2", offsetof(struct bench_cuda, stream_destroy), true },
	{ "cuStreamSynchronize", offsetof(struct bench_cuda, stream_sync), true },
	{ "cuMemcpyHtoDAsync_v2", offsetof(struct bench_cuda, to_gpu_async), false },
	{ "cuPointerSetAttribute", offsetof(struct bench_cuda, set_attribute), false },
	{ "cuMemGetAddressRange_v2", offsetof(struct bench_cuda, address_range), false },
	{ "cuMemGetHandleForAddressRange", offsetof(struct bench_cuda, range_handle), false },
};

#define NCALLS (sizeof(calls) / sizeof(calls[0]))

void bench_cuda_load(struct bench_cuda *c)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	size_t i;

	if (!lib)
		bench_die("libcuda.so.1 is not loaded");
	for (i = 0; i < NCALLS; i++) {
		void *f = dlsym(lib, calls[i].symbol);

		/* ISO C has no cast from an object pointer to a function's. */
		memcpy((char *)c + calls[i].member, &f, sizeof(f));
	}
}

int bench_cuda_module(const struct bench_cuda *c, cu_module *m, const char *ptx)
{
	/* A new driver may no longer compile for the oldest target. */
	static const char *const targets[] = {
		".version 6.0\n.target sm_50\n",
		".version 6.3\n.target sm_75\n",
		".version 7.8\n.target sm_90\n",
	};
	size_t i, room = strlen(ptx) + 64;
	char *text = malloc(room);
	int rc = CU_OK;

	if (!text)
		bench_die("out of memory for a GPU kernel");
	for (i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		snprintf(text, room, "%s%s", targets[i], ptx);
		rc = c->module_load(m, text);
		if (rc == CU_OK)
			break;
	}
	free(text);
	return rc;
}

const char *bench_cuda_no_kernels(const struct bench_cuda *c)
{
	size_t i;

	for (i = 0; i < NCALLS; i++) {
		void *f;

		memcpy(&f, (const char *)c + calls[i].member, sizeof(f));
		if (calls[i].kernels && !f)
			return calls[i].symbol;
	}
	return NULL;
}
