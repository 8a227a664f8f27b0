// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * nvidia_sim_rm.c - a stand-in for NVIDIA's resource manager. TEST DOUBLE.
 *
 * /dev/nvidiactl and /dev/nvidia0 (major 195, minors 255 and 0) serve the requests of
 * tests/doubles/rm_uapi.h, over the BAR of the one simulated GPU. That header has the
 * answers. Of the doubles' own requests this file has those that make sense if the
 * driver's own files can be mapped. Two things are as in the real driver, but not in the
 * user-mode double:
 *
 * - mmap maps all pages at once, and no fault comes (nvidia_mmap_helper). A mapping
 *   whose memory object was freed reads zeros.
 * - While the GPU is suspended no page is mapped, and each access faults until it wakes
 *   (nv_revoke_gpu_mappings; nvidia_fault returns VM_FAULT_NOPAGE, then maps all).
 * - Freed memory is overwritten, and used again.
 * - What is exported is a dma-buf of the kernel's, as nv-dmabuf.c makes it: its list has
 *   bus addresses and no struct page, an entry is no longer than the importer's segments,
 *   and a dynamic importer must allow peer-to-peer, or it cannot attach
 *   (nv_dma_buf_attach). There is no vmap; mmap answers 524 (nv_dma_buf_mmap), but for
 *   one that rm_driver=610 or later exported with allow_mmap. It keeps the memory, and
 *   the module, until its last user is gone, and holds the GPU open (nv_dma_buf_create,
 *   nvidia_dev_get).
 *
 * Lock order: mmap_lock -> rm_lock -> the lock of the memory. So user memory is never
 * touched with rm_lock held.
 */
#define pr_fmt(fmt) "nvidia_sim: " fmt

#include <linux/cdev.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvidia_sim.h"
#include "rm_uapi.h"

#define RM_VENDOR 0x10de
#define RM_DEVICE_ID 0x2335
#define RM_FIRST_CLIENT 0xc1d00001
#define RM_FIRST_OBJECT 0xcaf00000
#define RM_FIRST_LINEAR (0x38ULL << 40)
#define RM_MAX_PARAMS 64
#define RM_ENOTSUPP 524			/* the kernel's own, which NVIDIA's driver gives */

enum rm_kind { RM_FILE_CTL = 1, RM_FILE_GPU = 2, RM_FILE_DMABUF = 4 };	/* DMABUF: no requests */

/* Device memory. Objects and files that export it have references. */
struct rm_memory {
	struct kref ref;
	struct sim_mem *mem;
	u64 size;
	u64 id;
};

struct rm_file;

/*
 * The result of one RM_MAP_MEMORY. Its object and the file that serves it have
 * references. memory is NULL after the mapping ended, file is NULL after the file was
 * closed.
 */
struct rm_mapping {
	struct kref ref;
	struct list_head node;
	struct rm_file *file;
	struct rm_memory *memory;
	u64 linear;
	u64 offset;
	u64 length;
	bool counted;
	bool suspended;			/* a suspend has revoked it */
};

/* A device, or memory below one. Its handle is its client's. */
struct rm_object {
	struct list_head node;
	u32 handle;
	bool shared;
	struct rm_memory *memory;	/* NULL: a device */
	struct rm_object *device;	/* of memory */
	struct list_head mappings;
};

struct rm_client {
	struct list_head node;
	u32 handle;
	u32 last;			/* handle that was chosen here */
	struct rm_file *file;
	struct pid *process;
	struct list_head objects;
};

struct rm_file {
	struct list_head node;
	struct file *filp;
	struct pid *process;		/* that opened it; NULL for a dma-buf */
	enum rm_kind kind;
	u64 id;
	u64 registered;			/* a GPU's: id of the control file */
	bool cuda;			/* the simulated libcuda's */
	struct rm_memory *memory;	/* exported into it, or NULL */
	u64 offset, size;		/* a dma-buf's: the part of the memory */
	bool can_mmap;			/* a dma-buf's */
	struct rm_mapping *mapping;	/* a GPU's: the mapping that it serves, or NULL */
};

/* One ioctl. params were copied from user space before rm_lock was taken. */
struct rm_call {
	struct rm_file *file;
	size_t size;
	u8 params[RM_MAX_PARAMS];
	bool params_bad;
	struct file *new_file;		/* to be installed as new_fd */
	int new_fd;
};

/* A rule of RM_SIM_FAIL, for the process that opened the file. */
struct rm_rule {
	struct list_head node;
	struct rm_file *file;
	struct pid *process;
	struct rm_sim_fail fail;
	u32 calls;
};

static DEFINE_MUTEX(rm_lock);
static LIST_HEAD(rm_rules);
static LIST_HEAD(rm_clients);
static LIST_HEAD(rm_files);
static struct pci_dev *rm_pdev;
static struct page *rm_zeros;
static u64 rm_bar_used;
static const struct file_operations rm_fops;

static bool rm_request_known(const char *name);

static int rm_driver = 580;
module_param(rm_driver, int, 0444);
MODULE_PARM_DESC(rm_driver, "First number of the version that is answered (default 580)");

/* Memory and mappings. */

static void rm_memory_free(struct kref *ref)
{
	struct rm_memory *m = container_of(ref, struct rm_memory, ref);

	sim_mem_put(m->mem);
	kfree(m);
}

static void rm_memory_put(struct rm_memory *m)
{
	if (m)
		kref_put(&m->ref, rm_memory_free);
}

static struct rm_memory *rm_memory_new(u64 size)
{
	static u64 last;
	struct rm_memory *m = kzalloc(sizeof(*m), GFP_KERNEL);

	if (!m)
		return NULL;
	kref_init(&m->ref);
	m->size = size;
	m->id = ++last;
	m->mem = sim_mem_new(DIV_ROUND_UP_ULL(size, SIM_PAGE_SIZE));
	if (m->mem)
		return m;
	kfree(m);
	return NULL;
}

static void rm_mapping_free(struct kref *ref)
{
	kfree(container_of(ref, struct rm_mapping, ref));
}

