// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * mr.c - memory regions. A pin makes one. An unpin and the last close end it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timex.h>
#include <linux/workqueue.h>
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

/*
 * current's group leader exists as long as current does, so reading it needs no
 * lock. exec keeps the number and the start time.
 */
bool gdr_file_is_owner(const struct gdr_file *f)
{
	if (f->tgid == current->tgid &&
	    f->start_time == current->group_leader->start_time)
		return true;
	gdr_info("process %d did not open this file\n", current->tgid);
	return false;
}

static void gdr_mr_free(struct kref *ref)
{
	struct gdr_mr *mr = container_of(ref, struct gdr_mr, ref);

	gdr_limit_uncharge(mr);
	iput(mr->inode);
	kfree(mr);
}

void gdr_mr_put(struct gdr_mr *mr)
{
	kref_put(&mr->ref, gdr_mr_free);
}

/*
 * The region of the handle, with a reference; NULL where there is none. take: out of the
 * table, with the table's reference. Only one of several callers gets it. The table keeps
 * its place.
 */
static struct gdr_mr *gdr_mr_look_up(struct gdr_file *f, u64 handle, bool take)
{
	struct gdr_mr *mr;

	xa_lock(&f->mrs);
	mr = xa_load(&f->mrs, handle);
	if (mr && take)
		__xa_store(&f->mrs, handle, XA_ZERO_ENTRY, GFP_ATOMIC);
	else if (mr)
		gdr_mr_get(mr);
	xa_unlock(&f->mrs);
	if (!mr)
		gdr_info("no buffer of this file has the handle %#llx\n", handle);
	return mr;
}

struct gdr_mr *gdr_mr_find(struct gdr_file *f, u64 handle)
{
	return gdr_mr_look_up(f, handle, false);
}

/*
 * End a region's mappings. When this returns, the region has no CPU page table
 * entry, and none will be made.
 */
static void gdr_mr_kill(struct gdr_mr *mr)
{
	bool was_dead;

	down_write(&mr->lock);
	was_dead = mr->dead;
	mr->dead = true;
	mr->type = GDRDRV_MAPPING_NONE;
	up_write(&mr->lock);
	if (was_dead)
		return;

	unmap_mapping_range(mr->inode->i_mapping, mr->handle << PAGE_SHIFT,
			    mr->size, 1);
	if (IS_ENABLED(CONFIG_X86))
		gdr_memtype_release(mr);
}

/*
 * What the GPU driver refused to take back, and nobody can unpin any more. A worker tries
 * each again until it is taken. Each has a reference.
 */
#define GDR_RETRY (HZ / 10)
#define GDR_RETRY_AT_EXIT (3 * HZ)

static LIST_HEAD(gdr_refused);
static DEFINE_SPINLOCK(gdr_refused_lock);
static void gdr_mr_retry(struct work_struct *work);
static DECLARE_DELAYED_WORK(gdr_retry_work, gdr_mr_retry);

/* Put the pages now or later. The region's reference goes with them. */
static void gdr_mr_put_pages(struct gdr_mr *mr)
{
	if (gdr_nvp2p_put(mr) != -ENOMEM) {
		gdr_mr_put(mr);
		return;
	}
	spin_lock(&gdr_refused_lock);
	list_add_tail(&mr->node, &gdr_refused);
	spin_unlock(&gdr_refused_lock);
	schedule_delayed_work(&gdr_retry_work, GDR_RETRY);
}

/* The first of the list, taken off; NULL: there is none. */
static struct gdr_mr *gdr_mr_next(struct list_head *list)
{
	struct gdr_mr *mr = list_first_entry_or_null(list, struct gdr_mr, node);

	if (mr)
		list_del(&mr->node);
	return mr;
}

static void gdr_mr_retry(struct work_struct *work)
{
	struct gdr_mr *mr;
	LIST_HEAD(todo);

	spin_lock(&gdr_refused_lock);
	list_splice_init(&gdr_refused, &todo);
	spin_unlock(&gdr_refused_lock);
	while ((mr = gdr_mr_next(&todo))) {
		gdr_mr_put_pages(mr);
		cond_resched();
	}
}

