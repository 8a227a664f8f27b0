// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * main.c - the module, its device, the way in by ioctl, and /proc/driver/gdrdrv.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/proc_fs.h>
#include <linux/pseudo_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gdrdrv.h"
#include "gdrdrv_nvidia.h"

/* Recipes for NVIDIA's module give it. */
static int gdr_use_persistent = 1;
module_param_named(use_persistent_mapping, gdr_use_persistent, int, 0444);
MODULE_PARM_DESC(use_persistent_mapping, "1, the default, and nothing else");

/* "gdrp" */
#define GDR_FS_MAGIC 0x67647270

static int gdr_major;

/*
 * A file system that nobody can mount. It only makes inodes, so that each open
 * file has an address_space of the VFS.
 */
static struct vfsmount *gdr_mnt;
static int gdr_mnt_count;

static int gdr_fs_init_context(struct fs_context *fc)
{
	return init_pseudo(fc, GDR_FS_MAGIC) ? 0 : -ENOMEM;
}

/*
 * It has no owner. The module itself holds the only mount while it is loaded. If
 * that counted as a use of the module, the module could not be unloaded.
 */
static struct file_system_type gdr_fs = {
	.name = GDRDRV_STRING,
	.init_fs_context = gdr_fs_init_context,
	.kill_sb = kill_anon_super,
};

static int gdr_open(struct inode *inode, struct file *filp)
{
	struct gdr_file *f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);
	int ret;

	if (!f)
		return -ENOMEM;
	f->inode = alloc_anon_inode(gdr_mnt->mnt_sb);
	if (IS_ERR(f->inode)) {
		ret = PTR_ERR(f->inode);
		kfree(f);
		return ret;
	}
	f->tgid = current->tgid;
	f->start_time = current->group_leader->start_time;
	f->next_handle = 1;
	xa_init_flags(&f->mrs, XA_FLAGS_ACCOUNT);

	filp->f_mapping = f->inode->i_mapping;
	filp->private_data = f;
	gdr_dbg("opened by %d\n", current->tgid);
	return nonseekable_open(inode, filp);
}

/* Runs after the last descriptor and the last mapping are gone, in any process. */
static int gdr_release(struct inode *inode, struct file *filp)
{
	struct gdr_file *f = filp->private_data;
	unsigned long handle;
	struct gdr_mr *mr;

	gdr_dbg("the file of %d ends\n", f->tgid);
	xa_for_each(&f->mrs, handle, mr) {
		gdr_mr_end(f, handle);
		cond_resched();
	}
	xa_destroy(&f->mrs);
	/* The VFS still looks at f_mapping after this. */
	filp->f_mapping = inode->i_mapping;
	iput(f->inode);
	kfree(f);
	return 0;
}

/* The parameters of any request. Those that the caller gave are in it; padding, too. */
union gdr_params {
	struct gdrdrv_pin pin;
	struct gdrdrv_pin_v2 pin_v2;
	struct gdrdrv_unpin unpin;
	struct gdrdrv_cb_flag cb_flag;
	struct gdrdrv_info info;
	struct gdrdrv_info_v2 info_v2;
	struct gdrdrv_get_attr attr;
	struct gdrdrv_req_type req_type;
	struct gdrdrv_version version;
};

static int gdr_ioc_pin(struct gdr_file *f, union gdr_params *p)
{
	if (p->pin.p2p_token || p->pin.va_space) {
		gdr_info("persistent mappings take no token\n");
		return -EINVAL;
	}
	return gdr_mr_pin(f, p->pin.addr, p->pin.size, 0, &p->pin.handle);
}

static int gdr_ioc_pin_v2(struct gdr_file *f, union gdr_params *p)
{
	return gdr_mr_pin(f, p->pin_v2.addr, p->pin_v2.size, p->pin_v2.flags,
			  &p->pin_v2.handle);
}

static int gdr_ioc_unpin(struct gdr_file *f, union gdr_params *p)
{
	return gdr_mr_unpin(f, p->unpin.handle);
}

/* Nobody takes the pages of a persistent pinning back. */
static int gdr_ioc_cb_flag(struct gdr_file *f, union gdr_params *p)
{
	struct gdr_mr *mr = gdr_mr_find(f, p->cb_flag.handle);

	if (!mr)
		return -EINVAL;
	p->cb_flag.flag = 0;
	gdr_mr_put(mr);
	return 0;
}

static int gdr_ioc_info_v2(struct gdr_file *f, union gdr_params *p)
{
	struct gdrdrv_info_v2 *info = &p->info_v2;
	struct gdr_mr *mr = gdr_mr_find(f, info->handle);

	if (!mr)
		return -EINVAL;
	info->va = mr->start;
	info->mapped_size = mr->size;
	info->page_size = GDRDRV_GPU_PAGE_SIZE;
	info->tsc_khz = gdr_mr_khz();
	info->tm_cycles = mr->tm_cycles;
	down_read(&mr->lock);
	info->mapping_type = mr->type;
	up_read(&mr->lock);
	info->pad = 0;
	gdr_mr_put(mr);
	return 0;
}

