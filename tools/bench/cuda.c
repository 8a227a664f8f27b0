/* SPDX-License-Identifier: MIT */
#include "cuda.h"

#include <dlfcn.h>
#include <stdbool.h>
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

const char *bench_cuda_load(struct bench_cuda *c)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	size_t i;

	if (!lib)
		return "libcuda.so.1 is not loaded";
	for (i = 0; i < NCALLS; i++) {
		void *f = dlsym(lib, calls[i].symbol);

		/* ISO C has no cast from an object pointer to a function's. */
		memcpy((char *)c + calls[i].member, &f, sizeof(f));
	}
	return NULL;
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
