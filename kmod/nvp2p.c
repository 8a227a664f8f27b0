// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * nvp2p.c - all calls of NVIDIA's driver, and the differences of its releases.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "gdrdrv.h"
#include <nv-p2p.h>

/*
 * Page tables of major 2 end with one more word. A driver that is newer than our
 * build's header may make them, so the struct stands here.
 */
struct gdr_page_table_v2 {
	u32 version;
	u32 page_size;
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
	u32 flags;
};

#define GDR_PAGE_TABLE_CPU_CACHEABLE 1U

#ifdef GDR_HAVE_PAGE_TABLE_FLAGS
static_assert(offsetof(struct gdr_page_table_v2, flags) ==
	      offsetof(struct nvidia_p2p_page_table, flags));
#endif

int gdr_use_persistent = 1;
module_param_named(use_persistent_mapping, gdr_use_persistent, int, 0444);
MODULE_PARM_DESC(use_persistent_mapping,
		 "Pin persistently where the GPU driver can (default 1)");

/*
 * NVIDIA's driver checks a token, not the process that sends it, and its tokens are 1,
 * 2, 3, and so on. So a user who guesses one pins the memory of somebody else.
 */
static bool gdr_pass_tokens;
module_param_named(pass_p2p_tokens, gdr_pass_tokens, bool, 0400);
MODULE_PARM_DESC(pass_p2p_tokens,
		 "DANGEROUS: give P2P tokens to the GPU driver. Then any user may pin any user's GPU memory (default N)");

/* How many pages are read out of a page table before a callback may come. */
#define GDR_READ_BATCH 1024ULL

/*
 * The free callback gets a cookie instead of a pointer. No cookie is used twice, so
 * a late callback finds no region and does nothing. Each cookie has a reference to
 * the module, because the module must stay loaded while a callback may come.
 */
static DEFINE_XARRAY_FLAGS(gdr_cookies, XA_FLAGS_ACCOUNT);
static atomic_long_t gdr_last_cookie;

/*
 * A put names the page table by its address, among those of all objects that list its
 * process. Each process may list any other in its own (NV503C_CTRL_CMD_REGISTER_PID).
 * The GPU driver frees a table when its callback has returned. This could go wrong:
 *
 *	1. We read "revoked": not set.
 *	2. The callback runs, and the GPU driver frees the table.
 *	3. A get of any process makes a new table at the same address.
 *	4. We put the address, and so the new table.
 *
 * So the lock is held over 1 and 4, and shared by gets. The callback must never take
 * it.
 */
static DECLARE_RWSEM(gdr_tables_lock);

/*
 * How many free callbacks have begun, and how many are known to have returned. They run
 * under the GPU driver's lock. A put that succeeds has held it, so the callbacks that
 * had begun before it have returned. gdr_tables_lock guards gdr_returned.
 */
static atomic_long_t gdr_begun;
static long gdr_returned;

atomic_t gdr_pages_held;
atomic_t gdr_pages_lost;

static int gdr_put_table(u64 token, u32 space, u64 va, struct nvidia_p2p_page_table *pt)
{
	long begun = atomic_long_read(&gdr_begun);
	int ret = nvidia_p2p_put_pages(token, space, va, pt);

	if (!ret)
		gdr_returned = begun;
	return ret;
}

/*
 * Wait until each free callback that has begun has returned: put a page table that
 * nobody has. If that fails, it may not have waited.
 */
static int gdr_callbacks_wait(void)
{
	static struct nvidia_p2p_page_table nobodys;
	int ret = 0;

	down_write(&gdr_tables_lock);
	if (gdr_returned != atomic_long_read(&gdr_begun))
		ret = gdr_put_table(0, 0, 0, &nobodys);
	up_write(&gdr_tables_lock);
	return ret;
}

/* Until the last callback has returned, it needs our code. */
void gdr_nvp2p_exit(void)
{
	int held = atomic_read(&gdr_pages_held), ret;
	unsigned long next = jiffies;

	for (; (ret = gdr_callbacks_wait()); msleep(GDR_PUT_PAUSE)) {
		if (time_before(jiffies, next))
			continue;
		pr_err("unloading waits for the GPU driver, which refuses to put: %d\n", ret);
		next = jiffies + 10 * HZ;
	}
	if (held)
		pr_err("%d pinnings were never given back\n", held);
	xa_destroy(&gdr_cookies);
}

bool gdr_nvp2p_persistent(void)
{
#ifdef GDR_HAVE_PERSISTENT
	return gdr_use_persistent;
#else
	return false;
#endif
}

bool gdr_nvp2p_force_pcie(void)
{
#ifdef GDR_HAVE_FORCE_BAR1
	return gdr_nvp2p_persistent();
#else
	return false;
#endif
}

