// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * nvidia_sim.c - a stand-in for NVIDIA's kernel driver. TEST DOUBLE.
 *
 * It exports the nv-p2p functions that gdrdrv uses, over a PCI device with a
 * memory BAR (QEMU's ivshmem-plain), whose 64 KiB pages it hands out scattered.
 * While it is loaded the device has an ID of NVIDIA's.
 * It must never be kinder than the real driver. What it follows, in the open
 * flavour of NVIDIA's 535 to 595 (nv-p2p.c, and the functions of the resource
 * manager that it calls):
 *
 * - One lock, the API lock of rm_p2p_get_pages_persistent and
 *   rm_p2p_put_pages_persistent, is held through both. So is it while memory is freed.
 * - After a failed get the page table is NULL or an address that was freed
 *   (nv_p2p_get_pages, failed).
 * - get_pages_persistent finds the memory of the process that opened the file, and no
 *   other's (RmP2PGetInfoWithoutToken).
 * - A put looks for the page table's address alone. Anybody may put, at any time. The
 *   next pin may have the address.
 * - A put that fails with -ENOMEM has done nothing, nor waited for the lock
 *   (nvidia_p2p_put_pages_persistent, which allocates a stack first). After any other
 *   failure the pinning keeps its pages, but its reference to the GPU is
 *   dropped, and that of a MIG instance (nvidia_p2p_put_pages_persistent calls
 *   nvidia_dev_put_uuid whatever nv_p2p_put_pages answered; RmP2PPutPagesPersistent
 *   calls RmP2PPutMigInfo). So another put drops a reference of somebody else. The
 *   pages come back when the GPU stops. The real one also WARNs at each such put.
 * - The flags of a get: 550 and older take none; the newer ones look
 *   at one byte of them, and there at the bit that they know. A put takes none.
 * - The open flavour exports to GPL modules alone (NV_EXPORT_SYMBOL).
 * - Pinned memory outlives its owner until it is put (RmP2PGetPagesPersistent).
 *
 * For the tests it also does what the real one does not do:
 *
 * - Freed memory is overwritten at once, so that a stale view of it shows. So are page
 *   tables that were put.
 * - Every mistake of a client is counted (misuse) and logged.
 *
 * Lock order: sim_lock -> sim_mem_lock.
 */
#define pr_fmt(fmt) "nvidia_sim: " fmt

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <nv-p2p.h>
#include "nvidia_sim.h"
#include "nvidia_sim_uapi.h"

#define SIM_VA_BASE 0x7d0000000000ULL
#define SIM_OFFSET_BASE (1ULL << 56)
#define SIM_POISON 0xdd
#define SIM_VA_SPACE 0xfe00

#ifdef SIM_PROPRIETARY
#define SIM_LICENSE "Proprietary"
#undef EXPORT_SYMBOL_GPL
#define EXPORT_SYMBOL_GPL EXPORT_SYMBOL
#else
#define SIM_LICENSE "Dual MIT/GPL"
#endif

/*
 * Memory that has no device address of its own. It is on sim_memories while its
 * owner has it. offset names it, and is above all device addresses.
 */
struct sim_memory {
	struct list_head node;
	struct file *file;
	u64 offset;
	struct sim_mem *mem;
};

/*
 * Device addresses with memory behind them; on sim_allocs while their owner has
 * them. tgid opened the file. size may be less than that of mem.
 */
struct sim_alloc {
	struct list_head node;
	struct file *file;
	pid_t tgid;
	u64 va;
	u64 size;
	struct sim_mem *mem;
};

/*
 * A page table that is out. On sim_pins until it is put.
 * flags lies where page tables of major 2 have theirs, in case that the header's
 * have none. lost: its pages stay until the GPU stops, because a put failed.
 */
struct sim_pin {
	struct nvidia_p2p_page_table pt;
	u32 flags;

	struct list_head node;
	bool lost;
	u64 va;
	u32 npages;
	struct sim_mem *mem;
};

static DEFINE_MUTEX(sim_lock);
static DEFINE_MUTEX(sim_mem_lock);

