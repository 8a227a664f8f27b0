// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * memtype.c - how x86 maps the pages of a region.
 *
 * On x86 the page protection does not decide how a page of I/O memory is mapped.
 * The kernel maps the page as its physical range is reserved, and uncached where
 * it is not reserved. So a pin reserves the pages as write-combining. Where a page is
 * reserved with another type already, that type stays, and our call succeeds all
 * the same.
 *
 * The kernel's list of reservations is slow where many overlap, and any number of
 * regions may share pages. So we cut a region into aligned blocks of a few sizes,
 * and reserve each block once, however many regions have it. A page is in at most
 * one block of each size.
 *
 * A large region has many blocks. No more of them are reserved once the process is killed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitops.h>
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
 * The reserved blocks. The value is the number of regions that have the block. Neighbours in
 * memory are neighbours in the tree: see gdr_block_key.
 */
static DEFINE_XARRAY_FLAGS(gdr_blocks, XA_FLAGS_ACCOUNT);

/*
 * The bits that guest memory encryption sets for device memory. They never change.
 * The kernel tells them to GPL modules only.
 */
static u64 gdr_shared_bits = U64_MAX;

static u64 gdr_block_pages(unsigned int level)
{
	return 1ULL << (level * GDR_BLOCK_SHIFT);
}

static u64 gdr_block_size(unsigned int level)
{
	return gdr_block_pages(level) * GDRDRV_GPU_PAGE_SIZE;
}

/* Whether a block of that level begins with the region's i-th GPU page. */
static bool gdr_is_block(const struct gdr_mr *mr, u64 i, unsigned int level)
{
	u64 pages = gdr_block_pages(level), k;

	if (pages > mr->npages - i ||
	    !IS_ALIGNED(gdr_nvp2p_page(mr, i), gdr_block_size(level)))
		return false;
	for (k = 1; k < pages; k++)
		if (gdr_nvp2p_page(mr, i + k) !=
		    gdr_nvp2p_page(mr, i) + k * GDRDRV_GPU_PAGE_SIZE)
			return false;
	return true;
}

/* The level of the largest one. */
static unsigned int gdr_block_level(const struct gdr_mr *mr, u64 i)
{
	unsigned int level = 0;

	while (level + 1 < GDR_BLOCK_LEVELS && gdr_is_block(mr, i, level + 1))
		level++;
	return level;
}

/* The number of a block in its level. Bits below a block's size, mostly 0, are on top. */
static unsigned long gdr_block_key(u64 phys, unsigned int level)
{
	return ror64(phys, GDRDRV_GPU_PAGE_SHIFT + level * GDR_BLOCK_SHIFT) | (u64)level << 40;
}

/*
 * Count one region more (by 1) or less (by -1) for a block. The first two steps of more
 * take memory, so we hold no lock: a block is reserved twice until it is counted.
 */
static int gdr_block_count(u64 phys, unsigned int level, int by)
{
	unsigned long key = gdr_block_key(phys, level);
	void *old, *was = xa_load(&gdr_blocks, key);
	unsigned long count;
	int ret = 0;

	if (by > 0)
		ret = arch_io_reserve_memtype_wc(phys, gdr_block_size(level));
	if (ret)
		return ret;
	do {
		old = was;
		count = xa_to_value(old) + by;
		was = xa_cmpxchg(&gdr_blocks, key, old, count ? xa_mk_value(count) : NULL,
				 by > 0 ? GFP_KERNEL_ACCOUNT : GFP_NOWAIT);
		ret = xa_err(was);
	} while (!ret && was != old);
	if (ret || (by > 0 ? count > 1 : !count))
		arch_io_free_memtype_wc(phys, gdr_block_size(level));
	return ret;
}

/* Put the blocks of the region's first pages. */
static void gdr_blocks_put(const struct gdr_mr *mr, u64 pages)
{
	unsigned int level;
	u64 i;

	for (i = 0; i < pages; i += gdr_block_pages(level)) {
		level = gdr_block_level(mr, i);
		gdr_block_count(gdr_nvp2p_page(mr, i), level, -1);
		cond_resched();
	}
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

/* Have the kernel map a page of the region for itself, once, and look how it does. */
static int gdr_find_shared_bits(u64 phys)
{
	void __iomem *p;
	u64 pte;

	if (READ_ONCE(gdr_shared_bits) != U64_MAX)
		return 0;
	p = ioremap_wc(phys, PAGE_SIZE);
	if (!p)
		return -ENOMEM;
	pte = gdr_kernel_pte((unsigned long)p);
	iounmap(p);
	WRITE_ONCE(gdr_shared_bits, pte & GDR_PTE_ADDRESS & ~phys);
	return 0;
}

/* Reserve the memory type of all pages. -EINTR: the process is being killed. */
int gdr_memtype_reserve(struct gdr_mr *mr)
{
	int ret = gdr_find_shared_bits(gdr_nvp2p_page(mr, 0));
	unsigned int level;
	u64 i = 0;

	while (!ret && i < mr->npages) {
		level = gdr_block_level(mr, i);
		if (fatal_signal_pending(current))
			ret = -EINTR;
		else
			ret = gdr_block_count(gdr_nvp2p_page(mr, i), level, 1);
		if (!ret)
			i += gdr_block_pages(level);
		cond_resched();
	}
	if (ret)
		gdr_blocks_put(mr, i);
	return ret;
}

/* No page of the region is mapped with that type, and none will be. */
void gdr_memtype_release(const struct gdr_mr *mr)
{
	gdr_blocks_put(mr, mr->npages);
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
