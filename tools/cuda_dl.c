/* SPDX-License-Identifier: MIT */
#include "cuda_dl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *symbol;
	size_t member;
} calls[] = {
	{ "cuInit", offsetof(struct cuda_dl, init) },
	{ "cuDriverGetVersion", offsetof(struct cuda_dl, driver_version) },
	{ "cuDeviceGetCount", offsetof(struct cuda_dl, device_count) },
	{ "cuDeviceGet", offsetof(struct cuda_dl, device_get) },
	{ "cuDeviceGetName", offsetof(struct cuda_dl, device_name) },
	{ "cuDeviceGetAttribute", offsetof(struct cuda_dl, device_attribute) },
	{ "cuDevicePrimaryCtxRetain", offsetof(struct cuda_dl, primary_retain) },
	{ "cuDevicePrimaryCtxRelease_v2",
	  offsetof(struct cuda_dl, primary_release) },
	{ "cuCtxGetCurrent", offsetof(struct cuda_dl, ctx_get) },
	{ "cuCtxSetCurrent", offsetof(struct cuda_dl, ctx_set) },
	{ "cuCtxSynchronize", offsetof(struct cuda_dl, ctx_sync) },
	{ "cuMemAlloc_v2", offsetof(struct cuda_dl, mem_alloc) },
	{ "cuMemFree_v2", offsetof(struct cuda_dl, mem_free) },
	{ "cuMemcpyHtoD_v2", offsetof(struct cuda_dl, to_gpu) },
	{ "cuMemcpyDtoH_v2", offsetof(struct cuda_dl, from_gpu) },
	{ "cuMemsetD8_v2", offsetof(struct cuda_dl, set8) },
	{ "cuPointerGetAttribute", offsetof(struct cuda_dl, pointer_attribute) },
	{ "cuMemGetAllocationGranularity",
	  offsetof(struct cuda_dl, granularity) },
	{ "cuMemCreate", offsetof(struct cuda_dl, create) },
	{ "cuMemRelease", offsetof(struct cuda_dl, release) },
	{ "cuMemAddressReserve", offsetof(struct cuda_dl, reserve) },
	{ "cuMemAddressFree", offsetof(struct cuda_dl, unreserve) },
	{ "cuMemMap", offsetof(struct cuda_dl, map) },
	{ "cuMemUnmap", offsetof(struct cuda_dl, unmap) },
	{ "cuMemSetAccess", offsetof(struct cuda_dl, set_access) },
	{ "cuGetErrorName", offsetof(struct cuda_dl, error_name) },
};

const char *cuda_load(struct cuda_dl *cu)
{
	static char missing[96];
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	size_t i;

	if (!lib)
		return dlerror();
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *f = dlsym(lib, calls[i].symbol);

		if (!f) {
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
