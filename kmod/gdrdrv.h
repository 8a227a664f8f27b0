/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * gdrdrv.h - the parts of the driver and what they share.
 *
 *	main.c		module, device, open/release, ioctl, /proc/driver/gdrdrv
 *	mr.c		memory regions: their life, their revocation
 *	mmap.c		CPU mappings: checks, faults
 *	memtype.c	how x86 maps a region's pages
 *	limit.c		how much a user may pin
 *	nvp2p.c		the one place that talks to NVIDIA's driver
 *	process.c	who calls, and how long it waits for that driver; what is logged
 *
 * They call each other one way: main -> mmap -> mr -> nvp2p, memtype, limit ->
 * process. nvp2p.c calls back through gdr_mr.revoke alone.
 *
 * Locks, outermost first:
 *
 *	tables_lock -> GPU driver's own -> mm's mmap_lock -> gdr_mr.lock -> xa_lock
 *
 * The GPU driver calls the free callback with its own locks held. The callback
 * takes gdr_mr.lock. So we never call the GPU driver with a lock that the
 * callback takes. We call it only with tables_lock held (see nvp2p.c), which
 * the callback never takes. We hold no lock around copy_to_user and
 * copy_from_user.
 *
 * All of the machine waits for a callback. So nothing that grows with a region is
 * done with gdr_mr.lock held: it is done in batches, and between two of them a
 * callback may come. And nothing reclaims memory with a lock held that a callback
 * takes.
 *
 * Everything here must link without GPL-only symbols. The kernel refuses them to
 * a module that uses symbols of a proprietary one, and NVIDIA's may be that.
 */
#ifndef GDRDRV_H
#define GDRDRV_H

#include <linux/atomic.h>
#include <linux/completion.h>
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

#define GPU_PAGE_MASK (~(GDRDRV_GPU_PAGE_SIZE - 1))
#define GDR_PUT_PAUSE 100U	/* ms, after a put that failed */

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
 * A thread group that has files open, or that the GPU driver has refused to take pages
 * back from. A later one with the same number has another start time. end is that of
 * its burst (process.c), and last the last refusal; 0: none. tgid and start never
 * change; gdr_processes_lock guards the rest.
 */
struct gdr_process {
	struct list_head node;
	unsigned int files;
	pid_t tgid;
	u64 start;
	unsigned long end;
	unsigned long last;
};

/*
 * One open file.
 * - owner opened it.
 * - inode belongs to this file alone, so its address_space has only the mappings
 *   of this file. The file and every region have a reference to it.
 * - mrs maps a handle to its region. Each entry owns one reference to the region.
 * - next_handle only grows, under xa_lock of mrs, so no handle is used twice. A
 *   region that is being unpinned leaves a zero entry. Nobody finds that entry,
 *   and the region can be put back without an allocation.
 */
struct gdr_file {
	struct gdr_process *owner;
	struct inode *inode;
	struct xarray mrs;
	u64 next_handle;
};

struct gdr_user;

enum gdr_mr_state {
	GDR_MR_PINNING,		/* the GPU driver has not answered yet */
	GDR_MR_LIVE,		/* pages may be mapped */
	GDR_MR_DEAD,		/* no page is mapped, and none will be */
};