/* From now on the mappings read zeros. */
static void rm_mapping_end(struct rm_mapping *m)
{
	rm_memory_put(m->memory);
	m->memory = NULL;
	if (m->counted)
		rm_bar_used -= m->length;
	list_del(&m->node);
	if (m->file)
		unmap_mapping_range(m->file->filp->f_mapping, 0, m->length, 1);
	kref_put(&m->ref, rm_mapping_free);
}

/* Clients and their objects. */

static struct rm_client *rm_client_find(u32 handle)
{
	struct rm_client *c;

	list_for_each_entry(c, &rm_clients, node)
		if (c->handle == handle)
			return c;
	return NULL;
}

/* The client that the caller may use, by this file; or NULL. */
static struct rm_client *rm_own_client(const struct rm_call *c, u32 handle)
{
	struct rm_client *client = rm_client_find(handle);

	if (client && client->file == c->file &&
	    client->process == task_tgid(current))
		return client;
	return NULL;
}

static struct rm_object *rm_object_find(const struct rm_client *c, u32 handle)
{
	struct rm_object *o;

	list_for_each_entry(o, &c->objects, node)
		if (o->handle == handle)
			return o;
	return NULL;
}

static struct rm_object *rm_device_find(const struct rm_client *c, u32 handle)
{
	struct rm_object *o = rm_object_find(c, handle);

	return o && !o->memory ? o : NULL;
}

static struct rm_object *rm_object_below(const struct rm_client *c,
					 const struct rm_object *device)
{
	struct rm_object *o;

	list_for_each_entry(o, &c->objects, node)
		if (o->device == device)
			return o;
	return NULL;
}

static void rm_memory_object_end(struct rm_object *o)
{
	struct rm_mapping *m, *next;

	list_for_each_entry_safe(m, next, &o->mappings, node)
		rm_mapping_end(m);
	rm_memory_put(o->memory);
	list_del(&o->node);
	kfree(o);
}

static void rm_object_end(struct rm_client *c, struct rm_object *o)
{
	struct rm_object *below;

	while (!o->memory && (below = rm_object_below(c, o)))
		rm_memory_object_end(below);
	rm_memory_object_end(o);
}

static void rm_client_end(struct rm_client *c)
{
	while (!list_empty(&c->objects))
		rm_object_end(c, list_first_entry(&c->objects, struct rm_object,
						  node));
	list_del(&c->node);
	put_pid(c->process);
	kfree(c);
}

/* The handle is the one that the caller chose, or one chosen here if that is 0. */
static u32 rm_object_new(struct rm_client *c, u32 *handle, struct rm_object **o)
{
	if (*handle && (*handle == c->handle || rm_object_find(c, *handle)))
		return RM_DUPLICATE_NAME;
	*o = kzalloc(sizeof(**o), GFP_KERNEL);
	if (!*o)
		return RM_NO_MEMORY;
	while (!*handle || rm_object_find(c, *handle))
		*handle = RM_FIRST_OBJECT | ++c->last;
	(*o)->handle = *handle;
	INIT_LIST_HEAD(&(*o)->mappings);
	list_add(&(*o)->node, &c->objects);
	return RM_OK;
}

/* An object for the memory, below a device. */
static u32 rm_memory_object(struct rm_client *c, u32 parent, struct rm_memory *m,
			    u32 *handle)
{
	struct rm_object *device = rm_device_find(c, parent), *o;
	u32 status;

	if (!device)
		return RM_INVALID_PARENT;
	status = rm_object_new(c, handle, &o);
	if (status)
		return status;
	o->device = device;
	o->memory = m;
	kref_get(&m->ref);
	return RM_OK;
}

/* Requests. */

static u32 rm_gpu_id(void)
{
	return pci_domain_nr(rm_pdev->bus) << 16 | rm_pdev->bus->number << 8 |
	       PCI_SLOT(rm_pdev->devfn);
}

/* The caller's file with that number if it is one of this driver. Released by fput. */
static struct rm_file *rm_file_get(int fd, enum rm_kind kind)
{
	struct file *filp = fget(fd);
	struct rm_file *f;

	if (!filp)
		return NULL;
	if (filp->f_op == &rm_fops) {
		f = filp->private_data;
		if (f->kind == kind)
			return f;
	}
	fput(filp);
	return NULL;
}

static u32 rm_alloc_client(const struct rm_call *c, struct rm_alloc *a)
{
	static u32 next = RM_FIRST_CLIENT;
	struct rm_client *client;

	if (a->root || a->parent || a->object)
		return RM_INVALID_ARGUMENT;
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return RM_NO_MEMORY;
	client->handle = next++;
	client->file = c->file;
	client->process = get_pid(task_tgid(current));
	INIT_LIST_HEAD(&client->objects);
	list_add(&client->node, &rm_clients);
	a->object = client->handle;
	return RM_OK;
}

static bool rm_gpu_registered(const struct rm_file *ctl)
{
	const struct rm_file *f;

	list_for_each_entry(f, &rm_files, node)
		if (f->kind == RM_FILE_GPU && f->registered == ctl->id)
			return true;
	return false;
}

static u32 rm_alloc_device(const struct rm_call *c, struct rm_client *client,
			   struct rm_alloc *a)
{
	const struct rm_device_params *p = (const void *)c->params;
	struct rm_object *o;

	if (a->parent != client->handle)
		return RM_INVALID_PARENT;
	if (a->params_size != sizeof(*p))
		return RM_INVALID_STRUCT;
	if (c->params_bad || (p->client_share && p->client_share != client->handle) ||
	    p->target_client || p->target_device || p->flags || p->va_size ||
	    p->va_start || p->va_limit || p->va_mode > 2)
		return RM_INVALID_ARGUMENT;
	if (p->instance || !rm_gpu_registered(c->file))
		return RM_INVALID_DEVICE;
	return rm_object_new(client, &a->object, &o);
}

static u32 rm_alloc_memory(const struct rm_call *c, struct rm_client *client,
			   struct rm_alloc *a)
{
	const struct rm_sim_memory *p = (const void *)c->params;
	struct rm_memory *m;
	u32 status;

