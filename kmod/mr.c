// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * mr.c - memory regions: made by a pin, ended by an unpin, by the last close
 * or by the GPU driver, in any order and at the same time.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/slab.h>

#include "gdrdrv.h"

/* The mmap offset, in bytes, must stay positive as the C library's off_t. */
#define GDR_HANDLE_END ((u64)LLONG_MAX >> PAGE_SHIFT)

static void gdr_mr_free(struct kref *ref)
{
	struct gdr_mr *mr = container_of(ref, struct gdr_mr, ref);

	iput(mr->inode);
	kvfree(mr->pages);
	kfree(mr);
}

void gdr_mr_get(struct gdr_mr *mr)
{
	kref_get(&mr->ref);
}

void gdr_mr_put(struct gdr_mr *mr)
{
	kref_put(&mr->ref, gdr_mr_free);
}

static void gdr_no_handle(u64 handle)
{
	gdr_info("no buffer of this file has the handle %#llx\n", handle);
}

/* The region with that very handle, with a reference; else NULL. */
struct gdr_mr *gdr_mr_find(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr;

	if (!handle || handle >= GDR_HANDLE_END) {
		gdr_no_handle(handle);
		return NULL;
	}
	xa_lock(&f->mrs);
	mr = xa_load(&f->mrs, handle);
	if (mr)
		kref_get(&mr->ref);
	xa_unlock(&f->mrs);
	if (!mr)
		gdr_no_handle(handle);
	return mr;
}

/*
 * End a region's mappings. When this returns no CPU page table entry of it is
 * left, and none will be made. Any number of callers may do this at once, and
 * each of them may rely on that.
 */
static void gdr_mr_kill(struct gdr_mr *mr, bool revoked)
{
	down_write(&mr->lock);
	mr->state = GDR_MR_DEAD;
	mr->revoked |= revoked;
	up_write(&mr->lock);

	unmap_mapping_range(mr->inode->i_mapping, mr->handle << PAGE_SHIFT,
			    mr->size, 1);
	down_write(&mr->lock);
	gdr_memtype_release(mr);
	up_write(&mr->lock);
}

/* The GPU driver takes the pages back. */
void gdr_mr_revoke(struct gdr_mr *mr)
{
	gdr_mr_kill(mr, true);
}

/* Take a range of mmap offsets that no region of the file ever had. */
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
 * The pin failed, so nobody was given the handle. If none came after it, the
 * next pin has it: failures without end must not use up all there are.
 */
static void gdr_mr_return_handle(struct gdr_file *f, const struct gdr_mr *mr)
{
	u64 span = mr->size >> PAGE_SHIFT;

	xa_lock(&f->mrs);
	if (f->next_handle == mr->handle + span)
		f->next_handle = mr->handle;
	xa_unlock(&f->mrs);
}

/* Round what is asked for to GPU pages; false if it is no range of addresses. */
static bool gdr_mr_range(const struct gdr_pin_args *args, u64 *start, u64 *end)
{
	if (!args->addr || !args->size ||
	    args->addr + args->size < args->addr)
		return false;
	*start = args->addr & GPU_PAGE_MASK;
	*end = (args->addr + args->size + GDRDRV_GPU_PAGE_SIZE - 1) &
	       GPU_PAGE_MASK;
	/* A page table counts its pages in 32 bits. */
	return *end && (*end - *start) >> GDRDRV_GPU_PAGE_SHIFT <= U32_MAX;
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
	mr->addr = args->addr;
	mr->start = start;
	mr->size = end - start;
	mr->npages = mr->size >> GDRDRV_GPU_PAGE_SHIFT;
	mr->p2p_token = args->p2p_token;
	mr->va_space = args->va_space;
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

/* Show the region to user space, unless the pages are gone again already. */
static int gdr_mr_publish(struct gdr_file *f, struct gdr_mr *mr)
{
	int ret;

	down_write(&mr->lock);
	ret = mr->state == GDR_MR_DEAD ? -EINVAL : 0;
	if (!ret)
		mr->state = GDR_MR_LIVE;
	up_write(&mr->lock);
	if (ret)
		return ret;
	return xa_insert(&f->mrs, mr->handle, mr, GFP_KERNEL_ACCOUNT);
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
	ret = gdr_mr_take_handle(f, mr);
	if (ret)
		goto drop;

	before = gdr_cycles();
	ret = gdr_nvp2p_get(mr, args->flags);
	mr->tm_cycles = gdr_cycles() - before;
	if (ret)
		goto handle;
	*handle = mr->handle;
	ret = gdr_mr_publish(f, mr);
	if (ret)
		goto unpin;
	gdr_dbg("handle %#llx: %llu bytes\n", *handle, args->size);
	return 0;

unpin:
	gdr_mr_kill(mr, false);
	gdr_nvp2p_put(mr);
handle:
	gdr_mr_return_handle(f, mr);
drop:
	gdr_mr_put(mr);
	return ret;
}

/* mr is out of the table, and the table's reference is ours. */
static void gdr_mr_end(struct gdr_mr *mr)
{
	gdr_mr_kill(mr, false);
	gdr_nvp2p_put(mr);
	gdr_mr_put(mr);
}

int gdr_mr_unpin(struct gdr_file *f, u64 handle)
{
	struct gdr_mr *mr;

	mr = handle < GDR_HANDLE_END ? xa_erase(&f->mrs, handle) : NULL;
	if (!mr) {
		gdr_no_handle(handle);
		return -EINVAL;
	}
	gdr_mr_end(mr);
	return 0;
}

void gdr_mr_unpin_all(struct gdr_file *f)
{
	struct gdr_mr *mr;
	unsigned long handle;

	xa_for_each(&f->mrs, handle, mr) {
		/* An unpin in another thread may have been first. */
		mr = xa_erase(&f->mrs, handle);
		if (mr)
			gdr_mr_end(mr);
	}
}