/*
 * A memory region: one pinning of GPU memory.
 *
 * Constant once the region has a handle: owner, handle, inode, addr, start, size,
 * persistent, p2p_token, va_space, revoke, cookie, page_table, pages, npages,
 * cacheable, tm_cycles. owner is the process that pinned it; it may be gone once the
 * file is closed.
 *
 * - start and size are multiples of the GPU page; start <= addr < start + size.
 * - pages[i] is the physical address of the i-th GPU page; npages * 64 KiB is
 *   size. It is our copy: the GPU driver frees page_table under the callback.
 * - handle << PAGE_SHIFT up to + size is this region's range of mmap offsets. It
 *   is 0 until the region is LIVE.
 *
 * lock guards state, revoked, abandoned, vmas, type, want.
 * - state only moves forward. A CPU page table entry is made with lock held for
 *   reading and state LIVE. So once DEAD is set and the range is zapped, there is
 *   no entry, and none will be made.
 * - vmas counts the VMAs that show the region. It is 0 or 1, and 2 for a moment
 *   while mremap moves one. type is not NONE exactly while vmas is not 0 and state is
 *   LIVE.
 * - revoked: the free callback ran. The GPU driver owns the pages again, and they
 *   must not be put. callback_done completes when the callback has finished.
 * - abandoned: nobody can put the pages any more. The region waits for the free
 *   callback, which ends it. abandoned is never set after revoked.
 *
 * whole: the first fault maps all pages. It changes only while there is no VMA.
 *
 * lost: the put of a persistent pinning failed, and it must not be put again. Only
 * who puts the region reads and writes it.
 *
 * user is charged for the region, until the region is freed.
 *
 * revoke is the free callback's way to mr.c. It is called with a reference to the
 * region, and drops it.
 *
 * counted is 1 while we have the GPU driver's pages.
 */
struct gdr_mr {
	struct kref ref;
	struct gdr_process *owner;
	struct gdr_user *user;
	u64 handle;
	struct inode *inode;

	u64 addr;
	u64 start;
	u64 size;
	bool persistent;
	u64 p2p_token;
	u32 va_space;
	void (*revoke)(struct gdr_mr *mr);
	unsigned long cookie;
	struct nvidia_p2p_page_table *page_table;
	u64 *pages;
	u64 npages;
	bool cacheable;
	bool lost;
	u64 tm_cycles;
	atomic_t counted;

	struct rw_semaphore lock;
	enum gdr_mr_state state;
	bool revoked;
	bool abandoned;
	bool whole;
	unsigned int vmas;
	enum gdrdrv_mapping_type type;
	enum gdrdrv_mapping_type want;
	struct completion callback_done;
};

/* The arguments of a pin. addr and size are those of the user, not rounded. */
struct gdr_pin_args {
	u64 addr;
	u64 size;
	u64 p2p_token;
	u32 va_space;
	u32 flags;
};

static inline void gdr_mr_get(struct gdr_mr *mr)
{
	kref_get(&mr->ref);
}

static inline bool gdr_mr_is_revoked(struct gdr_mr *mr)
{
	bool revoked;

	down_read(&mr->lock);
	revoked = mr->revoked;
	up_read(&mr->lock);
	return revoked;
}

/* process.c */
bool gdr_process_is_current(const struct gdr_process *p);
struct gdr_process *gdr_process_get(void);
void gdr_process_put(struct gdr_process *p);
bool gdr_file_is_owner(const struct gdr_file *f);
bool gdr_burst_wait(unsigned long began);
void gdr_burst_over(void);
void gdr_process_exit(void);

/* mr.c */
int gdr_mr_pin(struct gdr_file *f, const struct gdr_pin_args *args, u64 *handle);
int gdr_mr_unpin(struct gdr_file *f, u64 handle);
void gdr_mr_unpin_all(struct gdr_file *f);
struct gdr_mr *gdr_mr_find(struct gdr_file *f, u64 handle);
void gdr_mr_put(struct gdr_mr *mr);
u32 gdr_mr_khz(void);

/* limit.c */
void gdr_limit_init(void);
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
void gdr_nvp2p_exit(void);
bool gdr_nvp2p_persistent(void);
bool gdr_nvp2p_force_pcie(void);
int gdr_nvp2p_get(struct gdr_mr *mr, const struct gdr_pin_args *args,
		  void (*revoke)(struct gdr_mr *mr));
void gdr_nvp2p_revoked(struct gdr_mr *mr, bool abandoned);
int gdr_nvp2p_read(struct gdr_mr *mr);
int gdr_nvp2p_put(struct gdr_mr *mr);
bool gdr_nvp2p_can_put(const struct gdr_mr *mr);
void gdr_nvp2p_lose(struct gdr_mr *mr);

/* How many pinnings have pages of the GPU driver's; how many persistent ones are lost. */
extern atomic_t gdr_pages_held;
extern atomic_t gdr_pages_lost;
extern int gdr_use_persistent;

#endif