	if (!rm_device_find(client, a->parent))
		return RM_INVALID_PARENT;
	if (a->params_size != sizeof(*p))
		return RM_INVALID_STRUCT;
	if (c->params_bad || !p->size || p->size & ~PAGE_MASK || p->flags)
		return RM_INVALID_ARGUMENT;
	if (p->size > sim_mem_total())
		return RM_NO_MEMORY;
	m = rm_memory_new(p->size);
	if (!m)
		return RM_NO_MEMORY;
	status = rm_memory_object(client, a->parent, m, &a->object);
	rm_memory_put(m);
	return status;
}

static int rm_req_alloc(struct rm_call *c, void *arg)
{
	struct rm_alloc *a = arg;
	struct rm_client *client;

	if (a->class == RM_CLASS_CLIENT) {
		a->status = rm_alloc_client(c, a);
		return 0;
	}
	client = rm_own_client(c, a->root);
	if (!client)
		a->status = RM_INVALID_CLIENT;
	else if (a->class == RM_CLASS_DEVICE)
		a->status = rm_alloc_device(c, client, a);
	else if (a->class == RM_CLASS_MEMORY)
		a->status = rm_alloc_memory(c, client, a);
	else
		a->status = RM_INVALID_CLASS;
	return 0;
}

static int rm_req_free(struct rm_call *c, void *arg)
{
	struct rm_free *a = arg;
	struct rm_client *client = rm_own_client(c, a->root);
	struct rm_object *o;

	a->status = RM_OK;
	if (!client) {
		a->status = RM_INVALID_CLIENT;
		return 0;
	}
	if (a->object == client->handle) {
		rm_client_end(client);
		return 0;
	}
	o = rm_object_find(client, a->object);
	if (o)
		rm_object_end(client, o);
	else
		a->status = RM_NOT_FOUND;
	return 0;
}

static u32 rm_ctrl_id_info(struct rm_client *client, void *params)
{
	struct rm_id_info *p = params;

	if (p->gpu_id != rm_gpu_id())
		return RM_INVALID_ARGUMENT;
	*p = (struct rm_id_info) { .gpu_id = p->gpu_id, .numa = -1 };
	return RM_OK;
}

static bool rm_has_client(const struct rm_file *f)
{
	struct rm_client *c;

	list_for_each_entry(c, &rm_clients, node)
		if (c->file == f)
			return true;
	return false;
}

static u32 rm_export_into(struct rm_file *f, const struct rm_object *o, u32 device)
{
	if (!o)
		return RM_NOT_FOUND;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	if (o->device->handle != device)
		return RM_INVALID_PARENT;
	if (f->memory || rm_has_client(f))
		return RM_STATE_IN_USE;
	f->memory = o->memory;
	kref_get(&f->memory->ref);
	return RM_OK;
}

static u32 rm_ctrl_export_fd(struct rm_client *client, void *params)
{
	struct rm_export_fd *p = params;
	struct rm_file *f;
	u32 status;

	if (p->type != RM_FD_OBJECT || p->flags)
		return RM_INVALID_PARAMETER;
	f = rm_file_get(p->fd, RM_FILE_CTL);
	if (!f)
		return RM_INVALID_PARAMETER;
	status = rm_export_into(f, rm_object_find(client, p->object), p->device);
	fput(f->filp);
	return status;
}

static u32 rm_ctrl_import_fd(struct rm_client *client, void *params)
{
	struct rm_import_fd *p = params;
	struct rm_file *f;
	u32 status = RM_INVALID_PARAMETER;

	if (p->type != RM_FD_OBJECT)
		return RM_INVALID_PARAMETER;
	f = rm_file_get(p->fd, RM_FILE_CTL);
	if (!f)
		return RM_INVALID_PARAMETER;
	if (f->memory && p->device != p->parent)
		status = RM_INVALID_PARENT;
	else if (f->memory)
		status = rm_memory_object(client, p->parent, f->memory,
					  &p->object);
	fput(f->filp);
	return status;
}

static const struct {
	u32 cmd, size;
	u32 (*fn)(struct rm_client *client, void *params);
} rm_controls[] = {
	{ RM_CTRL_ID_INFO, sizeof(struct rm_id_info), rm_ctrl_id_info },
	{ RM_CTRL_EXPORT_FD, sizeof(struct rm_export_fd), rm_ctrl_export_fd },
	{ RM_CTRL_IMPORT_FD, sizeof(struct rm_import_fd), rm_ctrl_import_fd },
};

static int rm_req_control(struct rm_call *c, void *arg)
{
	struct rm_control *a = arg;
	struct rm_client *client = rm_own_client(c, a->client);
	size_t i;

	for (i = 0; i < ARRAY_SIZE(rm_controls); i++)
		if (rm_controls[i].cmd == a->cmd)
			break;
	if (!client)
		a->status = RM_INVALID_CLIENT;
	else if (i == ARRAY_SIZE(rm_controls))
		a->status = RM_NOT_SUPPORTED;
	else if (a->object != client->handle)
		a->status = RM_INVALID_OBJECT;
	else if (a->params_size != rm_controls[i].size || a->flags || c->params_bad)
		a->status = RM_INVALID_ARGUMENT;
	else
		a->status = rm_controls[i].fn(client, c->params);
	return 0;
}

static u32 rm_dup(const struct rm_call *c, struct rm_dup_object *a)
{
	struct rm_client *client = rm_own_client(c, a->client);
	struct rm_client *source = rm_client_find(a->client_src);
	struct rm_object *o;

	if (!client || !source)
		return RM_INVALID_CLIENT;
	o = rm_object_find(source, a->object_src);
	if (!o)
		return RM_NOT_FOUND;
	if (!o->shared && source->process != task_tgid(current))
		return RM_NO_PERMISSION;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	if (a->flags)
		return RM_INVALID_ARGUMENT;
	return rm_memory_object(client, a->parent, o->memory, &a->object);
}

static int rm_req_dup(struct rm_call *c, void *arg)
{
	struct rm_dup_object *a = arg;

	a->status = rm_dup(c, a);
	return 0;
}

