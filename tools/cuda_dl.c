/* SPDX-License-Identifier: MIT */
#include "cuda_dl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *symbol;
	size_t member;
	bool kernels;		/* only those that start a GPU kernel need it */
} calls[] = {
	{ "cuInit", offsetof(struct cuda_dl, init), false },
	{ "cuDriverGetVersion", offsetof(struct cuda_dl, driver_version), false },
	{ "cuDeviceGetCount", offsetof(struct cuda_dl, device_count), false },
	{ "cuDeviceGet", offsetof(struct cuda_dl, device_get), false },
	{ "cuDeviceGetName", offsetof(struct cuda_dl, device_name), false },
	{ "cuDeviceGetAttribute", offsetof(struct cuda_dl, device_attribute), false },
	{ "cuDevicePrimaryCtxRetain", offsetof(struct cuda_dl, primary_retain), false },
	{ "cuDevicePrimaryCtxRelease_v2", offsetof(struct cuda_dl, primary_release), false },
	{ "cuCtxGetCurrent", offsetof(struct cuda_dl, ctx_get), false },
	{ "cuCtxSetCurrent", offsetof(struct cuda_dl, ctx_set), false },
	{ "cuCtxSynchronize", offsetof(struct cuda_dl, ctx_sync), false },
	{ "cuMemAlloc_v2", offsetof(struct cuda_dl, mem_alloc), false },
	{ "cuMemFree_v2", offsetof(struct cuda_dl, mem_free), false },
	{ "cuMemcpyHtoD_v2", offsetof(struct cuda_dl, to_gpu), false },
	{ "cuMemcpyDtoH_v2", offsetof(struct cuda_dl, from_gpu), false },
	{ "cuMemsetD8_v2", offsetof(struct cuda_dl, set8), false },
	{ "cuPointerGetAttribute", offsetof(struct cuda_dl, pointer_attribute), false },
	{ "cuMemGetAllocationGranularity", offsetof(struct cuda_dl, granularity), false },
	{ "cuMemCreate", offsetof(struct cuda_dl, create), false },
	{ "cuMemRelease", offsetof(struct cuda_dl, release), false },
	{ "cuMemAddressReserve", offsetof(struct cuda_dl, reserve), false },
	{ "cuMemAddressFree", offsetof(struct cuda_dl, unreserve), false },
	{ "cuMemMap", offsetof(struct cuda_dl, map), false },
	{ "cuMemUnmap", offsetof(struct cuda_dl, unmap), false },
	{ "cuMemSetAccess", offsetof(struct cuda_dl, set_access), false },
	{ "cuGetErrorName", offsetof(struct cuda_dl, error_name), false },
	{ "cuModuleLoadData", offsetof(struct cuda_dl, module_load), true },
	{ "cuModuleUnload", offsetof(struct cuda_dl, module_unload), true },
	{ "cuModuleGetFunction", offsetof(struct cuda_dl, module_function), true },
	{ "cuLaunchKernel", offsetof(struct cuda_dl, launch), true },
	{ "cuOccupancyMaxActiveBlocksPerMultiprocessor", offsetof(struct cuda_dl, occupancy), true },
	{ "cuMemHostAlloc", offsetof(struct cuda_dl, host_alloc), true },
	{ "cuMemFreeHost", offsetof(struct cuda_dl, host_free), true },
	{ "cuMemHostGetDevicePointer_v2", offsetof(struct cuda_dl, host_device_ptr), true },
	{ "cuStreamCreate", offsetof(struct cuda_dl, stream_create), true },
	{ "cuStreamDestroy_v2", offsetof(struct cuda_dl, stream_destroy), true },
	{ "cuStreamSynchronize", offsetof(struct cuda_dl, stream_sync), true },
};

#define NCALLS (sizeof(calls) / sizeof(calls[0]))

const char *cuda_load(struct cuda_dl *cu)
{
	static char missing[96];
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	size_t i;

	if (!lib)
		return dlerror();
	for (i = 0; i < NCALLS; i++) {
		void *f = dlsym(lib, calls[i].symbol);

		if (!f && calls[i].kernels) {
			if (!cu->no_kernels)
				cu->no_kernels = calls[i].symbol;
		} else if (!f) {
			snprintf(missing, sizeof(missing), "libcuda.so.1 has no %s",
				 calls[i].symbol);
			return missing;
		}
		/* ISO C has no cast from an object pointer to a function's. */
		memcpy((char *)cu + calls[i].member, &f, sizeof(f));
	}
	cu->simulated = dlsym(lib, "cuda_sim_live") != NULL;
	return NULL;
}

const char *cuda_error(const struct cuda_dl *cu, int result)
{
	const char *name = NULL;

	if (cu->error_name(result, &name) != CU_OK || !name)
		return "an unknown result";
	return name;
}

int cuda_module(const struct cuda_dl *cu, cu_module *m, const char *ptx)
{
	/* A new driver may no longer compile for the oldest target. */
	static const char *const targets[] = {
		".version 6.0\n.target sm_50\n",
		".version 6.3\n.target sm_75\n",
		".version 7.8\n.target sm_90\n",
	};
	size_t i, room = strlen(ptx) + 64;
	char *text = malloc(room);
	int rc = CU_OUT_OF_MEMORY;

	for (i = 0; text && i < sizeof(targets) / sizeof(targets[0]); i++) {
		snprintf(text, room, "%s%s", targets[i], ptx);
		rc = cu->module_load(m, text);
		if (rc == CU_OK)
			break;
	}
	free(text);
	return rc;
}
