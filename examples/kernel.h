/* SPDX-License-Identifier: MIT */
/*
 * kernel.h - kernels of the examples. They are PTX text, which the driver compiles, so
 * no CUDA compiler is needed. A libcuda.so.1 that runs no kernels, as the simulated one,
 * lacks the calls: their addresses are NULL then.
 */
#ifndef EXAMPLE_KERNEL_H
#define EXAMPLE_KERNEL_H

#include "example.h"

#pragma weak cuModuleLoadData
#pragma weak cuModuleGetFunction
#pragma weak cuLaunchKernel
#pragma weak cuMemHostAlloc
#pragma weak cuMemHostGetDevicePointer_v2

/* Is there a driver that runs kernels? */
static inline int kernel_possible(void)
{
	return cuLaunchKernel && cuModuleLoadData && cuModuleGetFunction && cuMemHostAlloc &&
	       cuMemHostGetDevicePointer;
}

/* The kernel of that name; body is PTX from .address_size on, for sm_70 and later. */
static inline CUfunction kernel_load(const char *body, const char *name)
{
	/* A new driver may no longer compile for the oldest target. */
	static const char *const targets[] = {
		".version 6.0\n.target sm_70\n",
		".version 6.3\n.target sm_75\n",
		".version 7.8\n.target sm_90\n",
	};
	size_t size = strlen(body) + 64, i;
	char *text = malloc(size);
	CUfunction f = NULL;
	CUmodule module;
	CUresult result = 1;

	for (i = 0; text && result && i < sizeof(targets) / sizeof(targets[0]); i++) {
		snprintf(text, size, "%s%s", targets[i], body);
		result = cuModuleLoadData(&module, text);
	}
	free(text);
	cu(result, "cuModuleLoadData");
	cu(cuModuleGetFunction(&f, module, name), "cuModuleGetFunction");
	return f;
}

/* Starts one GPU thread on a stream of its own. */
static inline CUstream kernel_start(CUfunction f, void **params)
{
	CUstream stream;

	cu(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	cu(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
	return stream;
}

/* Memory of the host that the GPU reaches; *dev is where. */
static inline void *kernel_host_memory(size_t size, CUdeviceptr *dev)
{
	void *p;

	cu(cuMemHostAlloc(&p, size, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
	cu(cuMemHostGetDevicePointer(dev, p, 0), "cuMemHostGetDevicePointer");
	memset(p, 0, size);
	return p;
}

#endif