static int rm_req_share(struct rm_call *c, void *arg)
{
	struct rm_share *a = arg;
	struct rm_client *client = rm_own_client(c, a->client);
	struct rm_object *o = client ? rm_object_find(client, a->object) : NULL;

	a->status = RM_OK;
	if (!client)
		a->status = RM_INVALID_CLIENT;
	else if (!o || !o->memory)
		a->status = RM_NOT_FOUND;
	else if (a->policy[0] || a->policy[1] || a->policy[2])
		a->status = RM_NOT_SUPPORTED;
	else
		o->shared = true;
	return 0;
}

/* Finds the memory object that the three handles name. Returns RM_OK if there is one. */
static u32 rm_memory_find(const struct rm_client *client, u32 device, u32 memory,
			  struct rm_object **o)
{
	if (!client)
		return RM_INVALID_CLIENT;
	*o = rm_object_find(client, memory);
	if (!*o || !rm_device_find(client, device))
		return RM_NOT_FOUND;
	if (!(*o)->memory)
		return RM_INVALID_OBJECT;
	return (*o)->device->handle == device ? RM_OK : RM_INVALID_PARENT;
}

static u32 rm_mapping_new(struct rm_file *f, struct rm_object *o, bool counted,
			  struct rm_map_memory *a)
{
	static u64 next = RM_FIRST_LINEAR;
	struct rm_mapping *m;

	if (counted && a->length > sim_mem_total() - rm_bar_used)
		return RM_NO_RESOURCES;
	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return RM_NO_MEMORY;
	kref_init(&m->ref);
	kref_get(&m->ref);	/* of the object and of the file */
	m->file = f;
	m->memory = o->memory;
	kref_get(&m->memory->ref);
	m->linear = next;
	m->offset = a->offset;
	m->length = a->length;
	m->counted = counted;
	list_add(&m->node, &o->mappings);
	next += a->length;
	if (counted)
		rm_bar_used += a->length;
	f->mapping = m;
	a->linear = m->linear;
	a->flags = (a->flags & ~RM_MAP_ANSWER_MASK) | RM_MAP_BAR1;
	return RM_OK;
}

static u32 rm_map(const struct rm_call *c, struct rm_map_memory *a)
{
	struct rm_client *client = rm_own_client(c, a->client);
	struct rm_object *o;
	struct rm_file *f;
	u32 status;

	status = rm_memory_find(client, a->device, a->memory, &o);
	if (status)
		return status;
	if (!a->length || (a->offset | a->length) & ~PAGE_MASK)
		return RM_INVALID_ARGUMENT;
	if (a->offset >= o->memory->size)
		return RM_INVALID_BASE;
	if (a->length > o->memory->size - a->offset)
		return RM_INVALID_LIMIT;
	f = rm_file_get(a->fd, RM_FILE_GPU);
	if (!f)
		return RM_INVALID_ARGUMENT;
	if (f->mapping)
		status = RM_STATE_IN_USE;
	else
		status = rm_mapping_new(f, o, !c->file->cuda, a);
	fput(f->filp);
	return status;
}

static int rm_req_map(struct rm_call *c, void *arg)
{
	struct rm_map_memory *a = arg;

	a->status = rm_map(c, a);
	return 0;
}

static int rm_req_unmap(struct rm_call *c, void *arg)
{
	struct rm_unmap_memory *a = arg;
	struct rm_client *client = rm_own_client(c, a->client);
	struct rm_mapping *m;
	struct rm_object *o;

	a->status = rm_memory_find(client, a->device, a->memory, &o);
	if (a->status)
		return 0;
	a->status = RM_NOT_FOUND;
	list_for_each_entry(m, &o->mappings, node) {
		if (m->linear != a->linear)
			continue;
		rm_mapping_end(m);
		a->status = RM_OK;
		break;
	}
	return 0;
}

static int rm_req_card_info(struct rm_call *c, void *arg)
{
	struct rm_card_info *card = arg;

	if (!c->size || c->size % sizeof(*card))
		return -EINVAL;
	memset(arg, 0, c->size);
	card->valid = 1;
	card->pci_domain = pci_domain_nr(rm_pdev->bus);
	card->pci_bus = rm_pdev->bus->number;
	card->pci_slot = PCI_SLOT(rm_pdev->devfn);
	card->pci_vendor = RM_VENDOR;
	card->pci_device = RM_DEVICE_ID;
	card->gpu_id = rm_gpu_id();
	card->fb_address = pci_resource_start(rm_pdev, 2);
	card->fb_size = sim_mem_total();
	return 0;
}

static int rm_req_register_fd(struct rm_call *c, void *arg)
{
	const struct rm_register_fd *a = arg;
	struct rm_file *ctl;

	if (c->file->registered)
		return -EINVAL;
	ctl = rm_file_get(a->ctl_fd, RM_FILE_CTL);
	if (!ctl)
		return -EINVAL;
	c->file->registered = ctl->id;
	fput(ctl->filp);
	return 0;
}

static int rm_req_version(struct rm_call *c, void *arg)
{
	struct rm_version *a = arg;
	char version[sizeof(a->version)] = "";

	snprintf(version, sizeof(version), "%d.159.04", rm_driver);
	if (a->cmd != '2' &&
	    (a->cmd || memcmp(a->version, version, sizeof(version))))
		return -EINVAL;
	memcpy(a->version, version, sizeof(version));
	a->reply = 1;
	return 0;
}

/* Mappings by the CPU. */

/* Only for a VMA that mmap is making. */
static void rm_vma_flags(struct vm_area_struct *vma, unsigned long flags)
{
#ifdef GDR_HAVE_VM_FLAGS_INIT
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

/* Maps all of a VMA: the memory from an offset on, or zeros where there is none. */
static vm_fault_t rm_insert_all(struct vm_area_struct *vma,
				const struct rm_memory *m, u64 offset)
{
	vm_fault_t ret = VM_FAULT_NOPAGE;
	unsigned long addr, pfn;

	for (addr = vma->vm_start; addr < vma->vm_end && ret == VM_FAULT_NOPAGE;
	     addr += PAGE_SIZE, offset += PAGE_SIZE) {
		pfn = m ? sim_mem_phys(m->mem, offset) >> PAGE_SHIFT :
			  page_to_pfn(rm_zeros);
		ret = vmf_insert_pfn(vma, addr, pfn);
	}
	return ret;
}

/* Dma-bufs. */

/* How many bytes from there on follow each other on the bus, as far as an entry goes. */
static u64 rm_run(const struct rm_file *f, u64 at, u64 longest)
{
	u64 phys = sim_mem_phys(f->memory->mem, f->offset + at);
	u64 n = SIM_PAGE_SIZE - (phys & (SIM_PAGE_SIZE - 1));

	while (at + n < f->size && n < longest &&
	       sim_mem_phys(f->memory->mem, f->offset + at + n) == phys + n)
		n += SIM_PAGE_SIZE;
	return min3(n, longest, f->size - at);
}

static void rm_dmabuf_unmap(struct dma_buf_attachment *attachment,
			    struct sg_table *sgt, enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i)
		dma_unmap_resource(attachment->dev, sg_dma_address(sg),
				   sg_dma_len(sg), dir, 0);
	sg_free_table(sgt);
	kfree(sgt);
}

