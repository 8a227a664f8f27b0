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

#include "rm_uapi.h"

/* Text that is none ends the process. */
static inline enum sim_machine sim_machine(int gpu)
{
	static const char *const names[] = { SIM_MACHINE_NAMES };
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
	fprintf(stderr, "NVRM_SIM_MACHINE=%s: tests/doubles/README.md has the kinds\n", getenv("NVRM_SIM_MACHINE"));
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
	static const struct sim_pci known[] = { SIM_PLACES };

	return driver ? known[gpu] : (struct sim_pci){ 0, 1 + (unsigned int)gpu, 0 };
}

/* Whether CUDA shows it as a device. */
static inline int sim_computes(enum sim_machine m)
{
	return m != SIM_MIG_EMPTY && m != SIM_TEGRA;
}

#endif
