// SPDX-License-Identifier: MIT
/*
 * Simulated driver: what differs between machines, and the requests that tell. Test code.
 *
 * The functions in brackets are those of open-gpu-kernel-modules 595.45.04.
 */
#include "rm_sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MIB (1ull << 20)
#define HUGE (2 * MIB)	/* a physical page of large objects */

static enum sim_machine machine(int gpu)
{
	return config.machine[gpu];
}

static bool coherent(int gpu)
{
	return machine(gpu) == SIM_GRACE || machine(gpu) == SIM_CDMM;
}

bool gpu_is_system(int gpu)
{
	return machine(gpu) == SIM_GB10;
}

bool gpu_has_bar(int gpu)
{
	return !coherent(gpu) && !gpu_is_system(gpu);
}

bool gpu_exports(int gpu)
{
	return machine(gpu) != SIM_VGPU;
}

/* A failing request of a program prints this, as the real driver does. */
static void kernel_log(const char *line)
{
	fprintf(stderr, "NVRM: %s\n", line);
}

/* The first GPU decides. */
static enum sim_machine confidential(void)
{
	return machine(0) == SIM_CC || machine(0) == SIM_PPCIE ? machine(0) : SIM_PCIE;
}

/* [gpumgrGetAttachedGpuIds] Here a GPU stays attached. */
uint32_t attached(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_attached *p = params;
	int i, n = 0;

	(void)c;
	(void)o;
	memset(p, 0xff, sizeof(*p));
	for (i = 0; i < config.gpus; i++)
		if (gpus[i].attached)
			p->gpu_id[n++] = gpu_id(i);
	return RM_OK;
}

/*
 * Whether a client that has subscribed to no instance may have a duplicate.
 * [vidmemCheckCopyPermissions]
 */
uint32_t check_duplicate(const struct rm_caller *c, int gpu)
{
	return machine(gpu) == SIM_MIG && !c->file->cuda ? RM_NOT_FOUND : RM_OK;
}

/*
 * With NVRM_SIM_SCATTERED pages lie in falling order, and the object's first one ends
 * where the onlined memory ends. The driver takes the range for contiguous from its first
 * page on. [RmCreateMmapContextLocked]
 */
static bool passes_end(const struct rm_memory *m, uint64_t offset, uint64_t length)
{
	return config.scattered && m->size > HUGE &&
	       offset % HUGE + length > (offset / HUGE + 1) * HUGE;
}

/* Whether the machine lets the CPU map it. Libcuda's own view is the double's, not CUDA's. */
uint32_t check_map(const struct rm_caller *c, const struct rm_memory *m, uint64_t offset,
		   uint64_t length)
{
	if (c->file->cuda)
		return RM_OK;
	if (confidential() != SIM_PCIE) {
		kernel_log("BAR1 mapping to CPR vidmem not supported");
		return RM_NOT_SUPPORTED;
	}
	if (coherent(m->gpu) && passes_end(m, offset, length))
		return config.driver < 590 ? RM_NOT_FOUND : RM_INVALID_ARGUMENT;
	return RM_OK;
}

/* [memMap_IMPL] */
uint32_t map_answer(int gpu)
{
	if (config.answer)
		return config.answer;
	return coherent(gpu) ? RM_MAP_COHERENT : gpu_is_system(gpu) ? RM_MAP_SYSTEM : RM_MAP_BAR1;
}

/* [nv.c, nvidia_read_card_info] A platform device has no PCI address. */
void card_info(int gpu, struct rm_card_info *card)
{
	struct sim_pci p = sim_pci(gpu, 1);

	*card = (struct rm_card_info){ .valid = 1, .gpu_id = gpu_id(gpu), .minor = gpus[gpu].minor };
	if (machine(gpu) == SIM_TEGRA)
		return;
	card->pci_domain = p.domain;
	card->pci_bus = (uint8_t)p.bus;
	card->pci_slot = (uint8_t)p.slot;
	card->pci_vendor = 0x10de;
	card->pci_device = 0x2335;
	card->fb_size = gpu_is_system(gpu) ? 0 : config.bar;
}