static struct sg_table *rm_dmabuf_map(struct dma_buf_attachment *attachment,
				      enum dma_data_direction dir)
{
	const struct rm_file *f = attachment->dmabuf->priv;
	u64 longest = dma_get_max_seg_size(attachment->dev) & PAGE_MASK;
	unsigned int entries = 0;
	struct scatterlist *sg;
	struct sg_table *sgt;
	dma_addr_t bus;
	u64 at, n;

	if (!longest)
		return ERR_PTR(-ENOMEM);
	for (at = 0; at < f->size; at += rm_run(f, at, longest))
		entries++;
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	if (sg_alloc_table(sgt, entries, GFP_KERNEL)) {
		kfree(sgt);
		return ERR_PTR(-ENOMEM);
	}
	sgt->nents = 0;		/* those that are mapped */
	for (at = 0, sg = sgt->sgl; at < f->size; at += n, sg = sg_next(sg)) {
		n = rm_run(f, at, longest);
		bus = dma_map_resource(attachment->dev,
				       sim_mem_phys(f->memory->mem, f->offset + at),
				       n, dir, 0);
		if (dma_mapping_error(attachment->dev, bus)) {
			rm_dmabuf_unmap(attachment, sgt, dir);
			return ERR_PTR(-ENOMEM);
		}
		sg_set_page(sg, NULL, n, 0);
		sg_dma_address(sg) = bus;
		sg_dma_len(sg) = n;
		sgt->nents++;
	}
	return sgt;
}

static int rm_dmabuf_attach(struct dma_buf *buf,
			    struct dma_buf_attachment *attachment)
{
	return attachment->importer_ops && !attachment->peer2peer ?
	       -RM_ENOTSUPP : 0;
}

static int rm_dmabuf_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	const struct rm_file *f = buf->priv;
	u64 at = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 size = vma->vm_end - vma->vm_start;

	if (!f->can_mmap)
		return -RM_ENOTSUPP;
	if (at + size < at)
		return -EOVERFLOW;
	if (at + size > f->size)
		return -EINVAL;
	rm_vma_flags(vma, VM_SHARED | VM_IO | VM_PFNMAP | VM_DONTEXPAND |
		     VM_DONTDUMP);
	return rm_insert_all(vma, f->memory, f->offset + at) == VM_FAULT_NOPAGE ?
	       0 : -EAGAIN;
}

static void rm_dmabuf_release(struct dma_buf *buf)
{
	struct rm_file *f = buf->priv;

	mutex_lock(&rm_lock);
	rm_memory_put(f->memory);
	list_del(&f->node);
	mutex_unlock(&rm_lock);
	kfree(f);
	sim_dev_put();
}

static const struct dma_buf_ops rm_dmabuf_ops = {
	.attach = rm_dmabuf_attach,
	.map_dma_buf = rm_dmabuf_map,
	.unmap_dma_buf = rm_dmabuf_unmap,
	.mmap = rm_dmabuf_mmap,
	.release = rm_dmabuf_release,
};

/* A dma-buf of a part of the memory. The caller gets it if the answer can be written. */
static u32 rm_dmabuf_new(struct rm_call *c, struct rm_memory *m, u64 offset, u64 size,
			 bool can_mmap)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct rm_file *f = kzalloc(sizeof(*f), GFP_KERNEL);
	struct dma_buf *buf;

	if (!f)
		return RM_NO_MEMORY;
	f->kind = RM_FILE_DMABUF;
	f->offset = offset;
	f->size = size;
	f->can_mmap = can_mmap;
	c->new_fd = get_unused_fd_flags(O_CLOEXEC);
	if (c->new_fd < 0)
		goto free;
	info.ops = &rm_dmabuf_ops;
	info.size = size;
	info.flags = O_RDWR;
	info.priv = f;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf))
		goto fd;
	c->new_file = buf->file;
	f->filp = buf->file;
	f->memory = m;
	kref_get(&m->ref);
	list_add(&f->node, &rm_files);
	sim_dev_get();
	return RM_OK;

fd:
	put_unused_fd(c->new_fd);
free:
	kfree(f);
	return RM_NO_RESOURCES;
}

/* One part of one object: the simulated libcuda exports nothing else. */
static u32 rm_export(struct rm_call *c, const struct rm_dmabuf *a)
{
	const struct rm_client *client = rm_client_find(a->client);
	const struct rm_object *o;

	if (!client || client->process != task_tgid(current))
		return RM_INVALID_CLIENT;
	if (a->fd != -1 || a->index || a->mapping_type || a->allow_mmap > 1)
		return RM_INVALID_ARGUMENT;
	if (a->total_objects != 1 || a->objects != 1 ||
	    (a->allow_mmap && rm_driver < 610))
		return RM_NOT_SUPPORTED;
	o = rm_object_find(client, a->handles[0]);
	if (!o)
		return RM_NOT_FOUND;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	if (!a->sizes[0] || (a->offsets[0] | a->sizes[0]) & ~PAGE_MASK ||
	    a->sizes[0] > o->memory->size ||
	    a->offsets[0] > o->memory->size - a->sizes[0] ||
	    a->total_size != a->sizes[0])
		return RM_INVALID_ARGUMENT;
	return rm_dmabuf_new(c, o->memory, a->offsets[0], a->sizes[0], a->allow_mmap);
}

