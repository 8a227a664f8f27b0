// SPDX-License-Identifier: MIT
/* Simulated libcuda: devices and their attributes. Test code. */
#include "cuda_sim.h"
#include "sim_machine.h"

#include <stdio.h>
#include <string.h>

int check_device(int device)
{
	return device >= 0 && device < device_count() ? CU_OK : CU_INVALID_DEVICE;
}

/* ok: there is room for the answer. */
static int check_call(int device, bool ok)
{
	return ok ? check_device(device) : CU_INVALID_VALUE;
}

SIM_CALL(cuDeviceGetCount, (int *count), GIVE(count, device_count()))

SIM_CALL(cuDeviceGet, (int *device, int ordinal), check_call(ordinal, device) ?: GIVE(device, ordinal))

static int device_name(char *name, int len, int device)
{
	int result = check_call(device, name && len > 0);

	if (!result)
		snprintf(name, (size_t)len, "Simulated GPU %d", device);
	return result;
}

SIM_CALL(cuDeviceGetName, (char *name, int len, int device), device_name(name, len, device))

static int device_uuid(unsigned char uuid[16], int device)
{
	int result = check_call(device, uuid);

	if (result)
		return result;
	if (rm_mode()) {
		rm_uuid(device, uuid);
		return CU_OK;
	}
	memcpy(uuid, "gdrsim-device-", 14);
	uuid[14] = 0;
	uuid[15] = (unsigned char)device;
	return CU_OK;
}

SIM_CALL(cuDeviceGetUuid, (unsigned char *uuid, int device), device_uuid(uuid, device))
SIM_CALL(cuDeviceGetUuid_v2, (unsigned char *uuid, int device), device_uuid(uuid, device))

SIM_CALL(cuDeviceTotalMem_v2, (size_t *bytes, int device),
	 check_call(device, bytes) ?: GIVE(bytes, mem_total()))

/* Whether a dma-buf can be mapped, and CUDA says so. */
bool dmabuf_mmap(int device)
{
	return driver_version() >= DMABUF_DRIVER_VERSION &&
	       device_flag("CUDA_SIM_DMABUF_MMAP", device, !rm_mode());
}

static struct sim_pci pci_of(int device)
{
	return rm_mode() ? rm_pci(device) : sim_pci(device, 0);
}

static int bus_id(char *id, int len, int device)
{
	int result = check_call(device, id && len > 0);
	struct sim_pci p;

	if (result)
		return result;
	p = pci_of(device);
	snprintf(id, (size_t)len, "%04X:%02X:%02X.0", p.domain, p.bus, p.slot);
	return CU_OK;
}

SIM_CALL(cuDeviceGetPCIBusId, (char *id, int len, int device), bus_id(id, len, device))

/* -1 for an attribute that is not modelled. The call then fails. */
static int attribute(int attr, int device)
{
	switch (attr) {
	case 18:	/* integrated */
		return rm_mode() && rm_is_system(device);
	case 20:	/* compute mode: the default one, for any number of contexts */
		return 0;
	case 33:	/* PCI bus */
		return (int)pci_of(device).bus;
	case 34:	/* PCI device */
		return (int)pci_of(device).slot;
	case 50:	/* PCI domain */
		return (int)pci_of(device).domain;
	case 41:	/* unified addressing */
		return 1;
	case 75:	/* compute capability, major */
		return 9;
	case 76:	/* compute capability, minor */
		return 0;
	case 88:	/* pageable memory access */
	case 100:	/* ... by the host's page tables */
		return device_flag("CUDA_SIM_COHERENT", device, rm_mode() && rm_coherent(device));
	case 102:	/* virtual memory management */
	case 103:	/* POSIX fd handles */
	case 110:	/* GPUDirect RDMA with VMM */
	case 116:	/* GPUDirect RDMA */
		return 1;
	case 115:	/* memory pools */
		return rm_mode();
	case 119:	/* handle types of memory pools */
		return 0;
	case 124:	/* dma-buf; GB10 does not know it */
		return rm_mode() && rm_is_system(device) ? -1 : dmabuf_supported(device);
	case 152:	/* mmap of dma-bufs; unknown before */
		return driver_version() < DMABUF_DRIVER_VERSION ? -1 : dmabuf_mmap(device);
	}
	return -1;
}

static int give_attribute(int *value, int attr, int device)
{
	int v, result = check_call(device, value);

	if (result)
		return result;
	v = attribute(attr, device);
	return v < 0 ? CU_INVALID_VALUE : GIVE(value, v);
}

SIM_CALL(cuDeviceGetAttribute, (int *value, int attr, int device), give_attribute(value, attr, device))
