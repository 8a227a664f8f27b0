// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * memtype.c - how x86 maps the pages of a region.
 *
 * On x86 the page protection does not decide how a page of I/O memory is mapped.
 * The kernel maps the page as its physical range is reserved, and uncached where
 * it is not reserved. So:
 *
 *	1. We reserve the range as write-combining. Where it is reserved with
 *	   another type already, that type stays, and our call succeeds all the
 *	   same.
 *	2. So we have the kernel map a page of the range for itself.
 *	3. We read the type in the page table entry of that mapping.
 *
 * The kernel's list of reservations is slow where many overlap, and any number of
 * regions may share pages. So we cut a region's physical ranges into aligned
 * blocks of a few sizes, and reserve each block once, however many regions have
 * it. A page is in at most one block of each size.
 *
 * Reserving takes long: it maps a page for each block. So it happens without a lock,
 * and ends early when the region is revoked or the process is killed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/io.h>
#include <linux/mem_encrypt.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/xarray.h>

#include "gdrdrv.h"

/* A block of level n has 32^n GPU pages: 64 KiB, 2 MiB, 64 MiB, 2 GiB. */
#define GDR_BLOCK_LEVELS 4
#define GDR_BLOCK_SHIFT 5

/* The bits of a page table entry that are its address or its encryption. */
#define GDR_PTE_ADDRESS GENMASK_ULL(51, PAGE_SHIFT)

/*
 * A run of GPU pages that follow each other in physical memory. pages is how many
 * of them are left, from phys on. index is the region's first GPU page after the
 * run.
 */
struct gdr_run {
	u64 phys;
	u64 pages;
	u64 index;
};

/*
 * The reserved blocks, by gdr_block_key(). The value is the number of regions that
 * have the block, times 2, plus 1 if the block is uncached. A block that two callers
 * reserve at once is reserved twice, until one of them finds the other's entry.
 */
static DEFINE_XARRAY_FLAGS(gdr_blocks, XA_FLAGS_ACCOUNT);

/* The bits that guest memory encryption sets for device memory. They never change. */
static u64 gdr_shared_bits;

static u64 gdr_block_pages(unsigned int level)
{
	return 1ULL << (level * GDR_BLOCK_SHIFT);
}

static unsigned long gdr_block_key(u64 phys, unsigned int level)
{
	return (phys >> PAGE_SHIFT) * GDR_BLOCK_LEVELS + level;
}

static u64 gdr_block_size(unsigned int level)
{
	return gdr_block_pages(level) * GDRDRV_GPU_PAGE_SIZE;
}

static struct gdr_run gdr_first_run(void)
{
	return (struct gdr_run) {};
}

/* Go to the next run if this one is at its end. False at the end of the region. */
static bool gdr_more(const struct gdr_mr *mr, struct gdr_run *run)
{
	u64 i = run->index;

	if (run->pages)
		return true;
	if (i == mr->npages)
		return false;
	run->phys = mr->pages[i];
	while (i + run->pages < mr->npages &&
	       mr->pages[i + run->pages] ==
	       run->phys + run->pages * GDRDRV_GPU_PAGE_SIZE)
		run->pages++;
	run->index += run->pages;
	return true;
}

/* The level of the largest block at the start of the run. */
static unsigned int gdr_block_level(const struct gdr_run *run)
{
	unsigned int level = GDR_BLOCK_LEVELS - 1;

	while (level && (gdr_block_pages(level) > run->pages ||
			 !IS_ALIGNED(run->phys, gdr_block_size(level))))
		level--;
	return level;
}

static void gdr_skip(struct gdr_run *run, unsigned int level)
{
	run->phys += gdr_block_size(level);
	run->pages -= gdr_block_pages(level);
}

/* The kernel's page table entry for an address of ioremap. */
static u64 gdr_kernel_pte(unsigned long addr)
{
	p4d_t *p4d = p4d_offset(pgd_offset(current->mm, addr), addr);
	pud_t *pud;
	pmd_t *pmd;

	if (p4d_none(*p4d))
		return 0;
	pud = pud_offset(p4d, addr);
	if (pud_none(*pud))
		return 0;
	pmd = pmd_offset(pud, addr);
	if (pmd_none(*pmd))
		return 0;
	return pte_val(*pte_offset_kernel(pmd, addr));
}

/* Is a page of a reserved block mapped uncached? 0, 1 or an error. */
static int gdr_is_uncached(u64 phys)
{
	unsigned long wc = cachemode2protval(_PAGE_CACHE_MODE_WC);
	void __iomem *p;
	u64 pte;

	p = ioremap_wc(phys, PAGE_SIZE);
	if (!p)
		return -ENOMEM;
	pte = gdr_kernel_pte((unsigned long)p);
	iounmap(p);
	WRITE_ONCE(gdr_shared_bits, pte & GDR_PTE_ADDRESS & ~phys);
	/* Without PAT there is no write-combining. */
	return (pte & _PAGE_CACHE_MASK) != wc ||
	       wc == cachemode2protval(_PAGE_CACHE_MODE_UC_MINUS);
}