static int rm_export_old(struct rm_call *c, struct rm_dmabuf_2600 *old)
{
	struct rm_dmabuf *a = kzalloc(sizeof(*a), GFP_KERNEL);

	if (!a)
		return -ENOMEM;
	a->fd = old->fd;
	a->client = old->client;
	a->total_objects = old->total_objects;
	a->objects = old->objects;
	a->index = old->index;
	a->total_size = old->total_size;
	a->handles[0] = old->handles[0];
	a->offsets[0] = old->offsets[0];
	a->sizes[0] = old->sizes[0];
	old->status = rm_export(c, a);
	old->fd = old->status ? -1 : c->new_fd;
	kfree(a);
	return 0;
}

/* Drivers before 570 have another struct. */
static int rm_req_export_dmabuf(struct rm_call *c, void *arg)
{
	struct rm_dmabuf *a = arg;

	if (rm_driver < 570)
		return c->size == sizeof(struct rm_dmabuf_2600) ?
		       rm_export_old(c, arg) : -EINVAL;
	if (c->size != sizeof(*a))
		return -EINVAL;
	a->status = rm_export(c, a);
	a->fd = a->status ? -1 : c->new_fd;
	return 0;
}

static int rm_req_sim_info(struct rm_call *c, void *arg)
{
	struct rm_sim_info *a = arg;
	struct rm_client *client = rm_own_client(c, a->client);
	struct rm_object *o = client ? rm_object_find(client, a->object) : NULL;

	a->status = client ? RM_NOT_FOUND : RM_INVALID_CLIENT;
	if (!o || !o->memory)
		return 0;
	a->size = o->memory->size;
	a->id = o->memory->id;
	a->gpu_id = rm_gpu_id();
	a->status = RM_OK;
	return 0;
}

static int rm_req_sim_stats(struct rm_call *c, void *arg)
{
	struct rm_sim_stats *s = arg;
	struct rm_client *client;
	struct rm_mapping *m;
	struct rm_object *o;
	struct rm_file *f;

	*s = (struct rm_sim_stats) { .gpu_id = s->gpu_id };
	if (s->gpu_id != rm_gpu_id()) {
		s->status = RM_INVALID_ARGUMENT;
		return 0;
	}
	s->total = sim_mem_total();
	s->used = sim_mem_used();
	s->bar_total = sim_mem_total();
	s->bar_used = rm_bar_used;
	list_for_each_entry(client, &rm_clients, node) {
		s->clients++;
		list_for_each_entry(o, &client->objects, node) {
			s->objects++;
			list_for_each_entry(m, &o->mappings, node)
				s->mappings++;
		}
	}
	list_for_each_entry(f, &rm_files, node)
		s->files++;
	return 0;
}

/* What the caller's process has by files other than the simulated libcuda's. */
static int rm_req_sim_live(struct rm_call *c, void *arg)
{
	struct rm_sim_live *a = arg;
	struct rm_client *client;
	struct rm_mapping *m;
	struct rm_object *o;

	*a = (struct rm_sim_live) {};
	list_for_each_entry(client, &rm_clients, node) {
		if (client->file->cuda || client->process != task_tgid(current))
			continue;
		list_for_each_entry(o, &client->objects, node) {
			a->objects += !!o->memory;
			list_for_each_entry(m, &o->mappings, node)
				a->mappings++;
		}
	}
	return 0;
}

static void rm_rule_drop(struct rm_rule *r)
{
	list_del(&r->node);
	kfree(r);
}

/* Makes a request of the file's process fail. The rule ends with the file. */
static int rm_req_sim_fail(struct rm_call *c, void *arg)
{
	const struct rm_sim_fail *a = arg;
	struct rm_rule *r, *next;

	if (strnlen(a->name, sizeof(a->name)) == sizeof(a->name) ||
	    !rm_request_known(a->name))
		return -EINVAL;
	if (!a->result) {
		list_for_each_entry_safe(r, next, &rm_rules, node)
			if (r->process == c->file->process &&
			    !strcmp(r->fail.name, a->name))
				rm_rule_drop(r);
		return 0;
	}
	r = kzalloc(sizeof(*r), GFP_KERNEL);
	if (!r)
		return -ENOMEM;
	r->fail = *a;
	r->file = c->file;
	r->process = c->file->process;
	list_add_tail(&r->node, &rm_rules);
	return 0;
}

/* The injected failure of a call, or 0. */
static int rm_failure(const struct rm_file *f, const char *name)
{
	struct rm_rule *r;

	if (f->cuda)
		return 0;
	list_for_each_entry(r, &rm_rules, node) {
		if (r->process != task_tgid(current) || strcmp(r->fail.name, name))
			continue;
		r->calls++;
		if (!r->fail.nth || r->calls == r->fail.nth)
			return r->fail.result;
	}
	return 0;
}

static int rm_req_sim_holds(struct rm_call *c, void *arg)
{
	return c->file->memory ? 0 : -ENODATA;
}

static int rm_req_sim_cuda(struct rm_call *c, void *arg)
{
	c->file->cuda = true;
	return 0;
}

/* ENOTTY tells the caller to map these files like any other file. */
static int rm_req_sim_mmap(struct rm_call *c, void *arg)
{
	return -ENOTTY;
}

#define RM_ANY (RM_FILE_CTL | RM_FILE_GPU)
#define RM_ANY_SIZE ((size_t)-1)

