/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * gdrdrv.h - the parts of the driver and what they share.
 *
 *	main.c		module, device, open/release, ioctl, /proc/driver/gdrdrv
 *	mr.c		memory regions: their life
 *	mmap.c		CPU mappings: checks, faults
 *	memtype.c	how x86 maps a region's pages
 *	limit.c		how much a user may pin, and at once
 *	nvp2p.c		the one place that talks to NVIDIA's driver
 *
 * They call each other one way: main -> mmap -> mr -> nvp2p, memtype, limit.
 *
 * All pinnings are persistent: NVIDIA's driver never takes the pages back by itself.
 *
 * Locks, outermost first: mm's mmap_lock -> gdr_mr.lock -> xa_lock. No lock is held over a
 * call of NVIDIA's driver: that waits for the driver's own locks, as long as anybody
 * holds them.
 *
 * Everything here must link without GPL-only symbols. The kernel refuses them to
 * a module that uses symbols of a proprietary one, and NVIDIA's may be that.
 */
#ifndef GDRDRV_H
#define GDRDRV_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/rwsem.h>
#include <linux/types.h>
#include <linux/xarray.h>

#include "gdrdrv_config.h"
#include "gdrdrv_uapi.h"

struct nvidia_p2p_page_table;

extern int gdr_dbg_enabled;
extern int gdr_info_enabled;

#define gdr_dbg(fmt, ...) do {						\
	if (gdr_dbg_enabled)						\
		pr_info_ratelimited("%s: " fmt, __func__, ##__VA_ARGS__); \
} while (0)
#define gdr_info(fmt, ...) do {						\
	if (gdr_info_enabled)						\
		pr_info_ratelimited(fmt, ##__VA_ARGS__);		\
} while (0)
#define gdr_err(fmt, ...) pr_err_ratelimited(fmt, ##__VA_ARGS__)

/*
 * One open file.
 * - tgid and start_time are those of the thread group that opened it. A later one with
 *   the same number has another start time. They never change.
 * - inode belongs to this file alone, so its address_space has only the mappings
 *   of this file. The file and every region have a reference to it.
 * - mrs maps a handle to its region. Each entry owns one reference to the region.
 * - next_handle only grows, under xa_lock of mrs, so no handle is used twice. A
 *   region that is being unpinned leaves a zero entry. Nobody finds that entry,
 *   and the region can be put back without an allocation.
 */
struct gdr_file {
	pid_t tgid;
	u64 start_time;
	struct inode *inode;
	struct xarray mrs;
	u64 next_handle;
};

struct gdr_user;

/*
 * A memory region: one pinning of GPU memory.
 *
 * Constant once the region has a handle: handle, inode, addr, start, size, page_table,
 * npages, cacheable, tm_cycles.
 *
 * - start and size are multiples of the GPU page; start <= addr < start + size.
 * - page_table is the GPU driver's, and stays until the pages are put. npages * 64 KiB
 *   is size.
 * - handle << PAGE_SHIFT up to + size is this region's range of mmap offsets.
 *
 * lock guards dead, vmas, type, want.
 * - dead is set once, before the pages are put. A CPU page table entry is made with lock
 *   held for reading and dead not set. So once dead is set and the range is zapped,
 *   there is no entry, and none will be made.
 * - vmas counts the VMAs that show the region. It is 0 or 1, and 2 for a moment
 *   while mremap moves one. type is not NONE exactly while vmas is not 0 and the region
 *   is not dead.
 *
 * whole: the first fault maps all pages. It changes only while there is no VMA.
 *
 * user is charged for the region, until the region is freed.
 *
 * node: on the list of those whose pages the GPU driver refused after the last close.
 */
struct gdr_mr {
	struct kref ref;
	struct list_head node;
	struct gdr_user *user;
	u64 handle;
	struct inode *inode;

	u64 addr;
	u64 start;
	u64 size;
	struct nvidia_p2p_page_table *page_table;
	u64 npages;
	bool cacheable;
	u64 tm_cycles;

	struct rw_semaphore lock;
	bool dead;
	bool whole;
	unsigned int vmas;
	enum gdrdrv_mapping_type type;
	enum gdrdrv_mapping_type want;
};

static inline void gdr_mr_get(struct gdr_mr *mr)
{
	kref_get(&mr->ref);
}

/* mr.c */
bool gdr_file_is_owner(const struct gdr_file *f);
int gdr_mr_pin(struct gdr_file *f, u64 addr, u64 size, u32 flags, u64 *handle);
int gdr_mr_unpin(struct gdr_file *f, u64 handle);
void gdr_mr_end(struct gdr_file *f, u64 handle);
struct gdr_mr *gdr_mr_find(struct gdr_file *f, u64 handle);
void gdr_mr_put(struct gdr_mr *mr);
u32 gdr_mr_khz(void);
void gdr_mr_exit(void);

/* limit.c */
void gdr_limit_init(void);
bool gdr_limit_allows(u64 size);
int gdr_limit_charge(struct gdr_mr *mr);
void gdr_limit_uncharge(struct gdr_mr *mr);

/* mmap.c */
int gdr_mmap(struct file *filp, struct vm_area_struct *vma);
bool gdr_type_supported(const struct gdr_mr *mr, enum gdrdrv_mapping_type type);
void gdr_find_machine(void);

/* memtype.c, for x86 alone */
int gdr_memtype_reserve(struct gdr_mr *mr);
void gdr_memtype_release(const struct gdr_mr *mr);
pgprot_t gdr_memtype_prot(pgprot_t prot);

/* nvp2p.c */
bool gdr_nvp2p_force_pcie(void);
int gdr_nvp2p_get(struct gdr_mr *mr, u32 flags);
int gdr_nvp2p_check(struct gdr_mr *mr);
u64 gdr_nvp2p_page(const struct gdr_mr *mr, u64 i);
int gdr_nvp2p_put(struct gdr_mr *mr);
void gdr_nvp2p_lose(struct gdr_mr *mr);

/* How many pinnings have pages of the GPU driver's; how many are lost. */
extern atomic_t gdr_pages_held;
extern atomic_t gdr_pages_lost;

#endif
