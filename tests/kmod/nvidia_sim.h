/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * nvidia_sim.h - what the two halves of the simulated driver share. TEST DOUBLE.
 *
 *	nvidia_sim.c		the memory, /dev/nvidia_sim, nv-p2p for gdrdrv
 *	nvidia_sim_dmabuf.c	the memory as dma-bufs
 */
#ifndef NVIDIA_SIM_H
#define NVIDIA_SIM_H

#include <linux/errno.h>
#include <linux/kref.h>
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
void sim_mem_put(struct sim_mem *mem);
u64 sim_mem_phys(const struct sim_mem *mem, u64 at);

/* nvidia_sim_dmabuf.c */
#ifdef SIM_PROPRIETARY
static inline int sim_dmabuf_fd(struct sim_mem *mem, u64 offset, u64 size)
{
	sim_mem_put(mem);
	return -EOPNOTSUPP;
}
#else
int sim_dmabuf_fd(struct sim_mem *mem, u64 offset, u64 size);
#endif

#endif