static struct pci_dev *sim_pdev;
static resource_size_t sim_bar;
static u64 sim_npages;
static u64 sim_nfree;
static unsigned long *sim_used;
static u32 sim_next_page;
static u64 sim_next_va = SIM_VA_BASE;
static u64 sim_next_offset = SIM_OFFSET_BASE;
static LIST_HEAD(sim_allocs);
static LIST_HEAD(sim_memories);
static LIST_HEAD(sim_pins);
static u32 sim_knobs[NVIDIA_SIM_KNOBS];
static u64 sim_asked, sim_forced, sim_misuse;
static atomic_long_t sim_puts;

static int page_table_major;
module_param(page_table_major, int, 0444);
MODULE_PARM_DESC(page_table_major, "1 or 2; 0 (default): as in nv-p2p.h");

static bool take_majors;
module_param(take_majors, bool, 0444);
MODULE_PARM_DESC(take_majors, "Leave no number to the character device of another module");

static DECLARE_BITMAP(sim_majors, CHRDEV_MAJOR_MAX);

static unsigned int root_port = PCI_VENDOR_ID_NVIDIA << 16 | 0x2335;
module_param(root_port, uint, 0444);
MODULE_PARM_DESC(root_port, "The device has these IDs, vendor << 16 | device (default: a GPU)");

static unsigned int root_revision;
module_param(root_revision, uint, 0444);
MODULE_PARM_DESC(root_revision, "And this revision");

static bool without_wc;
module_param(without_wc, bool, 0444);
MODULE_PARM_DESC(without_wc, "For the tests: that machine has no write-combining");

static void sim_complain(const char *what)
{
	sim_misuse++;
	pr_err("MISUSE by a client: %s\n", what);
}

/* The value of a knob that works once. */
static u32 sim_once(enum nvidia_sim_knob k)
{
	return xchg(&sim_knobs[k], 0);
}

/* The error of this put. Called with no lock: the tests put one by one. */
static int sim_put_error(void)
{
	u32 left = READ_ONCE(sim_knobs[NVIDIA_SIM_FAIL_PUTS]);

	WRITE_ONCE(sim_knobs[NVIDIA_SIM_FAIL_PUTS], left ? left - 1 : 0);
	if (left > 1)
		return -(int)READ_ONCE(sim_knobs[NVIDIA_SIM_FAIL_PUT]);
	return -(int)sim_once(NVIDIA_SIM_FAIL_PUT);
}

static void sim_fill(u32 page, int byte)
{
	void __iomem *p = ioremap_wc(sim_bar + ((u64)page << SIM_PAGE_SHIFT),
				     SIM_PAGE_SIZE);

	if (!p)
		return;
	memset_io(p, byte, SIM_PAGE_SIZE);
	iounmap(p);
}

static void sim_mem_free(struct kref *ref)
{
	struct sim_mem *mem = container_of(ref, struct sim_mem, ref);
	u64 i;

	for (i = 0; i < mem->npages; i++) {
		sim_fill(mem->pages[i], SIM_POISON);
		mutex_lock(&sim_mem_lock);
		__clear_bit(mem->pages[i], sim_used);
		sim_nfree++;
		mutex_unlock(&sim_mem_lock);
	}
	kvfree(mem);
}

/* Next free page. By default the order leaves neighbours far apart. */
static u32 sim_pick_page(void)
{
	u32 step = sim_knobs[NVIDIA_SIM_CONTIGUOUS] ? 1 : 37;

	do {
		sim_next_page = (sim_next_page + step) % sim_npages;
		if (sim_next_page == 0)
			sim_next_page = 1 % sim_npages;
		if (test_bit(sim_next_page, sim_used))
			sim_next_page = find_next_zero_bit(sim_used, sim_npages,
							   sim_next_page);
		if (sim_next_page >= sim_npages)
			sim_next_page = find_first_zero_bit(sim_used,
							    sim_npages);
	} while (test_bit(sim_next_page, sim_used));
	return sim_next_page;
}

void sim_mem_put(struct sim_mem *mem)
{
	kref_put(&mem->ref, sim_mem_free);
}

/* The physical address of a byte of it. */
u64 sim_mem_phys(const struct sim_mem *mem, u64 at)
{
	return sim_bar +
	       ((u64)mem->pages[at >> SIM_PAGE_SHIFT] << SIM_PAGE_SHIFT) +
	       (at & (SIM_PAGE_SIZE - 1));
}

