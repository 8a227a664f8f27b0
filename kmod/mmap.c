// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * mmap.c - CPU mappings of a region.
 *
 * mmap only sets up the VMA. Faults map the pages. At a fault the VMA is already in
 * the address_space, where unmap_mapping_range finds it. So no page is mapped
 * after an unpin.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/personality.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/userfaultfd_k.h>
#ifdef CONFIG_PPC64
#include <asm/reg.h>
#endif

#include "gdrdrv.h"

static bool gdr_map_whole;
module_param_named(map_whole, gdr_map_whole, bool, 0444);
MODULE_PARM_DESC(map_whole,
		 "The first touch of a mapping maps all of it, not 2 MiB (default N)");

/* Only for a VMA that mmap is making. Nobody else can see it, so it needs no lock. */
static void gdr_vma_flags(struct vm_area_struct *vma, unsigned long set,
			  unsigned long clear)
{
#ifdef GDR_HAVE_VM_FLAGS_INIT
	vm_flags_init(vma, (vma->vm_flags | set) & ~clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

static bool gdr_cpu_can_cache(void)
{
#if defined(CONFIG_ARM64)
	return true;
#elif defined(CONFIG_PPC64)
	return pvr_version_is(PVR_POWER9);
#else
	return false;
#endif
}

/*
 * True where the GPU's memory is host memory to the kernel (NVLink to Power9 or
 * Grace). A struct page does not prove that: a BAR may have them too, for transfers
 * between devices. page_is_ram is for GPL modules only.
 */
static bool gdr_is_ram(unsigned long pfn)
{
#if defined(GDR_HAVE_PFN_IS_MAP_MEMORY)
	return pfn_is_map_memory(pfn);
#elif defined(CONFIG_ARM64) || defined(CONFIG_PPC64)
	return pfn_valid(pfn) && !is_zone_device_page(pfn_to_page(pfn));
#else
	return false;
#endif
}

static bool gdr_can_cache(const struct gdr_mr *mr)
{
	return gdr_cpu_can_cache() &&
	       (mr->cacheable || gdr_is_ram(gdr_nvp2p_page(mr, 0) >> PAGE_SHIFT));
}

/*
 * Root ports of machines on which NVIDIA's driver maps no BAR as write-combining
 * (chipset_info.c): BlueField-3 with crypto and without, and revision 0 of Ampere
 * Altra. The data is 1 where the other revisions can. 0x15b3:0xa2dc is a card.
 * core/internal/rm/machine.go has the same list.
 */
static const struct pci_device_id gdr_without_wc[] = {
	{ PCI_DEVICE(0x15b3, 0xa2da) },
	{ PCI_DEVICE(0x15b3, 0xa2db) },
	{ PCI_DEVICE(0x1def, 0xe000), .driver_data = 1 },
	{ PCI_DEVICE(0x1def, 0xe00d), .driver_data = 1 },
	{ PCI_DEVICE(0x1def, 0xe00e), .driver_data = 1 },
	{ PCI_DEVICE(0x1def, 0xe010), .driver_data = 1 },
	{ PCI_DEVICE(0x1def, 0xe100), .driver_data = 1 },
	{ PCI_DEVICE(0x1def, 0xe110), .driver_data = 1 },
	{}
};

/* The machine is one of these. Set at load. */
static bool gdr_needs_device;

void gdr_find_machine(void)
{
	const struct pci_device_id *id;
	struct pci_dev *dev = NULL;

	for_each_pci_dev(dev) {
		id = pci_match_id(gdr_without_wc, dev);
		if (id && !(id->driver_data && dev->revision))
			gdr_needs_device = true;
	}
}

static enum gdrdrv_mapping_type gdr_default_type(const struct gdr_mr *mr)
{
	if (gdr_can_cache(mr))
		return GDRDRV_MAPPING_CACHING;
	return gdr_needs_device ? GDRDRV_MAPPING_DEVICE : GDRDRV_MAPPING_WC;
}

bool gdr_type_supported(const struct gdr_mr *mr, enum gdrdrv_mapping_type type)
{
	switch (type) {
	case GDRDRV_MAPPING_WC:
		return !gdr_needs_device;
	case GDRDRV_MAPPING_CACHING:
		return !mr->dead && gdr_can_cache(mr);
	case GDRDRV_MAPPING_DEVICE:
		return gdr_needs_device;
	default:
		return false;
	}
}

static pgprot_t gdr_prot(struct vm_area_struct *vma,
			 enum gdrdrv_mapping_type type)
{
	pgprot_t prot = vm_get_page_prot(vma->vm_flags);

	if (type == GDRDRV_MAPPING_CACHING)
		return prot;
#ifdef CONFIG_X86
	return gdr_memtype_prot(prot);
#else
	/* A device's memory is outside of memory encryption. */
	prot = pgprot_decrypted(prot);
	return type == GDRDRV_MAPPING_DEVICE ? pgprot_device(prot) :
					       pgprot_writecombine(prot);
#endif
}

static void gdr_vm_open(struct vm_area_struct *vma)
{
	struct gdr_mr *mr = vma->vm_private_data;

	gdr_mr_get(mr);
	down_write(&mr->lock);
	mr->vmas++;
	up_write(&mr->lock);
}

static void gdr_vm_close(struct vm_area_struct *vma)
{
	struct gdr_mr *mr = vma->vm_private_data;

	down_write(&mr->lock);
	if (!--mr->vmas)
		mr->type = GDRDRV_MAPPING_NONE;
	up_write(&mr->lock);
	gdr_mr_put(mr);
}

/* A mapping must not be split: one handle has one mapping of one size. */
static int gdr_vm_may_split(struct vm_area_struct *vma, unsigned long addr)
{
	return -EINVAL;
}

/* Map the host page at an address. A GPU page may have several host pages. */
static vm_fault_t gdr_insert(struct vm_area_struct *vma, unsigned long addr,
			     const struct gdr_mr *mr)
{
	u64 offset = addr - vma->vm_start +
		     ((vma->vm_pgoff - mr->handle) << PAGE_SHIFT);
	u64 phys = gdr_nvp2p_page(mr, offset >> GDRDRV_GPU_PAGE_SHIFT) +
		   (offset & (GDRDRV_GPU_PAGE_SIZE - 1));

	return vmf_insert_pfn(vma, addr, phys >> PAGE_SHIFT);
}

/* With large pages a page-table page covers more, up to 512 MiB. */
#define GDR_BATCH min_t(unsigned long, PMD_SIZE, SZ_2M)

/*
 * Map up to 2 MiB around an address, as far as they are in the VMA. That costs no more
 * memory than one page and saves up to 511 faults. An unpin waits for no more than this.
 */
static vm_fault_t gdr_fault_batch(struct vm_area_struct *vma, unsigned long addr,
				  struct gdr_mr *mr)
{
	unsigned long start = ALIGN_DOWN(addr, GDR_BATCH);
	unsigned long end = min(start + GDR_BATCH, vma->vm_end);
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&mr->lock);
	/* The kernel maps no page that userfaultfd protects: it would fault for ever. */
	if (!mr->dead && !userfaultfd_wp(vma))
		ret = VM_FAULT_NOPAGE;
	addr = max(start, vma->vm_start);
	for (; ret == VM_FAULT_NOPAGE && addr < end; addr += PAGE_SIZE)
		ret = gdr_insert(vma, addr, mr);
	up_read(&mr->lock);
	return ret;
}

/* Map all pages, until one cannot be mapped. The next fault goes on. */
static void gdr_fault_whole(struct vm_area_struct *vma, struct gdr_mr *mr)
{
	unsigned long addr = vma->vm_start;

	while (addr < vma->vm_end && !fatal_signal_pending(current) &&
	       gdr_fault_batch(vma, addr, mr) == VM_FAULT_NOPAGE) {
		addr = ALIGN_DOWN(addr, GDR_BATCH) + GDR_BATCH;
		cond_resched();
	}
}

/* Where whole is set, map all pages, so that no fault comes later. */
static vm_fault_t gdr_vm_fault(struct vm_fault *vmf)
{
	struct gdr_mr *mr = vmf->vma->vm_private_data;
	vm_fault_t ret = gdr_fault_batch(vmf->vma, vmf->address, mr);

	if (ret == VM_FAULT_NOPAGE && mr->whole)
		gdr_fault_whole(vmf->vma, mr);
	return ret;
}

static const struct vm_operations_struct gdr_vm_ops = {
	.open = gdr_vm_open,
	.close = gdr_vm_close,
#ifdef GDR_HAVE_VM_MAY_SPLIT
	.may_split = gdr_vm_may_split,
#else
	.split = gdr_vm_may_split,
#endif
	.fault = gdr_vm_fault,
};

/* Called with mr->lock held for writing. */
static int gdr_mmap_locked(struct gdr_mr *mr, struct vm_area_struct *vma)
{
	const char *why = NULL;

	if (mr->addr != mr->start)
		why = "a buffer must begin on a 64 KiB boundary to be mapped";
	else if (vma->vm_end - vma->vm_start > mr->size)
		why = "the mapping is longer than the buffer";
	else if (mr->dead)
		why = "the buffer is being unpinned";
	else if (mr->vmas)
		why = "the buffer is mapped already";
	if (why) {
		gdr_info("%s\n", why);
		return -EINVAL;
	}
	gdr_vma_flags(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP |
		      VM_DONTCOPY, VM_EXEC | VM_MAYEXEC);
	mr->type = mr->want ? mr->want : gdr_default_type(mr);
	vma->vm_page_prot = gdr_prot(vma, mr->type);
	vma->vm_ops = &gdr_vm_ops;
	vma->vm_private_data = mr;
	mr->vmas = 1;
	/* Real-time programs lock what they map: MAP_LOCKED, mlockall(2). */
	mr->whole = gdr_map_whole || vma->vm_flags & VM_LOCKED;
	return 0;
}

static int gdr_mmap_checked(struct gdr_file *f, struct vm_area_struct *vma)
{
	struct gdr_mr *mr;
	int ret;

	if (!gdr_file_is_owner(f))
		return -EACCES;
	if (!(vma->vm_flags & VM_MAYSHARE)) {
		gdr_info("a mapping must be shared\n");
		return -EINVAL;
	}
	/* Some programs request execution of all they read. Map it non-executable. */
	if ((vma->vm_flags & VM_EXEC) &&
	    !(current->personality & READ_IMPLIES_EXEC)) {
		gdr_info("a mapping cannot be executed\n");
		return -EPERM;
	}
	mr = gdr_mr_find(f, vma->vm_pgoff);
	if (!mr)
		return -EINVAL;
	down_write(&mr->lock);
	ret = gdr_mmap_locked(mr, vma);
	up_write(&mr->lock);
	if (ret)
		gdr_mr_put(mr);		/* else the VMA owns the reference */
	return ret;
}

int gdr_mmap(struct file *filp, struct vm_area_struct *vma)
{
	int ret = gdr_mmap_checked(filp->private_data, vma);

	gdr_dbg("mmap of %#lx by %d: %d\n", vma->vm_pgoff, current->tgid, ret);
	return ret;
}
