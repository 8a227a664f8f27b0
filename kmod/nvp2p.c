// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * nvp2p.c - all calls of NVIDIA's driver, and the differences of its releases.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/errno.h>
#include <linux/mm.h>
#include <linux/sched.h>

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

atomic_t gdr_pages_held;
atomic_t gdr_pages_lost;

#ifdef GDR_HAVE_FORCE_BAR1
#define GDR_FORCE_BAR1 NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING
#else
#define GDR_FORCE_BAR1 0
#endif

bool gdr_nvp2p_force_pcie(void)
{
	return GDR_FORCE_BAR1;
}

/* Have the GPU driver pin the region. On failure nothing stays pinned. */
int gdr_nvp2p_get(struct gdr_mr *mr, u32 flags)
{
	u32 nv_flags = flags & GDRDRV_PIN_FORCE_PCIE ? GDR_FORCE_BAR1 : 0;
	int ret;

	ret = nvidia_p2p_get_pages_persistent(mr->start, mr->size,
					      &mr->page_table, nv_flags);
	if (ret) {
		gdr_info("the GPU driver refused to pin: %d\n", ret);
		/* ENOTSUPP is for the kernel only; no C library knows it. */
		return ret == -ENOTSUPP ? -EOPNOTSUPP : ret;
	}
	atomic_inc(&gdr_pages_held);
	return 0;
}

/*
 * Check that we can serve the page table. Until the version is checked, only the
 * version may be read.
 */
static int gdr_check_table(const struct gdr_mr *mr)
{
	const struct nvidia_p2p_page_table *pt = mr->page_table;
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

/* The physical address of the region's i-th GPU page. Not after the pages are put. */
u64 gdr_nvp2p_page(const struct gdr_mr *mr, u64 i)
{
	return mr->page_table->pages[i]->physical_address;
}

/* Look at what was pinned. The caller puts the pages if this fails. */
int gdr_nvp2p_check(struct gdr_mr *mr)
{
	const struct gdr_page_table_v2 *v2 = (void *)mr->page_table;
	int ret = gdr_check_table(mr);
	u64 i;

	for (i = 0; !ret && i < mr->npages; i++) {
		if (!IS_ALIGNED(gdr_nvp2p_page(mr, i), PAGE_SIZE)) {
			gdr_err("a GPU page is not aligned to the host's page\n");
			ret = -EINVAL;
		}
		if (i % 1024 == 0)
			cond_resched();
	}
	if (!ret && v2->version >> 16 >= 2)
		mr->cacheable = v2->flags & GDR_PAGE_TABLE_CPU_CACHEABLE;
	return ret;
}

/* Nobody will put the pages. */
void gdr_nvp2p_lose(struct gdr_mr *mr)
{
	atomic_dec(&gdr_pages_held);
	atomic_inc(&gdr_pages_lost);
	gdr_err("%llu KiB of GPU memory stay pinned until the GPU is reset\n",
		mr->size >> 10);
}

/*
 * Give the pages back. No page of the region is mapped. -ENOMEM: the GPU driver did
 * nothing, and may be asked again. At any other failure it drops its references all the
 * same (nvidia_p2p_put_pages_persistent calls nvidia_dev_put_uuid). Another put would
 * drop those of another owner, so the pages are lost.
 */
int gdr_nvp2p_put(struct gdr_mr *mr)
{
	int ret = nvidia_p2p_put_pages_persistent(mr->start, mr->page_table, 0);

	if (!ret) {
		atomic_dec(&gdr_pages_held);
	} else if (ret != -ENOMEM) {
		gdr_err("the GPU driver took no pages back: %d\n", ret);
		gdr_nvp2p_lose(mr);
	}
	return ret;
}