static const struct rm_request {
	unsigned int nr, kinds;
	size_t size;		/* RM_ANY_SIZE: fn checks it */
	size_t status;		/* where in the struct; 0: it has none */
	const char *name;
	int (*fn)(struct rm_call *c, void *arg);
} rm_requests[] = {
	{ _IOC_NR(RM_ALLOC), RM_FILE_CTL, sizeof(struct rm_alloc),
	  offsetof(struct rm_alloc, status), "ALLOC", rm_req_alloc },
	{ _IOC_NR(RM_FREE), RM_FILE_CTL, sizeof(struct rm_free),
	  offsetof(struct rm_free, status), "FREE", rm_req_free },
	{ _IOC_NR(RM_CONTROL), RM_FILE_CTL, sizeof(struct rm_control),
	  offsetof(struct rm_control, status), "CONTROL", rm_req_control },
	{ _IOC_NR(RM_DUP_OBJECT), RM_FILE_CTL, sizeof(struct rm_dup_object),
	  offsetof(struct rm_dup_object, status), "DUP_OBJECT", rm_req_dup },
	{ _IOC_NR(RM_SHARE), RM_FILE_CTL, sizeof(struct rm_share),
	  offsetof(struct rm_share, status), "SHARE", rm_req_share },
	{ _IOC_NR(RM_MAP_MEMORY), RM_FILE_CTL, sizeof(struct rm_map_memory),
	  offsetof(struct rm_map_memory, status), "MAP_MEMORY", rm_req_map },
	{ _IOC_NR(RM_UNMAP_MEMORY), RM_FILE_CTL, sizeof(struct rm_unmap_memory),
	  offsetof(struct rm_unmap_memory, status), "UNMAP_MEMORY", rm_req_unmap },
	{ RM_CARD_INFO_NR, RM_FILE_CTL, RM_ANY_SIZE, 0, "CARD_INFO",
	  rm_req_card_info },
	{ _IOC_NR(RM_REGISTER_FD), RM_FILE_GPU, sizeof(struct rm_register_fd), 0,
	  "REGISTER_FD", rm_req_register_fd },
	{ _IOC_NR(RM_VERSION), RM_FILE_CTL, sizeof(struct rm_version), 0,
	  "VERSION", rm_req_version },
	{ _IOC_NR(RM_EXPORT_DMABUF), RM_FILE_GPU, RM_ANY_SIZE, 0,
	  "EXPORT_DMABUF", rm_req_export_dmabuf },
	{ _IOC_NR(RM_SIM_INFO), RM_FILE_CTL, sizeof(struct rm_sim_info),
	  offsetof(struct rm_sim_info, status), "INFO", rm_req_sim_info },
	{ _IOC_NR(RM_SIM_STATS), RM_FILE_CTL, sizeof(struct rm_sim_stats), 0,
	  "STATS", rm_req_sim_stats },
	{ _IOC_NR(RM_SIM_HOLDS), RM_ANY, sizeof(u32), 0, "HOLDS",
	  rm_req_sim_holds },
	{ _IOC_NR(RM_SIM_CUDA), RM_FILE_CTL, sizeof(u32), 0, "CUDA",
	  rm_req_sim_cuda },
	{ _IOC_NR(RM_SIM_LIVE), RM_FILE_CTL, sizeof(struct rm_sim_live), 0,
	  "LIVE", rm_req_sim_live },
	{ _IOC_NR(RM_SIM_FAIL), RM_FILE_CTL, sizeof(struct rm_sim_fail), 0,
	  "FAIL", rm_req_sim_fail },
	{ _IOC_NR(RM_SIM_MMAP), RM_ANY, sizeof(struct rm_sim_mmap), 0, "MMAP",
	  rm_req_sim_mmap },
};

static bool rm_request_known(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(rm_requests); i++)
		if (!strcmp(rm_requests[i].name, name))
			return true;
	return false;
}

/* Called with rm_lock held. */
static int rm_request(const struct rm_request *r, struct rm_call *c, void *arg)
{
	int fault = rm_failure(c->file, r->name);

	if (!fault)
		return r->fn(c, arg);
	if (!r->status)
		return -fault;
	*(u32 *)(arg + r->status) = fault;
	return 0;
}

static const struct rm_request *rm_find_request(const struct rm_file *f,
						unsigned int cmd)
{
	size_t i;

	if (_IOC_TYPE(cmd) != RM_TYPE)
		return NULL;
	for (i = 0; i < ARRAY_SIZE(rm_requests); i++)
		if (rm_requests[i].nr == _IOC_NR(cmd) &&
		    rm_requests[i].kinds & f->kind &&
		    (rm_requests[i].size == _IOC_SIZE(cmd) ||
		     rm_requests[i].size == RM_ANY_SIZE))
			return &rm_requests[i];
	return NULL;
}

/* Two requests have a pointer to their params. Finds the pointer and the size. */
static void rm_find_params(unsigned int nr, const void *arg, u64 *at, u32 *size)
{
	const struct rm_control *control = arg;
	const struct rm_alloc *alloc = arg;

	*at = 0;
	*size = 0;
	if (nr == _IOC_NR(RM_ALLOC)) {
		*at = alloc->params;
		*size = alloc->params_size;
	} else if (nr == _IOC_NR(RM_CONTROL)) {
		*at = control->params;
		*size = control->params_size;
	}
	*size = min_t(u32, *size, RM_MAX_PARAMS);
}

/* Gives the answer to the caller, and installs the file in it. */
static long rm_answer(struct rm_call *c, unsigned int nr, void __user *to,
		      const void *arg, u64 params_at, u32 params_size)
{
	bool bad = copy_to_user(to, arg, c->size);

	if (nr == _IOC_NR(RM_CONTROL))
		bad |= copy_to_user(u64_to_user_ptr(params_at), c->params,
				    params_size);
	if (c->new_file && bad) {
		put_unused_fd(c->new_fd);
		fput(c->new_file);
	} else if (c->new_file) {
		fd_install(c->new_fd, c->new_file);
	}
	return bad ? -EFAULT : 0;
}

static long rm_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	const struct rm_request *r = rm_find_request(filp->private_data, cmd);
	struct rm_call c = { .file = filp->private_data, .size = _IOC_SIZE(cmd) };
	void __user *to = (void __user *)user;
	u32 params_size;
	u64 params_at;
	void *arg;
	long ret;

	if (!r)
		return -EINVAL;
	arg = kzalloc(max_t(size_t, c.size, sizeof(struct rm_alloc)), GFP_KERNEL);
	if (!arg)
		return -ENOMEM;
	ret = -EFAULT;
	if (copy_from_user(arg, to, c.size))
		goto free;
	rm_find_params(r->nr, arg, &params_at, &params_size);
	c.params_bad = copy_from_user(c.params, u64_to_user_ptr(params_at),
				      params_size);
	mutex_lock(&rm_lock);
	ret = rm_request(r, &c, arg);
	mutex_unlock(&rm_lock);
	if (!ret)
		ret = rm_answer(&c, r->nr, to, arg, params_at,
				c.params_bad ? 0 : params_size);