/* The same, but for the last two fields. */
static int gdr_ioc_info(struct gdr_file *f, union gdr_params *p)
{
	int ret = gdr_ioc_info_v2(f, p);
	u32 type = p->info_v2.mapping_type;

	p->info.mapped = type != GDRDRV_MAPPING_NONE;
	p->info.wc_mapping = type == GDRDRV_MAPPING_WC;
	return ret;
}

static int gdr_ioc_attr(struct gdr_file *f, union gdr_params *p)
{
	switch (p->attr.attr) {
	case GDRDRV_ATTR_PERSISTENT:
		p->attr.val = 1;
		return 0;
	case GDRDRV_ATTR_FORCE_PCIE:
		p->attr.val = gdr_nvp2p_force_pcie();
		return 0;
	default:
		gdr_info("there is no attribute %u\n", p->attr.attr);
		return -EINVAL;
	}
}

static int gdr_ioc_req_type(struct gdr_file *f, union gdr_params *p)
{
	u32 type = p->req_type.type;
	struct gdr_mr *mr;
	int ret = 0;

	if (type > GDRDRV_MAPPING_DEVICE) {
		gdr_info("there is no mapping type %u\n", type);
		return -EINVAL;
	}
	mr = gdr_mr_find(f, p->req_type.handle);
	if (!mr)
		return -EINVAL;
	down_write(&mr->lock);
	if (mr->type)
		ret = -EBUSY;
	else if (type && !gdr_type_supported(mr, type))
		ret = -EOPNOTSUPP;
	else
		mr->want = type;
	up_write(&mr->lock);
	gdr_mr_put(mr);
	if (ret)
		gdr_info("mapping type %u: the buffer %s\n", type,
			 ret == -EBUSY ? "is mapped" : "cannot have it");
	return ret;
}

static int gdr_ioc_version(struct gdr_file *f, union gdr_params *p)
{
	p->version.driver = GDRDRV_VERSION;
	p->version.minimum_api = GDRDRV_MINIMUM_API_VERSION;
	return 0;
}

/* in, out: how many bytes of the parameters are read, and then written. */
static const struct gdr_request {
	unsigned int code;
	unsigned int in;
	unsigned int out;
	int (*serve)(struct gdr_file *f, union gdr_params *p);
} gdr_requests[] = {
	{ GDRDRV_IOC_PIN, sizeof(struct gdrdrv_pin), sizeof(struct gdrdrv_pin), gdr_ioc_pin },
	{ GDRDRV_IOC_PIN_V2, sizeof(struct gdrdrv_pin_v2), sizeof(struct gdrdrv_pin_v2),
	  gdr_ioc_pin_v2 },
	{ GDRDRV_IOC_UNPIN, sizeof(struct gdrdrv_unpin), 0, gdr_ioc_unpin },
	{ GDRDRV_IOC_CB_FLAG, sizeof(u64), offsetof(struct gdrdrv_cb_flag, pad),
	  gdr_ioc_cb_flag },
	{ GDRDRV_IOC_INFO, sizeof(u64), sizeof(struct gdrdrv_info), gdr_ioc_info },
	{ GDRDRV_IOC_INFO_V2, sizeof(u64), sizeof(struct gdrdrv_info_v2), gdr_ioc_info_v2 },
	{ GDRDRV_IOC_ATTR, sizeof(struct gdrdrv_get_attr), sizeof(struct gdrdrv_get_attr),
	  gdr_ioc_attr },
	{ GDRDRV_IOC_REQ_TYPE, sizeof(struct gdrdrv_req_type), 0, gdr_ioc_req_type },
	{ GDRDRV_IOC_VERSION, 0, sizeof(struct gdrdrv_version), gdr_ioc_version },
};

static int gdr_serve(struct gdr_file *f, const struct gdr_request *r, void __user *arg)
{
	union gdr_params p = {};
	int ret;

	if (copy_from_user(&p, arg, r->in))
		return -EFAULT;
	ret = r->serve(f, &p);
	if (ret || !copy_to_user(arg, &p, r->out))
		return ret;
	/* The user cannot unpin what it was not told of. */
	if (r->code == GDRDRV_IOC_PIN)
		gdr_mr_end(f, p.pin.handle);
	if (r->code == GDRDRV_IOC_PIN_V2)
		gdr_mr_end(f, p.pin_v2.handle);
	return -EFAULT;
}