static struct sim_mem *sim_mem_new(u64 npages)
{
	struct sim_mem *mem = NULL;
	u64 i;

	mutex_lock(&sim_mem_lock);
	if (npages > sim_nfree)
		goto unlock;
	mem = kvmalloc(struct_size(mem, pages, npages), GFP_KERNEL);
	if (!mem)
		goto unlock;
	kref_init(&mem->ref);
	mem->npages = npages;
	for (i = 0; i < npages; i++) {
		mem->pages[i] = sim_pick_page();
		__set_bit(mem->pages[i], sim_used);
		sim_nfree--;
	}
unlock:
	mutex_unlock(&sim_mem_lock);
	for (i = 0; mem && i < npages; i++)
		sim_fill(mem->pages[i], 0);
	return mem;
}

/* What the calling process has there. */
static struct sim_alloc *sim_find(u64 va, u64 len)
{
	struct sim_alloc *a;

	list_for_each_entry(a, &sim_allocs, node)
		if (a->tgid == current->tgid && va >= a->va &&
		    va - a->va < a->size && len <= a->size - (va - a->va))
			return a;
	return NULL;
}

/* Called with sim_lock held. */
static void sim_free_pin(struct sim_pin *pin)
{
	u32 i;

	list_del(&pin->node);
	for (i = 0; i < pin->npages; i++)
		kfree(pin->pt.pages[i]);
	memset(pin->pt.pages, SIM_POISON, pin->npages * sizeof(*pin->pt.pages));
	kvfree(pin->pt.pages);
	memset(&pin->pt, SIM_POISON, sizeof(pin->pt));
	sim_mem_put(pin->mem);
	kfree(pin);
}

static struct sim_pin *sim_find_pin(const struct nvidia_p2p_page_table *pt)
{
	struct sim_pin *pin;

	list_for_each_entry(pin, &sim_pins, node)
		if (&pin->pt == pt)
			return pin;
	return NULL;
}

/*
 * The GPU stops, and its memory is free: what nobody can put, or all that is pinned.
 * Called with sim_lock held.
 */
static void sim_free_lost(bool all)
{
	struct sim_pin *pin, *next;

	list_for_each_entry_safe(pin, next, &sim_pins, node)
		if (pin->lost || all)
			sim_free_pin(pin);
}

static struct address_space *sim_mapping;

/* Called with sim_lock held; a is off the list. */
static void sim_free_alloc(struct sim_alloc *a)
{
	if (sim_mapping)
		unmap_mapping_range(sim_mapping, a->va, a->size, 1);
	sim_mem_put(a->mem);
	kfree(a);
}

static void sim_unlink_alloc(struct sim_alloc *a)
{
	mutex_lock(&sim_mem_lock);
	list_del(&a->node);
	mutex_unlock(&sim_mem_lock);
}

static u32 sim_version(void)
{
	u32 major = sim_knobs[NVIDIA_SIM_MAJOR];
	u32 bad = sim_once(NVIDIA_SIM_BAD_VERSION);

	if (bad)
		return bad;
	if (!major)
		major = page_table_major;
	switch (major) {
	case 1:
		return 0x00010002;
	case 2:
		return 0x00020000;
	default:
		return NVIDIA_P2P_PAGE_TABLE_VERSION;
	}
}

static struct sim_pin *sim_new_pin(struct sim_alloc *a, u64 va, u64 len)
{
	u32 n = len >> SIM_PAGE_SHIFT, i, first = (va - a->va) >> SIM_PAGE_SHIFT;
	struct nvidia_p2p_page *page;
	struct sim_pin *pin;