free:
	kfree(arg);
	return ret;
}

/* Files. */

static int rm_open(struct inode *inode, struct file *filp)
{
	static u64 last;
	struct rm_file *f;

	if (iminor(inode) && iminor(inode) != RM_CTL_MINOR)
		return -ENODEV;
	f = kzalloc(sizeof(*f), GFP_KERNEL);
	if (!f)
		return -ENOMEM;
	f->filp = filp;
	f->process = get_pid(task_tgid(current));
	f->kind = iminor(inode) == RM_CTL_MINOR ? RM_FILE_CTL : RM_FILE_GPU;
	if (f->kind == RM_FILE_GPU)
		sim_dev_get();
	filp->private_data = f;
	mutex_lock(&rm_lock);
	f->id = ++last;
	list_add(&f->node, &rm_files);
	mutex_unlock(&rm_lock);
	return 0;
}

static int rm_release(struct inode *inode, struct file *filp)
{
	struct rm_file *f = filp->private_data;
	struct rm_client *c, *next;
	struct rm_rule *r, *next_rule;

	mutex_lock(&rm_lock);
	list_for_each_entry_safe(c, next, &rm_clients, node)
		if (c->file == f)
			rm_client_end(c);
	list_for_each_entry_safe(r, next_rule, &rm_rules, node)
		if (r->file == f)
			rm_rule_drop(r);
	if (f->mapping) {
		f->mapping->file = NULL;
		kref_put(&f->mapping->ref, rm_mapping_free);
	}
	rm_memory_put(f->memory);
	list_del(&f->node);
	mutex_unlock(&rm_lock);
	if (f->kind == RM_FILE_GPU)
		sim_dev_put();
	put_pid(f->process);
	kfree(f);
	return 0;
}

/* Maps all that RM_MAP_MEMORY prepared. Called with rm_lock held. */
static vm_fault_t rm_insert_mapping(struct vm_area_struct *vma,
				    const struct rm_mapping *m)
{
	return rm_insert_all(vma, m->memory,
			     m->offset + ((u64)vma->vm_pgoff << PAGE_SHIFT));
}

/*
 * A fault comes only after the mapping was revoked: by a suspend, by its end, or by that
 * of another mapping of the same device. The real driver knows the first alone, and has
 * no part of a mapping come back from it (nvidia_fault, vm_pgoff).
 */
static vm_fault_t rm_fault(struct vm_fault *vmf)
{
	const struct rm_file *f = vmf->vma->vm_file->private_data;
	vm_fault_t ret = VM_FAULT_NOPAGE;

	mutex_lock(&rm_lock);
	if (f->mapping->suspended && vmf->vma->vm_pgoff)
		ret = VM_FAULT_SIGBUS;
	else if (!sim_asleep())
		ret = rm_insert_mapping(vmf->vma, f->mapping);
	mutex_unlock(&rm_lock);
	return ret;
}

static const struct vm_operations_struct rm_vm_ops = {
	.fault = rm_fault,
};

/* Called with rm_lock held. The answers are those of nvidia_mmap_helper. */
static int rm_mmap_locked(const struct rm_mapping *m, struct vm_area_struct *vma)
{
	if (!m || !m->memory || vma->vm_pgoff)
		return -EINVAL;
	if (vma->vm_end - vma->vm_start != m->length)
		return -ENXIO;
	/* The kernel does not map many ranges into a private mapping. */
	if (!(vma->vm_flags & VM_SHARED))
		return -EAGAIN;
	rm_vma_flags(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_ops = &rm_vm_ops;
	if (sim_asleep())
		return 0;
	return rm_insert_mapping(vma, m) == VM_FAULT_NOPAGE ? 0 : -EAGAIN;
}

static int rm_mmap(struct file *filp, struct vm_area_struct *vma)
{
	const struct rm_file *f = filp->private_data;
	int ret;

	mutex_lock(&rm_lock);
	ret = rm_mmap_locked(f->mapping, vma);
	mutex_unlock(&rm_lock);
	return ret;
}

static const struct file_operations rm_fops = {
	.owner = THIS_MODULE,
	.open = rm_open,
	.release = rm_release,
	.unlocked_ioctl = rm_ioctl,
	.mmap = rm_mmap,
};

/* The GPU is suspended: the mappings are revoked. They come back by faults. */
void sim_rm_suspend(void)
{
	struct rm_file *f;

	mutex_lock(&rm_lock);
	list_for_each_entry(f, &rm_files, node)
		if (f->mapping) {
			f->mapping->suspended = true;
			unmap_mapping_range(f->filp->f_mapping, 0, 0, 1);
		}
	mutex_unlock(&rm_lock);
}

static void rm_move_notify(struct dma_buf_attachment *attachment)
{
}

int sim_rm_attach(int fd, bool peer2peer)
{
	/* By position: 7.2 has another name for the second. */
	const struct dma_buf_attach_ops ops = { peer2peer, rm_move_notify };
	struct dma_buf_attachment *attachment;
	struct dma_buf *buf = dma_buf_get(fd);

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	attachment = dma_buf_dynamic_attach(buf, &rm_pdev->dev, &ops, NULL);
	if (!IS_ERR(attachment))
		dma_buf_detach(buf, attachment);
	dma_buf_put(buf);
	return PTR_ERR_OR_ZERO(attachment);
}

int sim_rm_init(struct pci_dev *pdev)
{
	int ret;

	rm_pdev = pdev;
	rm_zeros = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!rm_zeros)
		return -ENOMEM;
	ret = register_chrdev(RM_MAJOR, "nvidia", &rm_fops);
	if (ret)
		__free_page(rm_zeros);
	return ret;
}

void sim_rm_exit(void)
{
	unregister_chrdev(RM_MAJOR, "nvidia");
	__free_page(rm_zeros);
}

/* The macro for this wants a name before 6.13, and a string from then on. */
MODULE_INFO(import_ns, "DMA_BUF");
