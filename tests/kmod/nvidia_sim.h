/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * nvidia_sim.h - what the two halves of the simulated driver share. TEST DOUBLE.
 *
 *	nvidia_sim.c		the memory, /dev/nvidia_sim, nv-p2p for gdrdrv
 *	nvidia_sim_rm.c		/dev/nvidiactl and /dev/nvidia0, for the rm backend
 */
#ifndef NVIDIA_SIM_H
#define NVIDIA_SIM_H

#include <linux/kref.h>
#include <linux/pci.h>
#include <linux/types.h>

#define SIM_PAGE_SHIFT 16
#define SIM_PAGE_SIZE (1ULL << SIM_PAGE_SHIFT)

/* pages[i] is the BAR page behind the i-th page of the memory. */
struct sim_mem {
	struct kref ref;
	u64 npages;
	u32 pages[];
};

/* nvidia_sim.c: memory has a lock of its own, innermost of all */
struct sim_mem *sim_mem_new(u64 npages);
void sim_mem_put(struct sim_mem *mem);
u64 sim_mem_phys(const struct sim_mem *mem, u64 at);
u64 sim_mem_total(void);
u64 sim_mem_used(void);
bool sim_asleep(void);
void sim_dev_get(void);
void sim_dev_put(void);

/* nvidia_sim_rm.c */
#ifdef SIM_PROPRIETARY
static inline int sim_rm_init(struct pci_dev *pdev)
{
	return 0;
}

static inline void sim_rm_exit(void)
{
}

static inline void sim_rm_suspend(void)
{
}

static inline int sim_rm_attach(int fd, bool peer2peer)
{
	return -EOPNOTSUPP;
}
#else
int sim_rm_init(struct pci_dev *pdev);
void sim_rm_exit(void);
void sim_rm_suspend(void);
int sim_rm_attach(int fd, bool peer2peer);
#endif

#endif