	pin = kzalloc(sizeof(*pin), GFP_KERNEL);
	if (!pin)
		return NULL;
	pin->pt.pages = kvcalloc(n, sizeof(*pin->pt.pages), GFP_KERNEL);
	if (!pin->pt.pages)
		goto fail;
	for (i = 0; i < n; i++) {
		page = kzalloc(sizeof(*page), GFP_KERNEL);
		if (!page)
			goto fail;
		page->physical_address =
			sim_mem_phys(a->mem, (u64)(first + i) << SIM_PAGE_SHIFT);
		pin->pt.pages[i] = page;
		pin->npages = i + 1;
	}
	pin->va = va;
	pin->mem = a->mem;
	kref_get(&pin->mem->ref);
	pin->pt.version = sim_version();
	pin->pt.page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	if (sim_knobs[NVIDIA_SIM_BAD_SIZE])
		pin->pt.page_size = sim_once(NVIDIA_SIM_BAD_SIZE) - 1;
	pin->pt.entries = n + sim_once(NVIDIA_SIM_BAD_ENTRIES);
	page->physical_address += sim_once(NVIDIA_SIM_BAD_ADDRESS);
#ifdef GDR_HAVE_PAGE_TABLE_FLAGS
	pin->pt.flags = sim_knobs[NVIDIA_SIM_CACHEABLE] ? 1 : 0;
#else
	pin->flags = sim_knobs[NVIDIA_SIM_CACHEABLE] ? 1 : 0;
#endif
	return pin;

fail:
	for (i = 0; i < pin->npages; i++)
		kfree(pin->pt.pages[i]);
	kvfree(pin->pt.pages);
	kfree(pin);
	return NULL;
}

/* Take the pages. Called with sim_lock held. */
static int sim_get_pages(u64 va, u64 len, struct nvidia_p2p_page_table **pt)
{
	struct sim_alloc *a;
	struct sim_pin *pin;
	int ret;

	ret = -(int)sim_once(NVIDIA_SIM_FAIL_GET);
	if (ret)
		return ret;
	a = sim_find(va, len);
	if (!va || !len || (va | len) & (SIM_PAGE_SIZE - 1) || va + len < va || !a)
		return -EINVAL;
	pin = sim_new_pin(a, va, len);
	if (!pin)
		return -ENOMEM;
	list_add_tail(&pin->node, &sim_pins);
	*pt = &pin->pt;
	return 0;
}

static void sim_sleep(enum nvidia_sim_knob k)
{
	u32 ms = READ_ONCE(sim_knobs[k]);

	if (ms)
		msleep(ms);
}

static void sim_hold(void)
{
	unsigned long end = jiffies + 60 * HZ;

	while (READ_ONCE(sim_knobs[NVIDIA_SIM_GET_HOLD]) && time_before(jiffies, end))
		msleep(20);
}

static int sim_get(u64 va, u64 len, struct nvidia_p2p_page_table **pt)
{
	/* Those after this one do not wait. */
	bool hold = cmpxchg(&sim_knobs[NVIDIA_SIM_GET_HOLD], 1, 2) == 1;
	int ret;

	*pt = NULL;
	mutex_lock(&sim_lock);
	sim_asked++;
	ret = sim_get_pages(va, len, pt);
	mutex_unlock(&sim_lock);
	if (ret)
		memset(pt, SIM_POISON, sizeof(*pt));
	sim_sleep(NVIDIA_SIM_GET_DELAY);
	if (hold)
		sim_hold();
	return ret;
}

static int sim_put(u64 va, struct nvidia_p2p_page_table *pt)
{
	struct sim_pin *pin;
	int ret;

	if (!pt)
		return 0;
	atomic_long_inc(&sim_puts);
	ret = sim_put_error();
	if (ret == -ENOMEM)
		return ret;
	sim_sleep(NVIDIA_SIM_PUT_DELAY);
	mutex_lock(&sim_lock);
	pin = sim_find_pin(pt);
	if (!pin || pin->lost || pin->va != va) {
		/* The real one would have read memory that is freed, or dropped a reference. */
		sim_complain("pages put that are not out there, or whose put failed");
		ret = -EINVAL;
	} else if (ret) {
		pin->lost = true;
	} else {
		sim_free_pin(pin);
	}
	mutex_unlock(&sim_lock);
	return ret;
}

