// SPDX-License-Identifier: MIT
/*
 * A stand-in for NVML with what UCX, libfabric and this library call. Test code: it never
 * ships. It has the GPUs of the simulated driver, or those of the simulated libcuda where
 * there is no driver, in the order of their PCI addresses. They have no NVLink and no
 * fabric. What is mapped of BAR1 is not counted: all of it is free.
 *
 * As in the real one, each call but nvmlErrorString fails before nvmlInit.
 */
#include "sim_machine.h"

#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { MAX_DEVICES = 8, NVLINKS = 18 };

struct device;

struct field_value {
	unsigned int id, scope;
	long long timestamp, latency;
	int type, result;
	long long value;
};

/* nvmlPciInfo_t */
struct pci_info {
	char legacy_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char id[32];
};

/* nvmlBAR1Memory_t */
struct bar1 {
	unsigned long long total, free, used;
};

_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");

static int users;

/* rm_sim sets it for the programs that it runs. */
static int on_driver(void)
{
	const char *env = getenv("CUDA_SIM_RM");

	return env && *env == '1';
}

static long number(const char *name, long otherwise, long max)
{
	const char *env = getenv(name);
	long n = env ? strtol(env, NULL, 10) : otherwise;

	return n >= 0 && n <= max ? n : otherwise;
}

static unsigned int devices(void)
{
	return (unsigned int)(on_driver() ? number("NVRM_SIM_DEVICES", 4, MAX_DEVICES) :
					    number("CUDA_SIM_DEVICES", 2, MAX_DEVICES));
}

/* What a call answers before it looks at its arguments, of which ok tells. */
static int enter(int ok)
{
	if (__atomic_load_n(&users, __ATOMIC_RELAXED) == 0)
		return UNINITIALIZED;
	return ok ? OK : INVALID_ARGUMENT;
}

/* Handles count from 1. */
static int known(const struct device *device)
{
	return (uintptr_t)device - 1 < devices();
}

static int gpu_of(const struct device *device)
{
	return (int)((uintptr_t)device - 1);
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
	int result = enter(1);

	if (!result)
		__atomic_sub_fetch(&users, 1, __ATOMIC_RELAXED);
	return result;
}

API const char *nvmlErrorString(int result)
{
	return result ? "Simulated Error" : "Success";
}

/* A call that does what its last argument says, if its arguments are ok. */
#define CALL(name, params, ok, ...)		\
API int name params				\
{						\
	return enter(ok) ?: (__VA_ARGS__, OK);	\
}

CALL(nvmlDeviceGetCount_v2, (unsigned int *n), n != NULL, *n = devices())
CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, struct device **device), device && index < devices(),
     *device = (struct device *)(uintptr_t)(index + 1))
CALL(nvmlDeviceGetHandleByIndex, (unsigned int index, struct device **device), device && index < devices(),
     *device = (struct device *)(uintptr_t)(index + 1))

/* DOMAIN:BUS:SLOT.FUNCTION, with as many digits as one likes. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, struct device **device)
{
	unsigned int i, domain, bus, slot;
	int result = enter(id && device && sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3);

	if (result)
		return result;
	for (i = 0; i < devices(); i++) {
		struct sim_pci p = sim_pci((int)i, on_driver());

		if (p.domain == domain && p.bus == bus && p.slot == slot)
			return nvmlDeviceGetHandleByIndex_v2(i, device);
	}
	return NOT_FOUND;
}

API int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
	int result = enter(known(device) && info);
	struct sim_pci p;

	if (result)
		return result;
	p = sim_pci(gpu_of(device), on_driver());
	*info = (struct pci_info){ .domain = p.domain, .bus = p.bus, .device = p.slot, .device_id = 0x233510de };
	snprintf(info->legacy_id, sizeof(info->legacy_id), "%04X:%02X:%02X.0", p.domain & 0xffff, p.bus & 0xff,
		 p.slot & 0xff);
	snprintf(info->id, sizeof(info->id), "%08X:%02X:%02X.0", p.domain, p.bus & 0xff, p.slot & 0xff);
	return OK;
}

static unsigned int is_mig(enum sim_machine machine)
{
	return machine == SIM_MIG || machine == SIM_MIG_EMPTY;
}

CALL(nvmlDeviceGetMigMode, (struct device *device, unsigned int *current, unsigned int *pending),
     known(device) && current && pending, *pending = !(*current = is_mig(sim_machine(gpu_of(device)))))

/* Where the CPU caches the GPU's memory, no BAR1 is used. */
API int nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct bar1 *bar1)
{
	int result = enter(known(device) && bar1);
	enum sim_machine machine;

	if (result)
		return result;
	machine = sim_machine(gpu_of(device));
	if (machine == SIM_GRACE || machine == SIM_CDMM || machine == SIM_GB10 || machine == SIM_TEGRA)
		return NOT_SUPPORTED;
	bar1->total = bar1->free = (unsigned long long)number("NVRM_SIM_BAR1_MIB", 256 << 10, 1 << 20) << 20;
	bar1->used = 0;
	return OK;
}

API int nvmlDeviceGetGpuFabricInfoV(struct device *device, void *info)
{
	return enter(known(device) && info) ?: NOT_SUPPORTED;
}

API int nvmlDeviceGetFieldValues(struct device *device, int n, struct field_value *values)
{
	int i, result = enter(known(device) && n > 0 && values);

	for (i = 0; !result && i < n; i++)
		values[i].result = NOT_SUPPORTED;
	return result;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned int link, struct pci_info *pci)
{
	return enter(known(device) && link < NVLINKS && pci) ?: NOT_SUPPORTED;
}

API int nvmlDeviceGetNvLinkRemotePciInfo(struct device *device, unsigned int link, struct pci_info *pci)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}
