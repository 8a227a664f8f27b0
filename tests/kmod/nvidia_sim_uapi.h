/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * nvidia_sim_uapi.h - how user space gets simulated GPU memory.
 *
 * TEST DOUBLE. /dev/nvidia_sim hands out memory of a PCI device's BAR as if it
 * were GPU memory. It belongs to the process that allocated it; closing the
 * file frees what is left, as the death of a process does with a real GPU.
 *
 * To read and write an allocation by the CPU (as the simulated libcuda does
 * in place of a copy engine) map the file at offset va + n, MAP_SHARED.
 *
 * Memory can also be had without a device address, and given any number of
 * them: that is what CUDA's VMM functions need. It lives until it is released
 * and its last address is freed.
 */
#ifndef NVIDIA_SIM_UAPI_H
#define NVIDIA_SIM_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NVIDIA_SIM_DEVICE "/dev/nvidia_sim"

/*
 * size: bytes, rounded up to 64 KiB. va: the device address to use, 64 KiB
 * aligned and free in this process, or 0 for one of the driver's choice.
 * Errors: EINVAL, ENOMEM (the BAR is full), EEXIST (va overlaps).
 */
struct nvidia_sim_alloc {
	__u64 size;
	__u64 va;		/* in, out */
};

/*
 * size: bytes, rounded up to 64 KiB. offset names the memory from now on; the
 * CPU's view of it is at that offset of the file. Errors: EINVAL, ENOMEM.
 */
struct nvidia_sim_memory {
	__u64 size;
	__u64 offset;		/* out */
};

/*
 * Give the first size bytes of a memory the device address va, to be freed as
 * an allocation is. Errors: EINVAL, ENOMEM, EEXIST (va overlaps).
 */
struct nvidia_sim_map {
	__u64 offset;
	__u64 va;
	__u64 size;
	__u64 p2p_token;	/* out; CUDA tells both, and nobody takes them */
	__u32 va_space;		/* out */
	__u32 pad;
};

/* What to do wrong or slowly from now on; each is 0 at load. */
enum nvidia_sim_knob {
	NVIDIA_SIM_FAIL_GET,	/* errno for the next get_pages */
	NVIDIA_SIM_FAIL_PUT,	/* errno for the next put_pages; its pages stay out */
	NVIDIA_SIM_FAIL_PUTS,	/* as many puts fail so, not one */
	NVIDIA_SIM_BAD_VERSION,	/* page table version of the next get_pages */
	NVIDIA_SIM_BAD_SIZE,	/* page size type + 1 of the next get_pages */
	NVIDIA_SIM_BAD_ENTRIES,	/* entries too many in the next get_pages */
	NVIDIA_SIM_BAD_ADDRESS,	/* added to the last address of the next get_pages */
	NVIDIA_SIM_MAJOR,	/* 1 or 2: major of all page tables; 0: the header's */
	NVIDIA_SIM_CACHEABLE,	/* flag bit 0 of page tables of major 2 */
	NVIDIA_SIM_GET_DELAY,	/* ms that get_pages takes, without the lock */
	NVIDIA_SIM_GET_HOLD,	/* 1: the next get_pages waits likewise, for 0 or for a minute */
	NVIDIA_SIM_PUT_DELAY,	/* ms that put_pages takes, likewise */
	NVIDIA_SIM_CONTIGUOUS,	/* 1: hand out pages that follow each other */
	NVIDIA_SIM_STOP,	/* 1: the GPU stops, and gets back what failed puts left; */
				/* 2: and all that is pinned */
	NVIDIA_SIM_KNOBS,
};

struct nvidia_sim_set {
	__u32 knob;
	__u32 value;
};

struct nvidia_sim_stats {
	__u64 allocs;		/* live allocations */
	__u64 pins;		/* page tables that are out and may be put */
	__u64 pages_free;	/* 64 KiB pages */
	__u64 pages_total;
	__u64 misuse;		/* times that a client broke the rules */
	__u64 forced;		/* get_pages that asked for mappings over PCIe, ever */
	__u64 lost;	/* page tables whose pages nobody can put: see FAIL_PUT */
	__u64 asked;	/* get_pages of any outcome, ever */
	__u64 puts;	/* put_pages likewise */
};

/* What the page table has for an address of the caller, as its processor spells it. */
struct nvidia_sim_pte {
	__u64 addr;
	__u64 flags;		/* out */
};

/*
 * Export size bytes from there on of the memory as a dma-buf; both are whole pages of the
 * CPU. The answer is its descriptor. Errors: EINVAL, ENOMEM, EMFILE; EOPNOTSUPP where the
 * double is not under the GPL.
 */
struct nvidia_sim_export {
	__u64 offset;
	__u64 at;
	__u64 size;
};

#define NVIDIA_SIM_IOC 0xDB
#define NVIDIA_SIM_ALLOC _IOWR(NVIDIA_SIM_IOC, 1, struct nvidia_sim_alloc)
#define NVIDIA_SIM_FREE _IOW(NVIDIA_SIM_IOC, 2, __u64)
#define NVIDIA_SIM_SET _IOW(NVIDIA_SIM_IOC, 3, struct nvidia_sim_set)
#define NVIDIA_SIM_STATS _IOR(NVIDIA_SIM_IOC, 4, struct nvidia_sim_stats)
#define NVIDIA_SIM_CREATE _IOWR(NVIDIA_SIM_IOC, 5, struct nvidia_sim_memory)
#define NVIDIA_SIM_MAP _IOWR(NVIDIA_SIM_IOC, 6, struct nvidia_sim_map)
#define NVIDIA_SIM_RELEASE _IOW(NVIDIA_SIM_IOC, 7, __u64)
#define NVIDIA_SIM_PTE _IOWR(NVIDIA_SIM_IOC, 9, struct nvidia_sim_pte)
#define NVIDIA_SIM_EXPORT _IOW(NVIDIA_SIM_IOC, 10, struct nvidia_sim_export)

#endif