int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table,
				    uint32_t flags)
{
	u32 forced = 0;
	int ret;

#ifdef GDR_HAVE_FORCE_BAR1
	forced = (u8)flags & NVIDIA_P2P_FLAGS_FORCE_BAR1_MAPPING;
#else
	if (flags)
		return -EINVAL;
#endif
	ret = sim_get(virtual_address, length, page_table);
	if (!ret && forced) {
		mutex_lock(&sim_lock);
		sim_forced++;
		mutex_unlock(&sim_lock);
	}
	return ret;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(uint64_t virtual_address,
				    struct nvidia_p2p_page_table *page_table,
				    uint32_t flags)
{
	if (flags)
		return -EINVAL;
	return sim_put(virtual_address, page_table);
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages_persistent);

static bool sim_overlaps(u64 va, u64 size, pid_t tgid)
{
	struct sim_alloc *a;

	list_for_each_entry(a, &sim_allocs, node)
		if (a->tgid == tgid && va < a->va + a->size && a->va < va + size)
			return true;
	return false;
}

static struct sim_memory *sim_find_memory(u64 offset)
{
	struct sim_memory *m;

	list_for_each_entry(m, &sim_memories, node)
		if (offset >= m->offset &&
		    offset - m->offset < m->mem->npages << SIM_PAGE_SHIFT)
			return m;
	return NULL;
}

/* The size in whole pages, or 0 where the range is no range of addresses. */
static u64 sim_check_range(u64 va, u64 size)
{
	u64 whole = (size + SIM_PAGE_SIZE - 1) & ~(SIM_PAGE_SIZE - 1);

	if (va & (SIM_PAGE_SIZE - 1) || va >= SIM_OFFSET_BASE ||
	    whole < size || va + whole < va)
		return 0;
	return whole;
}

/*
 * Give memory device addresses. The new allocation takes over the caller's
 * reference to mem. Called with sim_lock held.
 */
static int sim_new_alloc(struct file *filp, struct sim_mem *mem, u64 va,
			 u64 size, struct sim_alloc **out)
{
	pid_t tgid = (unsigned long)filp->private_data;	/* see sim_open */
	struct sim_alloc *a;

	if (va && sim_overlaps(va, size, tgid))
		return -EEXIST;
	a = kzalloc(sizeof(*a), GFP_KERNEL);
	if (!a)
		return -ENOMEM;
	a->va = va;
	if (!a->va) {
		a->va = sim_next_va;
		sim_next_va += size + SIM_PAGE_SIZE;
	}
	a->size = size;
	a->file = filp;
	a->tgid = tgid;
	a->mem = mem;
	mutex_lock(&sim_mem_lock);
	list_add_tail(&a->node, &sim_allocs);
	mutex_unlock(&sim_mem_lock);
	*out = a;
	return 0;
}

static int sim_ioc_alloc(struct file *filp, struct nvidia_sim_alloc *p)
{
	u64 size = sim_check_range(p->va, p->size);
	struct sim_alloc *a;
	struct sim_mem *mem;
	int ret = -ENOMEM;

	if (!size)
		return -EINVAL;
	mutex_lock(&sim_lock);
	mem = sim_mem_new(size >> SIM_PAGE_SHIFT);
	if (!mem)
		goto unlock;
	ret = sim_new_alloc(filp, mem, p->va, size, &a);
	if (ret) {
		sim_mem_put(mem);
		goto unlock;
	}
	p->va = a->va;
unlock:
	mutex_unlock(&sim_lock);
	return ret;
}

static int sim_ioc_create(struct file *filp, struct nvidia_sim_memory *p)
{
	u64 size = sim_check_range(0, p->size);
	struct sim_memory *m;
	int ret = -ENOMEM;

	if (!size)
		return -EINVAL;
	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return -ENOMEM;
	mutex_lock(&sim_lock);
	m->file = filp;
	m->mem = sim_mem_new(size >> SIM_PAGE_SHIFT);
	if (!m->mem)
		goto unlock;
	m->offset = sim_next_offset;
	sim_next_offset += size + SIM_PAGE_SIZE;
	p->offset = m->offset;
	mutex_lock(&sim_mem_lock);
	list_add_tail(&m->node, &sim_memories);
	mutex_unlock(&sim_mem_lock);
	m = NULL;
	ret = 0;
unlock:
	mutex_unlock(&sim_lock);
	kfree(m);
	return ret;
}

static int sim_ioc_map(struct file *filp, struct nvidia_sim_map *p)
{
	u64 size = sim_check_range(p->va, p->size);
	struct sim_memory *m;
	struct sim_alloc *a;
	int ret = -EINVAL;

	if (!size || !p->va)
		return -EINVAL;
	mutex_lock(&sim_lock);
	m = sim_find_memory(p->offset);
	if (!m || m->file != filp || m->offset != p->offset ||
	    size >> SIM_PAGE_SHIFT > m->mem->npages)
		goto unlock;
	kref_get(&m->mem->ref);
	ret = sim_new_alloc(filp, m->mem, p->va, size, &a);
	if (ret) {
		sim_mem_put(m->mem);
		goto unlock;
	}
	p->p2p_token = a->tgid;
	p->va_space = SIM_VA_SPACE;
unlock:
	mutex_unlock(&sim_lock);
	return ret;
}

/* Called with sim_lock held. Device addresses of the memory stay. */
static void sim_release_memory(struct sim_memory *m)
{
	mutex_lock(&sim_mem_lock);
	list_del(&m->node);
	mutex_unlock(&sim_mem_lock);
	if (sim_mapping)
		unmap_mapping_range(sim_mapping, m->offset,
				    m->mem->npages << SIM_PAGE_SHIFT, 1);
	sim_mem_put(m->mem);
	kfree(m);
}

static int sim_ioc_release(struct file *filp, u64 offset)
{
	struct sim_memory *m;
	int ret = -EINVAL;

	mutex_lock(&sim_lock);
	m = sim_find_memory(offset);
	if (m && m->file == filp && m->offset == offset) {
		sim_release_memory(m);
		ret = 0;
	}
	mutex_unlock(&sim_lock);
	return ret;
}

/* Its descriptor, or an errno. */
static int sim_ioc_export(struct file *filp, const struct nvidia_sim_export *p)
{
	struct sim_memory *m;
	struct sim_mem *mem = NULL;

	mutex_lock(&sim_lock);
	m = sim_find_memory(p->offset);
	if (m && m->file == filp && m->offset == p->offset && p->size &&
	    !((p->at | p->size) & ~PAGE_MASK) &&
	    p->size <= m->mem->npages << SIM_PAGE_SHIFT &&
	    p->at <= (m->mem->npages << SIM_PAGE_SHIFT) - p->size) {
		mem = m->mem;
		kref_get(&mem->ref);
	}
	mutex_unlock(&sim_lock);
	return mem ? sim_dmabuf_fd(mem, p->at, p->size) : -EINVAL;
}

static int sim_ioc_free(struct file *filp, u64 va)
{
	struct sim_alloc *a;
	int ret = -EINVAL;

	mutex_lock(&sim_lock);
	a = sim_find(va, 1);
	if (a && a->va == va && a->file == filp) {
		sim_unlink_alloc(a);
		sim_free_alloc(a);
		ret = 0;
	}
	mutex_unlock(&sim_lock);
	return ret;
}

static int sim_ioc_set(const struct nvidia_sim_set *p)
{
	u32 stop;

	if (p->knob >= NVIDIA_SIM_KNOBS)
		return -EINVAL;
	mutex_lock(&sim_lock);
	WRITE_ONCE(sim_knobs[p->knob], p->value);
	stop = sim_once(NVIDIA_SIM_STOP);
	if (stop)
		sim_free_lost(stop == 2);
	mutex_unlock(&sim_lock);
	return 0;
}

static int sim_ioc_stats(struct nvidia_sim_stats *p)
{
	struct sim_pin *pin;
	struct list_head *n;

	mutex_lock(&sim_lock);
	list_for_each(n, &sim_allocs)
		p->allocs++;
	list_for_each_entry(pin, &sim_pins, node) {
		if (pin->lost)
			p->lost++;
		else
			p->pins++;
	}
	p->pages_free = sim_nfree;
	p->asked = sim_asked;
	p->pages_total = sim_npages;
	p->puts = atomic_long_read(&sim_puts);
	p->misuse = sim_misuse;
	p->forced = sim_forced;
	mutex_unlock(&sim_lock);
	return 0;
}

/*
 * Called with the mm's lock held. The kernel has this for GPL modules alone, and
 * this one can be built as what NVIDIA's may be.
 */
static int sim_read_pte(struct vm_area_struct *vma, u64 addr, u64 *flags)
{
#ifdef SIM_PROPRIETARY
	return -EOPNOTSUPP;
#elif defined(SIM_HAVE_FOLLOW_PFNMAP)
	struct follow_pfnmap_args args = { .vma = vma, .address = addr };
	int ret = follow_pfnmap_start(&args);

	if (ret)
		return ret;
	*flags = pgprot_val(args.pgprot);
	follow_pfnmap_end(&args);
	return 0;
#else
	spinlock_t *lock;	/* the page table's */
	pte_t *pte;
	int ret = follow_pte(vma->vm_mm, addr, &pte, &lock);

	if (ret)
		return ret;
	__acquire(lock);	/* follow_pte did, and does not tell sparse */
	*flags = pgprot_val(pte_pgprot(*pte));
	pte_unmap_unlock(pte, lock);
	return 0;
#endif
}

static int sim_ioc_pte(struct nvidia_sim_pte *p)
{
	struct vm_area_struct *vma;
	int ret = -EINVAL;

	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, p->addr);
	if (vma && p->addr >= vma->vm_start && vma->vm_flags & VM_PFNMAP)
		ret = sim_read_pte(vma, p->addr, &p->flags);
	mmap_read_unlock(current->mm);
	return ret;
}

