// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * main.c - the module, its device and the way in by ioctl.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/kdev_t.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gdrdrv.h"

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
	struct gdr_file *f;
	int ret = -ENOMEM;

	if (iminor(inode) != 0)
		return -ENXIO;

	f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);
	if (!f)
		return -ENOMEM;
	f->owner = gdr_process_get();
	if (!f->owner)
		goto free;
	f->inode = alloc_anon_inode(gdr_mnt->mnt_sb);
	if (IS_ERR(f->inode)) {
		ret = PTR_ERR(f->inode);
		goto put;
	}
	f->next_handle = 1;
	xa_init_flags(&f->mrs, XA_FLAGS_ACCOUNT);

	filp->f_mapping = f->inode->i_mapping;
	filp->private_data = f;
	gdr_dbg("opened by %d\n", current->tgid);
	return nonseekable_open(inode, filp);

put:
	gdr_process_put(f->owner);
free:
	kfree(f);
	return ret;
}

/* Runs after the last descriptor and the last mapping are gone, in any process. */
static int gdr_release(struct inode *inode, struct file *filp)
{
	struct gdr_file *f = filp->private_data;

	gdr_dbg("the file of %d ends\n", f->owner->tgid);
	gdr_mr_unpin_all(f);
	xa_destroy(&f->mrs);
	/* The VFS still looks at f_mapping after this. */
	filp->f_mapping = inode->i_mapping;
	iput(f->inode);
	gdr_process_put(f->owner);
	kfree(f);
	return 0;
}

/* Write the handle to the user. Where that fails, unpin: the user cannot. */
static int gdr_give_handle(struct gdr_file *f, u64 handle, u64 __user *to)
{
	if (!put_user(handle, to))
		return 0;
	gdr_mr_unpin(f, handle);
	return -EFAULT;
}

static int gdr_ioc_pin(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_pin __user *to = arg;
	struct gdr_pin_args args = {};
	struct gdrdrv_pin p;
	u64 handle;
	int ret;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	args.addr = p.addr;
	args.size = p.size;
	args.p2p_token = p.p2p_token;
	args.va_space = p.va_space;
	ret = gdr_mr_pin(f, &args, &handle);
	if (ret)
		return ret;
	return gdr_give_handle(f, handle, &to->handle);
}

static int gdr_ioc_pin_v2(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_pin_v2 __user *to = arg;
	struct gdr_pin_args args = {};
	struct gdrdrv_pin_v2 p;
	u64 handle;
	int ret;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	args.addr = p.addr;
	args.size = p.size;
	args.flags = p.flags;
	ret = gdr_mr_pin(f, &args, &handle);
	if (ret)
		return ret;
	return gdr_give_handle(f, handle, &to->handle);
}

static int gdr_ioc_unpin(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_unpin p;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	return gdr_mr_unpin(f, p.handle);
}

static int gdr_ioc_cb_flag(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_cb_flag __user *to = arg;
	struct gdr_mr *mr;
	u64 handle;
	u32 flag;

	if (get_user(handle, &to->handle))
		return -EFAULT;
	mr = gdr_mr_find(f, handle);
	if (!mr)
		return -EINVAL;
	down_read(&mr->lock);
	flag = mr->revoked;
	up_read(&mr->lock);
	gdr_mr_put(mr);
	return put_user(flag, &to->flag) ? -EFAULT : 0;
}

/*
 * Fill a v2 answer with its padding. The caller may make a v1 answer from it.
 */
static int gdr_fill_info(struct gdr_file *f, u64 handle,
			 struct gdrdrv_info_v2 *info)
{
	struct gdr_mr *mr = gdr_mr_find(f, handle);

	if (!mr)
		return -EINVAL;
	memset(info, 0, sizeof(*info));
	info->handle = handle;
	info->va = mr->start;
	info->mapped_size = mr->size;
	info->page_size = GDRDRV_GPU_PAGE_SIZE;
	info->tsc_khz = gdr_mr_khz();
	info->tm_cycles = mr->tm_cycles;
	down_read(&mr->lock);
	info->mapping_type = mr->type;
	up_read(&mr->lock);
	gdr_mr_put(mr);
	return 0;
}

