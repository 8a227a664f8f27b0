/* SPDX-License-Identifier: MIT */
/*
 * NVRM_SIM_MACHINE: what kind of machine the simulated driver and the simulated libcuda
 * are on. Test code: it never ships.
 *
 * A comma list has the kind of each GPU, in the order of their PCI addresses. The last
 * one counts for the rest.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum sim_machine {
	SIM_PCIE,	/* memory is mapped through BAR1 */
	SIM_GRACE,	/* GH200, GB200: coherent, GPU memory is a NUMA node */
	SIM_CDMM,	/* the same in driver mode: coherent, and no NUMA node */
	SIM_GB10,	/* the GPU's memory is the system's */
	SIM_MIG,	/* in instances */
	SIM_MIG_EMPTY,	/* in MIG mode without an instance; CUDA does not show it */
	SIM_CC,		/* confidential computing, of the whole machine */
	SIM_PPCIE,	/* protected PCIe, of the whole machine */
	SIM_VGPU,	/* a part of a GPU: neither CUDA IPC nor dma-bufs */
	SIM_TEGRA,	/* no GPU: the display of a Tegra */
	SIM_MACHINES
};

/* Text that is none ends the process. */
static inline enum sim_machine sim_machine(int gpu)
{
	static const char *const names[SIM_MACHINES] = {
		"pcie", "grace", "cdmm", "gb10", "mig", "mig-empty", "cc", "ppcie", "vgpu", "tegra",
	};
	const char *s = getenv("NVRM_SIM_MACHINE");
	size_t n;
	int i;

	if (!s)
		return SIM_PCIE;
	for (i = 0; i < gpu && strchr(s, ','); i++)
		s = strchr(s, ',') + 1;
	n = strcspn(s, ",");
	for (i = 0; i < SIM_MACHINES; i++)
		if (strlen(names[i]) == n && strncmp(names[i], s, n) == 0)
			return (enum sim_machine)i;
	fprintf(stderr, "NVRM_SIM_MACHINE=%s: give one of", getenv("NVRM_SIM_MACHINE"));
	for (i = 0; i < SIM_MACHINES; i++)
		fprintf(stderr, " %s", names[i]);
	fprintf(stderr, ", or a comma list of them\n");
	exit(125);
}

struct sim_pci {
	unsigned int domain, bus, slot;
};

/*
 * The PCI address of a GPU. Machines of the simulated driver (driver) have GPUs whose
 * addresses differ in the domain alone, or in the slot. They ascend, as CUDA's ordinals do.
 */
static inline struct sim_pci sim_pci(int gpu, int driver)
{
	static const struct sim_pci known[] = {
		{ 0, 0x17, 0 }, { 1, 0x17, 0 }, { 1, 0x3b, 0 }, { 1, 0x3b, 1 },
		{ 2, 0x17, 0 }, { 2, 0x3b, 0 }, { 2, 0x3b, 2 }, { 3, 0x01, 0 },
	};

	return driver ? known[gpu] : (struct sim_pci){ 0, 1 + (unsigned int)gpu, 0 };
}

/* Whether CUDA shows it as a device. */
static inline int sim_computes(enum sim_machine m)
{
	return m != SIM_MIG_EMPTY && m != SIM_TEGRA;
}

#endif