union sim_params {
	struct nvidia_sim_alloc alloc;
	struct nvidia_sim_memory memory;
	struct nvidia_sim_map map;
	struct nvidia_sim_set set;
	struct nvidia_sim_stats stats;
	struct nvidia_sim_pte pte;
	struct nvidia_sim_export export;
	u64 at;
};

static int sim_request(struct file *filp, unsigned int cmd, union sim_params *p)
{
	switch (cmd) {
	case NVIDIA_SIM_ALLOC:
		return sim_ioc_alloc(filp, &p->alloc);
	case NVIDIA_SIM_FREE:
		return sim_ioc_free(filp, p->at);
	case NVIDIA_SIM_CREATE:
		return sim_ioc_create(filp, &p->memory);
	case NVIDIA_SIM_MAP:
		return sim_ioc_map(filp, &p->map);
	case NVIDIA_SIM_RELEASE:
		return sim_ioc_release(filp, p->at);
	case NVIDIA_SIM_SET:
		return sim_ioc_set(&p->set);
	case NVIDIA_SIM_STATS:
		return sim_ioc_stats(&p->stats);
	case NVIDIA_SIM_PTE:
		return sim_ioc_pte(&p->pte);
	case NVIDIA_SIM_EXPORT:
		return sim_ioc_export(filp, &p->export);
	default:
		return -ENOTTY;
	}
}

