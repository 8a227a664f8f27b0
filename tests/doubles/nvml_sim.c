// SPDX-License-Identifier: MIT
/*
 * A stand-in for NVML with what UCX and libfabric call. Test code: it never ships.
 * Its devices are those of the simulated libcuda, and have no NVLink.
 */
#include "sim_machine.h"

#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { DEVICES = 2, MAX_DEVICES = 8 };

struct device;
struct field_value {
	unsigned int id, scope;
	long long timestamp, latency;
	int type, result;
	long long value;
};

static int users;

static unsigned int devices(void)
{
	const char *env = getenv("CUDA_SIM_DEVICES");
	long n = env ? strtol(env, NULL, 10) : DEVICES;

	return n >= 0 && n <= MAX_DEVICES ? (unsigned int)n : DEVICES;
}

API int nvmlInit_v2(void)
{
	__atomic_add_fetch(&users, 1, __ATOMIC_RELAXED);
	return OK;
}

API int nvmlInit(void)
{
	return nvmlInit_v2();
}

API int nvmlShutdown(void)
{
	if (__atomic_load_n(&users, __ATOMIC_RELAXED) == 0)
		return UNINITIALIZED;
	__atomic_sub_fetch(&users, 1, __ATOMIC_RELAXED);
	return OK;
}

API const char *nvmlErrorString(int result)
{
	switch (result) {
	case OK:
		return "Success";
	case UNINITIALIZED:
		return "Uninitialized";
	case INVALID_ARGUMENT:
		return "Invalid Argument";
	case NOT_SUPPORTED:
		return "Not Supported";
	}
	return "Unknown Error";
}

API int nvmlDeviceGetCount_v2(unsigned int *n)
{
	if (!n)
		return INVALID_ARGUMENT;
	*n = devices();
	return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
	if (!device || index >= devices())
		return INVALID_ARGUMENT;
	*device = (struct device *)(uintptr_t)(index + 1);
	return OK;
}

/* Any address is the first GPU's. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct device **device)
{
	return id ? nvmlDeviceGetHandleByIndex_v2(0, device) : INVALID_ARGUMENT;
}

/* Of the machine's first GPU. */
API int nvmlDeviceGetMigMode(struct device *device, unsigned int *current, unsigned int *pending)
{
	if (!device || !current || !pending)
		return INVALID_ARGUMENT;
	*current = *pending = sim_machine(0) == SIM_MIG;
	return OK;
}

API int nvmlDeviceGetFieldValues(struct device *device, int n, struct field_value *values)
{
	int i;

	if (!device || n < 1 || !values)
		return INVALID_ARGUMENT;
	for (i = 0; i < n; i++)
		values[i].result = NOT_SUPPORTED;
	return OK;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned int link, void *pci)
{
	(void)link;
	return device && pci ? NOT_SUPPORTED : INVALID_ARGUMENT;
}