static int gdr_request(struct gdr_file *f, unsigned int cmd, void __user *arg)
{
	unsigned int i;

	if (_IOC_TYPE(cmd) != GDRDRV_IOC) {
		gdr_info("%#x is no request of gdrdrv\n", cmd);
		return -EINVAL;
	}
	if (!gdr_file_is_owner(f))
		return -EACCES;
	for (i = 0; i < ARRAY_SIZE(gdr_requests); i++)
		if (gdr_requests[i].code == cmd)
			return gdr_serve(f, &gdr_requests[i], arg);
	gdr_info("unknown request %#x\n", cmd);
	return -ENOTTY;
}

static long gdr_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	int ret = gdr_request(filp->private_data, cmd, (void __user *)arg);

	gdr_dbg("request %#x of %d: %d\n", cmd, current->tgid, ret);
	return ret;
}

static const struct file_operations gdr_fops = {
	.owner = THIS_MODULE,
	.open = gdr_open,
	.release = gdr_release,
	.unlocked_ioctl = gdr_ioctl,
	.mmap = gdr_mmap,
};

/* The kernel makes /dev/gdrdrv of this, with its mode. */
static struct miscdevice gdr_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = GDRDRV_STRING,
	.fops = &gdr_fops,
	.mode = 0666,
};

/* /proc/driver/gdrdrv */
static struct proc_dir_entry *gdr_proc_dir;

static int gdr_proc_params(struct seq_file *s, void *unused)
{
	seq_printf(s, "version: %d.%d\n", GDRDRV_MAJOR_VERSION,
		   GDRDRV_MINOR_VERSION);
	seq_printf(s, "NVIDIA driver flavour: %s\n", GDR_NVIDIA_FLAVOUR);
	seq_puts(s, "Use persistent mapping: yes\n");
	seq_printf(s, "dbg_enabled: %d\n", gdr_dbg_enabled);
	seq_printf(s, "info_enabled: %d\n", gdr_info_enabled);
	seq_printf(s, "use_persistent_mapping: %d\n", gdr_use_persistent);
	seq_printf(s, "lost pinnings: %d\n", atomic_read(&gdr_pages_lost));
	return 0;
}

static int gdr_proc_refcount(struct seq_file *s, void *unused)
{
	seq_printf(s, "%d\n", atomic_read(&gdr_pages_held));
	return 0;
}

static int gdr_procfs_init(void)
{
	gdr_proc_dir = proc_mkdir("driver/" GDRDRV_STRING, NULL);
	if (gdr_proc_dir &&
	    proc_create_single("params", 0444, gdr_proc_dir, gdr_proc_params) &&
	    (!gdr_dbg_enabled || proc_create_single("nv_get_pages_refcount", 0444,
						    gdr_proc_dir, gdr_proc_refcount)))
		return 0;
	proc_remove(gdr_proc_dir);
	return -ENOMEM;
}

static int __init gdr_init(void)
{
	int ret;

	if (!gdr_use_persistent) {
		pr_err("use_persistent_mapping=0 is not supported: leave it out, or load NVIDIA's gdrdrv\n");
		return -EINVAL;
	}
	if (IS_ENABLED(CONFIG_ARM64))
		gdr_find_machine();
	gdr_limit_init();
	ret = simple_pin_fs(&gdr_fs, &gdr_mnt, &gdr_mnt_count);
	if (ret)
		return ret;
	ret = gdr_procfs_init();
	if (ret)
		goto unpin;
	/* Recipes for NVIDIA's module read this number in /proc/devices, and make a node of it. */
	gdr_major = __register_chrdev(0, 0, 1, GDRDRV_STRING, &gdr_fops);
	ret = gdr_major;
	if (ret < 0)
		goto procfs;
	ret = misc_register(&gdr_misc);
	if (ret)
		goto chrdev;
	pr_info("version %d.%d, device major %d, persistent mappings\n",
		GDRDRV_MAJOR_VERSION, GDRDRV_MINOR_VERSION, gdr_major);
	return 0;

chrdev:
	__unregister_chrdev(gdr_major, 0, 1, GDRDRV_STRING);
procfs:
	proc_remove(gdr_proc_dir);
unpin:
	simple_release_fs(&gdr_mnt, &gdr_mnt_count);
	return ret;
}

static void __exit gdr_exit(void)
{
	misc_deregister(&gdr_misc);
	__unregister_chrdev(gdr_major, 0, 1, GDRDRV_STRING);
	proc_remove(gdr_proc_dir);
	gdr_mr_exit();
	simple_release_fs(&gdr_mnt, &gdr_mnt_count);
}

module_init(gdr_init);
module_exit(gdr_exit);

MODULE_DESCRIPTION("CPU mappings of GPU memory for user space");
MODULE_AUTHOR("The gdrapi authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("2.6.0");