static long sim_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	union sim_params p = {};
	int ret;

	if (_IOC_SIZE(cmd) > sizeof(p))
		return -ENOTTY;
	if (_IOC_DIR(cmd) & _IOC_WRITE && copy_from_user(&p, user, _IOC_SIZE(cmd)))
		return -EFAULT;
	ret = sim_request(filp, cmd, &p);
	if (!ret && _IOC_DIR(cmd) & _IOC_READ && copy_to_user(user, &p, _IOC_SIZE(cmd)))
		ret = -EFAULT;
	return ret;
}

/* The memory at an offset of the file; *at becomes the offset in it. */
static struct sim_mem *sim_mem_at(struct file *filp, u64 *at)
{
	struct sim_memory *m = sim_find_memory(*at);
	struct sim_alloc *a;

	if (m && m->file == filp) {
		*at -= m->offset;
		return m->mem;
	}
	a = sim_find(*at, 1);
	if (a && a->file == filp) {
		*at -= a->va;
		return a->mem;
	}
	return NULL;
}

static vm_fault_t sim_fault(struct vm_fault *vmf)
{
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	struct sim_mem *mem;

	mutex_lock(&sim_mem_lock);
	mem = sim_mem_at(vmf->vma->vm_file, &at);
	if (mem) {
		ret = vmf_insert_pfn(vmf->vma, vmf->address,
				     sim_mem_phys(mem, at) >> PAGE_SHIFT);
	}
	mutex_unlock(&sim_mem_lock);
	return ret;
}

static const struct vm_operations_struct sim_vm_ops = {
	.fault = sim_fault,
};

static int sim_mmap(struct file *filp, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
#ifdef GDR_HAVE_VM_FLAGS_INIT
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTCOPY);
#else
	vma->vm_flags |= VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTCOPY;
