// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * mr.c - memory regions. A pin makes one. An unpin, the last close and the GPU
 * driver end it, in any order and at the same time.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/timex.h>
#if defined(CONFIG_X86)
#include <asm/tsc.h>
#elif defined(CONFIG_ARM64)
#include <asm/arch_timer.h>
#include <asm/sysreg.h>
#elif defined(CONFIG_PPC)
#include <asm/time.h>
#endif

#include "gdrdrv.h"

/* The mmap offset in bytes must be positive in the C library's off_t. */
#define GDR_HANDLE_END ((u64)LLONG_MAX >> PAGE_SHIFT)

/*
 * A clock that user space can read too. On Arm get_cycles needs a GPL-only symbol,
 * so we read its register.
 */
static u64 gdr_cycles(void)
{
#ifdef CONFIG_ARM64
	return read_sysreg(cntvct_el0);
#else
	return get_cycles();
#endif
}

/* The frequency of a region's tm_cycles in kHz; 0 where it is unknown. */
u32 gdr_mr_khz(void)
{
#if defined(CONFIG_X86)
	return tsc_khz;
#elif defined(CONFIG_ARM64)
	return arch_timer_get_cntfrq() / 1000;
#elif defined(CONFIG_PPC)
	return tb_ticks_per_usec * 1000;
#else
	return 0;
#endif
}

static void gdr_mr_free(struct kref *ref)
{
	struct gdr_mr *mr = container_of(ref, struct gdr_mr, ref);

	gdr_limit_uncharge(mr);
	iput(mr->inode);
	kvfree(mr->pages);
	kfree(mr);
}

void gdr_mr_put(struct gdr_mr *mr)
{
	kref_put(&mr->ref, gdr_mr_free);
}

static void gdr_no_handle(u64 handle)
{
	gdr_info("no buffer of this file has the handle %#llx\n", handle);
}

/* Get a reference to the region of the handle; NULL where there is none. */
struct gdr_mr *gdr_mr_find(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr;

	xa_lock(&f->mrs);
	mr = xa_load(&f->mrs, handle);
	if (mr)
		gdr_mr_get(mr);
	xa_unlock(&f->mrs);
	if (!mr)
		gdr_no_handle(handle);
	return mr;
}

/*
 * End a region's mappings. When this returns, the region has no CPU page table
 * entry, and none will be made. That holds for every caller, also where several
 * call this at once.
 */
static void gdr_mr_kill(struct gdr_mr *mr)
{
	bool lived;

	down_write(&mr->lock);
	lived = mr->state == GDR_MR_LIVE;
	mr->state = GDR_MR_DEAD;
	mr->type = GDRDRV_MAPPING_NONE;
	up_write(&mr->lock);

	if (mr->handle)
		unmap_mapping_range(mr->inode->i_mapping,
				    mr->handle << PAGE_SHIFT, mr->size, 1);
	if (lived && IS_ENABLED(CONFIG_X86))
		gdr_memtype_release(mr);
}

/*
 * The GPU driver takes the pages back. It waits with its own locks held. The caller
 * has a reference, which ends here, as does the one of an abandoned region.
 */
static void gdr_mr_revoke(struct gdr_mr *mr)
{
	bool abandoned;

	down_write(&mr->lock);
	mr->revoked = true;
	abandoned = mr->abandoned;
	up_write(&mr->lock);
	gdr_mr_kill(mr);
	gdr_nvp2p_revoked(mr, abandoned);
	if (abandoned)
		gdr_mr_put(mr);
	gdr_mr_put(mr);
}

/*
 * Give the region a range of mmap offsets that no region of the file ever had.
 * Called with mr->lock held for writing.
 */
static int gdr_mr_take_handle(struct gdr_file *f, struct gdr_mr *mr)
{
	u64 span = mr->size >> PAGE_SHIFT;
	int ret = 0;

	xa_lock(&f->mrs);
	if (span > GDR_HANDLE_END - f->next_handle) {
		ret = -ENOSPC;
	} else {
		mr->handle = f->next_handle;
		f->next_handle += span;
	}
	xa_unlock(&f->mrs);
	return ret;
}

/*
 * The GPU driver makes lists of 16 bytes for each GPU page before it checks a
 * range. No GPU of this machine has a range whose lists would take a 64th of all
 * memory. The GPU driver counts pages in 32 bits, so no range has more.
 */
static u64 gdr_mr_largest(void)
{
	u64 pages = (u64)totalram_pages() * PAGE_SIZE / 64 / 16;

	return min_t(u64, pages, U32_MAX - 1) << GDRDRV_GPU_PAGE_SHIFT;
}

/* Round the arguments to GPU pages. False if they are no range of addresses. */
static bool gdr_mr_range(const struct gdr_pin_args *args, u64 *start, u64 *end)
{
	if (!args->addr || !args->size || args->size > gdr_mr_largest() ||
	    args->addr + args->size < args->addr)
		return false;
	*start = args->addr & GPU_PAGE_MASK;
	*end = (args->addr + args->size + GDRDRV_GPU_PAGE_SIZE - 1) &
	       GPU_PAGE_MASK;
	return *end;
}

static struct gdr_mr *gdr_mr_alloc(struct gdr_file *f,
				   const struct gdr_pin_args *args)
{
	struct gdr_mr *mr;
	u64 start, end;

	if (!gdr_mr_range(args, &start, &end)) {
		gdr_info("%llu bytes at %#llx are no range of addresses\n",
			 args->size, args->addr);
		return ERR_PTR(-EINVAL);
	}
	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	kref_init(&mr->ref);
	init_rwsem(&mr->lock);
	init_completion(&mr->callback_done);
	mr->owner = f->owner;
	mr->addr = args->addr;
	mr->start = start;
	mr->size = end - start;
	mr->npages = mr->size >> GDRDRV_GPU_PAGE_SHIFT;
	mr->persistent = gdr_nvp2p_persistent();
	ihold(f->inode);
	mr->inode = f->inode;
	return mr;
}