/* Count a pinning down once. The callback or the unpin does so, whichever is first. */
static void gdr_pages_gone(struct gdr_mr *mr)
{
	if (atomic_xchg(&mr->counted, 0))
		atomic_dec(&gdr_pages_held);
}

static struct gdr_mr *gdr_cookie_find(unsigned long cookie)
{
	struct gdr_mr *mr;

	xa_lock(&gdr_cookies);
	mr = xa_load(&gdr_cookies, cookie);
	if (mr)
		gdr_mr_get(mr);
	xa_unlock(&gdr_cookies);
	return mr;
}

static int gdr_cookie_add(struct gdr_mr *mr)
{
	int ret;

	mr->cookie = atomic_long_inc_return(&gdr_last_cookie);
	ret = xa_insert(&gdr_cookies, mr->cookie, mr, GFP_KERNEL_ACCOUNT);
	if (!ret)
		__module_get(THIS_MODULE);
	return ret;
}

static void gdr_cookie_drop(struct gdr_mr *mr)
{
	xa_erase(&gdr_cookies, mr->cookie);
	module_put(THIS_MODULE);
}

/*
 * The GPU driver takes its pages back. When this returns, it frees the page table,
 * and may give the pages to somebody else.
 */
static void gdr_free_callback(void *data)
{
	struct gdr_mr *mr;

	atomic_long_inc(&gdr_begun);
	mr = gdr_cookie_find((unsigned long)data);
	if (mr)
		mr->revoke(mr);
}

/* The revoke callback has ended the mappings of the region. */
void gdr_nvp2p_revoked(struct gdr_mr *mr, bool abandoned)
{
	nvidia_p2p_free_page_table(mr->page_table);
	gdr_pages_gone(mr);
	complete_all(&mr->callback_done);
	if (abandoned)
		gdr_cookie_drop(mr);
}

static int gdr_get_persistent(struct gdr_mr *mr, u32 flags)
{
#ifdef GDR_HAVE_PERSISTENT
	u32 nv_flags = 0;

#ifdef GDR_HAVE_FORCE_BAR1
	if (flags & GDRDRV_PIN_FORCE_PCIE)
		nv_flags |= NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING;
#endif
	return nvidia_p2p_get_pages_persistent(mr->start, mr->size,
					       &mr->page_table, nv_flags);
#else
	return -EOPNOTSUPP;
#endif
}

static int gdr_put_persistent(struct gdr_mr *mr)
{
#ifdef GDR_HAVE_PERSISTENT
	int ret = nvidia_p2p_put_pages_persistent(mr->start, mr->page_table, 0);

	if (!ret)
		gdr_burst_over();
	return ret;
#else
	return -EOPNOTSUPP;
#endif
}

static int gdr_get_traditional(struct gdr_mr *mr)
{
	int ret;

	ret = gdr_cookie_add(mr);
	if (ret)
		return ret;
	/*
	 * The callback may come before this returns. The driver stores
	 * page_table before it can call, so the callback finds it.
	 */
	down_read(&gdr_tables_lock);
	ret = nvidia_p2p_get_pages(mr->p2p_token, mr->va_space, mr->start,
				   mr->size, &mr->page_table,
				   gdr_free_callback, (void *)mr->cookie);
	up_read(&gdr_tables_lock);
	if (ret)
		gdr_cookie_drop(mr);
	return ret;
}

/*
 * Check that we can serve the page table. Until the version is checked, only the
 * version may be read.
 */
static int gdr_check_table(const struct gdr_mr *mr,
			   const struct nvidia_p2p_page_table *pt)
{
	u32 major = pt->version >> 16;

	if (major != 1 && major != 2) {
		gdr_err("page table version %#x is neither 1.x nor 2.x: update gdrdrv\n",
			pt->version);
		return -EINVAL;
	}
	if (pt->page_size != NVIDIA_P2P_PAGE_SIZE_64KB) {
		gdr_err("GPU page size type %u is not 64 KiB\n", pt->page_size);
		return -EINVAL;
	}
	if (pt->entries != mr->npages) {
		gdr_err("%u GPU pages came where %llu were asked for\n",
			pt->entries, mr->npages);
		return -EINVAL;
	}
	return 0;
}

/*
 * Copy what we need of some pages of the page table. mr->lock makes the callback wait,
 * so the table stays, unless the callback has run already.
 */