/* No file is open, so what is held was refused. */
void gdr_mr_exit(void)
{
	unsigned long end = jiffies + GDR_RETRY_AT_EXIT;
	struct gdr_mr *mr;

	while (atomic_read(&gdr_pages_held) && time_before(jiffies, end))
		msleep(20);
	cancel_delayed_work_sync(&gdr_retry_work);
	while ((mr = gdr_mr_next(&gdr_refused))) {
		gdr_nvp2p_lose(mr);
		gdr_mr_put(mr);
	}
}

static struct gdr_mr *gdr_mr_alloc(struct gdr_file *f, u64 addr, u64 size)
{
	u64 start = ALIGN_DOWN(addr, GDRDRV_GPU_PAGE_SIZE);
	u64 end = ALIGN(addr + size, GDRDRV_GPU_PAGE_SIZE);
	struct gdr_mr *mr;

	if (!addr || !size || addr + size < addr || !end || !gdr_limit_allows(end - start)) {
		gdr_info("%llu bytes at %#llx are no range of addresses\n", size, addr);
		return ERR_PTR(-EINVAL);
	}
	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	kref_init(&mr->ref);
	init_rwsem(&mr->lock);
	mr->addr = addr;
	mr->start = start;
	mr->size = end - start;
	mr->npages = mr->size >> GDRDRV_GPU_PAGE_SHIFT;
	ihold(f->inode);
	mr->inode = f->inode;
	return mr;
}

/*
 * Show the region to user space, at mmap offsets that no region of the file ever had. It
 * gets them only here, so that failed pins use up none. After this another thread may unpin it.
 */
static int gdr_mr_publish(struct gdr_file *f, struct gdr_mr *mr, u64 *handle)
{
	u64 span = mr->size >> PAGE_SHIFT;
	bool fits;

	xa_lock(&f->mrs);
	fits = span <= GDR_HANDLE_END - f->next_handle;
	if (fits) {
		mr->handle = f->next_handle;
		f->next_handle += span;
	}
	xa_unlock(&f->mrs);
	*handle = mr->handle;
	return fits ? xa_insert(&f->mrs, *handle, mr, GFP_KERNEL_ACCOUNT) : -ENOSPC;
}

int gdr_mr_pin(struct gdr_file *f, u64 addr, u64 size, u32 flags, u64 *handle)
{
	struct gdr_mr *mr;
	u64 before;
	int ret;

	if (flags & ~GDRDRV_PIN_FORCE_PCIE || (flags && !gdr_nvp2p_force_pcie())) {
		gdr_info("flags %#x are not supported\n", flags);
		return -EINVAL;
	}
	mr = gdr_mr_alloc(f, addr, size);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	ret = gdr_limit_charge(mr);
	if (ret)
		goto drop;

	before = gdr_cycles();
	ret = gdr_nvp2p_get(mr, flags);
	mr->tm_cycles = gdr_cycles() - before;
	if (ret)
		goto drop;
	ret = gdr_nvp2p_check(mr);
	if (!ret && IS_ENABLED(CONFIG_X86))
		ret = gdr_memtype_reserve(mr);
	if (ret)
		goto unpin;
	ret = gdr_mr_publish(f, mr, handle);
	if (ret)
		goto release;
	gdr_dbg("handle %#llx: %llu bytes\n", *handle, size);
	return 0;

release:
	if (IS_ENABLED(CONFIG_X86))
		gdr_memtype_release(mr);
unpin:
	gdr_mr_put_pages(mr);
	return ret;
drop:
	gdr_mr_put(mr);
	return ret;
}

/* The region stays where the GPU driver may be asked again. */
int gdr_mr_unpin(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr = gdr_mr_look_up(f, handle, true);
	int ret;

	if (!mr)
		return -EINVAL;
	gdr_mr_kill(mr);
	ret = gdr_nvp2p_put(mr);
	if (ret == -ENOMEM) {
		gdr_info("the GPU driver has no memory to unpin: unpin again\n");
		xa_store(&f->mrs, handle, mr, GFP_KERNEL_ACCOUNT);
		return ret;
	}
	xa_erase(&f->mrs, handle);
	gdr_mr_put(mr);
	return ret;
}

/* End a region that nobody will unpin. If the GPU driver refuses, a worker asks it again. */
void gdr_mr_end(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr = gdr_mr_look_up(f, handle, true);

	if (!mr)
		return;
	gdr_mr_kill(mr);
	xa_erase(&f->mrs, handle);
	gdr_mr_put_pages(mr);
}