/* Count one more region for a block that is reserved. False if it is not. */
static bool gdr_block_share(unsigned long key, bool *uncached)
{
	void *entry;

	xa_lock(&gdr_blocks);
	entry = xa_load(&gdr_blocks, key);
	if (entry) {
		*uncached = xa_to_value(entry) & 1;
		/* This replaces a value, so it allocates nothing. */
		__xa_store(&gdr_blocks, key,
			   xa_mk_value(xa_to_value(entry) + 2), 0);
	}
	xa_unlock(&gdr_blocks);
	return entry;
}

/* Reserve a block. -EEXIST: another caller was first. */
static int gdr_block_new(u64 phys, u64 size, unsigned long key, bool *uncached)
{
	void *entry;
	int ret;

	ret = arch_io_reserve_memtype_wc(phys, size);
	if (ret)
		return ret;
	ret = gdr_is_uncached(phys);
	if (ret < 0)
		goto free;
	*uncached = ret;
	entry = xa_cmpxchg(&gdr_blocks, key, NULL, xa_mk_value(2 | *uncached),
			   GFP_KERNEL_ACCOUNT);
	if (!entry)
		return 0;
	ret = xa_is_err(entry) ? xa_err(entry) : -EEXIST;
free:
	arch_io_free_memtype_wc(phys, size);
	return ret;
}

/* Reserve a block, or count one more region. */
static int gdr_block_get(u64 phys, unsigned int level, bool *uncached)
{
	unsigned long key = gdr_block_key(phys, level);
	int ret = -EEXIST;

	while (ret == -EEXIST && !gdr_block_share(key, uncached))
		ret = gdr_block_new(phys, gdr_block_size(level), key, uncached);
	return ret == -EEXIST ? 0 : ret;
}

static void gdr_block_put(u64 phys, unsigned int level)
{
	unsigned long key = gdr_block_key(phys, level), value;

	xa_lock(&gdr_blocks);
	value = xa_to_value(xa_load(&gdr_blocks, key)) - 2;
	if (value > 1)
		__xa_store(&gdr_blocks, key, xa_mk_value(value), 0);
	else
		__xa_erase(&gdr_blocks, key);
	xa_unlock(&gdr_blocks);
	if (value <= 1)
		arch_io_free_memtype_wc(phys, gdr_block_size(level));
}

/* Put the first blocks of the region. */
static void gdr_blocks_put(const struct gdr_mr *mr, u64 blocks)
{
	struct gdr_run run = gdr_first_run();
	unsigned int level;

	for (; blocks && gdr_more(mr, &run); blocks--) {
		level = gdr_block_level(&run);
		gdr_block_put(run.phys, level);
		gdr_skip(&run, level);
		cond_resched();
	}
}

/*
 * Reserve the memory type of all pages. *uncached: that had no effect for some of them.
 * -EINTR: the process is being killed.
 */
int gdr_memtype_reserve(struct gdr_mr *mr, bool *uncached)
{
	struct gdr_run run = gdr_first_run();
	unsigned int level;
	u64 blocks = 0;
	int ret = 0;
	bool one;

	*uncached = false;
	while (gdr_more(mr, &run)) {
		level = gdr_block_level(&run);
		if (fatal_signal_pending(current))
			ret = -EINTR;
		else if (!gdr_mr_is_live(mr))
			ret = -EINVAL;
		else
			ret = gdr_block_get(run.phys, level, &one);
		if (ret)
			break;
		*uncached |= one;
		gdr_skip(&run, level);
		blocks++;
		cond_resched();
	}
	if (ret)
		gdr_blocks_put(mr, blocks);
	return ret;
}

/* No page of the region is mapped with that type, and none will be. */
void gdr_memtype_release(const struct gdr_mr *mr)
{
	gdr_blocks_put(mr, U64_MAX);
}

/*
 * x86 exports pgprot_writecombine to GPL modules only, so we pass uncached. That is
 * right without PAT. With PAT vmf_insert_pfn changes it to the reserved type.
 * Memory of a device is not encrypted, as in io_remap_pfn_range. pgprot_decrypted
 * is for GPL modules only too.
 */
pgprot_t gdr_memtype_prot(pgprot_t prot)
{
	prot = pgprot_noncached(prot);
	return __pgprot(__sme_clr(pgprot_val(prot)) | READ_ONCE(gdr_shared_bits));
}