static int gdr_read_batch(struct gdr_mr *mr, u64 i)
{
	const struct nvidia_p2p_page_table *pt = mr->page_table;
	u64 end = min(i + GDR_READ_BATCH, mr->npages);
	int ret;

	down_read(&mr->lock);
	ret = mr->revoked ? -EINVAL : gdr_check_table(mr, pt);
	for (; !ret && i < end; i++) {
		mr->pages[i] = pt->pages[i]->physical_address;
		if (!IS_ALIGNED(mr->pages[i], PAGE_SIZE)) {
			gdr_err("a GPU page is not aligned to the host's page\n");
			ret = -EINVAL;
		}
	}
	if (!ret && pt->version >> 16 >= 2)
		mr->cacheable = ((const struct gdr_page_table_v2 *)pt)->flags &
				GDR_PAGE_TABLE_CPU_CACHEABLE;
	up_read(&mr->lock);
	return ret;
}

/* Read the pages of a region that is pinned. The caller ends the region if this fails. */
int gdr_nvp2p_read(struct gdr_mr *mr)
{
	u64 i;
	int ret = 0;

	/* The GPU driver has accepted the size, so it is bounded by its memory. */
	mr->pages = kvmalloc_array(mr->npages, sizeof(*mr->pages),
				   GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!mr->pages)
		return -ENOMEM;
	for (i = 0; !ret && i < mr->npages; i += GDR_READ_BATCH) {
		ret = gdr_read_batch(mr, i);
		cond_resched();
	}
	return ret;
}

/*
 * Have the GPU driver pin the region. On failure nothing stays pinned. revoke is called
 * when the GPU driver takes the pages of a traditional pinning back.
 */
int gdr_nvp2p_get(struct gdr_mr *mr, const struct gdr_pin_args *args,
		  void (*revoke)(struct gdr_mr *mr))
{
	int ret;

	mr->revoke = revoke;
	/* Without a token the GPU driver looks among the memory of the caller. */
	if (gdr_pass_tokens) {
		mr->p2p_token = args->p2p_token;
		mr->va_space = args->va_space;
	}
	/* Set this first: the callback may clear it at any time. */
	atomic_set(&mr->counted, 1);
	atomic_inc(&gdr_pages_held);
	ret = mr->persistent ? gdr_get_persistent(mr, args->flags) :
			       gdr_get_traditional(mr);
	if (ret) {
		gdr_info("the GPU driver refused to pin: %d\n", ret);
		gdr_pages_gone(mr);
		/* ENOTSUPP is for the kernel only; no C library knows it. */
		return ret == -ENOTSUPP ? -EOPNOTSUPP : ret;
	}
	return 0;
}

/*
 * The reference to the module goes when the callback has returned. If the GPU driver
 * does not tell, it goes all the same: the unload waits then.
 */
static int gdr_put_traditional(struct gdr_mr *mr)
{
	int ret = 0;

	down_write(&gdr_tables_lock);
	if (!gdr_mr_is_revoked(mr)) {
		ret = gdr_put_table(mr->p2p_token, mr->va_space, mr->start,
				    mr->page_table);
		if (!ret)
			gdr_burst_over();
	}
	up_write(&gdr_tables_lock);
	if (gdr_mr_is_revoked(mr)) {
		wait_for_completion(&mr->callback_done);
		gdr_callbacks_wait();
		ret = 0;
	}
	if (!ret)
		gdr_cookie_drop(mr);
	return ret;
}

/*
 * Nobody will put the pages of a persistent pinning: they stay pinned. There is no
 * callback, so the module may go.
 */
void gdr_nvp2p_lose(struct gdr_mr *mr)
{
	mr->lost = true;
	atomic_inc(&gdr_pages_lost);
	gdr_pages_gone(mr);
	gdr_err("%llu KiB of GPU memory stay pinned until the GPU is reset\n",
		mr->size >> 10);
}

/*
 * Give the pages back. No page of the region is mapped. On failure they stay pinned,
 * and may be put again unless the region is lost: the GPU driver fails with -ENOMEM
 * before it does anything. At any other failure it drops its references all the same,
 * so that another put of a persistent pinning would drop those of another owner
 * (nvidia_p2p_put_pages_persistent calls nvidia_dev_put_uuid).
 */
int gdr_nvp2p_put(struct gdr_mr *mr)
{
	int ret;

	ret = mr->persistent ? gdr_put_persistent(mr) : gdr_put_traditional(mr);
	if (!ret) {
		gdr_pages_gone(mr);
		return 0;
	}
	gdr_err("the GPU driver took no pages back: %d\n", ret);
	if (mr->persistent && ret != -ENOMEM)
		gdr_nvp2p_lose(mr);
	return ret;
}

/*
 * Without a token the GPU driver looks for the pages among those of the calling
 * process. It does not find another process's pages, and returns success all the
 * same.
 */
bool gdr_nvp2p_can_put(const struct gdr_mr *mr)
{
	return mr->persistent || mr->p2p_token ||
	       gdr_process_is_current(mr->owner);
}