static int gdr_ioc_info(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_info_v2 v2;
	struct gdrdrv_info p;
	int ret;

	if (copy_from_user(&p.handle, arg, sizeof(p.handle)))
		return -EFAULT;
	ret = gdr_fill_info(f, p.handle, &v2);
	if (ret)
		return ret;
	p = (struct gdrdrv_info) {
		.handle = v2.handle,
		.va = v2.va,
		.mapped_size = v2.mapped_size,
		.page_size = v2.page_size,
		.tsc_khz = v2.tsc_khz,
		.tm_cycles = v2.tm_cycles,
		.mapped = v2.mapping_type != GDRDRV_MAPPING_NONE,
		.wc_mapping = v2.mapping_type == GDRDRV_MAPPING_WC,
	};
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

static int gdr_ioc_info_v2(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_info_v2 p;
	u64 handle;
	int ret;

	if (copy_from_user(&handle, arg, sizeof(handle)))
		return -EFAULT;
	ret = gdr_fill_info(f, handle, &p);
	if (ret)
		return ret;
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

static int gdr_ioc_attr(void __user *arg)
{
	struct gdrdrv_get_attr p;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	switch (p.attr) {
	case GDRDRV_ATTR_PERSISTENT:
		p.val = gdr_nvp2p_persistent();
		break;
	case GDRDRV_ATTR_FORCE_PCIE:
		p.val = gdr_nvp2p_force_pcie();
		break;
	default:
		gdr_info("there is no attribute %u\n", p.attr);
		return -EINVAL;
	}
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

static int gdr_ioc_req_type(struct gdr_file *f, void __user *arg)
{
	struct gdrdrv_req_type p;
	struct gdr_mr *mr;
	int ret = 0;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.type > GDRDRV_MAPPING_DEVICE) {
		gdr_info("there is no mapping type %u\n", p.type);
		return -EINVAL;
	}
	mr = gdr_mr_find(f, p.handle);
	if (!mr)
		return -EINVAL;
	down_write(&mr->lock);
	if (mr->type)
		ret = -EBUSY;
	else if (p.type && !gdr_type_supported(mr, p.type))
		ret = -EOPNOTSUPP;
	else
		mr->want = p.type;
	up_write(&mr->lock);
	gdr_mr_put(mr);
	if (ret)
		gdr_info("mapping type %u: the buffer %s\n", p.type,
			 ret == -EBUSY ? "is mapped" : "cannot have it");
	return ret;
}

static int gdr_ioc_version(void __user *arg)
{
	struct gdrdrv_version p = {
		.driver = GDRDRV_VERSION,
		.minimum_api = GDRDRV_MINIMUM_API_VERSION,
	};

	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

static int gdr_request(struct gdr_file *f, unsigned int cmd, void __user *to)
{
	if (_IOC_TYPE(cmd) != GDRDRV_IOC) {
		gdr_info("%#x is no request of gdrdrv\n", cmd);
		return -EINVAL;
	}
	if (!gdr_file_is_owner(f))
		return -EACCES;
	switch (cmd) {
	case GDRDRV_IOC_PIN:
		return gdr_ioc_pin(f, to);
	case GDRDRV_IOC_PIN_V2:
		return gdr_ioc_pin_v2(f, to);
	case GDRDRV_IOC_UNPIN:
		return gdr_ioc_unpin(f, to);
	case GDRDRV_IOC_CB_FLAG:
		return gdr_ioc_cb_flag(f, to);
	case GDRDRV_IOC_INFO:
		return gdr_ioc_info(f, to);
	case GDRDRV_IOC_INFO_V2:
		return gdr_ioc_info_v2(f, to);
	case GDRDRV_IOC_ATTR:
		return gdr_ioc_attr(to);
	case GDRDRV_IOC_REQ_TYPE:
		return gdr_ioc_req_type(f, to);
	case GDRDRV_IOC_VERSION:
		return gdr_ioc_version(to);
	default:
		gdr_info("unknown request %#x\n", cmd);
		return -ENOTTY;
	}
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

static int __init gdr_init(void)
{
	int ret;

	/* The codes that old binaries use. */
	BUILD_BUG_ON(GDRDRV_IOC_PIN != 0xC028DA01);
	BUILD_BUG_ON(GDRDRV_IOC_UNPIN != 0xC008DA02);
	BUILD_BUG_ON(GDRDRV_IOC_CB_FLAG != 0xC008DA03);
	BUILD_BUG_ON(GDRDRV_IOC_INFO != 0xC008DA04);
	BUILD_BUG_ON(GDRDRV_IOC_INFO_V2 != 0xC008DA05);
	BUILD_BUG_ON(GDRDRV_IOC_ATTR != 0xC008DA06);
	BUILD_BUG_ON(GDRDRV_IOC_PIN_V2 != 0xC020DA07);
	BUILD_BUG_ON(GDRDRV_IOC_REQ_TYPE != 0xC008DA08);
	BUILD_BUG_ON(GDRDRV_IOC_VERSION != 0xC008DAFF);

	gdr_find_machine();
	gdr_limit_init();
	ret = simple_pin_fs(&gdr_fs, &gdr_mnt, &gdr_mnt_count);
	if (ret)
		return ret;
	ret = gdr_procfs_init();
	if (ret)
		goto unpin;
	gdr_major = register_chrdev(0, GDRDRV_STRING, &gdr_fops);
	if (gdr_major < 0) {
		ret = gdr_major;
		goto procfs;
	}
	pr_info("version %d.%d, device major %d, %s mappings\n",
		GDRDRV_MAJOR_VERSION, GDRDRV_MINOR_VERSION, gdr_major,
		gdr_nvp2p_persistent() ? "persistent" : "traditional");
	return 0;

procfs:
	gdr_procfs_exit();
unpin:
	simple_release_fs(&gdr_mnt, &gdr_mnt_count);
	return ret;
}

static void __exit gdr_exit(void)
{
	unregister_chrdev(gdr_major, GDRDRV_STRING);
	gdr_procfs_exit();
	gdr_nvp2p_exit();
	simple_release_fs(&gdr_mnt, &gdr_mnt_count);
}

module_init(gdr_init);
module_exit(gdr_exit);

MODULE_DESCRIPTION("CPU mappings of GPU memory for user space");
MODULE_AUTHOR("The gdrapi authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("2.6");