/* [gpumgrGetGpuIdInfoV2] */
uint32_t id_info(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_id_info *p = params;
	int gpu = gpu_by_id(p->gpu_id);

	(void)c;
	(void)o;
	if (gpu < 0 || !gpus[gpu].attached)
		return RM_INVALID_ARGUMENT;
	*p = (struct rm_id_info){ .gpu_id = p->gpu_id, .instance = gpus[gpu].instance,
				  .board = (uint32_t)gpu, .gpu_instance = gpus[gpu].instance,
				  .numa = machine(gpu) == SIM_GRACE ? 1 + gpu : -1 };
	if (coherent(gpu))
		p->flags |= RM_ID_ATS;
	if (gpu_is_system(gpu))
		p->flags |= RM_ID_SOC | (config.driver < 580 ? 0 : RM_ID_SOC_IGPU);
	if (machine(gpu) == SIM_TEGRA && config.driver >= 580)
		p->flags |= RM_ID_SOC_DISPLAY;
	return RM_OK;
}

/* [gpumgrCacheGetActiveDeviceIds] It needs no GPU to be open. */
uint32_t active_devices(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_devices *p = params;
	int i;

	(void)c;
	(void)o;
	if (config.driver < 550)
		return RM_NOT_SUPPORTED;
	memset(p, 0, sizeof(*p));
	for (i = config.gpus - 1; i >= 0; i--) {
		if (machine(i) == SIM_MIG_EMPTY)
			continue;
		p->list[p->n].gpu_id = gpu_id(i);
		p->list[p->n].gpu_instance = machine(i) == SIM_MIG ? 1 : RM_NO_INSTANCE;
		p->list[p->n].compute_instance = machine(i) == SIM_MIG ? 0 : RM_NO_INSTANCE;
		p->n++;
	}
	return RM_OK;
}

/* [cliresCtrlCmdSystemGetChipsetInfo] */
uint32_t chipset(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_chipset *p = params;

	(void)c;
	(void)o;
	memset(p, 0, sizeof(*p));
	if (config.driver >= 590 && !config.bar_is_device)
		p->flags |= RM_CHIPSET_UNALIGNED;
	return RM_OK;
}

/* The object is one of the client's. [cliresCtrlCmdClientGetAddrSpaceType] */
uint32_t address_space(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_space *p = params;

	(void)c;
	if (!o)
		return RM_INVALID_HANDLE;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	p->space = gpu_is_system(o->gpu) ? RM_SPACE_SYSTEM : RM_SPACE_VIDEO;
	return RM_OK;
}

/* [memCtrlCmdGetSurfaceInfo] */
uint32_t surface(const struct rm_caller *c, struct rm_object *o, void *params)
{
	const struct rm_surface *p = params;
	struct rm_surface_item item;

	(void)o;
	if (p->n != 1 || caller_read(c, p->list, &item, sizeof(item)))
		return RM_INVALID_ARGUMENT;
	if (item.index != RM_SURFACE_PHYS_ATTR)
		return RM_NOT_SUPPORTED;
	item.data = config.phys_attr << 29 | 0x1234;
	return caller_write(c, p->list, &item, sizeof(item)) ? RM_INVALID_ARGUMENT : RM_OK;
}

uint32_t page_size(const struct rm_caller *c, struct rm_object *o, void *params)
{
	uint64_t *size = params;

	(void)c;
	*size = o->memory->size > HUGE ? HUGE : 64 << 10;
	return RM_OK;
}

/*
 * [confComputeApiCtrlCmdSystemGetCapabilities, _rmGpuLockIsOwner] Without a GPU that is
 * attached there are no locks to own. Protected PCIe is no feature.
 */
uint32_t capabilities(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_confidential *p = params;
	enum sim_machine m = confidential();
	struct rm_attached open;

	attached(c, o, &open);
	if (open.gpu_id[0] == RM_NO_GPU) {
		kernel_log("Assertion failed: rmapiLockIsOwner() && rmGpuLockIsOwner()");
		return RM_INVALID_LOCK;
	}
	p->cpu = p->gpus = p->environment = m != SIM_PCIE ? 2 : 0;
	p->feature = m == SIM_CC ? 2 : 0;
	p->dev_tools = 0;
	if (config.driver >= 550)
		p->multi_gpu = m == SIM_PPCIE;
	return RM_OK;
}

uint32_t capabilities_size(void)
{
	return config.driver < 550 ? 5 : 6;
}