#endif
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_ops = &sim_vm_ops;
	return 0;
}

static int sim_open(struct inode *inode, struct file *filp)
{
	filp->private_data = (void *)(unsigned long)current->tgid;
	mutex_lock(&sim_lock);
	sim_mapping = filp->f_mapping;
	mutex_unlock(&sim_lock);
	return 0;
}

/* What is left dies with the file, in the order of its making. */
static int sim_release(struct inode *inode, struct file *filp)
{
	struct sim_memory *m, *next_memory;
	struct sim_alloc *a, *next;

	mutex_lock(&sim_lock);
	list_for_each_entry_safe(m, next_memory, &sim_memories, node)
		if (m->file == filp)
			sim_release_memory(m);
	list_for_each_entry_safe(a, next, &sim_allocs, node) {
		if (a->file != filp)
			continue;
		sim_unlink_alloc(a);
		sim_free_alloc(a);
	}
	mutex_unlock(&sim_lock);
	return 0;
}

static const struct file_operations sim_fops = {
	.owner = THIS_MODULE,
	.open = sim_open,
	.release = sim_release,
	.unlocked_ioctl = sim_ioctl,
	.mmap = sim_mmap,
};

static struct miscdevice sim_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidia_sim",
	.fops = &sim_fops,
	.mode = 0666,
};

static void sim_take_majors(void)
{
	int major;

	while ((major = register_chrdev(0, "taken", &sim_fops)) > 0)
		__set_bit(major, sim_majors);
}

static void sim_give_majors(void)
{
	unsigned int major;

	for_each_set_bit(major, sim_majors, CHRDEV_MAJOR_MAX)
		unregister_chrdev(major, "taken");
}

/* What the device is to others, and back again. */
static void sim_swap_ids(void)
{
	unsigned int is = (u32)sim_pdev->vendor << 16 | sim_pdev->device;
	unsigned int revision = sim_pdev->revision;

	if (!root_port)
		return;
	sim_pdev->vendor = root_port >> 16;
	sim_pdev->device = root_port;
	sim_pdev->revision = root_revision;
	root_port = is;
	root_revision = revision;
}

static int __init sim_init(void)
{
	int ret;

	sim_pdev = pci_get_device(0x1af4, 0x1110, NULL);
	if (!sim_pdev) {
		pr_err("no ivshmem device: start QEMU with -device ivshmem-plain\n");
		return -ENODEV;
	}
	ret = pci_enable_device(sim_pdev);
	if (ret)
		goto put;
	ret = pci_request_region(sim_pdev, 2, "nvidia_sim");
	if (ret)
		goto disable;
	sim_bar = pci_resource_start(sim_pdev, 2);
	sim_npages = pci_resource_len(sim_pdev, 2) >> SIM_PAGE_SHIFT;
	sim_nfree = sim_npages;
	ret = -ENOMEM;
	sim_used = bitmap_zalloc(sim_npages, GFP_KERNEL);
	if (!sim_used)
		goto region;
	ret = misc_register(&sim_misc);
	if (ret)
		goto bitmap;
	if (take_majors)
		sim_take_majors();
	sim_swap_ids();
	pr_info("%llu MiB of simulated GPU memory\n", sim_npages >> 4);
	return 0;

bitmap:
	bitmap_free(sim_used);
region:
	pci_release_region(sim_pdev, 2);
disable:
	pci_disable_device(sim_pdev);
put:
	pci_dev_put(sim_pdev);
	return ret;
}

static void __exit sim_exit(void)
{
	sim_swap_ids();
	sim_give_majors();
	misc_deregister(&sim_misc);
	sim_free_lost(false);
	if (!list_empty(&sim_pins))
		pr_err("MISUSE by a client: page tables are still out at unload\n");
	bitmap_free(sim_used);
	pci_release_region(sim_pdev, 2);
	pci_disable_device(sim_pdev);
	pci_dev_put(sim_pdev);
}

module_init(sim_init);
module_exit(sim_exit);

MODULE_DESCRIPTION("Test double of NVIDIA's driver over an ivshmem BAR");
MODULE_AUTHOR("The gdrapi authors");
MODULE_LICENSE(SIM_LICENSE);