static int gdr_mr_check_flags(const struct gdr_pin_args *args)
{
	if (args->flags & ~GDRDRV_PIN_FORCE_PCIE ||
	    (args->flags && !gdr_nvp2p_force_pcie())) {
		gdr_info("flags %#x are not supported\n", args->flags);
		return -EINVAL;
	}
	if (gdr_nvp2p_persistent() && (args->p2p_token || args->va_space)) {
		gdr_info("persistent mappings take no token\n");
		return -EINVAL;
	}
	return 0;
}

/*
 * Show the region, whose memory type is reserved, to user space, unless its pages are
 * revoked already. A region gets its mmap offsets only here, so that failed pins use
 * up no offsets.
 */
static int gdr_mr_publish(struct gdr_file *f, struct gdr_mr *mr, u64 *handle)
{
	int ret = -EINVAL;

	down_write(&mr->lock);
	if (mr->state != GDR_MR_DEAD)
		ret = gdr_mr_take_handle(f, mr);
	if (!ret)
		mr->state = GDR_MR_LIVE;
	up_write(&mr->lock);
	if (ret && IS_ENABLED(CONFIG_X86))
		gdr_memtype_release(mr);
	if (ret)
		return ret;
	*handle = mr->handle;	/* after this another thread may unpin it */
	return xa_insert(&f->mrs, *handle, mr, GFP_KERNEL_ACCOUNT);
}

/* Leave the region to the callback. False if the callback has run already. */
static bool gdr_mr_abandon(struct gdr_mr *mr)
{
	down_write(&mr->lock);
	mr->abandoned = !mr->revoked;
	if (mr->abandoned)
		gdr_mr_get(mr);
	up_write(&mr->lock);
	return mr->abandoned;
}

/*
 * Give the pages back. While the GPU driver refuses, try again until the burst of the
 * process ends. Who can try later does not wait where the process is killed.
 */
static int gdr_mr_give_back(struct gdr_mr *mr, bool later)
{
	unsigned long began;
	int ret;

	do {
		began = jiffies;
		ret = gdr_nvp2p_put(mr);
	} while (ret && !mr->lost && !(later && fatal_signal_pending(current)) &&
		 gdr_burst_wait(began));
	return ret;
}

/*
 * Give the pages back, or leave the region to the callback: no caller can try again.
 * The callback comes at the latest when the pinning process has ended. Persistent
 * pages are lost if the GPU driver does not take them back.
 */
static void gdr_mr_end(struct gdr_mr *mr)
{
	gdr_mr_kill(mr);
	if (gdr_nvp2p_can_put(mr) &&
	    (!gdr_mr_give_back(mr, false) || mr->lost))
		return;
	if (mr->persistent)
		gdr_nvp2p_lose(mr);
	else if (!gdr_mr_abandon(mr))
		gdr_nvp2p_put(mr);
}

int gdr_mr_pin(struct gdr_file *f, const struct gdr_pin_args *args, u64 *handle)
{
	struct gdr_mr *mr;
	u64 before;
	int ret;

	ret = gdr_mr_check_flags(args);
	if (ret)
		return ret;
	mr = gdr_mr_alloc(f, args);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	ret = gdr_limit_charge(mr);
	if (ret)
		goto drop;

	before = gdr_cycles();
	ret = gdr_nvp2p_get(mr, args, gdr_mr_revoke);
	mr->tm_cycles = gdr_cycles() - before;
	if (ret)
		goto drop;
	ret = gdr_nvp2p_read(mr);
	if (!ret && IS_ENABLED(CONFIG_X86))
		ret = gdr_memtype_reserve(mr);
	if (ret)
		goto unpin;
	ret = gdr_mr_publish(f, mr, handle);
	if (ret)
		goto unpin;
	gdr_dbg("handle %#llx: %llu bytes\n", *handle, args->size);
	return 0;

unpin:
	gdr_mr_end(mr);
drop:
	gdr_mr_put(mr);
	return ret;
}

/*
 * Take the region out of the table, with the table's reference. Only one of several
 * callers gets it. The table keeps its place.
 */
static struct gdr_mr *gdr_mr_take(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr;

	xa_lock(&f->mrs);
	mr = xa_load(&f->mrs, handle);
	if (mr)
		__xa_store(&f->mrs, handle, XA_ZERO_ENTRY, GFP_ATOMIC);
	xa_unlock(&f->mrs);
	if (!mr)
		gdr_no_handle(handle);
	return mr;
}

/* The region stays if the GPU driver took no pages back, but may take them later. */
int gdr_mr_unpin(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr = gdr_mr_take(f, handle);
	int ret;

	if (!mr)
		return -EINVAL;
	gdr_mr_kill(mr);
	ret = gdr_mr_give_back(mr, true);
	if (ret && !mr->lost) {
		xa_store(&f->mrs, handle, mr, GFP_KERNEL_ACCOUNT);
		return ret;
	}
	xa_erase(&f->mrs, handle);
	gdr_mr_put(mr);
	return ret;
}

/* Called when nobody else has the file. */
void gdr_mr_unpin_all(struct gdr_file *f)
{
	struct gdr_mr *mr;
	unsigned long handle;

	xa_for_each(&f->mrs, handle, mr) {
		xa_erase(&f->mrs, handle);
		gdr_mr_end(mr);
		gdr_mr_put(mr);
		cond_resched();
	}
}
